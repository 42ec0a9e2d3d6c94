"""Suggested next steps: sentences that follow from the figures, with commands to copy.

A command runs where the plan was made. The sentence of a command for another device says so.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from planner.choices import HOST_PROFILE
from planner.defaults import meant
from planner.plan.planfile import Plan, SizeBound
from planner.report.document import Document
from planner.report.document.budgets import PreviewDocument
from planner.report.narrative import times_of
from planner.request import options_of
from planner.results import OptimizeResult
from planner.targets import target_named
from planner.targets.backend import runs_here
from planner.units import format_bytes, format_duration, format_percent, typed_size


class StepRow(Document, frozen=True):
    """A suggestion, and its command; None where there is nothing to type."""

    text: str
    command: str | None


_FREE = 5e-4
"""The share of the step below which a plan's added time is not worth a sentence."""

_WIDE_GAP = 0.01
_MUCH_CHEAPER = 0.5
_SPARE = 0.05

_AS_IN_THE_PLAN = ("cast_saved", "fuse", "pattern", "include", "exclude", "min_tensor")
"""Options whose names and values are those of the plan's fields."""

ELSEWHERE = "On the GPU machine"
"""The beginning of a sentence whose command does not run on this machine."""


def next_steps(result: OptimizeResult, preview: PreviewDocument | None) -> Iterator[StepRow]:
    """Yield the suggestions, most useful first."""
    yield from _running(result)
    if preview is not None:
        yield from _budgets(result, preview)
    yield from _planning(result)


def _running(result: OptimizeResult) -> Iterator[StepRow]:
    """Suggest the runs that the rewritten model's proof needs."""
    plan, model = result.plan, shlex.quote(str(result.model_path))
    if plan.assumed and result.plan_path is not None:
        yield StepRow(
            f"{ELSEWHERE}: make the plan again, within its budget, for the placement that "
            f"{target_named(plan.device).provider} chooses there, and verify it. The placement "
            "was only assumed here, and the rewritten model depends on it.",
            f"planner apply {model} {shlex.quote(str(result.plan_path))}",
        )
    elif result.verification is None and result.output_path is not None:
        rest = "".join(f" {word}" for word in _typed_dims(plan))
        if result.plan_path is not None:
            rest = f" --plan {shlex.quote(str(result.plan_path))}"
        said = "Nothing was run yet: verify the rewritten model on ONNX Runtime."
        if not runs_here(target_named(plan.device)):
            said = f"{ELSEWHERE}: {said[0].lower()}{said[1:]}"
        target = target_named(plan.device)
        device = "" if target.is_host else f" --device {plan.device}"
        written = shlex.quote(str(result.output_path))
        yield StepRow(said, f"planner verify {model} {written}{rest}{device}")


def _planning(result: OptimizeResult) -> Iterator[StepRow]:
    """Suggest other searches, and further reading."""
    plan, model = result.plan, shlex.quote(str(result.model_path))
    spare = plan.budget_bytes - plan.reserve_bytes - plan.planned.peak_bytes
    is_swept = plan.micro is None and plan.disk is None
    if spare > _SPARE * plan.budget_bytes and plan.dims and is_swept:
        dim, size = next(iter(plan.dims.items()))
        yield StepRow(
            f"{format_bytes(spare)} of the budget is left: a larger {dim} may fit.",
            f"planner sweep {model} {_typed_options(plan, but=dim)}--dim "
            f"{shlex.quote(dim)}={size}:{2 * size}:{max(1, size // 4)} "
            f"--budgets {_typed_for_any_peak(plan)} -o sweep.html",
        )
    if plan.gap is not None and plan.gap > _WIDE_GAP:
        yield StepRow(
            f"The plan may take up to {format_percent(plan.gap)} more time than the best one in its base "
            f"order ({times_of(plan.cost_source)}): a longer search may find a better plan, or prove "
            "this one.",
            _optimize(result, _typed(result), "--time-limit 600"),
        )
    if "roofline" in plan.cost_source and target_named(plan.device).is_host:
        yield StepRow(
            "Times are predicted from a hardware profile: measure the operations where the model will "
            "run, and plan with the measured times.",
            _optimize(result, _typed(result), "--calibrate"),
        )
    if plan.decisions and result.plan_path is not None:
        largest = max(plan.decisions, key=lambda d: d.bytes)
        yield StepRow(
            "See what else is possible for one tensor, even one that stays on the device:",
            f"planner explain {model} {shlex.quote(str(result.plan_path))} "
            f"--tensor {shlex.quote(largest.tensor)}",
        )
    if not plan.unchanged and is_swept:
        yield StepRow(
            "Compare many budgets, in every base order and on all cores:",
            f"planner sweep {model} {_typed_options(plan)}-o sweep.html",
        )


def _budgets(result: OptimizeResult, preview: PreviewDocument) -> Iterator[StepRow]:
    """Suggest other budgets with their cost, and say what one more MiB is worth."""
    points, budget = preview.frontier.planned, result.plan.budget_bytes
    slowdown = next((slow for size, slow, _ in points if size == budget), None)
    if slowdown is None:
        return
    free = next((size for size, slow, _ in points if slow < _FREE), None)
    if slowdown >= _FREE:
        most = _MUCH_CHEAPER * slowdown
        roomier = ((size, slow) for size, slow, _ in points if size > budget and slow <= most)
        found, less = next(roomier, (None, 0.0))
        if found is not None:
            yield StepRow(
                f"{_up(found)} would save {format_percent(slowdown - less)} of the "
                "model's own step (predicted, for live bytes).",
                _optimize(result, _typed_budget(result.plan, found)),
            )
        if free and free != found:
            yield StepRow(f"{_up(free)} would cost no time at all.", None)
    elif free and free < budget:
        yield StepRow(
            f"A budget of {_up(free)} would cost no more time than this one (predicted, for live bytes).",
            _optimize(result, _typed_budget(result.plan, free)),
        )
    least, most, _ = points[0]
    if least < budget:
        more = format_percent(max(0.0, most - slowdown))
        yield StepRow(
            f"The smallest budget tried that has a plan is {_up(least)}; it adds another {more} of the "
            "model's own step (predicted, for live bytes).",
            None,
        )
    if worth := preview.us_per_mib:
        off = format_duration(worth)
        yield StepRow(
            f"The budget binds: 1 MiB more lowers the bound on the plan's time by {off}.", None
        )


def _typed_budget(plan: Plan, budget_bytes: int) -> str:
    """Write a budget as a whole percentage of the model's own peak, or as a size rounded up."""
    peak_bytes = plan.baseline.peak_bytes
    percent = round(100 * budget_bytes / peak_bytes)
    if percent < 100 and abs(percent * peak_bytes - 100 * budget_bytes) <= 100:
        return f"{percent}%"
    return typed_size(budget_bytes)


def _typed_for_any_peak(plan: Plan) -> str:
    """Return the plan's budget as the size that was typed, or as one rounded up; never as a share."""
    text = plan.budget_text
    is_size = text[:1].isdigit() and not {" ", "%"} & set(text)
    return shlex.quote(text) if is_size else typed_size(plan.budget_bytes)


def _up(budget_bytes: int) -> str:
    return format_bytes(budget_bytes, up=True)


def _optimize(result: OptimizeResult, budget: str, more: str = "") -> str:
    """Write the command of `planner optimize` for another budget."""
    plan, model = result.plan, shlex.quote(str(result.model_path))
    options = _typed_options(plan)
    if not runs_here(target_named(plan.device)):
        options += "--no-verify "
    levers = {
        "order": plan.order_target,
        "recompute": "auto" if plan.recompute else "none",
        "split": "auto" if plan.split else "none",
        "host_budget": _size(plan.host_budget_bytes if plan.disk is None else None),
        "disk_budget": _size(None if plan.disk is None else plan.host_budget_bytes),
    }
    for option in options_of("optimize"):
        if option.name in (*levers, *_AS_IN_THE_PLAN):
            value = levers.get(option.name, getattr(plan, option.name, None))
            options += "".join(f"{word} " for word in option.typed(value))
    return (
        f"planner optimize {model} --budget {budget} {options}{more + ' ' if more else ''}--force"
    )


def _size(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else f"{size_bytes}B"


def _typed_options(plan: Plan, *, but: str = "") -> str:
    """Write the options that define the plan, each followed by a space.

    Args:
        but: a dim to leave out.
    """
    words = _typed_dims(plan, but=but)
    words += [_typed_bound(bound) for bound in plan.bounds if not bound.shown]
    if plan.micro is not None:
        words.append(f"--micro-batch {plan.micro.runs}")
    hardware = plan.hardware or HOST_PROFILE
    usual = meant(device=plan.device, hardware=hardware, swap=None, resident=None)
    if plan.swap_mode != usual.swap:
        words.append(f"--swap {plan.swap_mode}")
    if plan.disk is not None:
        words.append(f"--disk {shlex.quote(plan.disk.folder)}")
    elif plan.copies != "serial":
        words.append(f"--copies {plan.copies}")
    if not target_named(plan.device).is_host or plan.hardware != HOST_PROFILE:
        words.append(f"--device {plan.device}")
    if plan.hardware != HOST_PROFILE:
        words.append(f"--hardware {shlex.quote(plan.hardware)}")
    if plan.reserve_bytes:
        words.append(f"--reserve {plan.reserve_bytes}B")
    if not plan.ort_optimized and not plan.assumed:
        words.append("--no-ort-optimize")
    return "".join(f"{word} " for word in words)


def _typed_dims(plan: Plan, *, but: str = "") -> list[str]:
    """List the options for the dims of the whole step, without the dim `but`."""
    dims = dict(plan.dims)
    if plan.micro is not None:
        dims[plan.micro.dim] = plan.micro.batch
    return [f"--dim {shlex.quote(n)}={size}" for n, size in dims.items() if n != but]


def _typed_bound(bound: SizeBound) -> str:
    most = f"{bound.bytes}B" if bound.shape is None else "x".join(map(str, bound.shape))
    return f"--bound {shlex.quote(f'{bound.name}={most}')}"


def _typed(result: OptimizeResult) -> str:
    text = result.plan.budget_text
    typed = text if text[:1].isdigit() and " " not in text else f"{result.plan.budget_bytes}B"
    return shlex.quote(typed)
