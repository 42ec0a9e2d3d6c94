"""Peaks of devices that share a model's state: arithmetic, without a plan.

ZeRO (Rajbhandari and others, 2020, arXiv:1910.02054, section 5) keeps 1/N of the optimizer's state
on each of N data-parallel devices (stage 1), of gradients too (stage 2), of parameters too (stage
3). The other devices' shares are subtracted from the model's own peak, as far as they are alive at
that step. Gathered parameters and communication buffers add to this, and are unknown here.
"""

from __future__ import annotations

from planner.graph.model import Category
from planner.pipeline.prepare.timelines import Baseline
from planner.report.document.fit import Sharded

_DEVICES = (2, 4, 8)
_STAGES = (1, 2, 3)


def sharded(baseline: Baseline) -> tuple[Sharded, ...]:
    """Compute the peaks for each number of devices and each stage.

    Only gradients that are results of the step count: others are indistinguishable from gradients
    of activations.
    """
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
            zero_stage=stage,
            peak_bytes=line.peak_bytes - (moved := sum(shares[:stage])) + -(-moved // count),
        )
        for count in _DEVICES
        for stage in _STAGES
    )
