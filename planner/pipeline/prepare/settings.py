"""From a request to search settings: sizes become bytes, and levers are limited to available ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.choices import BudgetOf, OrderTarget, Swap
from planner.disk import remark_on
from planner.errors import InfeasibleBudgetError, UsageError
from planner.formulate import Allowed
from planner.pipeline.prepare.prepared import Prepared
from planner.plan.planfile import Plan
from planner.runtime.build import has_pool
from planner.runtime.memory.arena import packable_bytes
from planner.search.state import SearchSettings
from planner.search.stop import Patience
from planner.targets import Target, titles
from planner.units import check_seed, check_time_limit, format_both, parse_budget, parse_bytes

BESIDE = (
    "copies run beside the operations, by planner's native library, which sessions of the file load"
)

_UNPROVED = "on {title} they have not been shown to give the same bits yet: verify the file there"

SHARED = (
    "host copies share the CPU's memory: nothing is saved on this machine; the plan shows "
    "what a GPU would do"
)
"""Note on the worth of copies in a file that runs on the CPU."""


def choose_copies(copies: str, swap: str, target: Target) -> tuple[bool, str]:
    """Tell whether copies run beside the operations; the text explains why, for the plan's assumptions.

    "auto" overlaps on devices on which that has been shown to be safe. ONNX Runtime runs everything of
    one device on one stream, its own copies included. Copies on other streams are not safe in it: a
    buffer returns to the arena when its last reader is *issued* (`reports/overlap.md`). The operators of
    `planner.native` copy beside the operations and are safe by construction: the node that waits for a
    copy takes the buffer's remaining readers as inputs. Files with them need that library.
    `planner.targets` lists the targets on which it has been shown to give the same bits.

    Args:
        copies: value of `--copies`.
        swap: value of `--swap`.
        target: the target that the model will run on.

    Raises:
        UsageError: the request overlaps copies on a target for which the library has no operators.
    """
    if copies == "overlapped":
        if target.overlap == "never":
            where = titles(lambda row: row.overlap != "never")
            raise UsageError(
                f"--copies overlapped: planner's library copies on {where}, not on {target.title}; use "
                "--copies serial"
            )
        is_new = target.own_memory and target.overlap != "proved"
        return True, f"{BESIDE}; {_UNPROVED.format(title=target.title)}" if is_new else BESIDE
    if copies == "serial" or swap == "none":
        return False, ""
    if target.overlap == "proved":
        return True, BESIDE
    return False, (
        "copies are planned on the stream of the operations: copies beside them have not been "
        f"shown to be safe on {target.name}"
    )


FEW_PAGES_BYTES = 256 * 1024
"""Transient bytes below which a budget bounds live bytes alone: the pool's pages have 4 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Allowed):
    """Settings of a search for a plan: the request, in bytes, and the levers allowed.

    Attributes:
        budget_bytes: of the device, the reserve included.
        most_us: a plan that takes longer is rejected.
        reserve_bytes: of the budget, left unused.
        budget_of: the quantity that the budget bounds: see `Request`.
        why_copies: explains whether copies run beside the operations.
        order_target: the session option that the rewritten model is made for.
        time_limit_s: for finding a plan.
        since: start of the wait for a plan (`clock.now`), of which this search may be a later part;
            None: this search's start.
    """

    budget_bytes: int
    most_us: float = float("inf")
    reserve_bytes: int = 0
    budget_of: BudgetOf = "live"
    why_copies: str = ""
    order_target: OrderTarget = "default"
    time_limit_s: float = 60.0
    seed: int = 0
    since: float | None = None

    @property
    def room_bytes(self) -> int:
        """The budget without its reserve."""
        return self.budget_bytes - self.reserve_bytes

    @property
    def levers(self) -> tuple[str, ...]:
        """The names of the levers besides another order."""
        has_swaps = self.swap_out_bytes_per_s > 0
        return ("recompute",) * self.recompute + ("swaps",) * has_swaps

    def search(
        self, limit_s: float, *, patience: Patience | None = None, keep_on_interrupt: bool = False
    ) -> SearchSettings:
        """Build the settings of one search of `limit_s` seconds, with this seed."""
        return SearchSettings(
            limit_s=limit_s,
            seed=self.seed,
            patience=patience,
            keep_on_interrupt=keep_on_interrupt,
        )


def settings_of(prepared: Prepared, *, budget_bytes: int | None = None) -> Settings:
    """Convert a model's request to settings in bytes, with the levers available here.

    Args:
        budget_bytes: replaces the request's budget.

    Raises:
        UsageError: a size cannot be read, or the request asks for copies that are not available.
        InfeasibleBudgetError: the reserve takes the whole budget.
    """
    request = prepared.request
    check_time_limit(request.limits.time_limit_s)
    check_seed(request.seed)
    if budget_bytes is None:
        budget_bytes = budget_of(prepared)
    reserve_bytes = parse_bytes(request.reserve, what="--reserve", zero_ok=True)
    if reserve_bytes >= budget_bytes:
        raise InfeasibleBudgetError(
            f"the reserve, {format_both(reserve_bytes)}, takes the whole budget of "
            f"{format_both(budget_bytes)}"
        )
    swap, copies = request.levers.swap, request.levers.copies
    no_swaps = prepared.why_no_swaps
    if swap == "only" and no_swaps is not None:
        raise UsageError(f"--swap only: {no_swaps.sentence}; use --swap none")
    overlap, why_copies = choose_copies(copies, swap, prepared.target)
    if copies == "overlapped" and no_swaps is not None:
        raise UsageError(f"--copies overlapped: {no_swaps.sentence}; use --copies serial")
    settings = Settings(
        budget_bytes=budget_bytes,
        reserve_bytes=reserve_bytes,
        budget_of=_budget_of(prepared),
        overlap=overlap,
        why_copies=why_copies,
        order_target=request.order,
        time_limit_s=request.limits.time_limit_s,
        seed=request.seed,
    )
    return _with_levers(settings, swap, prepared)


def _budget_of(prepared: Prepared) -> BudgetOf:
    """Return the quantity that the request's budget bounds.

    It is "live" without a budget, and if planner cannot predict the bytes held.
    """
    request = prepared.request
    is_told = request.budget is not None and not _why_not_told(prepared)
    return request.budget_of if is_told else "live"


def _why_not_told(prepared: Prepared) -> str:
    """Return why planner cannot predict the bytes that a session holds; "" if it can."""
    target = prepared.target
    if target.own_memory:
        return "" if target.is_arena else f"{target.title}'s buffers come in sizes of its own"
    line = prepared.baseline.timeline
    if line.peak_bytes - line.persistent_bytes < FEW_PAGES_BYTES:
        return "for so small a model, most of what a session holds is rounding to the pool's pages"
    if not has_pool():
        return "this build of ONNX Runtime cannot use planner's pool"
    levers = prepared.request.levers
    if levers.swap != "none" and prepared.why_no_swaps is None:
        if levers.copies != "overlapped":
            return "copies to the host share the CPU's arena"
        if levers.disk is None:
            return "on the CPU, tensors copied to the host stay in the process's memory"
    if packable_bytes(prepared.graph):
        return "the memory of constant weights that kernels pack beforehand is not predicted"
    return ""


def live_note(prepared: Prepared) -> tuple[str, ...]:
    """Return a note if the budget bounds less than the request asked for."""
    request, why = prepared.request, _why_not_told(prepared)
    if request.budget is None or request.budget_of == "live" or not why:
        return ()
    return (f"the budget bounds live bytes, not all that a session holds: {why}",)


def budget_of(prepared: Prepared) -> int:
    """Return the request's budget in bytes; a percentage is a share of the baseline peak.

    Raises:
        UsageError: it cannot be read.
    """
    text, baseline_bytes = prepared.request.budget or "100%", prepared.baseline.peak_bytes
    return parse_budget(text, baseline_bytes=baseline_bytes)


def settings_as_planned(plan: Plan, prepared: Prepared) -> Settings:
    """Return the settings with the budget, reserve and levers that a plan was made with."""
    settings = Settings(
        budget_bytes=plan.budget_bytes,
        reserve_bytes=plan.reserve_bytes,
        overlap=plan.copies == "overlapped",
    )
    return _with_levers(settings, plan.swap_mode, prepared)


def noted_copies(prepared: Prepared, settings: Settings) -> tuple[str, ...]:
    """Return notes on the stream and the worth of copies, for results without a plan."""
    how = (settings.why_copies,) if settings.why_copies else ()
    is_shared = prepared.hardware.is_host and settings.swap_out_bytes_per_s > 0
    return (*how, *(shared_note(prepared) if is_shared else ()))


def shared_note(prepared: Prepared) -> tuple[str, ...]:
    """Return the note on the worth of copies on a target whose host and device share one memory."""
    is_apart = not prepared.target.is_host or prepared.request.levers.disk is not None
    return () if is_apart else (SHARED,)


def disk_note(prepared: Prepared) -> tuple[str, ...]:
    """Return notes on the assumptions of swaps to a disk."""
    disk = prepared.request.levers.disk
    if disk is None:
        return ()
    said = (
        f"swaps go to a file in a folder that the session names: {disk.speeds} were measured in "
        f"{disk.folder}, one way at a time"
    )
    remark = remark_on(disk.kind, disk.folder)
    return (said, remark) if remark else (said,)


def _with_levers(settings: Settings, swap: Swap, prepared: Prepared) -> Settings:
    """Return the settings with the levers that `swap` allows, without copies if the target has none."""
    with_swaps = swap != "none" and prepared.why_no_swaps is None
    hardware, disk = prepared.hardware, prepared.request.levers.disk
    out, back = hardware.copy_to_host_bytes_per_s, hardware.copy_from_host_bytes_per_s
    if disk is not None:
        out, back = disk.write_bytes_per_s, disk.read_bytes_per_s
    return replace(
        settings,
        recompute=swap != "only" and prepared.request.levers.recompute,
        swap_out_bytes_per_s=out if with_swaps else 0.0,
        swap_in_bytes_per_s=back if with_swaps else 0.0,
    )
