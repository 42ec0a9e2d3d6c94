"""The rewritten model in a browser: the same numbers, and under which hard budget it trains.

    python -m reports.browser              measure, write browser.json, browser.md and the picture
    python -m reports.browser --serve      make the folder, serve it, and say which page to open

A folder is made of the page in docs/browser, a training graph (models/zoo/gpt.onnx, unless --model says
another), what planner made of it under --budget without copies, inputs as its sidecar or a seed has them,
and onnxruntime-web from npm. Chromium, driven by playwright, trains both models there, each in a worker
of its own: plain, with the profiler, and with a WebAssembly memory that may not grow beyond a cap. The
least cap under which a model does two steps is searched for by halves, to a MiB. Needs npm, Debian's
`chromium` and some ten minutes.
"""

from __future__ import annotations

import base64
import contextlib
import json
import platform
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from playwright.sync_api import Browser

from models import zoo
from planner import optimize
from planner.errors import PlannerError
from planner.onnxio.positions import dims_of
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.options import Level, Opening
from planner.runtime.profiled import profile
from reports.browser_runs import (
    BOTH,
    FLAGS,
    GPU_FLAGS,
    PACKAGE,
    NoRuntimeError,
    compared,
    differing,
    install,
    lay_out,
    least_cap_mib,
    served,
    trained,
)
from reports.browser_table import table
from reports.shared import FOLDER, MIB, chromium, program, write_rows

PICTURE = FOLDER / "page" / "browser.png"
LEVELS: tuple[Level, ...] = ("disabled", "extended", "all")
STEPS = 20
ROUNDS = 3
"""Rounds, in which both models alternate: a step's time is the least of the rounds' medians."""

GPU_STEPS = 2
"""The same on a software GPU, where a step takes half a minute."""

_ADAPTER = """async () => {
  const adapter = await navigator.gpu?.requestAdapter();
  return adapter ? `${adapter.info.vendor} ${adapter.info.architecture}` : "";
}"""


def worst_share(folder: Path, feeds: Mapping[str, np.ndarray], values: Mapping[str, str]) -> float:
    """The largest difference of an output's element in the browser from native ONNX Runtime's of the
    original, as a share of that output's largest element.

    Args:
        values: of the outputs, in base64.
    """
    path = folder / "original.onnx"
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    shares = [0.0]
    for info, native in zip(session.get_outputs(), session.run(None, dict(feeds)), strict=True):
        native = np.asarray(native)
        web = np.frombuffer(base64.b64decode(values[info.name]), native.dtype).reshape(native.shape)
        largest = float(np.abs(native).max(initial=0.0)) or 1.0
        shares.append(float(np.abs(web - native).max(initial=0.0)) / largest)
    return max(shares)


def order_at(
    browser: Browser, address: str, folder: Path, feeds: Mapping[str, np.ndarray], level: Level
) -> dict[str, Any]:
    """Both models with the profiler, at one level of optimizations: whether the nodes that ran in the
    browser are those that native ONNX Runtime runs, in its order."""
    options = json.dumps({"graphOptimizationLevel": level})
    found = trained(browser, address, steps=1, profile=1, values=1, options=options)
    rows: dict[str, Any] = {"level": level, **compared(found["original"], found["rewritten"])}
    for name in BOTH:
        (events,) = profile(folder / f"{name}.onnx", dict(feeds), Opening(level=level))
        ran = found[name]["nodes"]
        rows[name] = {
            "nodes": len(events),
            "as_native": ran == [event.name for event in events],
            "worst_share": worst_share(folder, feeds, found[name]["values"]),
        }
    return rows


def on_wasm(
    browser: Browser, address: str, folder: Path, feeds: Mapping[str, np.ndarray], budget: str
) -> dict[str, Any]:
    """Take all measurements on WebAssembly."""
    rounds: list[dict[str, Any]] = []
    for number in range(ROUNDS):
        said(f"training both, plain, round {number + 1} of {ROUNDS}")
        rounds.append(trained(browser, address, steps=STEPS))
    plain = rounds[0]
    orders: list[dict[str, Any]] = []
    for level in LEVELS:
        said(f"with the profiler, optimizations {level}")
        orders.append(order_at(browser, address, folder, feeds, level))
    least: dict[str, int] = {}
    for name in BOTH:
        said(f"the least cap of the {name} model")
        least[name] = least_cap_mib(browser, address, name, -(-plain[name]["peak"] // MIB) + 1)
    cap = (least["original"] + least["rewritten"]) // 2
    said(f"training both under {cap} MiB")
    capped = trained(browser, address, steps=STEPS, cap=cap, picture=PICTURE)
    said("a plan with copies alone")
    copies = folder / "copies.onnx"
    optimize(folder / "original.onnx", output=copies, budget=budget, swap="only", verify=False)
    swapped = trained(browser, address, steps=2, only="rewritten", rewritten=copies.name)[
        "rewritten"
    ]
    return {
        **sides(plain),
        "step_ms": {n: min(statistics.median(r[n]["ms"]) for r in rounds) for n in BOTH},
        "copies": {
            "nodes": sum(n.op_type.startswith("Memcpy") for n in onnx.load(copies).graph.node),
            "failed": swapped["failed"],
            "held_mib": swapped["peak"] / MIB,
            "losses_equal": swapped["losses"] == plain["rewritten"]["losses"][:2],
        },
        "ready_mib": {n: plain[n]["ready"] / MIB for n in BOTH},
        "losses": plain["rewritten"]["losses"],
        **compared(plain["original"], plain["rewritten"]),
        "orders": orders,
        "least_cap_mib": least,
        "cap_mib": cap,
        "under_cap": under_cap(capped),
        "capped_losses_equal": capped["rewritten"]["losses"] == plain["rewritten"]["losses"],
    }


def sides(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the memory and the median step of both models."""
    return {
        "held_mib": {n: found[n]["peak"] / MIB for n in BOTH},
        "step_ms": {n: statistics.median(found[n]["ms"]) for n in BOTH},
    }


def under_cap(found: Mapping[str, Any]) -> dict[str, Any]:
    """Tell whether each model ran under the cap, and how far it came."""
    return {n: {"steps": len(found[n]["losses"]), "failed": found[n]["failed"]} for n in BOTH}


def on_webgpu(
    folder: Path, model: Path, feeds: Mapping[str, np.ndarray], budget: str
) -> dict[str, Any]:
    """Take all measurements on WebGPU, with a plan for it, or name what is missing here."""
    with chromium(*FLAGS, *GPU_FLAGS) as browser, served(folder) as address:
        page = browser.new_page()
        page.goto(f"{address}?only=")
        adapter = page.evaluate(_ADAPTER)
        page.close()
        if not adapter:
            return {"adapter": "", "why_not": "Chromium has no WebGPU adapter here"}
        said(f"planning for WebGPU, training both on {adapter}")
        try:
            lay_out(folder, model, feeds, budget=budget, swap="none", device="webgpu", verify=False)
        except PlannerError as error:
            return {"adapter": adapter, "why_not": str(error)}
        query = {"steps": GPU_STEPS, "provider": "webgpu"}
        found = trained(browser, address, **query)
        failed = {n: found[n]["failed"] for n in BOTH if found[n]["failed"]}
        if failed:
            why_not = "; ".join(f"{n}: {f}" for n, f in failed.items())
            return {"adapter": adapter, "why_not": why_not}
        said("the original again, on WebGPU")
        again = trained(browser, address, only="original", **query)["original"]
        measured = sides(found)
        cap = round(statistics.mean(measured["held_mib"].values()))
        said(f"both on WebGPU with at most {cap} MiB of buffers")
        capped = trained(browser, address, **{**query, "steps": 1, "cap": cap})
    one, two = found["original"], found["rewritten"]
    return {
        "adapter": adapter,
        "why_not": "",
        "steps": GPU_STEPS,
        **measured,
        **compared(one, two),
        "differ": differing(one, two),
        "original_differs_from_itself": differing(one, again),
        "losses_apart": max(
            abs(a - b) / abs(a) for a, b in zip(one["losses"], two["losses"], strict=True)
        ),
        "cap_mib": cap,
        "under_cap": under_cap(capped),
    }


def said(text: str) -> None:
    """Print what is being measured."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def measured(model: Path, budget: str, *, with_gpu: bool) -> dict[str, Any]:
    """Take all measurements of one model."""
    if shutil.which("chromium") is None:
        raise NoRuntimeError("chromium is not installed")
    feeds, _ = make_inputs(model, 0, {}, None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        said(f"fetching {PACKAGE}")
        install(folder)
        said("planning")
        plan = lay_out(folder, model, feeds, budget=budget, swap="none").plan
        with chromium(*FLAGS) as browser, served(folder) as address:
            version = browser.version
            wasm = on_wasm(browser, address, folder, feeds, budget)
        gpu = on_webgpu(folder, model, feeds, budget) if with_gpu else {"why_not": "--no-webgpu"}
    return {
        "package": PACKAGE,
        "chromium": version,
        "onnxruntime": onnxruntime.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "model": model.name,
        "budget": budget,
        "steps": STEPS,
        "plan": {
            "before_mib": plan.baseline.peak_bytes / MIB,
            "after_mib": plan.planned.peak_bytes / MIB,
            "slower": plan.planned.time_us / plan.baseline.time_us,
        },
        "wasm": wasm,
        "webgpu": gpu,
    }


def serve(model: Path, budget: str, dims: Mapping[str, int]) -> None:
    """Create the folder, and serve it until Ctrl-C."""
    feeds, _ = make_inputs(model, 0, dims, None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder)
        lay_out(folder, model, feeds, budget=budget, swap="none", dims=dims)
        with served(folder) as address, contextlib.suppress(KeyboardInterrupt):
            print(f"open {address}  (?cap=MIB for a hard budget, ?provider=webgpu)", flush=True)
            threading.Event().wait()


def main() -> int:
    """Measure and write the page, or serve the folder."""
    parser = program("reports.browser", __doc__)
    parser.add_argument(
        "--model", type=Path, default=zoo.path("gpt"), help="to train instead of the GPT"
    )
    parser.add_argument("--dim", action="append", metavar="NAME=N", help="with --serve: bind a dim")
    parser.add_argument("--budget", default="40%")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--no-webgpu", action="store_true")
    options = parser.parse_args()
    try:
        if options.serve:
            serve(options.model, options.budget, dims_of(options.dim))
            return 0
        found = measured(options.model, options.budget, with_gpu=not options.no_webgpu)
    except (NoRuntimeError, PlannerError) as error:
        print(error, file=sys.stderr)
        return 1
    write_rows(FOLDER / "browser.json", found)
    text = table(found)
    (FOLDER / "browser.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
