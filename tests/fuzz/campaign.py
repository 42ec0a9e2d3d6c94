"""Many seeds, each in a process that may crash or hang without taking the others with it."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tests.fuzz.cases import draw_case
from tests.fuzz.properties import check_case

TWICE_ONE_IN, VERIFY_ONE_IN = 4, 10
_HANG_S = 180.0
_CHUNK = 200  # seeds of one process: what leaks is gone with it


def check_seed(seed: int, *, keep: Path | None = None) -> dict[str, Any]:
    """Draw the case of a seed and check it; a line for the results.

    Args:
        keep: where the files of a case with findings are left.
    """
    case = draw_case(random.Random(seed))
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        outcome = check_case(
            case,
            Path(name),
            twice=seed % TWICE_ONE_IN == 0,
            verify=seed % VERIFY_ONE_IN == 0,
        )
        if outcome.findings and keep is not None:
            shutil.copytree(name, keep / str(seed), dirs_exist_ok=True)
    mode = case.mode
    return {
        "seed": seed,
        "mode": [mode.swap, "optimized" if mode.ort_optimize else "as it is", mode.order],
        "nodes": len(case.model.graph.node),
        "traits": sorted(case.traits),
        "counts": dict(outcome.counts),
        "refusal": outcome.refusal.replace(f"{name}/", ""),
        "findings": [[kind, text.replace(f"{name}/", "")] for kind, text in outcome.findings],
    }


@dataclass
class Campaign:
    """Results so far, and seeds to come."""

    next_seed: int
    until_seed: int | None
    deadline: float
    keep: Path | None
    graphs: int = 0
    nodes: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    traits: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> tuple[int, int] | None:
        """The next seeds for one process, half-open; None at the end."""
        with self.lock:
            if time.monotonic() > self.deadline:
                return None
            first = self.next_seed
            stop = (
                first + _CHUNK if self.until_seed is None else min(first + _CHUNK, self.until_seed)
            )
            self.next_seed = stop
            return (first, stop) if first < stop else None

    def add(self, line: dict[str, Any]) -> None:
        """Count the line of one seed."""
        with self.lock:
            self.graphs += 1
            self.nodes += line["nodes"]
            self.counts.update(line["counts"])
            self.traits.update(line["traits"])
            self.modes.update(line["mode"])
            if line["refusal"]:
                self.refusals[line["refusal"][:80]] += 1
            self.findings += [(line["seed"], *f) for f in line["findings"]]

    def lost(self, seed: int, what: str) -> None:
        """Count a seed whose process died or hung."""
        with self.lock:
            self.graphs += 1
            self.findings.append((seed, what, "its process did not come back"))


def run_campaign(
    *,
    first_seed: int = 0,
    graphs: int | None = None,
    minutes: float | None = None,
    workers: int = 2,
    keep: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Campaign:
    """Check seeds from `first_seed` on, until so many graphs or minutes."""
    campaign = Campaign(
        next_seed=first_seed,
        until_seed=None if graphs is None else first_seed + graphs,
        deadline=time.monotonic() + (float("inf") if minutes is None else minutes * 60),
        keep=keep,
    )
    threads = [threading.Thread(target=_work, args=(campaign,)) for _ in range(workers)]
    for thread in threads:
        thread.start()
    shown = 0
    while any(thread.is_alive() for thread in threads):
        time.sleep(1.0)
        for seed, name, details in campaign.findings[shown:]:
            progress(f"seed {seed}: {name}: {details[:200]}\n")
            shown += 1
        seeds = {seed for seed, _, _ in campaign.findings}
        progress(
            f"{campaign.graphs} graphs, {campaign.counts['planned']} plans, {len(seeds)} finds"
        )
    return campaign


def _work(campaign: Campaign) -> None:
    while (seeds := campaign.take()) is not None:
        first, stop = seeds
        while first < stop and time.monotonic() < campaign.deadline:
            for found in _results(first, stop, campaign.keep):
                if found == "hang":  # once more, alone: a machine may stand still for minutes
                    found = next(_results(first, first + 1, campaign.keep))
                if isinstance(found, str):
                    campaign.lost(first, found)
                else:
                    campaign.add(found)
                first += 1
                if time.monotonic() > campaign.deadline:
                    return


def _results(first: int, stop: int, keep: Path | None) -> Iterator[dict[str, Any] | str]:
    """Results of seeds from a process of their own; where it dies or hangs, a word for that ends it."""
    command = [sys.executable, "-m", "tests.fuzz", "--worker", str(first), str(stop)]
    command += ["--keep", str(keep)] if keep else []
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    found: Queue[str | None] = Queue()
    reader = threading.Thread(target=_pump, args=(process.stdout, found), daemon=True)
    reader.start()
    try:
        for _ in range(first, stop):
            try:
                text = found.get(timeout=_HANG_S)
            except Empty:
                yield "hang"
                return
            if text is None:
                yield "crash"
                return
            yield json.loads(text)
    finally:
        process.kill()
        process.wait()


def _pump(stream: Any, into: Queue[str | None]) -> None:
    for line in stream:
        if line.startswith("{"):
            into.put(line)
    into.put(None)
