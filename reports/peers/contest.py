"""One network: every contestant in a process of its own, its bytes and numbers, then all in turns."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import math
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx

from planner import analyze
from planner.choices import FuseMode
from planner.cost.measured import device_names, processor
from planner.targets import Device
from reports.peers.networks import Network
from reports.peers.numbers import Arrays, apart
from reports.peers.plans import PlanSettings, Row, device_peak_bytes, export, planned
from reports.peers.pytorch import COMPILE, EAGER, SAVE_ON_CPU, VARIANTS

AS_IT_IS = "onnxruntime"
PLANNED, FUSED = "planned ", "fused "
"""Contestants: PyTorch's variants, the exported graph as it is, `planned VARIANT` at that one's peak, and
`fused VARIANT`, which is planned with `--fuse auto`."""

WARM_UPS = 2

_MOST_SHARES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a contest.

    Attributes:
        rounds: of turns; each contestant runs two steps in a turn, of which the second is timed.
        threads: of either runtime.
        limit_s: of each search of planner's.
        hardware: planner's profile of the machine; on the CPU times are measured.
        product: rows, inner size and columns of the product that compares the runtimes' libraries.
        built: a folder of graphs that were exported before, by network.
        partitioner: whether PyTorch's partitioner is compared with planner's solver.
        fuse: the ways in which each plan is made (`--fuse`).
    """

    variants: Sequence[str] = VARIANTS
    rounds: int = 10
    threads: int = 2
    limit_s: float = 60.0
    device: Device = "cpu"
    hardware: str = "cpu"
    product: tuple[int, int, int] = (1024, 512, 2048)
    partitioner: bool = True
    fuse: Sequence[FuseMode] = ("none", "auto")
    built: Path | None = None
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)


class Contestant(Protocol):
    """The contestant that a worker holds."""

    def step(self) -> object: ...
    def seconds(self) -> float: ...
    def numbers(self) -> Arrays: ...


def measure(name: str, network: Network, settings: Settings) -> Row:
    """Measure a network: figures of each contestant, times by round, and the partitioner's rows."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="planner-peers-") as text,
        contextlib.ExitStack() as stack,
    ):
        bench = _Bench(network, settings, Path(text), stack)
        bench.export(name)
        bench.open_all()
        bench.open_planned()
        row: Row = {
            "title": network.title,
            "recipe": network.recipe,
            "sizes": dict(network.sizes),
            "fused": network.fused,
            "device": settings.device,
            "threads": settings.threads,
            "machine": ", ".join([*_devices(settings), processor(), f"{os.cpu_count()} cores"]),
            "limit_s": settings.limit_s,
            "versions": _versions(),
            "export": bench.exported,
            "skipped": bench.skipped,
            "contestants": bench.found,
            "times_us": bench.in_turns(),
        }
        if settings.device == "cpu":
            row["products"] = bench.products()
            row["least_peak_bytes"] = least_peak(bench.model, settings.limit_s)
    if settings.partitioner:
        settings.say("PyTorch's partitioner and planner's solver on one problem")
        with _process() as apart_from:
            row["partitioner"] = apart_from.submit(
                _partitioner_rows, network, settings.threads, min(settings.limit_s, 30.0)
            ).result()
    return {**row, "seconds": round(time.monotonic() - began)}


def least_peak(model: Path, limit_s: float) -> int:
    """Return the least peak that `planner analyze` finds for a model by order and recompute alone."""
    found = analyze(model, swap="none", calibrate=False, reproducible=True, time_limit_s=limit_s)
    return found.least_peak_bytes


class _Bench:
    """The workers of one network, in the order of their turns, with the figures of each."""

    def __init__(
        self, network: Network, settings: Settings, folder: Path, stack: contextlib.ExitStack
    ) -> None:
        self.network, self.settings = network, settings
        self.folder, self._stack = folder, stack
        self.model, self.feeds = folder / "network.onnx", folder / "feeds.npz"
        self.reference = folder / "eager.npz"
        self.found: dict[str, Row] = {}
        self.skipped: dict[str, str] = {}
        self.exported: Row = {}
        self._workers: dict[str, ProcessPoolExecutor] = {}

    def open_all(self) -> None:
        """PyTorch's variants, eager first, whose numbers are everybody's reference; and the exported
        graph as it is."""
        variants = [EAGER, *(v for v in self.settings.variants if v != EAGER)]
        begun: dict[str, Future[Row]] = {}
        for variant in variants:
            if why := _missing(variant):
                self.skipped[variant] = why
                continue
            self.settings.say(f"PyTorch, {variant}: opening, bytes, numbers")
            worker = self._stack.enter_context(_process())
            task = (self.network, variant, self.settings.device, self.settings.threads)
            self._workers[variant] = worker
            begun[variant] = worker.submit(_open_torch, *task, self.folder)
            if variant == EAGER or not self._at_once:
                wait([begun[variant]])
        self.settings.say("ONNX Runtime: opening, bytes, numbers")
        as_it_is = self._model_opening(AS_IT_IS, self.model, is_plan=False)
        for variant, opening in begun.items():
            try:
                self.found[variant] = opening.result()
            except BrokenProcessPool:
                raise
            except Exception as error:  # of the compiler, of which there are many kinds
                if variant == EAGER:
                    raise
                del self._workers[variant]
                self.skipped[variant] = (
                    f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                )
        self.found[AS_IT_IS] = as_it_is.result()

    def export(self, name: str) -> None:
        """Export the training graph, unless it was exported before."""
        if self.settings.built:
            self.model = self.settings.built / f"{name}.onnx"
            nodes = onnx.load(self.model, load_external_data=False).graph.node
            self.exported = {"nodes": len(nodes)}
            return
        self.settings.say("planner: exporting")
        with _process() as worker:
            self.exported = worker.submit(export, self.network, self.model).result()

    def open_planned(self) -> None:
        """Open a plan for each peer's peak, or the exported graph where the peak requires no plan."""
        asked = PlanSettings(
            model=self.model,
            feeds=self.feeds,
            device=self.settings.device,
            hardware=self.settings.hardware,
            threads=self.settings.threads,
            limit_s=self.settings.limit_s,
        )
        on_cpu = self.settings.device == "cpu"
        planning: dict[str, tuple[Path, Future[Row]]] = {}
        peers = [v for v in self.found if v not in (EAGER, AS_IT_IS, SAVE_ON_CPU)]
        for variant, fuse in itertools.product(peers, self.settings.fuse):
            kind = PLANNED if fuse == "none" else FUSED
            name, budget = kind + variant, int(self.found[variant]["peak"])
            if on_cpu and fuse == "none" and self.found[AS_IT_IS]["peak"] <= budget:
                self.found[name] = {"asked_bytes": budget, "same_as": AS_IT_IS}
                continue
            self.settings.say(
                f"planner: planning for {budget / 2**20:,.0f} MiB, the peak of {variant}, "
                f"--fuse {fuse}"
            )
            output = self.folder / f"planned{len(planning)}.onnx"
            planner = self._stack.enter_context(_process())
            asked_here = dataclasses.replace(asked, fuse=fuse)
            planning[name] = output, planner.submit(planned, asked_here, budget, output)
            planner.shutdown(wait=not self._at_once)  # its memory is needed for the next
        opening: dict[str, tuple[Row, Future[Row]]] = {}
        for name, (output, plan) in planning.items():
            row = plan.result()
            if "refused" in row:
                self.skipped[name] = row["refused"]
                continue
            opening[name] = row, self._model_opening(name, output, is_plan=True)
        for name, (row, opened) in opening.items():
            self.found[name] = {**row, **opened.result()}

    def _model_opening(self, name: str, model: Path, *, is_plan: bool) -> Future[Row]:
        self._workers[name] = worker = self._stack.enter_context(_process())
        task = (model, self.feeds, self.settings.device, self.settings.threads, self.reference)
        opening = worker.submit(_open_model, *task, is_plan=is_plan)
        if not self._at_once:
            wait([opening])
        return opening

    @property
    def _at_once(self) -> bool:
        """On a GPU; bytes are counted by its allocators, whoever else is there. On the CPU a process
        that opens a contestant has the machine for itself."""
        return self.settings.device != "cpu"

    def in_turns(self) -> dict[str, list[float]]:
        """Microseconds of a warm step by contestant, one a round; who begins a round goes round, too."""
        names = list(self._workers)
        times: dict[str, list[float]] = {name: [] for name in names}
        for name in names:
            for _ in range(WARM_UPS):
                self._workers[name].submit(_step_seconds).result()
        for index in range(self.settings.rounds):
            self.settings.say(f"round {index + 1} of {self.settings.rounds}")
            first = index % len(names)
            for name in names[first:] + names[:first]:
                times[name].append(1e6 * self._workers[name].submit(_turn_seconds).result())
        return times

    def products(self) -> Row:
        """Measure the GFLOP/s of one matrix product in either runtime, in a contestant's process."""
        sizes, threads = self.settings.product, self.settings.threads
        found: Row = {"sizes": list(sizes)}
        for runtime, name in (("pytorch", EAGER), ("runtime", AS_IT_IS)):
            seconds = self._workers[name].submit(_product_seconds, runtime, sizes, threads).result()
            found[runtime] = 2 * math.prod(sizes) / seconds / 1e9
        return found


@contextlib.contextmanager
def _process() -> Iterator[ProcessPoolExecutor]:
    """Start a separate process that makes one call after the other."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        yield pool


def _devices(settings: Settings) -> list[str]:
    return [] if settings.device == "cpu" else device_names()


def _missing(variant: str) -> str:
    """Return why a variant cannot run here; "" if it can."""
    if variant.startswith(COMPILE) and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        return "torch.compile needs a C++ compiler (g++), and there is none here"
    return ""


def _versions() -> Mapping[str, str]:
    import onnxruntime
    import torch

    import planner

    return {
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "planner": planner.__version__,
    }


# -- in a worker ---------------------------------------------------------------------------------

_held: list[Contestant] = []


def _open_torch(network: Network, variant: str, device: str, threads: int, folder: Path) -> Row:
    """Hold a variant, and return its figures; eager leaves everyone's inputs and reference results."""
    from reports.peers.pytorch import TorchStep, float64_numbers
    from reports.peers.resident import growth

    start = time.perf_counter()
    held = TorchStep(network, variant, device, threads)
    held.seconds()  # compiles, if there is anything to compile
    row: Row = {"open_s": time.perf_counter() - start}
    held.seconds()
    row["peak"] = held.peak_bytes()
    held.clear()
    row["rss"] = growth(held.step)
    found = held.numbers()
    if variant == EAGER:
        np.savez(folder / "feeds.npz", allow_pickle=False, **held.feeds())
        np.savez(folder / "eager.npz", allow_pickle=False, **found)
        row["float64"] = apart(float64_numbers(network, device, threads), found)
        if device == "cpu":
            row["shares"] = _largest(held.shares())
    row["apart"] = apart(found, _arrays(folder / "eager.npz"))
    _held.append(held)
    return row


def _open_model(
    model: Path, feeds: Path, device: Device, threads: int, reference: Path, *, is_plan: bool
) -> Row:
    """Hold a model, and return its figures; the bytes of a plan are already known."""
    from reports.peers.resident import growth
    from reports.peers.runtime import OrtStep, cpu_peak_bytes, shares

    row: Row = {}
    if device == "cpu":
        row["shares"] = _largest(shares(model, feeds, threads))
        if not is_plan:
            row |= cpu_peak_bytes(model, feeds, threads)
    elif not is_plan:
        from planner import verify

        row |= device_peak_bytes(
            verify(model, model, inputs=feeds, device=device, fast=True), "original"
        )
    held = OrtStep(model, feeds, device, threads)
    row["rss"] = growth(held.step)
    row["apart"] = apart(held.numbers(), _arrays(reference))
    _held.append(held)
    return row


def _arrays(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as held:
        return {name: held[name] for name in held.files}


def _largest(shares: Mapping[str, float]) -> dict[str, float]:
    ranked = sorted(shares.items(), key=lambda item: -item[1])[:_MOST_SHARES]
    return {name: round(share, 4) for name, share in ranked}


def _step_seconds() -> float:
    return _held[0].seconds()


def _turn_seconds() -> float:
    """Time a step, after another step that warms the caches."""
    _held[0].seconds()
    return _held[0].seconds()


def _product_seconds(runtime: str, sizes: tuple[int, int, int], threads: int) -> float:
    module = importlib.import_module(f"reports.peers.{runtime}")
    return module.product_seconds(*sizes, threads)


def _partitioner_rows(network: Network, threads: int, limit_s: float) -> list[Row]:
    from reports.peers.partitioner import rows

    return rows(network, threads, limit_s)
