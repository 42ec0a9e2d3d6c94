"""The numeric parameters of the search for a plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvePolicy:
    """The table.

    Attributes:
        late_orders: base orders kept besides ONNX Runtime's own if making them took all the time.
        quick_orders: base orders in which short searches compare changes to a model.
        pins_can_go: estimated share of the nodes that pin an order that loosening removes.
        tight: an operation that holds more than this share of the room leaves too little beside it for
            a good plan: an order like the file's runs such operations later, or earlier.
        roomy: an order whose peak is at most this share of the room needs no plan: the rest is room
            enough for the arena to break up.
        worth: share of the step's time by which a plan of a changed model must be quicker.
        least_bytes: smaller tensors are left alone: copying or casting them takes as long as
            starting a node.
        least_of_peak: the same limit as a share of the peak.
        beside: time limit of a search with overlapped copies, as a multiple of the limit of the
            search with serial copies before it.
        capacities: shares of the budget to plan for until ONNX Runtime's arena fits the budget.
        mended: a plan whose arena is too large by at most this factor may still fit in another
            order of its actions.
        mendable: the same factor for a plan that is not lowered yet, whose need is less certain.
        over: factor on the bytes by which the last plan exceeded the budget; the next plan has other
            pins.
        least_search_s: the first search counts as at least this long; no later one gets more than
            twice its time. A search begun after the deadline gets at least this much.
        first_search, later_search: largest share of the time left for the first search and for each
            later one.
        lower_until: share of the time limit after which no lower capacity is tried once there is a
            plan.
        pressed: with less than this share of the time left and no plan that holds, low capacities
            come first.
        late: share of the time limit by which a search may exceed it while no plan is accepted.
        late_trials: most trials begun after the deadline; twice as many if a plan nearly holds.
        judging: share of the time left for a rough plan.
        cut: a search that took at least this share of its limit counts as cut short by it.
        exact: usual error factor of an estimated need.
        far: a rough plan above its bound by more than this share says little about the final plan.
        fit_s: seconds for an order that fits the arena; one is found within 0.4 s or not at all.
        fit_rounds: attempts at fitting; each order has other pins, whose bytes change the arena.
        fit_slower: factor up to which the times of two orders of a plan count as equal; copies
            beside the operations may have to wait in another order.
        unknown_pin_us: assumed time of a pinning node if none was measured.
        again_orders: base orders to search again after optimizers removed nodes of a plan.
        worth_per_s: share of a step's time that a further second of search must promise to save;
            after ten seconds, a gain below 0.1% is not waited for.
        least_peak_s: seconds at least for each search for the least peak.
        held_tries: most budgets to try for the least plan.
        held_step: factor between these budgets, and from the last one to the budget that an error
            names.
        least_of_all_s: seconds at most for the least peak over all base orders.
        looser_s: seconds for an order with fewer pins.
        looser_fit_s: seconds for one that also fits the arena.
        quick_nodes: files of at most this many nodes are rewritten for any gain.
        written_s_per_node: most seconds to write a node and read it back.
    """

    late_orders: int = 4
    quick_orders: int = 3
    pins_can_go: float = 0.5
    tight: float = 0.95
    roomy: float = 0.85
    worth: float = 0.01
    least_bytes: int = 4096
    least_of_peak: float = 1 / 2000
    beside: float = 0.5
    capacities: tuple[float, ...] = (
        1.0, 0.995, 0.98, 0.965, 0.95, 0.935, 0.92, 0.9, 0.87, 0.83, 0.78
    )  # fmt: skip
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
    quick_nodes: int = 1_000
    written_s_per_node: float = 1e-3


POLICY = SolvePolicy()
