"""Session options of a file that planner wrote, from the needs in its metadata (`planner.targets.keys`).

No file is opened with memory pattern or buffer reuse, which hold more than the live bytes.
`session_options` makes options for a script; `planner run` sets them on a script's own.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from planner.choices import FROM_PLAN
from planner.errors import UsageError
from planner.files.reading import MAX_BYTES, shown, why_not_a_file
from planner.files.structuring import parse_json
from planner.onnxio.metadata import read_metadata
from planner.plan.planfile import Arena, Pool
from planner.runtime.build import has_pool
from planner.runtime.options import PREPACKING
from planner.runtime.swapping import disk_bytes_of, put_disk, put_pool, register_library
from planner.targets import HOST, TARGETS, Target, target_named
from planner.targets.keys import (
    ARENA_KEY,
    ASSUMED_KEY,
    BLOCK_KEY,
    LEVEL_KEY,
    NEEDS,
    NEEDS_KEY,
    OPTIONS_KEY,
    ORDER_KEY,
    PACKED_KEY,
    POOL_KEY,
    TARGET_KEY,
)
from planner.units import parse_bytes

if TYPE_CHECKING:
    import onnxruntime as ort

_BUDGET_KEY = "pkg.planner.budget_bytes"
_UNSET = "0"
"""ONNX Runtime's value of an entry that is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One session option that a file needs.

    Attributes:
        name: an attribute of `SessionOptions`, or the key of an entry.
        needed: its value for the file; text for an entry.
        default: its value where nobody has set it.
    """

    name: str
    needed: Any
    default: Any

    @property
    def is_entry(self) -> bool:
        """Whether it is an entry rather than an attribute."""
        return "." in self.name

    def of(self, options: ort.SessionOptions) -> Any:
        """Return its value in `options`."""
        if not self.is_entry:
            return getattr(options, self.name)
        try:
            return options.get_session_config_entry(self.name)
        except RuntimeError:
            return self.default

    def put(self, options: ort.SessionOptions, value: Any) -> None:
        """Set it in `options`."""
        if self.is_entry:
            options.add_session_config_entry(self.name, value)
        else:
            setattr(options, self.name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The needs of one file's session.

    Attributes:
        where: the file, for messages.
        target: the target that it was written for, with the provider options that it asks for.
        level: level of ONNX Runtime's optimizations.
        order: the session's execution order.
        packed: whether kernels may pack constant weights when the session is created.
        arena: the cap in which it runs; None where it asks for none.
        pool: the pool in which it runs; None where it asks for none, this build takes none, or it runs
            in a device's arena unless the session asks for its pool.
        budget_bytes: budget of its plan; None where it states none.
        assumed: whether it was made without its device's provider, on assumed optimizers and placement.
        library: whether it has nodes of `planner.native`, which sessions must load.
        disk_bytes: bytes of the file that its swaps go to; None where they go to memory.
        props: all of its metadata.
    """

    where: str
    target: Target
    level: Literal["all", "disabled"] = "all"
    order: Literal["default", "priority"] = "default"
    packed: bool = True
    arena: Arena | None = None
    pool: Pool | None = None
    budget_bytes: int | None = None
    assumed: bool = False
    library: bool = False
    disk_bytes: int | None = None
    props: Mapping[str, str]

    def settings(self) -> tuple[Setting, ...]:
        """Return the session options that it needs, apart from the arena's."""
        import onnxruntime as ort

        levels, modes = ort.GraphOptimizationLevel, ort.ExecutionMode
        orders, is_disabled = ort.ExecutionOrder, self.level == "disabled"
        attributes = (
            ("enable_mem_pattern", False, True),
            ("enable_mem_reuse", False, True),
            (
                "graph_optimization_level",
                levels.ORT_DISABLE_ALL if is_disabled else levels.ORT_ENABLE_ALL,
                levels.ORT_ENABLE_ALL,
            ),
            (
                "execution_order",
                orders.PRIORITY_BASED if self.order == "priority" else orders.DEFAULT,
                orders.DEFAULT,
            ),
            ("execution_mode", modes.ORT_SEQUENTIAL, modes.ORT_SEQUENTIAL),
        )
        entries = () if self.packed else ((PREPACKING, "1", _UNSET),)
        return tuple(
            Setting(name=name, needed=needed, default=default)
            for name, needed, default in (*attributes, *entries)
        )

    def in_pool(self, size: str) -> Needs:
        """Return the needs with a pool of exactly this size, "24GB" or "plan", that refuses more.

        Raises:
            UsageError: the size cannot be parsed; the plan has no pool, or takes more than its budget.
        """
        found = self._planned_bytes() if size == FROM_PLAN else parse_bytes(size, what="pool")
        return replace(self, arena=None, pool=Pool(bytes=found, is_proved=True))

    def _planned_bytes(self) -> int:
        if POOL_KEY not in self.props:
            raise UsageError(f"{self.where}: its plan has no pool: name a size")
        found, most = _pool(self.props[POOL_KEY], self.where).bytes, self.budget_bytes
        if self.target.own_memory and most is not None and found > most:
            raise UsageError(
                f"{self.where}: in whole pages of the device its plan takes {found} bytes, more than the "
                f"budget of {most}: ask for a pool of {found}B, or plan for less"
            )
        return found

    @property
    def why_not_settled(self) -> str:
        """Return what is left to do before the file runs as its plan says; "" if nothing is."""
        if not self.assumed:
            return ""
        return (
            f"it was made without {self.target.provider}, on an assumed placement: make it again "
            "on the machine where it runs, with planner apply MODEL PLAN"
        )

    def check_here(self) -> None:
        """Raise UsageError where the file was planned for another kind of processor."""
        if BLOCK_KEY not in self.props:
            return
        from planner.runtime.optimizers.blocked import check_block

        check_block(self.props, self.where)


def needs_of(model: Path | str | bytes, *, device: str | None = None) -> Needs:
    """Return the needs of a model's session, from its metadata.

    Args:
        model: a path, or the serialized model.
        device: the device that it will run on; None for the file's own, or the CPU where it names none.

    Raises:
        UsageError: `model` is no model; its metadata is not such as planner writes; or it was written
            for another device.
    """
    where, props = _name(model), metadata_of(model)
    one_of, target = partial(_one_of, props, where), _target_of(where, props, device)
    is_pooled = POOL_KEY in props and has_pool() and not target.own_memory
    budget = props.get(_BUDGET_KEY, "")
    return Needs(
        where=where,
        target=target,
        level="all" if one_of(LEVEL_KEY, "disabled") is None else "disabled",
        order="default" if one_of(ORDER_KEY, "priority") is None else "priority",
        packed=one_of(PACKED_KEY, "0", "1") != "0",
        arena=_arena(props[ARENA_KEY], where) if ARENA_KEY in props else None,
        pool=_pool(props[POOL_KEY], where) if is_pooled else None,
        budget_bytes=int(budget) if budget.isascii() and budget.isdigit() else None,
        assumed=one_of(ASSUMED_KEY, "1") is not None,
        library=one_of(NEEDS_KEY, *NEEDS) is not None,
        disk_bytes=disk_bytes_of(props, where),
        props=props,
    )


def session_options(
    model: Path | str | bytes,
    *,
    device: str | None = None,
    arena: str | None = None,
    pool: str | None = None,
    disk: Path | str | None = None,
    graph_capture: bool = False,
) -> ort.SessionOptions:
    """Return the options with which to open a rewritten model.

    Memory pattern and reuse are off, since they hold more than the plan does. Level, execution order,
    packing, arena and planner's native library are as the file's metadata asks. A provider that is a
    plug-in is included, with the file's provider options.

    Args:
        model: the rewritten model: a path, or its bytes.
        device: the device that it will run on: cpu, webgpu or cuda; None for the file's own.
        arena: "24GB": the most that ONNX Runtime's arena may hold, on the CPU or on CUDA, in one region
            whose chunks are all split. None: on CUDA the arena that the file asks for. It is
            registered for the process. On CUDA it holds all memory on the device, on the CPU neither
            inputs nor initializers.
        pool: "24GB": a pool of planner's (`planner.native`) of exactly that size serves the session's
            tensors, and refuses requests beyond it; "plan": one of the plan's size. On CUDA it takes the
            arena's place, in pages of 2 MiB, and the provider is included: name none. None: on the CPU
            the file's pool, of the bytes that one step takes. Results that the script keeps lie in it
            too, and requests beyond it are served from outside. `planner.open_session` and `planner run`
            copy results out: there the file's pool refuses.
        disk: the folder for the swaps of a file that was planned for a disk (`planner.disk`); None for
            `PLANNER_DISK`, or `TMPDIR`, or `/var/tmp`. A folder whose files lie in memory causes a
            warning.
        graph_capture: record the launches of a step on CUDA or WebGPU, and replay them as one graph, as
            `planner.open_session` does. The provider is then included on CUDA, too: name none. Run the
            session by `planner.bind` alone: its own `run` would move the values away from the addresses
            of the record, and give results of other feeds.

    Raises:
        UsageError: the device is not available; the file was written for another one, or for another
            kind of processor; the library is not built; the file has no such pool, or cannot be captured.
    """
    import onnxruntime as ort

    needs = needs_of(model, device=device)
    needs.check_here()
    if needs.assumed:
        warnings.warn(f"{needs.where}: {needs.why_not_settled}", stacklevel=2)
    needs = _as_asked(needs, arena, pool)
    if graph_capture:
        needs = _captured(needs, model, pool)
    options = ort.SessionOptions()
    for setting in needs.settings():
        if setting.of(options) != setting.needed:
            setting.put(options, setting.needed)
    if needs.arena is not None:
        register(options, needs.arena, needs.target)
    inside = {} if needs.pool is None else put_pool(options, needs.pool, needs.target)
    if needs.target.plugin or graph_capture or inside:
        from planner.targets.backend import backend_of

        backend_of(needs.target).add_to(options, {**needs.target.options, **inside})
    if needs.disk_bytes is not None:
        remark = put_disk(options, needs.disk_bytes, None if disk is None else Path(disk))
        if remark:
            warnings.warn(remark, stacklevel=2)
    if needs.library or needs.pool is not None:
        register_library(options)
    return options


def _captured(needs: Needs, model: Path | str | bytes, pool: str | None) -> Needs:
    """Return the needs of a session that replays its launches."""
    from planner.runtime.capture import with_capture

    if pool is not None or TARGET_KEY not in needs.props:
        raise UsageError("graph_capture is for files that planner wrote, and takes no pool")
    return with_capture(needs, model)


def _as_asked(needs: Needs, arena: str | None, pool: str | None) -> Needs:
    """Return the file's needs with the arena or pool that the caller asks for, as in
    `session_options`."""
    if pool is not None:
        if arena is not None:
            raise UsageError("a session has an arena or a pool, not both")
        needs = needs.in_pool(pool)
    elif needs.pool is not None:
        # results that a script keeps lie in the pool too
        needs = replace(needs, pool=replace(needs.pool, is_proved=False))
    if arena is not None:
        most_bytes = parse_bytes(arena, what="arena")
        arena_asked = Arena(max_bytes=most_bytes, first_region_bytes=0, is_proved=True)
        needs = replace(needs, arena=arena_asked, pool=None)
    return needs


def register(options: ort.SessionOptions, arena: Arena, target: Target) -> None:
    """Register an arena for the process, and make `options` use it.

    Raises:
        UsageError: the target's memory is no arena, or its provider is not installed.
    """
    from planner.runtime.options import cap_arena
    from planner.targets.backend import backend_of

    if target.is_arena:
        backend_of(target).check()
    cap_arena(options, arena.region_bytes, limit_bytes=arena.limit_bytes, target=target)


def metadata_of(model: Path | str | bytes) -> dict[str, str]:
    """Return the metadata of a model.

    Raises:
        UsageError: `model` is no model, or cannot be read.
    """
    if not isinstance(model, bytes) and (why := why_not_a_file(Path(model))):
        raise UsageError(f"{model} {why}")
    where = _name(model)
    try:
        with io.BytesIO(model) if isinstance(model, bytes) else Path(model).open("rb") as file:
            return read_metadata(file)
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{where} is not a model ({error})") from None


def _name(model: Path | str | bytes) -> str:
    return "the model given as bytes" if isinstance(model, bytes) else str(model)


def _one_of(props: Mapping[str, str], where: str, key: str, *known: str) -> str | None:
    """Return a key's value, one of those that planner writes; None where the file has none."""
    value = props.get(key)
    if value is not None and value not in known:
        raise UsageError(
            f"{where}: its metadata {key} is {shown(value)}, which this version does not know"
        )
    return value


def _target_of(where: str, props: Mapping[str, str], device: str | None) -> Target:
    """Return the target that a file was written for, with the provider options that it asks for."""
    written_for = props.get(TARGET_KEY)
    if written_for is not None and written_for not in TARGETS:
        raise UsageError(f"{where}: its metadata {TARGET_KEY} names no device: {written_for!r}")
    if device is not None and written_for not in (None, device):
        raise UsageError(f"{where} was written for {written_for}, not for {device}")
    target = target_named(device or written_for or HOST.name)
    if OPTIONS_KEY not in props:
        return target
    return replace(target, options=_provider_options(props[OPTIONS_KEY], target, where))


def _provider_options(text: str, target: Target, where: str) -> dict[str, str]:
    """Return the provider options that a file asks for.

    Only options that planner writes are accepted, since others make a provider write files or load
    libraries.
    """
    what = f"a model with provider options that planner wrote ({OPTIONS_KEY})"
    options = parse_json(text, dict[str, str], where=where, what=what, error=UsageError)
    known = {*target.options, target.keep_option} - {""}
    unknown = sorted(options.keys() - known)
    if unknown:
        raise UsageError(f"{where} is not {what}: it asks for {shown(unknown[0])}")
    return options


def _arena(text: str, where: str) -> Arena:
    """Return the arena that a file asks for."""
    what = f"a model with an arena that planner wrote ({ARENA_KEY})"
    found = parse_json(text, Arena, where=where, what=what, error=UsageError)
    if not (0 <= found.first_region_bytes <= found.max_bytes and 0 < found.max_bytes <= MAX_BYTES):
        raise UsageError(f"{where} is not {what}: {shown(text)}")
    return found


def _pool(text: str, where: str) -> Pool:
    """Return the pool that a file asks for."""
    what = f"a model with a pool that planner wrote ({POOL_KEY})"
    found = parse_json(text, Pool, where=where, what=what, error=UsageError)
    if not 0 < found.bytes <= MAX_BYTES:
        raise UsageError(f"{where} is not {what}: {shown(text)}")
    return found
