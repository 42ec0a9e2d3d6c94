"""The numeric parameters of the search for a plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvePolicy:
    """Limits, shares and thresholds.

    Attributes:
        late_orders: base orders to keep, besides ONNX Runtime's own, if making them took all the
            time.
        pins_left: expected share of an order's pins that remain after loosening.
        roomy: an order below this share of the room needs no plan: the rest suffices for
            fragmentation.
        worth: share of the step's time by which a plan of a changed model must be quicker.
        least_bytes: smaller tensors stay as they are: their copy or cast takes as long as starting
            a node.
        least_of_peak: the same as a share of the peak.
        serial: share of the time of a search with overlap that goes to the search with serial
            copies.
        capacities: capacities to try, as shares of the budget, until ONNX Runtime's arena fits the
            budget too.
        mended: a plan that needs at most this multiple of the arena may be made to fit, or one much
            like it.
        mendable: the same for a plan that is not lowered yet, whose need is less certain.
        over: factor on the missing bytes for the next plan, which other nodes pin.
        least_search_s: seconds that the first search is assumed to have lasted at least: no other
            gets more than twice as long.
        first_search: share of the time left that the first search may take.
        later_search: share of the time left for each later search.
        lower_until: share of the time after which no lower capacity is tried if a plan is accepted.
        pressed: share of the time left at which lower capacities come first, as long as no plan
            holds.
        late: share of the time limit that a search gets beyond its end while no plan is accepted.
        late_trials: trials that may begin beyond the end; twice as many if some plan nearly holds.
        ahead: trials that may be worked on before their turn.
        judging: share of the time left for a rough plan.
        cut: share of its time that a search must have used to count as ended by it.
        exact: usual accuracy of a plan's estimated need, as a factor.
        much_slower: a plan slower than another by this factor is rejected if the arena has no room
            for it either.
        far: a rough plan farther than this from its bound holds other tensors than the final plan.
        slower_with_room: factor by which a plan with room in a device's arena may be slower than
            one without.
        fit_s: seconds for an order that the arena has room for: a search finds it in less than 0.4
            s or not.
        fit_rounds: rounds of fitting: another order may have other pins, whose few bytes lie
            elsewhere.
        fit_slower: factor by which another order may be slower: in it, copies beside the operations
            may have to wait.
        unknown_pin_us: assumed time of a node that pins the order, if not measured: fewer are still
            better.
        again_orders: base orders for a search repeated after nodes of its plan were removed.
        worth_per_s: share of a step's time that a second of waiting must promise: after ten
            seconds, 0.1% is given up.
        least_peak_s: seconds at least for each search for the least peak.
        held_tries: budgets to try for the plan with the least peak.
        held_step: least factor from one of these to the next, and from the last to the one in the
            error.
        least_of_all_s: seconds at most for the least peak over all base orders.
        looser_s: seconds for an order with fewer pins.
        looser_fit_s: seconds for a similar order that the arena has room for.
        pins_can_go: expected share of an order's pins that can go.
        quick_nodes: a file of at most this many nodes is always written again.
        written_s_per_node: seconds at most to write and read back a file, per node.
    """

    late_orders: int = 4
    pins_left: float = 0.5
    roomy: float = 0.85
    worth: float = 0.01
    least_bytes: int = 4096
    least_of_peak: float = 1 / 2000
    serial: float = 0.35
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
    much_slower: float = 1.1
    far: float = 0.1
    slower_with_room: float = 1.25
    fit_s: float = 0.6
    fit_rounds: int = 3
    fit_slower: float = 1 + 1e-9
    unknown_pin_us: float = 1.0
    again_orders: int = 4
    worth_per_s: float = 1e-4
    least_peak_s: float = 1.0
    held_tries: int = 4
    held_step: float = 1.003
    least_of_all_s: float = 30.0
    looser_s: float = 1.0
    looser_fit_s: float = 0.5
    pins_can_go: float = 0.5
    quick_nodes: int = 1_000
    written_s_per_node: float = 1e-3


POLICY = SolvePolicy()
