"""Run the original and the rewritten model on a device with a memory of its own, and compare.

The checks differ from the CPU's (`planner.runtime.judge.verify`), because a device does:

    order     the device and the CPU each run their nodes in the planned order, beside each other: each
              queue is compared, not the whole list
    copies    by name and bytes; none may be unplanned
    outputs   with the original's on the same device, bit for bit wherever the original gives the same
              bits twice; and with the CPU's, within the target's tolerance
    bytes     replayed from the executed order; the device's held bytes, where something counts them
    cap       at the bytes that the rewritten model held: it runs there again, the original does not
    time      in turns, on hardware; times of a software device are meaningless
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from planner.choices import Numbers
from planner.errors import ModelError
from planner.files.temporary import temporary_folder
from planner.results.verification import (
    CapCheck,
    CopyCheck,
    MemoryCheck,
    OrderCheck,
    OutputComparison,
    TimeCheck,
    Verification,
)
from planner.runtime.device import client
from planner.runtime.device.caps import cap_on_device
from planner.runtime.device.client import DeviceRun
from planner.runtime.device.outputs import OutputJudge, is_near, summed_outputs
from planner.runtime.device.side import Side
from planner.runtime.judge.compare import compare_orders
from planner.runtime.judge.draws import described, drawn_outputs
from planner.runtime.judge.swaps import copy_check, copy_failures
from planner.runtime.memory import memcheck
from planner.runtime.options import DEFAULT, Level, Memory, Opening, Order
from planner.runtime.profile import create_session, run_session
from planner.targets import HOST, Target
from planner.targets.backend import backend_of
from planner.units import counted, format_bytes

Array = npt.NDArray[Any]
_LEVELS: tuple[Level, ...] = ("disabled", "extended", "all")


@dataclass(kw_only=True)
class DeviceJob:
    """The checks in turn; each failed check adds to `failures`.

    Attributes:
        budget_bytes: the user's budget for the device.
        order: the session option that the rewritten model is written for.
        is_copy: whether the rewritten model is the original, which has no planned order.
        numbers: how close to the original's outputs the rewritten model's should be.
        timing_runs: timed runs of each model, on hardware.
        bound: whether they are timed with inputs and outputs where each session reads and writes them,
            rather than on the host.
    """

    target: Target
    original: Side
    rewritten: Side
    inputs: Mapping[str, Array]
    inputs_source: str
    budget_bytes: int
    order: Order = "default"
    is_copy: bool = False
    numbers: Numbers = "exact"
    seed: int = 0
    timing_runs: int = 5
    bound: bool = False
    progress: Callable[[str], None] = lambda _: None
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self) -> Verification:
        """Run all checks.

        Raises:
            UsageError: the device is not available.
            ModelError: one of the models does not load or run on it.
        """
        import onnxruntime as ort

        where = self.target.title
        self.progress(f"original model on {where}: outputs, order and bytes")
        before, tight_before = self._run_twice(self.original, keep=2)
        self.progress("original model on the CPU: outputs")
        on_cpu = self._run_on_cpu()
        self.progress(f"rewritten model on {where}: outputs, order, copies and bytes")
        after, tight = self._run_twice(self.rewritten, self.order, keep=1)
        outputs = self._judged_outputs(before, on_cpu, after)
        orders = () if self.is_copy else (*self._orders(after), *self._loads())
        copies = self._copies(after)
        memory = (
            *self._memories("default", before, after),
            *self._memories("recommended", tight_before, tight),
        )
        caps = (
            self._caps(before, after)
            if tight is None
            else self._capped(after, memory[0].live_bytes)
        )
        return Verification(
            ort_version=str(ort.__version__),
            provider=self.target.provider,
            device=self.target.name,
            seed=self.seed,
            inputs_source=self.inputs_source,
            passed=not self.failures,
            failures=tuple(self.failures),
            notes=tuple(self.notes),
            outputs=outputs,
            orders=orders,
            memory=memory,
            caps=caps,
            time=self._time(),
            copies=copies,
        )

    def _run_twice(
        self, side: Side, order: Order = "default", *, keep: int
    ) -> tuple[DeviceRun, DeviceRun | None]:
        """Run a model twice, and twice more with the options recommended for a tight budget.

        The second result is None where these change nothing.
        """
        opening = Opening(level=side.level, order=order)
        plain = client.run(self.target, side.path, self.inputs, opening, keep=keep)
        if not self.target.is_arena:
            return plain, None
        opening = replace(opening, memory="recommended")
        return plain, client.run(self.target, side.path, self.inputs, opening, keep=0)

    def _run_on_cpu(self) -> dict[str, Array]:
        """Return the original model's outputs on the CPU."""
        session = create_session(self.original.path, DEFAULT.options())
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, run_session(session, self.inputs), strict=True))

    def _judged_outputs(
        self, before: DeviceRun, on_cpu: Mapping[str, Array], after: DeviceRun
    ) -> tuple[OutputComparison, ...]:
        """Compare the rewritten model's outputs with the original's."""
        judge = OutputJudge(
            target=self.target,
            summed=summed_outputs(self.original.graph, self.target),
            failures=self.failures,
            notes=self.notes,
            numbers=self.numbers,
        )
        drawn = drawn_outputs(self.original.graph)
        if drawn:
            self.notes.append(f"{described(self.original.graph)}: they were not compared")
        first, second, new, cpu = (
            {name: array for name, array in outputs.items() if name not in drawn}
            for outputs in (*before.outputs, after.outputs[0], on_cpu)
        )
        return judge.judge((first, second), new, cpu)

    def _memories(
        self, options: Memory, before: DeviceRun | None, after: DeviceRun | None
    ) -> Iterator[MemoryCheck]:
        """Yield the bytes of each model that ran with these options."""
        sides = (("original", self.original, before), ("rewritten", self.rewritten, after))
        for name, side, run in sides:
            if run is not None:
                yield self._memory(name, side, run, options)

    # -- order and copies ----------------------------------------------------------------------

    def _orders(self, after: DeviceRun) -> tuple[OrderCheck, ...]:
        queue = {e.name: e.provider for e in after.events}
        device = {e.provider for e in after.events} - {HOST.provider}
        if device - {self.target.provider}:
            self.failures.append(f"nodes ran on {', '.join(sorted(device))}")
        checks: list[OrderCheck] = []
        for provider in (self.target.provider, HOST.provider):
            planned = [n for n in self.rewritten.names if queue.get(n) == provider]
            executed = [e.name for e in after.events if e.provider == provider]
            check = compare_orders(planned, executed, level="all", queue=provider)
            checks.append(check)
            if not check.equal:
                self.failures.append(
                    f"{provider} did not run its nodes in the planned order: "
                    f"{check.first_difference}"
                )
        lost = [n for n in self.rewritten.names if n not in queue]
        if lost:
            self.failures.append(
                f"{counted(len(lost), 'planned node')} did not run, first {lost[0]!r}"
            )
        planned_cpu = {op.name for op in self.rewritten.graph.operations if op.on_cpu}
        moved = [n for n, q in queue.items() if (q == HOST.provider) != (n in planned_cpu)]
        moved = [n for n in moved if n in set(self.rewritten.names)]
        if moved:
            self.failures.append(
                f"{counted(len(moved), 'node')} did not run where planned, first {moved[0]!r}"
            )
        return tuple(checks)

    def _loads(self) -> tuple[OrderCheck, ...]:
        """Check at each other level that a session leaves the file's graph unchanged."""
        checks: list[OrderCheck] = []
        planned = sorted(self.rewritten.names)
        for level in _LEVELS[:-1]:
            with temporary_folder() as folder:
                saved = folder / "saved.onnx"
                client.optimize(self.target, self.rewritten.path, saved, level=level)
                names = sorted(str(node.name) for node in ir.load(saved).graph)
            check = compare_orders(
                planned, names, level=level, queue="nodes of the session's graph"
            )
            checks.append(check)
            if not check.equal:
                self.failures.append(
                    f"at level {level} a session changes the graph: {check.first_difference}"
                )
        return tuple(checks)

    def _copies(self, after: DeviceRun) -> CopyCheck:
        check = copy_check(self.rewritten.graph, self.rewritten.seen(after))
        if not self.is_copy:
            self.failures += copy_failures(check)
        return check

    # -- memory --------------------------------------------------------------------------------

    def _memory(self, name: str, side: Side, run: DeviceRun, options: Memory) -> MemoryCheck:
        check = memcheck.replayed(
            side.seen(run), side.graph, side.order, model=name, options=options
        )
        held = max(run.peak_bytes, default=None)
        if held is None and name == "original":
            self.notes.append(f"nothing counts the bytes of {self.target.title} here")
        if name == "rewritten" and check.live_bytes > self.budget_bytes:
            self.failures.append(
                f"replayed live bytes of the rewritten model are {format_bytes(check.live_bytes)}, "
                f"over the budget of {format_bytes(self.budget_bytes)}"
            )
        predicted = backend_of(self.target).forecast(side.graph, side.order, options)
        return replace(check, predicted_held_bytes=predicted.held_bytes, held_bytes=held)

    def _capped(self, after: DeviceRun, live_peak_bytes: int) -> tuple[CapCheck, ...]:
        """Run both in arenas of the budget, or of the least more with which the rewritten model runs."""
        self.progress(f"both models within {format_bytes(self.budget_bytes)}")
        checks, outputs = cap_on_device(
            self.target,
            (self.original, self.rewritten),
            self.inputs,
            self.budget_bytes,
            live_peak_bytes=live_peak_bytes,
            order=self.order,
        )
        self.failures.extend(check.failure for check in checks if check.failure)
        if checks[1].passed:
            self._same_under_cap(after, outputs)
        if over := checks[1].over_budget_bytes:
            self.notes.append(
                "the budget bounds live bytes; rounding, fragmentation and kernels' workspace in "
                f"the device's arena take up to {format_bytes(over)} more, so the hard cap is the "
                "budget plus that; a --reserve of that size keeps the arena itself within the "
                "budget"
            )
        return checks

    def _caps(self, before: DeviceRun, after: DeviceRun) -> tuple[CapCheck, ...]:
        """Run both under a cap of the bytes that the rewritten model held, where something counted
        them."""
        if not after.peak_bytes:
            return ()
        original, cap = (max(run.peak_bytes) for run in (before, after))
        fails = original > cap
        checks: list[CapCheck] = []
        sides = (
            ("original", self.original, False if fails else None),
            ("rewritten", self.rewritten, True),
        )
        for name, side, expected in sides:
            self.progress(f"{name} model under a cap of {format_bytes(cap)}")
            message = ""
            try:
                again = client.run(
                    self.target,
                    side.path,
                    self.inputs,
                    Opening(order=self.order if name == "rewritten" else "default"),
                    keep=int(name == "rewritten"),
                    cap_bytes=cap,
                )
            except ModelError as error:
                message = str(error).splitlines()[0]
            else:
                if name == "rewritten":
                    self._same_under_cap(after, again.outputs[0])
            checks.append(
                CapCheck(
                    model=name,
                    cap_bytes=cap,
                    passed=not message,
                    expected=expected,
                    message=message,
                )
            )
        self.failures.extend(check.failure for check in checks if check.failure)
        return tuple(checks)

    def _same_under_cap(self, after: DeviceRun, second: Mapping[str, Array]) -> None:
        first = after.outputs[0]
        off = [n for n in first if not is_near(self.target, first[n], second[n])]
        if off:
            self.failures.append(f"under the cap output {off[0]!r} differs")

    def _time(self) -> TimeCheck | None:
        if not backend_of(self.target).is_hardware():
            self.notes.append("steps were not timed: the device is software")
            return None
        self.progress("both models in turns: time")
        original_s, rewritten_s = client.time_in_turns(
            self.target,
            (self.original.path, self.rewritten.path),
            self.inputs,
            runs=self.timing_runs,
            order=self.order,
            bound=self.bound,
        )
        return TimeCheck(
            original_us=tuple(1e6 * s for s in original_s),
            rewritten_us=tuple(1e6 * s for s in rewritten_s),
        )
