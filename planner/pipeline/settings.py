"""From what the user typed to the settings of a plan."""

from __future__ import annotations

from dataclasses import replace

from planner.errors import InfeasibleBudgetError, UsageError
from planner.pipeline.copies import choose_copies
from planner.pipeline.orders import Settings
from planner.pipeline.prepare import Prepared
from planner.plan.planfile import OrderTarget, Swap
from planner.units import check_seed, check_time_limit, format_both, parse_budget, parse_bytes


def settings_for(
    prepared: Prepared,
    budget: str,
    reserve: str,
    baseline: int,
    swap: Swap,
    order: OrderTarget,
    time_limit_s: float,
    seed: int,
    workers: int | None,
    copies: str = "serial",
) -> Settings:
    """What the user asked for, parsed.

    Args:
        baseline: the peak that a percentage is of, in bytes.
        copies: see `planner.pipeline.copies`.

    Raises:
        UsageError: a size cannot be read, or copies are asked for where there can be none.
        InfeasibleBudgetError: the reserve takes the whole budget.
    """
    check_time_limit(time_limit_s)
    check_seed(seed)
    budget_bytes = parse_budget(budget, baseline_bytes=baseline)
    reserve_bytes = parse_bytes(reserve, what="--reserve", zero_ok=True)
    if reserve_bytes >= budget_bytes:
        raise InfeasibleBudgetError(
            f"the reserve, {format_both(reserve_bytes)}, takes the whole budget of "
            f"{format_both(budget_bytes)}"
        )
    no_swaps = prepared.why_no_swaps
    if swap == "only" and no_swaps is not None:
        raise UsageError(f"--swap only: {no_swaps.sentence}; use --swap none")
    overlap, why_copies = choose_copies(copies, swap, prepared.target.name)
    if copies == "overlapped" and no_swaps is not None:
        raise UsageError(f"--copies overlapped: {no_swaps.sentence}; use --copies serial")
    return with_levers(
        prepared,
        swap,
        Settings(
            budget_bytes=budget_bytes,
            reserve_bytes=reserve_bytes,
            overlap=overlap,
            why_copies=why_copies,
            order_target=order,
            time_limit_s=time_limit_s,
            seed=seed,
            workers=workers,
        ),
    )


def noted_copies(settings: Settings) -> tuple[str, ...]:
    """How copies are planned, for the assumptions of what is no plan."""
    return (settings.why_copies,) if settings.why_copies else ()


def with_levers(prepared: Prepared, swap: str, settings: Settings) -> Settings:
    """The settings with the levers that `--swap` allows, as far as the model can be copied at all."""
    with_swaps = swap != "none" and prepared.why_no_swaps is None
    hardware = prepared.hardware
    return replace(
        settings,
        allow_recompute=swap != "only",
        swap_out_bytes_per_s=hardware.copy_to_host_bytes_per_s if with_swaps else 0.0,
        swap_in_bytes_per_s=hardware.copy_from_host_bytes_per_s if with_swaps else 0.0,
    )
