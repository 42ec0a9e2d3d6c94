"""What each of several devices would hold, were state sharded over them: arithmetic, no plan.

ZeRO (Rajbhandari and others, 2020, arXiv:1910.02054, section 5) keeps 1/N of the optimizer's state on
each of N data-parallel devices (stage 1), of gradients too (stage 2), of parameters too (stage 3). Taken
off is what the model's own peak holds of them, at that step. What is gathered or sent on the way comes
on top, and is not known here.
"""

from __future__ import annotations

from planner.device_fits import Sharded
from planner.graph.model import Category
from planner.pipeline.prepare.baseline import Baseline

_DEVICES = (2, 4, 8)
_STAGES = (1, 2, 3)


def sharded(baseline: Baseline) -> tuple[Sharded, ...]:
    """Peaks by devices and stage. Gradients count where they are results of the step: those that its own
    optimizer reads are gone by its peak, or are not told from others."""
    graph, line = baseline.graph, baseline.timeline
    step = line.peak_step
    results = set(graph.outputs)
    gradients = sum(
        held.bytes
        for held in line.resident_at(step)
        if held.tensor in results and graph.tensors[held.tensor].category is Category.GRADIENT
    )
    state, parameters = (
        int(line.by_category[category][step]) if category in line.by_category else 0
        for category in (Category.OPTIMIZER_STATE, Category.PARAMETER)
    )
    shares = (state, gradients, parameters)
    return tuple(
        Sharded(
            devices=count,
            stage=stage,
            peak_bytes=line.peak_bytes - (moved := sum(shares[:stage])) + -(-moved // count),
        )
        for count in _DEVICES
        for stage in _STAGES
    )
