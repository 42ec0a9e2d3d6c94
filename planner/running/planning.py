"""Plan one model for `planner run` in a separate process: the script's own stays free of planning's
memory and modules.

`python -m planner.running.planning JOB`: the job is JSON on the command line, the outcome JSON on
stdout.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from planner.disk import swapping_to
from planner.errors import InfeasibleBudgetError, PlannerError, VerificationError
from planner.plan.planfile import Plan
from planner.processes.children import end_with_parent
from planner.running.outcome import Job, Outcome, Status, stamps
from planner.units import format_both


def main(text: str) -> None:
    """Plan the job's model, and print the outcome."""
    end_with_parent()
    job = Job(**json.loads(text))
    try:
        outcome = planned(job)
    except PlannerError as error:
        outcome = Outcome(status=Status.REFUSED, reason=_reason(error), code=error.exit_code)
    print(json.dumps(asdict(outcome)))


def planned(job: Job) -> Outcome:
    """Return the outcome of a job whose model can be planned.

    Raises:
        PlannerError: the model cannot be planned, or ONNX Runtime does not confirm the written model.
    """
    model = Path(os.path.realpath(job.model))
    data = _external_data(model)
    output = Path(job.folder) / "model.onnx"
    if data:  # ONNX wants it below the model's folder
        output = model.with_name(f"{model.stem}.run-{Path(job.folder).name[:12]}.onnx")
    with swapping_to(job.disk):
        plan = _applied(job, model, output) if job.plan else _made(job, model, output)
    return Outcome(
        status=Status.UNCHANGED if plan.unchanged else Status.PLANNED,
        model=str(output),
        budget_bytes=plan.budget_bytes,
        before_bytes=plan.baseline.peak_bytes,
        after_bytes=plan.planned.peak_bytes,
        data=stamps(data),
    )


def _applied(job: Job, model: Path, output: Path) -> Plan:
    """Apply a plan file to the model, and return the plan as it holds here."""
    from planner.pipeline.answer.applying import applied
    from planner.pipeline.prepare.prepared import silent
    from planner.pipeline.record.assemble import read_plan
    from planner.pipeline.record.files import Files

    found = applied(
        model,
        read_plan(Path(job.plan)),
        Files(model=output, plan=Path(job.folder) / "plan.json"),
        time_limit_s=job.time_limit_s,
        verify=job.verify,
        progress=silent,
    )
    return found.plan


def _made(job: Job, model: Path, output: Path) -> Plan:
    """Make a plan for the job's budget."""
    from planner import api

    result = api.optimize(
        model,
        budget=job.budget,
        output=output,
        plan_path=Path(job.folder) / "plan.json",
        dims=job.dims,
        device=job.device,  # pyright: ignore[reportArgumentType]
        order=job.order,  # pyright: ignore[reportArgumentType]
        ort_optimize=job.ort_optimize,
        time_limit_s=job.time_limit_s,
        verify=job.verify,
        disk=job.disk or None,
        force=True,
    )
    if result.verification is not None and not result.verification.passed:
        raise VerificationError(
            f"ONNX Runtime does not confirm the plan: {result.verification.failures[0]}"
        )
    return result.plan


def _external_data(model: Path) -> list[str]:
    """Return the files that hold tensors of a model."""
    import onnx_ir as ir

    try:
        values = ir.load(model).graph.initializers.values()
    except Exception:
        return []  # `optimize` reports the fault
    tensors = (value.const_value for value in values)
    return sorted({os.path.realpath(t.path) for t in tensors if isinstance(t, ir.ExternalTensor)})


def _reason(error: PlannerError) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, InfeasibleBudgetError) and error.least_peak_bytes:
        text += f"; the least feasible budget found is {format_both(error.least_peak_bytes)}"
    return text


if __name__ == "__main__":
    main(sys.argv[1])
