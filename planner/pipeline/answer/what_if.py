"""What the model would take at other precisions, or with sparse parameters: peaks by plan, no run."""

from __future__ import annotations

from collections.abc import Sequence

from planner.graph.liveness import timeline
from planner.graph.model import OpId
from planner.graph.what_if import WhatIf, stored_as
from planner.pipeline.prepare.baseline import Baseline
from planner.pipeline.prepare.timelines import workspace_of
from planner.results import WhatIfEstimate


def estimated(baseline: Baseline, questions: Sequence[WhatIf]) -> tuple[WhatIfEstimate, ...]:
    """The peak for each question, in the order in which ONNX Runtime runs the model as it is.

    Raises:
        UsageError: a question changes nothing of this model.
    """
    return tuple(_estimate(baseline, question) for question in questions)


def _estimate(baseline: Baseline, question: WhatIf) -> WhatIfEstimate:
    graph = stored_as(baseline.graph, question)
    workspace = workspace_of(baseline.graph, baseline.target)
    taken = {OpId(op): size for op, size in enumerate(workspace)}
    line = timeline(graph, baseline.order, workspace_bytes=taken)
    step = line.peak_step
    return WhatIfEstimate(
        what_if=question.text,
        peak_bytes=line.peak_bytes,
        peak_step=step,
        composition={
            category: int(part[step])
            for category, part in line.by_category.items()
            if len(part) and part[step]
        },
        assumptions=question.assumptions,
    )
