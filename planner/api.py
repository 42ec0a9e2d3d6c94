"""The public functions: analyze, optimize, apply, verify. Each fills a request for the line to answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from planner import clock
from planner.bounding import Given, bounds_of
from planner.chunking import SplitMode, check_split
from planner.defaults import AUTO_RESERVE, card_budget, card_of, meant
from planner.errors import ModelError, UsageError
from planner.files.writing import FileName, path_or_none
from planner.fusing import FuseMode, check_fuse
from planner.graph.what_if import parse_what_if
from planner.halving import CastSaved, check_cast_saved
from planner.onnxio.load import model_digest
from planner.pipeline.answer.analyzing import analyzed
from planner.pipeline.answer.applying import TIME_LIMIT_S, applied
from planner.pipeline.answer.in_parts import optimized, verified
from planner.pipeline.answer.optimizing import OptimizeJob
from planner.pipeline.answer.verifying import (
    Rewrite,
    as_written,
    check_can_hold,
    check_same_inputs,
    on_assumption,
    run_both,
    stand_in_plan,
)
from planner.pipeline.prepare.copies import Copies, to_disk
from planner.pipeline.prepare.prepared import prepare, silent
from planner.pipeline.record.assemble import read_plan
from planner.pipeline.record.bounds import bounds_of_plan
from planner.pipeline.record.files import Files
from planner.pipeline.record.modelviews import file_view
from planner.pipeline.record.rebuild import whole_dims
from planner.pipeline.target.placing import check_can_run
from planner.plan.planfile import BudgetOf, OrderTarget, Swap
from planner.processes.garbage import collected_seldom
from planner.request import Costs, Levers, Limits, Request, calibration, settled
from planner.residing import Feeds, Reside, check_residence
from planner.results import Analysis, ModelView, OptimizeResult, Verification
from planner.targets import Device, target_named

Progress = Callable[[str], None]


@clock.as_asked
@collected_seldom()
def analyze(
    model: FileName,
    *,
    dims: Mapping[str, int] | None = None,
    bounds: Mapping[str, Given] | None = None,
    hardware: str = "cpu",
    profile: FileName | None = None,
    calibrate: bool | None = None,
    inputs: FileName | None = None,
    ort_optimize: bool = True,
    device: Device | None = None,
    swap: Swap | None = None,
    copies: Copies = "serial",
    resident: Reside | None = None,
    feeds: Feeds = "auto",
    time_limit_s: float = 60.0,
    seed: int = 0,
    reproducible: bool = False,
    what_if: Sequence[str] = (),
    progress: Progress | None = None,
    on_model: Callable[[ModelView], None] | None = None,
) -> Analysis:
    """Where the memory of a model goes, as ONNX Runtime runs it.

    Args:
        model: an .onnx file.
        dims: sizes of open dims, by name, or by place: `{"x:0": 1}` is axis 0 of the input x.
        bounds: the most that sizes which depend on data may be, by the tensor's name: a number of
            elements, a shape, or bytes ("64MB"; of a node with bodies, what these hold). What is not
            bounded is as large as in one run of the model with `inputs`.
        hardware: name of a shipped profile, or a TOML file.
        profile: an ONNX Runtime profile of this model, to take times from.
        calibrate: True measures operation times by a short run on this machine's CPU, False predicts
            them. None: measured where `hardware` is "cpu" and a run takes seconds, once; the times are
            kept for the next call.
        device: whose graph and kernels are looked at; None for the CPU's, with the times of any profile.
        swap, copies, resident, feeds: as for `optimize`, in what a budget would cost; what lives on the
            host is as much as costs nothing, or all that may.
        time_limit_s: for the searches: a better order, the least budget, what budgets cost.
        reproducible: as for `optimize`.
        what_if: `"bf16"`, `"fp16"`, `"sparse=0.3"`, or two with a comma: what the peak would be if the
            model's tensors were stored so (`planner.graph.what_if`).
        on_model: given the model as it is (`Analysis.default`) as soon as that is known, before anything
            is searched for.

    Raises:
        UsageError, ModelError: see `planner.errors`.
    """
    check_residence(resident, feeds)
    if reproducible:
        calibrate, _ = settled(calibrate, None)
    said = meant(
        device=device,
        hardware=hardware,
        swap=swap,
        resident=resident,
        copies=copies,
        is_written=False,
    )
    request = Request(
        model=Path(model),
        dims=dims or {},
        bounds=bounds_of(bounds or {}),
        device=said.device,
        ort_optimize=ort_optimize,
        inputs=path_or_none(inputs),
        seed=seed,
        costs=Costs(
            hardware=hardware, profile=path_or_none(profile), calibrate=calibration(calibrate)
        ),
        levers=Levers(swap=said.swap, copies=copies, resident=said.resident, feeds=feeds),
        limits=Limits(time_limit_s=time_limit_s),
    )
    questions = [parse_what_if(text) for text in what_if]
    return analyzed(request, progress or silent, what_if=questions, on_model=on_model)


@clock.as_asked
@collected_seldom()
def optimize(
    model: FileName,
    *,
    budget: str | None = None,
    max_slowdown: str | None = None,
    output: FileName | None = None,
    plan_path: FileName | None = None,
    report_path: FileName | None = None,
    trace_path: FileName | None = None,
    dims: Mapping[str, int] | None = None,
    bounds: Mapping[str, Given] | None = None,
    hardware: str = "cpu",
    profile: FileName | None = None,
    calibrate: bool | None = None,
    swap: Swap | None = None,
    copies: Copies = "serial",
    resident: Reside | None = None,
    feeds: Feeds = "auto",
    recompute: bool = True,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    min_tensor: str | None = None,
    host_budget: str | None = None,
    disk: FileName | None = None,
    disk_budget: str | None = None,
    micro_batch: int | str = 1,
    split: SplitMode = "none",
    cast_saved: CastSaved = "none",
    fuse: FuseMode = "none",
    pattern: bool = True,
    order: OrderTarget = "default",
    reserve: str = AUTO_RESERVE,
    budget_of: BudgetOf = "held",
    strict: bool = False,
    time_limit_s: float = 60.0,
    seed: int = 0,
    workers: int | None = None,
    reproducible: bool = False,
    device: Device | None = None,
    verify: bool | Literal["thorough"] = True,
    inputs: FileName | None = None,
    ort_optimize: bool = True,
    force: bool = False,
    dry_run: bool = False,
    search_context: Callable[[], AbstractContextManager[None]] | None = None,
    progress: Progress | None = None,
) -> OptimizeResult:
    """Rewrite a model so that its peak stays within `budget`, and prove it on ONNX Runtime.

    Args:
        budget: `"16GB"`, `"12GiB"`, or `"60%"` of the baseline peak. None, with no `max_slowdown` and a
            `device` whose `hardware` has a memory of its own: that memory, less `reserve`; without such,
            the baseline peak.
        max_slowdown: `"5%"`: with a budget, no plan that fits may add more time; without one, the
            least peak is looked for that a plan within that time can have.
        output, plan_path, report_path: files to write; None leaves that file out.
        trace_path: a trace of the plan for Perfetto; see `planner.report.trace`.
        swap: "auto" lets the solver choose, "none" forbids copies, "only" forbids recompute. None is
            "auto", and "none" where device and hardware are a CPU, whose memory is the host's.
        copies: "serial" plans them on the stream of the operations, as ONNX Runtime runs them;
            "overlapped" beside the operations, by planner's native library; "auto" beside them where
            that was shown to be safe.
        resident: where parameters, state, other inputs, gradients and new values live: on the
            "device", on the "host", or "auto": each where the plan takes less time, and on the device
            where swap is "none". None is "auto"; on a CPU "auto" and "host" ask for copies.
        feeds: where the caller has them: "host", "device", or "auto": see `planner.residing`.
        recompute: False forbids that operations run again.
        include, exclude: patterns of what may be recomputed or live on the host, and of what may not:
            names as a shell matches them, `"op:Softmax"`, `"category:activation"`.
        min_tensor: `"1MiB"`: what is smaller is not copied; None for what is not worth a copy.
        host_budget: `"32GB"`: the most that may be on the host at once: what lives there and copies of
            what is swapped out; what a file holds is not counted.
        disk: a folder: swaps go to a file there, and not to the host's memory (`planner.disk`). On the
            CPU alone; copies run beside the operations, whatever `copies` says, and are priced with what
            is measured in the folder. The budget then bounds all that is held.
        disk_budget: `"200GB"`: the most that swaps may take there; None for the free space less 1 GiB.
        micro_batch: make a step in so many runs on parts of its batch, whose totals (loss, gradients) are
            fed back from run to run: `result.plan.micro` says how. "auto" chooses how many. The model
            needs a symbolic batch, bound in `dims`.
        split: "auto" lets operations that are too large for the budget run in chunks of rows, where no
            plan fits without that or one takes less time: see `planner.chunking`.
        cast_saved: "bf16" or "fp16": tensors that are saved from forward to backward may be stored so,
            where that is quicker or nothing else fits. It is lossy: gradients differ, and the
            verification says by how much.
        fuse: "exact" or "auto" lets element operations become one node each, where that is predicted to
            take less time or fits the budget alone: the file then needs planner's native library.
            "exact" keeps every bit, "auto" differs in rounding. For the CPU.
        pattern: False writes the file so that sessions with default options leave ONNX Runtime's memory
            pattern off, and hold less: the type of the smallest input becomes optional.
        order: the session option the file is written for.
        reserve: set aside out of the budget, which stays as it was typed. Where the budget is a device's
            memory, what of it no plan may have, as a size or a share. "auto" is none of a budget, and of
            a device's memory what driver, context and libraries take (`planner.defaults.set_aside`).
        budget_of: what the budget bounds: "held", all that a session holds that `planner.open_session`
            opens, where that can be told (not with copies on the CPU, whose arena they share, nor on
            WebGPU); "live", the bytes of tensors that are alive.
        strict: other last bits in sessions of default options fail the verification.
        reproducible: the same plan and the same file on any machine, however busy: operation times are
            predicted, and the time limit counts work in place of seconds (`planner.clock`).
        device: what the file is for; None for the CPU, where `hardware` is one.
        verify: each model runs once under each set of options; "thorough" runs them again, and at other
            levels. False leaves the rewritten model unrun; the graph that ONNX Runtime's optimizers
            made is then compared with the file, once, by numbers
            (`planner.runtime.optimizers.same_numbers`); with `calibrate=False`, where steps are long,
            by what is in it alone.
        dry_run: plan, but write nothing; as with `verify=False`.
        search_context: made for the search; within it Ctrl-C (KeyboardInterrupt) ends the search, and
            the best plan so far is taken where there is one. None: Ctrl-C is raised, as elsewhere.

    Raises:
        UsageError, ModelError, InfeasibleBudgetError, VerificationError: see `planner.errors`.
            A failed verification leaves every file in place, as evidence.
    """
    check_residence(resident, feeds)
    if reproducible:
        calibrate, workers = settled(calibrate, workers)
        if disk is not None:
            raise UsageError(
                "--reproducible plans with no speed of this machine's, and --disk measures one: give one"
            )
    if disk is not None:  # no operator of ONNX Runtime's copies to a file
        copies = "overlapped"
    said = meant(device=device, hardware=hardware, swap=swap, resident=resident, copies=copies)
    budget_from = ""
    card = card_of(said.device, hardware)
    if budget is None and max_slowdown is None and card is not None:
        size, budget_from = card_budget(card, reserve)
        budget, reserve = f"{size}B", AUTO_RESERVE
    request = Request(
        model=Path(model),
        dims=dims or {},
        bounds=bounds_of(bounds or {}),
        device=said.device,
        ort_optimize=ort_optimize,
        inputs=path_or_none(inputs),
        seed=seed,
        costs=Costs(
            hardware=hardware, profile=path_or_none(profile), calibrate=calibration(calibrate)
        ),
        budget=budget,
        budget_from=budget_from,
        max_slowdown=max_slowdown,
        reserve="0B" if reserve == AUTO_RESERVE else reserve,
        budget_of=budget_of,
        strict=strict,
        levers=Levers(
            swap=said.swap,
            copies=copies,
            resident=said.resident,
            feeds=feeds,
            recompute=recompute,
            include=tuple(include),
            exclude=tuple(exclude),
            min_tensor=min_tensor,
            host_budget=host_budget,
            micro_batch=str(micro_batch),
            split=split,
            cast_saved=cast_saved,
            fuse=fuse,
            pattern=pattern,
        ),
        order=order,
        limits=Limits(time_limit_s=time_limit_s, workers=workers),
    )
    levers = to_disk(request.levers, said.device, path_or_none(disk), disk_budget)
    request = replace(request, levers=levers)
    check_split(split, budget)
    check_cast_saved(cast_saved)
    check_fuse(fuse, budget=request.budget, device=request.device)
    if cast_saved != "none" and request.levers.micro_batch != "1":
        raise UsageError(
            "--cast-saved is lossy, and --micro-batch is proved up to rounding: give one of them"
        )
    files = Files(
        model=path_or_none(output),
        plan=path_or_none(plan_path),
        report=path_or_none(report_path),
        trace=path_or_none(trace_path),
    )
    files.check(request.model, force=force or dry_run)
    job = OptimizeJob(
        request=request,
        files=Files() if dry_run else files,
        verify=False if dry_run else verify,
        search_context=search_context,
        progress=progress or silent,
    )
    return optimized(job)


@collected_seldom()
def apply(
    model: FileName,
    plan: FileName,
    *,
    output: FileName,
    plan_path: FileName | None = None,
    force: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
    verify: bool = True,
    progress: Progress | None = None,
) -> Path:
    """The rewritten model of a plan, written again from the original to the path of `output`: to the
    byte, and with no search. A plan that was made without its device's provider is made again where that
    is: within its budget and levers, on what the provider does with the model, and verified.

    Args:
        plan_path: where a plan that is made again goes; None for nowhere.
        time_limit_s: of the search for it; verify: run it.

    Raises:
        ModelError: the plan belongs to another model, or is not a plan.
        UsageError: it needs a provider that is not here.
        InfeasibleBudgetError, VerificationError: one that is made again does not fit, or does not hold.
    """
    original = Path(model)
    files = Files(model=Path(output), plan=path_or_none(plan_path))
    files.check(original, force=force)
    found = applied(
        original,
        read_plan(Path(plan)),
        files,
        time_limit_s=time_limit_s,
        verify=verify,
        progress=progress or silent,
    )
    return found.model


@collected_seldom()
def verify(
    original: FileName,
    rewritten: FileName,
    *,
    plan: FileName | None = None,
    budget: str | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: FileName | None = None,
    seed: int = 0,
    device: Device = "cpu",
    strict: bool = False,
    fast: bool = False,
    progress: Progress | None = None,
) -> Verification:
    """Run both models on ONNX Runtime: same numbers, planned order, bytes, cap, time.

    Args:
        plan: the plan file; without it, `budget` gives the budget (or none is checked), and the
            metadata of `rewritten` the level and the execution order that it was planned for.
        strict: other last bits in sessions of default options are a failure.
        fast: each model runs once under each set of options, as in `optimize`.

    Raises:
        UsageError, ModelError: see `planner.errors`.
    """
    report = progress or silent
    check_can_run(target_named(device))
    the_plan = read_plan(Path(plan)) if plan is not None else None
    if the_plan is not None and the_plan.device not in (device, "any"):
        raise UsageError(
            f"{plan} is a plan for {the_plan.device}: verify with --device {the_plan.device}"
        )
    if the_plan is not None and the_plan.model_sha256 != model_digest(Path(original)):
        raise ModelError(f"{plan} belongs to another model than {original} (digests differ)")
    asked = as_written(Path(rewritten))
    request = Request(
        model=Path(original),
        dims=dims or (whole_dims(the_plan) if the_plan else {}),
        device=device,
        ort_optimize=the_plan.ort_optimized if the_plan else asked.level != "disabled",
        bounds=bounds_of_plan(the_plan) if the_plan else (),
        inputs=path_or_none(inputs),
        seed=seed,
        costs=Costs(hardware=the_plan.hardware if the_plan else "cpu", calibrate="never"),
        budget=budget,
        strict=strict,
    )
    if the_plan is not None and the_plan.micro is not None:
        return verified(request, Path(rewritten), the_plan, thorough=not fast, progress=report)
    prepared = prepare(request, progress=report)
    check_can_hold(prepared)
    target = the_plan.order_target if the_plan else asked.order
    after = file_view(Path(rewritten), request.dims, target, prepared)
    if the_plan is None:
        check_same_inputs(prepared, Path(rewritten), after)
    the_plan = the_plan or stand_in_plan(prepared, target)
    rewrite = Rewrite(prepared=prepared, path=Path(rewritten), after=after, plan=the_plan)
    return on_assumption(run_both(rewrite, report, thorough=not fast), asked)
