"""The benchmark of least budgets: its figures are the simulator's."""

from __future__ import annotations

from hypothesis import given, settings

from planner.bound.instants import min_peak_bound
from planner.order.reorder import peak_of
from reports.solver.least import measure
from tests.graphs import problems


@settings(max_examples=20, deadline=None)
@given(problem=problems())
def test_figures_of_a_problem(problem):
    row = measure(problem, limit_s=2.0)
    alone = measure(problem.without_swaps(), limit_s=2.0)
    for figures in (row, alone):
        assert min_peak_bound(problem)[0] <= figures["bound_bytes"] <= figures["found_bytes"]
        assert figures["found_bytes"] <= figures["base_peak_bytes"]
        assert figures["base_peak_bytes"] == peak_of(problem, range(len(problem.ops)))
        assert figures["over_bound"] >= 0 and figures["added_time"] >= 0
