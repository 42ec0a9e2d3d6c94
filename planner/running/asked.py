"""A session as a script asks for it, and what a file needs besides: what agrees, what does not.

Options and providers that the script gives stay. An option that stands at ONNX Runtime's default counts
as not given: the two cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner.errors import UsageError
from planner.plan.planfile import Pool
from planner.runtime.opened import Arena, Needs, Setting
from planner.targets import ANY, HOST, TARGETS
from planner.targets.backend import backend_of
from planner.units import format_bytes

if TYPE_CHECKING:
    import onnxruntime as ort

_IDLE = "AzureExecutionProvider"
"""Comes first in what stock ONNX Runtime has, and runs calls of a remote service alone."""

_DEVICES = {t.provider: t.name for t in TARGETS.values() if t.own_memory}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A session, as a script asks for it.

    Attributes:
        model: a path, or the serialized model.
        options: of the session; None for ONNX Runtime's own.
        providers, provider_options: as `InferenceSession` takes them.
        module_device: of a training module, which takes no providers; "" for a session.
        has_arena: the script has registered an arena, and its options say so.
        is_capped: its outputs lie in an arena on the CPU, which has room for those of one step.
    """

    model: Any
    options: ort.SessionOptions | None = None
    providers: Any = None
    provider_options: Any = None
    module_device: str = ""
    has_arena: bool = False
    is_capped: bool = False

    @property
    def name(self) -> str:
        """The model's, for messages."""
        return "a model given as bytes" if isinstance(self.model, bytes) else str(self.model)

    def pairs(self) -> list[tuple[str, dict[str, Any]]]:
        """Providers with their options, in order; empty where the script gives none, or what ONNX
        Runtime will refuse."""
        try:
            found = [
                (p, {}) if isinstance(p, str) else (p[0], dict(p[1])) for p in self.providers or ()
            ]
            for (_, known), more in zip(found, self.provider_options or (), strict=False):
                known.update(more)
        except (TypeError, ValueError, LookupError):
            return []
        return found

    def first(self) -> str:
        """The provider that nodes are offered to first."""
        return next((name for name, _ in self.pairs() if name != _IDLE), HOST.provider)

    @property
    def has_devices(self) -> bool:
        """Whether its options name devices; which, they do not tell."""
        has: Callable[[], bool] | None = getattr(self.options, "has_providers", None)
        return has is not None and has()

    def device(self) -> str | None:
        """The device that it opens on, of `planner.targets`; None where its options alone know."""
        if self.module_device:
            return self.module_device
        if self.providers:
            return _DEVICES.get(self.first(), HOST.name)
        return None if self.has_devices else HOST.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a session is opened with.

    Attributes:
        asked: with the file's providers, where the script gives none.
        on_target: it opens on what the file was written for.
        adds_plugin: that is a plug-in, which belongs into the session's options.
        settings: to be set on the options.
        arena: to be registered.
        pool: the one that serves it.
        said: what was set, for the reader.
        against: what the script gives against what the file needs.
    """

    asked: Asked
    on_target: bool = True
    adds_plugin: bool = False
    settings: tuple[Setting, ...] = ()
    arena: Arena | None = None
    pool: Pool | None = None
    said: tuple[str, ...] = ()
    against: tuple[str, ...] = ()


def merged(asked: Asked, needs: Needs) -> Merged:
    """A session of a file of planner's, with what the script leaves open as the file needs it."""
    found = _on_module(asked, needs) if asked.module_device else _with_providers(asked, needs)
    settings: list[Setting] = []
    said, against = [*found.said], [*found.against]
    if needs.assumed:
        against.append(needs.why_not_settled)
    for setting in needs.settings():
        value = setting.default if asked.options is None else setting.of(asked.options)
        if value == setting.needed:
            continue
        if value == setting.default:
            settings.append(setting)
            said.append(f"{setting.name}={_text(setting.needed)}")
        else:
            against.append(
                f"{setting.name} is {_text(value)} in the script's options, and the plan is made and "
                f"proved for {_text(setting.needed)}"
            )
    arena, why = _arena(found, needs)
    if arena is not None:
        said.append(f"an arena of {format_bytes(arena.max_bytes)}")
    if why:
        against.append(why)
    pool = _pool(found, needs)
    if pool is not None:
        said.append(f"a pool of {format_bytes(pool.bytes)}")
    return replace(
        found,
        settings=tuple(settings),
        arena=arena,
        pool=pool,
        said=tuple(said),
        against=tuple(against),
    )


def _pool(found: Merged, needs: Needs) -> Pool | None:
    """The pool that serves the session; None where it has another device, an arena of the script's own,
    or is one of a training module's, which would all lie in the one pool."""
    asked = found.asked
    if not found.on_target or asked.has_arena or asked.module_device or needs.target.own_memory:
        return None
    return needs.pool


def _arena(found: Merged, needs: Needs) -> tuple[Arena | None, str]:
    """The arena to register, or what keeps the file's from being used.

    A training module's sessions would all lie in the one arena, the optimizer's and the evaluation's too.
    """
    options = found.asked.options
    if needs.arena is None or not found.on_target or found.asked.module_device:
        return None, ""
    if options is None:
        return needs.arena, ""
    if found.asked.has_arena:
        return None, ""
    if not (needs.target.is_arena or options.enable_cpu_mem_arena):
        return None, (
            "enable_cpu_mem_arena is False in the script's options: the plan's cap of "
            f"{format_bytes(needs.arena.max_bytes)} is not set"
        )
    return needs.arena, ""


def _on_module(asked: Asked, needs: Needs) -> Merged:
    """A training module runs on the device that it names."""
    if needs.target.name in (asked.module_device, ANY.name):
        return Merged(asked=asked)
    return Merged(asked=asked, on_target=False, against=(_elsewhere(needs, asked.module_device),))


def _with_providers(asked: Asked, needs: Needs) -> Merged:
    target = needs.target
    if not asked.providers:
        if asked.has_devices:
            return Merged(asked=asked, on_target=target.own_memory)
        return _by_the_file(asked, needs)
    if target.everywhere:
        return Merged(asked=asked)
    first = asked.first()
    if first != target.provider:
        return Merged(asked=asked, on_target=False, against=(_elsewhere(needs, first),))
    return _with_options(asked, needs)


def _by_the_file(asked: Asked, needs: Needs) -> Merged:
    """The script names no provider: the file does."""
    target = needs.target
    if target.is_host:
        return Merged(asked=replace(asked, providers=[HOST.provider]))
    if target.everywhere:
        return Merged(asked=asked)
    if target.plugin and asked.options is not None:  # which would keep it for good
        where = "what the script's options name, the CPU"
        return Merged(asked=asked, on_target=False, against=(_elsewhere(needs, where),))
    try:
        backend_of(target).check()
    except UsageError as error:
        missing = f"it was planned for {target.title}, and opens on the CPU: {error}"
        return Merged(asked=asked, on_target=False, against=(missing,))
    said = (f"{target.provider} with {_listed(dict(target.options))}",)
    if target.plugin:
        return Merged(asked=asked, adds_plugin=True, said=said)
    providers = [(target.provider, dict(target.options)), HOST.provider]
    return Merged(asked=replace(asked, providers=providers), said=said)


def _with_options(asked: Asked, needs: Needs) -> Merged:
    """The script names the file's provider: its options stay, the file's are added."""
    target, pairs = needs.target, asked.pairs()
    given = dict(pairs).get(target.provider)
    if given is None:  # ONNX Runtime adds the CPU itself, and refuses what it cannot read
        return Merged(asked=asked)
    missing = {key: value for key, value in target.options.items() if key not in given}
    against = tuple(
        f"{target.provider} has {key}={given[key]} in the script, and the plan is made for {value}"
        for key, value in target.options.items()
        if key in given and str(given[key]) != value
    )
    if not missing:
        return Merged(asked=asked, against=against)
    given.update(missing)
    return Merged(
        asked=replace(asked, providers=pairs, provider_options=None),
        said=(f"{target.provider} with {_listed(missing)}",),
        against=against,
    )


def _elsewhere(needs: Needs, where: str) -> str:
    return (
        f"it was planned for {needs.target.title}, and the script opens it on {where}: its copies, its "
        "order and its bytes are proved there alone"
    )


def _listed(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items()) or "no options"


def _text(value: Any) -> str:
    """`GraphOptimizationLevel.ORT_ENABLE_ALL` -> `ORT_ENABLE_ALL`."""
    return str(value).rpartition(".")[2]
