"""The numeric parameters of the search for a plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvePolicy:
    """The table.

    Attributes:
        late_orders: base orders that are kept, besides ONNX Runtime's own, where making them took all
            the time.
        quick_orders: base orders in which changes to a model are compared, by short searches.
        pins_left: share of the nodes that pin an order that are left once it was loosened, about.
        roomy: share of the room that leaves enough of it for the arena to break up: what is below needs
            no plan.
        worth: share of the step's time by which a plan of a changed model must be quicker.
        least_bytes: what is smaller stays as it is: its copy or cast takes as long as a node takes to
            start.
        least_of_peak: so does what is smaller than this share of the peak.
        beside: a search with overlap may take so many times as long as the one of serial copies before.
        capacities: to try, as shares of the budget, until ONNX Runtime's arena fits the budget too.
        mended: a plan that needs no more than so many times the arena may be mended, or one much like
            it fit.
        mendable: the same of a plan that is not lowered yet, of which the need is not known as exactly.
        over: another plan is pinned by other nodes: a little more room is left for them than the last
            one took.
        least_search_s: what the first search is taken to have lasted at least: no other gets more than
            twice as long. One beyond the end gets this much at least.
        first_search: share of the time left that the first search may take.
        later_search: and each of those after it.
        lower_until: share of the time after which no lower capacity is tried, if there is a plan.
        pressed: share of the time that is left when lower capacities come first, as long as no plan
            holds.
        late: share of the time that a search gets beyond its end, while nothing is accepted.
        late_trials: so many trials at most begin beyond the end; twice as many where some plan nearly
            holds.
        ahead: so many trials at most are worked on before their turn.
        judging: share of the time left for a rough plan.
        cut: of its time, that a search must have taken to be ended by it.
        exact: what a plan is thought to need is as a rule as near as this.
        far: a rough plan farther than that from its bound holds other things than the plan that a
            search finds.
        fit_s: for an order that the arena has room for: it is found in less than 0.4 s or not.
        fit_rounds: another order may be pinned by other nodes, whose few bytes lie elsewhere: then it
            is fitted again.
        fit_slower: copies beside the operations may have to wait in another order: one that takes
            longer is none.
        unknown_pin_us: what a node that pins is thought to take where that was not measured: fewer are
            better all the same.
        again_orders: base orders in which a search is made again, where nodes of its plan were taken.
        worth_per_s: a second of waiting must promise so much of a step's time: after ten seconds, 0.1%
            is let go.
        least_peak_s: for each search for the least peak, at least.
        held_tries: budgets that are tried for the least plan.
        held_step: by how much each is above the one before at least, and the one that is named above
            the last.
        least_of_all_s: for the least peak over all base orders, at most.
        looser_s: for an order that fewer nodes pin.
        looser_fit_s: for one like it that the arena has room for.
        pins_can_go: share of the nodes that pin an order that can go, about.
        quick_nodes: a file of so many nodes is written at once, for whatever that saves.
        written_s_per_node: a file of one node takes so long to write and to read back, at most.
    """

    late_orders: int = 4
    quick_orders: int = 3
    pins_left: float = 0.5
    roomy: float = 0.85
    worth: float = 0.01
    least_bytes: int = 4096
    least_of_peak: float = 1 / 2000
    beside: float = 0.5
    capacities: tuple[float, ...] = (
        1.0,
        0.995,
        0.98,
        0.965,
        0.95,
        0.935,
        0.92,
        0.9,
        0.87,
        0.83,
        0.78,
    )
    mended: float = 1.04
    mendable: float = 1.07
    over: float = 1.1
    least_search_s: float = 2.0
    first_search: float = 0.5
    later_search: float = 0.3
    lower_until: float = 0.85
    pressed: float = 0.5
    late: float = 0.1
    late_trials: int = 3
    ahead: int = 8
    judging: float = 0.02
    cut: float = 0.8
    exact: float = 1.03
    far: float = 0.1
    fit_s: float = 0.6
    fit_rounds: int = 3
    fit_slower: float = 1 + 1e-9
    unknown_pin_us: float = 1.0
    again_orders: int = 4
    worth_per_s: float = 1e-4
    least_peak_s: float = 2.0
    held_tries: int = 4
    held_step: float = 1.003
    least_of_all_s: float = 30.0
    looser_s: float = 1.0
    looser_fit_s: float = 0.5
    pins_can_go: float = 0.5
    quick_nodes: int = 1_000
    written_s_per_node: float = 1e-3


POLICY = SolvePolicy()
