"""The document of `planner optimize`: the outcome, the plan, both models, and ONNX Runtime's checks."""

from __future__ import annotations

from typing import Literal

import msgspec

from planner import __version__
from planner.graph.rules import SWAP_OPERATORS
from planner.plan.planfile import Barred, MicroBatches, PredictedCost, SplitRegion
from planner.report import narrative
from planner.report.document import Document, told, unique
from planner.report.document.budgets import PreviewDocument, preview_document
from planner.report.document.headline import Headline, headline
from planner.report.document.verification import VerificationFigures, verification_figures
from planner.report.document.views import ViewDocument, view_document
from planner.report.narrative import ProvenanceRow
from planner.report.next_steps import StepRow, next_steps
from planner.report.session_code import (
    arena_of,
    library_code,
    script_line,
    session_code,
    step_code,
)
from planner.results import OptimizeResult
from planner.runtime.options import MAX_FIRST_REGION
from planner.targets import target_named


class BoundTensor(Document, frozen=True):
    """A tensor on the device at the planned peak."""

    tensor: str
    bytes: int


class PlanFigures(Document, frozen=True):
    """The plan file's fields, with the number of `actions` in place of its schedule."""

    version: int
    model_name: str
    model_sha256: str
    hardware: str
    cost_source: str
    max_slowdown: float | None
    swap_mode: str
    copies: str
    resident: tuple[str, ...]
    cast_saved: str
    halved: tuple[str, ...]
    fuse: str
    fused_nodes: int
    pattern: bool
    numbers: str
    feeds: str
    device: str
    assumed: bool
    order_target: str
    ort_optimized: bool
    engine: str
    solve_s: float
    seed: int
    least_peak_bytes: int | None
    least_peak_bound_bytes: int
    bound_us: float | None
    bound_class: str
    dims: dict[str, int]
    binds: str | None
    split: tuple[tuple[SplitRegion, ...], ...]
    micro: MicroBatches | None
    baseline: PredictedCost
    best_order: PredictedCost
    planned: PredictedCost
    actions: int
    binding: tuple[BoundTensor, ...]
    barred: tuple[Barred, ...]


class DecisionRow(Document, frozen=True):
    """The fate of one tensor in one retention interval."""

    tensor: str
    bytes: int
    category: str
    action: str
    start: int
    end: int
    cost_us: float
    recompute_us: float | None
    swap_us: float | None
    why: str
    reason_code: str | None


class OptimizeDocument(Document, kw_only=True, frozen=True):
    """The document of `planner optimize`."""

    schema: Literal["planner.optimize/1"] = "planner.optimize/1"
    planner_version: str = __version__
    model: str
    outputs: dict[str, str | None]
    headline: Headline
    plan: PlanFigures
    decisions: tuple[DecisionRow, ...]
    before: ViewDocument
    after: ViewDocument
    verification: VerificationFigures | None
    assumptions: tuple[str, ...]
    session_code: str
    budget_preview: PreviewDocument | None
    next_steps: tuple[StepRow, ...]
    provenance: tuple[ProvenanceRow, ...]

    @property
    def views(self) -> dict[str, ViewDocument]:
        """Both models, by key ("before", "after")."""
        return {"before": self.before, "after": self.after}

    @property
    def measured_lines(self) -> dict[str, tuple[int, ...]]:
        """Measured live bytes at every step of a view, where the executed nodes are the schedule's."""
        found: dict[str, tuple[int, ...]] = {}
        for key, model in (("before", "original"), ("after", "rewritten")):
            for row in self.verification.memory_of(model) if self.verification else ():
                if row.per_node.node == self.views[key].timeline.operation:
                    found.setdefault(key, row.per_node.measured_bytes)
        return found

    @property
    def largest(self) -> list[DecisionRow]:
        """The decisions, largest tensors first."""
        return sorted(self.decisions, key=lambda d: -d.bytes)

    @property
    def script(self) -> str | None:
        """Python that opens the rewritten model; None where no model was written."""
        path = self.outputs["model"]
        return None if path is None else script_line(path, self.headline.disk)

    @property
    def is_reordered(self) -> bool:
        """Whether operations of the original run in another order among themselves."""
        before, after = self.before.timeline.operation, self.after.timeline.operation
        shared = set(before) & set(after)
        return [n for n in before if n in shared] != [n for n in after if n in shared]


def optimize_document(result: OptimizeResult) -> OptimizeDocument:
    """Make the document of `planner optimize`; a second call for a result returns the same one."""
    return result.kept or _keep(result, _document(result))


def _keep(result: OptimizeResult, document: OptimizeDocument) -> OptimizeDocument:
    object.__setattr__(result, "kept", document)
    return document


def _document(result: OptimizeResult) -> OptimizeDocument:
    plan, verification = result.plan, result.verification
    checks = verification_figures(verification) if verification else None
    head = headline(result, checks)
    preview = preview_document(result.budget_preview)
    written = {
        "model": result.output_path,
        "plan": result.plan_path,
        "report": result.report_path,
        "trace": result.trace_path,
    }
    return OptimizeDocument(
        model=str(result.model_path),
        outputs={what: None if path is None else str(path) for what, path in written.items()},
        headline=head,
        plan=told(
            PlanFigures,
            plan,
            binds=plan.binds or None,
            actions=len(plan.schedule),
            binding=[BoundTensor(name, size) for name, size in plan.binding],
        ),
        decisions=tuple(
            told(DecisionRow, d, reason_code=d.reason_code or None) for d in plan.decisions
        ),
        before=view_document(result.before, plan.decisions),
        after=view_document(result.after, plan.decisions),
        verification=checks,
        assumptions=unique(
            plan.assumptions, result.before.graph.assumptions, result.after.graph.assumptions
        ),
        session_code=_session_code(result),
        budget_preview=preview,
        next_steps=tuple(next_steps(result, preview)),
        provenance=narrative.provenance(head, plan, verification),
    )


def with_preview(document: OptimizeDocument, result: OptimizeResult) -> OptimizeDocument:
    """Add a budget preview that the result got after the document was made."""
    preview = preview_document(result.budget_preview)
    steps = tuple(next_steps(result, preview))
    found = msgspec.structs.replace(document, budget_preview=preview, next_steps=steps)
    return _keep(result, found)


def _session_code(result: OptimizeResult) -> str:
    plan = result.plan
    model = result.output_path.name if result.output_path else "model.planned.onnx"
    is_library = any(op.op_type in SWAP_OPERATORS for op in result.after.graph.operations)
    arena = arena_of(plan, result.verification)
    # by settings alone its regions would double
    is_large = arena is not None and arena.region_bytes > MAX_FIRST_REGION
    if is_library or is_large or (plan.pool is not None and arena is None):
        code = library_code(model)
    else:
        code = session_code(
            model,
            order_target=plan.order_target,
            target=target_named(plan.device),
            optimized=plan.ort_optimized,
            budget_bytes=max([plan.budget_bytes, *(a.total_bytes for a in result.after.arena)]),
            arena=arena,
        )
    name = result.plan_path.name if result.plan_path else "model.plan.json"
    return code + step_code(plan.micro, name)
