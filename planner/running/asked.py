"""Merge the session that a script asks for with the needs of its file, and report contradictions.

Options and providers that the script gives stay. An option at ONNX Runtime's default counts as not
given: the two cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
"""A provider that comes first in stock ONNX Runtime's list, and only calls a remote service."""

_DEVICES = {t.provider: t.name for t in TARGETS.values() if t.own_memory}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A session, as a script asks for it.

    Attributes:
        model: a path, or the serialized model.
        options: the session's options; None for ONNX Runtime's own.
        providers, provider_options: as `InferenceSession` takes them.
        module_device: the device of a training module, which takes no providers; "" for a session.
        has_arena: whether the script has registered an arena that its options use.
        is_capped: whether its outputs lie in a CPU arena with room for those of one step alone.
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
        """The model's name, for messages."""
        return "a model given as bytes" if isinstance(self.model, bytes) else str(self.model)

    def pairs(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the providers with their options, in order.

        The list is empty where the script names none, or where ONNX Runtime will refuse them.
        """
        try:
            found = [
                (p, {}) if isinstance(p, str) else (p[0], dict(p[1])) for p in self.providers or ()
            ]
            for (_, known), more in zip(found, self.provider_options or (), strict=False):
                known.update(more)
        except (TypeError, ValueError, LookupError):
            return []
        return found

    def with_options(self, provider: str, more: Mapping[str, str]) -> Asked:
        """Return it with more options of one of its providers."""
        if not more:
            return self
        pairs = [(p, {**known, **more} if p == provider else known) for p, known in self.pairs()]
        return replace(self, providers=pairs, provider_options=None)

    def first(self) -> str:
        """Return the provider that nodes are offered to first."""
        return next((name for name, _ in self.pairs() if name != _IDLE), HOST.provider)

    @property
    def has_devices(self) -> bool:
        """Whether the session's options name devices; they do not tell which."""
        has: Callable[[], bool] | None = getattr(self.options, "has_providers", None)
        return has is not None and has()

    def device(self) -> str | None:
        """Return the device of `planner.targets` that it opens on; None where only its options know."""
        if self.module_device:
            return self.module_device
        if self.providers:
            return _DEVICES.get(self.first(), HOST.name)
        return None if self.has_devices else HOST.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The arguments that a session is opened with.

    Attributes:
        asked: the script's request, with the file's providers where it names none.
        on_target: whether it opens on the target that the file was written for.
        adds_plugin: whether the target's provider is a plug-in, which is added to the session's options.
        settings: settings to put on the options.
        arena: the arena to register.
        pool: the pool that serves the session.
        said: the values that were set, for the reader.
        against: contradictions between the script and the file's needs, for the reader.
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
    """Complete a script's request with the needs of its file."""
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
    """Return the pool that serves the session; None where it gets none.

    A session on another device, one with an arena of the script's own, one that replays the launches of
    a step, whose pages may not move, and those of a training module, which would all share one pool,
    get none; nor does one whose options name its device, since the pool is an option of the provider.
    """
    asked, target = found.asked, needs.target
    if not found.on_target or asked.has_arena or asked.module_device:
        return None
    given = dict(asked.pairs()).get(target.provider)
    if target.own_memory and (given is None or str(given.get(target.capture)) == "1"):
        return None
    return needs.pool


def _arena(found: Merged, needs: Needs) -> tuple[Arena | None, str]:
    """Return (the arena to register, why the file's arena cannot be used).

    A training module gets none: its sessions, the optimizer's and the evaluation's too, would share it.
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
    """Merge for a training module, which runs on the device that it names."""
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
    """Merge where the script names no provider: the file's provider is used."""
    target = needs.target
    if target.is_host:
        return Merged(asked=replace(asked, providers=[HOST.provider]))
    if target.everywhere:
        return Merged(asked=asked)
    if target.plugin and asked.options is not None:  # the options would keep the plug-in for good
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
    """Merge where the script names the file's provider: keep its options and add the file's."""
    target = needs.target
    given = dict(asked.pairs()).get(target.provider)
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
    return Merged(
        asked=asked.with_options(target.provider, missing),
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
    """Return the name of an enum's value: `GraphOptimizationLevel.ORT_ENABLE_ALL` ->
    `ORT_ENABLE_ALL`."""
    return str(value).rpartition(".")[2]
