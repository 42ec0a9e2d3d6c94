"""Verify a rewritten model on ONNX Runtime: numbers, order, bytes, time, and a hard cap.

Sessions are shared between checks: one session yields outputs, executed order and bytes from a profiled
run, and times from more runs (`planner.runtime.profiled`).

    both       alone                     bits, and growth of the process (`judge.alone`)
    original   default                   outputs, bytes
    rewritten  default                   outputs, order, bytes
    rewritten  recommended               order, bytes
    rewritten  watched                   bits, where copies run beside the operations (`judge.swaps`)
    both       default                   time, in turns, in the sessions above
    both       capped                    in a pool that refuses more, one process each
    both       seeded                    outputs of random numbers, where there are any

All sessions have ONNX Runtime's default level, ORT_ENABLE_ALL. A model that is planned without the
optimizers (`--no-ort-optimize`) is opened at ORT_DISABLE_ALL, except alone, where both models are opened
as a script would. Under the cap, the original is the optimized graph that its own session wrote to a
file, which needs no optimizers any more; this requires that the file's order is the order in which the
session ran it (apart from `Shape` and `Size`, which run as soon as they can).

Sessions with default options run twice in a row, since later runs hold more (the memory pattern's block);
recommended ones run once. A thorough verification runs those twice too, times more steps, and adds

    original   recommended               bytes
    rewritten  default, level extended   order
    rewritten  default, level disabled   order

Between sessions only the original's outputs are kept, and each is freed once compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from planner.errors import ModelError
from planner.graph.liveness import timeline
from planner.graph.rules import SWAP_OPERATORS
from planner.processes.children import quiet
from planner.results.verification import (
    CapCheck,
    CopyCheck,
    OrderCheck,
    OutputComparison,
    SessionCheck,
    TimeCheck,
    Verification,
)
from planner.runtime.build import has_pool
from planner.runtime.judge.alone import BothAlone, has_room_beside, judged_alone
from planner.runtime.judge.bytes_seen import BytesSeen
from planner.runtime.judge.cap.both import Contestant, capped_by, in_its_pool
from planner.runtime.judge.compare import KeptResults, compare_orders, judged, threads_to_compare
from planner.runtime.judge.cpu_job import Array, CpuJob
from planner.runtime.judge.draws import compare_draws, drawn_outputs
from planner.runtime.judge.noise import rounding_judged
from planner.runtime.judge.sizes import exceeded
from planner.runtime.judge.swaps import (
    copy_check,
    copy_failures,
    digests,
    link_for,
    watched,
)
from planner.runtime.memory.memcheck import NO_ROOM
from planner.runtime.optimizers.settled import executed_order
from planner.runtime.optimizers.written import as_left, with_own, written_inputs
from planner.runtime.options import Level, Memory, Opening, Order
from planner.runtime.profile import Run
from planner.runtime.profiled import (
    VerifyingSessions,
    holds_run,
    may_create_beside,
    may_stay,
)
from planner.runtime.timing import QUICK, THOROUGH, time_in_turns
from planner.targets import HOST
from planner.units import counted, format_bytes


@dataclass(kw_only=True)
class CpuVerification(CpuJob):
    """The checks of a job, one after the other; failed ones are in `failures`."""

    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    order_checks: list[OrderCheck] = field(default_factory=list)
    _sessions: VerifyingSessions = field(init=False)
    _as_run: Path | None = field(default=None, init=False)
    _copies: CopyCheck | None = field(default=None, init=False)
    _is_as_analysed: bool = field(default=True, init=False)
    _bytes: BytesSeen = field(init=False)
    _room_failures: int = field(default=0, init=False)
    _written: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._written = written_inputs(self.graphs["original"])
        self._bytes = BytesSeen(graphs=self.graphs, has_swaps=self.has_swaps)

    def run(self) -> Verification:
        """Run all checks.

        Raises:
            ModelError: one of the models does not load or run.
        """
        nodes = {name: {op.name for op in g.operations} for name, g in self.graphs.items()}
        with VerifyingSessions(
            paths=self.paths, nodes=nodes, seed=self.seed, ahead=self.ahead
        ) as self._sessions:
            return self._verified()

    def _verified(self) -> Verification:
        import onnxruntime as ort

        self.notes.append(f"sessions ran with {counted(self.threads, 'intra-operator thread')}")
        if not self.packed:
            self.notes.append(
                "kernels do not pack initializers that can be fed, such as those on the host, "
                "when a session is created, which may change last bits: both models ran without "
                "packing (session.disable_prepacking)"
            )
        with BothAlone(
            self.paths,
            self.inputs,
            written=self._written,
            beside=has_room_beside(
                max(timeline(g, self.orders[n]).peak_bytes for n, g in self.graphs.items())
            ),
        ) as alone:
            outputs = self._outputs()
            self._recommended()
            self._at_other_levels()
            self.progress("both models as a script opens them, each in a process of its own")
            bits, sessions = alone.found()
        opened = next((check for check in sessions if check.options == "recommended"), None)
        if opened is not None:
            self._bytes.add_pool(opened, self.orders["rewritten"])
        failures, notes = judged_alone(bits, sessions, strict=self.strict)
        self.failures += failures
        self._room_failures += sum(not check.has_room for check in sessions)
        self.notes += notes
        time = self._time() if self.is_timed else None
        caps = self._caps(opened)
        self._judge_memory()
        return Verification(
            ort_version=str(ort.__version__),
            provider=HOST.provider,
            device=HOST.name,
            seed=self.seed,
            inputs_source=self.inputs_source,
            passed=not self.failures,
            failures=tuple(self.failures),
            notes=tuple(self.notes),
            outputs=outputs,
            orders=tuple(sorted(self.order_checks, key=lambda c: _LEVELS.index(c.level))),
            memory=tuple(self._bytes.checks),
            caps=caps,
            time=time,
            copies=self._copies,
            sessions=sessions,
            default_bits=bits,
            lacks_room=0 < self._room_failures == len(self.failures),
        )

    def _own_inputs(self) -> dict[str, Array]:
        """Return the inputs, with copies of those that a run writes over."""
        return with_own(self.inputs, self._written)

    def _at_other_levels(self) -> None:
        """Check the order at other levels, or note why this is left out."""
        if self.is_copy:
            self.notes.append("the model is a copy of the original: it has no planned order")
        elif not self.is_optimized:
            self.notes.append(
                "sessions ran at the level ORT_DISABLE_ALL, for which the plan is made"
            )
        elif self.thorough:
            levels: tuple[Level, ...] = ("extended", "disabled")
            for level in levels:
                self.progress(f"rewritten model, level {level}: order")
                (run,) = self._profile("rewritten", self.opening("rewritten", level), runs=1)
                self._check_order(level, run)
        if not self.thorough:
            self.notes.append(
                "each model ran twice under default options, once under others; a thorough verification "
                "runs more"
            )

    def _profile(
        self,
        model: str,
        opening: Opening,
        *,
        runs: int | None = None,
        on_outputs: Callable[[list[str], list[Array]], None] | None = None,
        inputs: Mapping[str, Array] | None = None,
    ) -> tuple[Run, ...]:
        with_copy = self.may_copy and model == "original" and on_outputs is not None
        session = self._sessions.begin(model, opening, with_copy=with_copy)
        found = session.profile(
            self.inputs if inputs is None else inputs,
            runs=runs or (2 if opening.memory == "default" else self.runs),
            on_outputs=on_outputs,
            names=self._sessions.nodes[model],
        )
        if not all(found):
            raise ModelError(f"ONNX Runtime's profile of {self.paths[model]} has no node in it")
        is_timed_so = opening == self.opening_of(model)
        keep = self.is_timed and is_timed_so and may_stay(found)
        self._sessions.finish(model, session, keep=keep)
        if session.copy is not None and holds_run(session.copy, found[0]):
            self._as_run = session.copy
        return found

    def _outputs(self) -> tuple[OutputComparison, ...]:
        self.progress("original model, default options: outputs and bytes")
        threads, note = threads_to_compare(self.graphs["original"], self.threads)
        self.notes += note
        opening = replace(self.opening_of("rewritten"), threads=threads)
        self._begin_rewritten(opening)
        results, own = KeptResults(), self._own_inputs()
        runs = self._profile(
            "original",
            replace(self.opening_of("original"), threads=threads),
            on_outputs=lambda names, arrays: results.keep(
                _named(names, arrays, own, self._written)
            ),
            inputs=own,
        )
        self._adopt_order(runs[0])
        self.failures += exceeded(self.graphs["original"], runs[0], "original")
        self._bytes.add("original", self.orders["original"], runs, self.opening_of("original"))
        self.progress("rewritten model, default options: outputs, order and bytes")
        feeds = self._own_inputs()
        bits: dict[str, str] = {}

        def on_outputs(names: list[str], arrays: list[Array]) -> None:
            found = _named(names, arrays, feeds, self._written)
            if any(op.op_type in SWAP_OPERATORS for op in self.graphs["rewritten"].operations):
                bits.update(digests(found))
            results.compare(found)

        runs = self._profile("rewritten", opening, on_outputs=on_outputs, inputs=feeds)
        if bits:
            self._watch_swaps(runs[0], opening, bits)
        self._check_order(self.default_level, runs[0])
        self.failures += exceeded(self.graphs["rewritten"], runs[0], "rewritten")
        self._bytes.add("rewritten", self.orders["rewritten"], runs, self.opening_of("rewritten"))
        self.failures += results.failures
        comparisons = self._with_draws(results.comparisons, threads)
        return self._judge_outputs(comparisons, threads)

    def _watch_swaps(self, run: Run, opening: Opening, bits: Mapping[str, str]) -> None:
        """Count the swaps of a run, and watch them in other runs, which must give the same bits."""
        self.progress("rewritten model, on a slow link: swaps under watch")
        graph = self.graphs["rewritten"]
        self._copies = copy_check(graph, run)
        self.failures += copy_failures(self._copies)
        drawn = drawn_outputs(graph)
        failures, note = watched(
            self.paths["rewritten"],
            opening,
            self._own_inputs,
            lambda names, arrays, fed: _named(names, arrays, fed, self._written),
            {name: found for name, found in bits.items() if name not in drawn},
            link_for(graph, sum(event.duration_us for event in run)),
        )
        self.failures += failures
        self.notes.append(note)

    def _with_draws(
        self, comparisons: Sequence[OutputComparison], threads: int
    ) -> tuple[OutputComparison, ...]:
        """Compare outputs that depend on unseeded random numbers in runs where both models draw alike."""
        drawn = drawn_outputs(self.graphs["original"])
        if not drawn:
            return tuple(comparisons)
        self.progress("both models with seeds for their random numbers: outputs")
        found, note = compare_draws(
            self.graphs["original"],
            (self.paths["original"], self.paths["rewritten"]),
            self._own_inputs,
            openings=(
                self.opening_of("original"),
                self.opening_of("rewritten"),
            ),
            threads=threads,
            seed=self.seed,
        )
        self.notes.append(note)
        rest = (found.get(c.name) if c.name in drawn else c for c in comparisons)
        return tuple(c for c in rest if c is not None)

    def _adopt_order(self, run: Run) -> None:
        """Take the order in which the original really ran as the order to predict its bytes for."""
        order, note = executed_order(run, self.graphs["original"], self.orders["original"])
        self._is_as_analysed = order is not None
        self.orders = {**self.orders, "original": order or self.orders["original"]}
        self.notes += note

    def _judge_outputs(
        self, comparisons: tuple[OutputComparison, ...], threads: int
    ) -> tuple[OutputComparison, ...]:
        if self.numbers == "rounding":
            comparisons, notes = rounding_judged(
                comparisons,
                self.paths["original"],
                self._own_inputs,
                drawn=drawn_outputs(self.graphs["original"]),
                opening=replace(self.opening_of("original"), threads=threads),
                seed=self.seed,
            )
            self.notes += notes
        failures, notes = judged(comparisons, self.numbers)
        self.failures += failures
        self.notes += notes
        return comparisons

    def _recommended(self) -> None:
        if self.thorough:
            self.progress("original model, recommended options: bytes")
            opening = self.opening_of("original", "recommended")
            runs = self._profile("original", opening)
            self._bytes.add("original", self.orders["original"], runs, opening)
        self.progress("rewritten model, recommended options: order and bytes")
        opening = self.opening_of("rewritten", "recommended")
        runs = self._profile("rewritten", opening)
        if self.is_optimized:
            self._check_order(opening.level, runs[0])
        self._bytes.add("rewritten", self.orders["rewritten"], runs, opening)

    def _begin_rewritten(self, opening: Opening) -> None:
        """Start creating the rewritten model's sessions (this one, and one with recommended options)
        beside the original's."""
        if may_create_beside(len(self.graphs["rewritten"].operations)) and not self.thorough:
            self._sessions.begin("rewritten", opening)
            recommended = self.opening_of("rewritten", "recommended")
            self._sessions.begin("rewritten", recommended)

    def _check_order(self, level: str, run: Run) -> None:
        if self.is_copy:
            return
        check = compare_orders(self.planned, [event.name for event in run], level=level)
        if check not in self.order_checks:
            self.order_checks.append(check)
        if not check.equal:
            self.failures.append(
                f"executed order at level {level} is not the planned one: {check.first_difference}"
            )

    def _judge_memory(self) -> None:
        opened: Memory = "default" if self.is_copy else "recommended"
        self.notes += self._bytes.notes()
        self.failures += self._bytes.over_live(self.budget_bytes)
        self._refuse(self._bytes.over_held(self.budget_bytes, self.budget_of, opened))

    def _refuse(self, said: Sequence[str]) -> None:
        """Add failures that are due only to too little memory."""
        self.failures += said
        self._room_failures += len(said)

    def _time(self) -> TimeCheck:
        self.progress("both models in turns: time")
        with quiet():
            check, notes = time_in_turns(
                (
                    self._sessions.timed("original", self.opening_of("original")),
                    self._sessions.timed("rewritten", self.opening_of("rewritten")),
                ),
                self.inputs,
                length=THOROUGH if self.thorough else QUICK,
                held_bytes=sum(
                    c.held_bytes or 0 for c in self._bytes.checks if c.options == "default"
                ),
            )
        self.notes += notes
        return check

    def _caps(self, opened: SessionCheck | None) -> tuple[CapCheck, ...]:
        if self.has_swaps:
            return ()
        if not has_pool():
            self.notes.append(
                "the models did not run under a hard cap: this build of ONNX Runtime cannot use "
                "planner's pool"
            )
            return ()
        self.progress("both models under a hard memory cap")
        checks = capped_by(
            self.budget_bytes,
            self._contestant("original"),
            replace(
                self._contestant("rewritten"),
                opened=in_its_pool(self.paths["rewritten"], opened),
            ),
            [check for check in self._bytes.checks if check.model == "original"],
            is_as_analysed=self._is_as_analysed,
        )
        self.failures += [check.failure for check in checks if check.failure]
        over = checks[1].over_budget_bytes
        if over and self.budget_of == "held" and not self.is_copy:
            self._refuse([f"{NO_ROOM}: it takes {format_bytes(over)} more"])
        elif over:
            self.notes.append(
                "the budget bounds live bytes; whole pages and kernels' workspace take "
                f"{format_bytes(over)} more in the pool, so the hard cap is the budget plus that; a "
                f"reserve of {over} bytes keeps the pool itself within it"
            )
        return checks

    def _contestant(self, model: str) -> Contestant:
        path, level, order = self._capped(model)
        return Contestant(
            name=model,
            path=path,
            graph=self.graphs[model],
            order=self.orders[model],
            order_option=order,
            level=level,
            inputs=self.inputs,
            threads=self.threads,
            runs=self.runs,
        )

    def _capped(self, model: str) -> tuple[Path, Level, Order]:
        """Return the file of a model to run under a cap, and the level and order to open it with."""
        if model == "original" and self._as_run is not None:
            return self._as_run, "disabled", "priority"
        return self.paths[model], self.default_level, self.order_of(model)


_LEVELS = ("disabled", "extended", "all")


def _named(
    names: list[str], arrays: list[Array], feeds: Mapping[str, Array], written: tuple[str, ...]
) -> dict[str, Array]:
    """Return outputs by name, together with the inputs that the run overwrote."""
    return {**dict(zip(names, arrays, strict=True)), **as_left(feeds, written, names)}
