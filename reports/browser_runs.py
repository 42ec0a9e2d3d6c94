"""A model and what planner made of it, trained in Chromium by onnxruntime-web, served from a folder."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from playwright.sync_api import Browser

from planner import optimize
from planner.results import OptimizeResult

PACKAGE = "onnxruntime-web@1.30.0"
PAGE = Path(__file__).parents[1] / "docs" / "browser"
FLAGS = ("--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking")
GPU_FLAGS = (
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
)
"""Chromium's flags for WebGPU: without a GPU, the adapter is its own software Vulkan."""

BOTH = ("original", "rewritten")
_START_MIB = 16
"""Initial size of the WebAssembly memory that onnxruntime-web makes."""

_INSTALL_S, _RUN_S = 240, 300

_TAKE = """() => {
  const text = (bytes) => {
    let out = "";
    for (let i = 0; i < bytes.length; i += 8192) {
      out += String.fromCharCode(...bytes.subarray(i, i + 8192));
    }
    return btoa(out);
  };
  const each = (table, call) => Object.fromEntries(Object.entries(table).map(([n, v]) => [n, call(v)]));
  return each(window.result, (r) => ({ ...r, values: r.values && each(r.values, text) }));
}"""


class NoRuntimeError(Exception):
    """onnxruntime-web is not available here."""


def install(folder: Path) -> None:
    """Fetch onnxruntime-web into `folder`/node_modules with npm.

    Raises:
        NoRuntimeError: there is no npm, or it does not reach the package.
    """
    if (folder / "node_modules" / "onnxruntime-web").is_dir():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise NoRuntimeError("npm is not installed")
    quiet = ("--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder))
    reach = ("--fetch-retries=1", "--fetch-timeout=20000")
    try:
        done = subprocess.run(
            [npm, "install", *quiet, *reach, PACKAGE],
            check=False,
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
        )
    except subprocess.TimeoutExpired:
        raise NoRuntimeError(f"npm install {PACKAGE} took more than {_INSTALL_S} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise NoRuntimeError(f"npm install {PACKAGE}: {last}")


def write_inputs(feeds: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write all arrays one after another to inputs.bin, and their places to inputs.json."""
    tensors, offset = [], 0
    with (folder / "inputs.bin").open("wb") as file:
        for name, array in feeds.items():
            data = np.ascontiguousarray(array).tobytes()
            tensors.append(
                {
                    "name": name,
                    "dtype": str(array.dtype),
                    "shape": list(array.shape),
                    "offset": offset,
                    "bytes": len(data),
                }
            )
            offset += file.write(data)
    (folder / "inputs.json").write_text(json.dumps({"file": "inputs.bin", "tensors": tensors}))


def lay_out(
    folder: Path, model: Path, feeds: Mapping[str, np.ndarray], **options: Any
) -> OptimizeResult:
    """Put the page, the model, its rewritten model and the inputs into `folder`.

    Args:
        options: of `planner.optimize`.
    """
    for name in ("index.html", "train.mjs"):
        shutil.copy(PAGE / name, folder)
    shutil.copy(model, folder / "original.onnx")
    write_inputs(feeds, folder)
    rewritten = folder / "rewritten.onnx"
    return optimize(folder / "original.onnx", output=rewritten, force=True, **options)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextlib.contextmanager
def served(folder: Path, port: int = 0) -> Iterator[str]:
    """Serve a folder to this machine only; yield its address."""
    _Quiet.extensions_map = {
        **_Quiet.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/index.html"
    finally:
        server.shutdown()
        server.server_close()


def trained(
    browser: Browser, address: str, *, picture: Path | None = None, **query: object
) -> dict[str, Any]:
    """Open the page, wait for both models, and take what it found: by model, what `index.html` keeps.

    Args:
        query: of the page: steps, rate, cap (MiB), provider, only, profile, values, options.
    """
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    try:
        page.goto(f"{address}?{urlencode(query)}")
        page.wait_for_function("window.result !== undefined", timeout=_RUN_S * 1000)
        if picture is not None:
            page.screenshot(path=str(picture), full_page=True)
        return page.evaluate(_TAKE)
    finally:
        page.close()


def least_cap_mib(browser: Browser, address: str, name: str, known_mib: int) -> int:
    """Find the least maximum of WebAssembly memory, in whole MiB, under which a model runs two steps.

    Args:
        known_mib: one that suffices.
    """
    low, high = _START_MIB, known_mib
    while high - low > 1:
        middle = (low + high) // 2
        found = trained(browser, address, only=name, steps=2, cap=middle)[name]
        low, high = (low, middle) if found["failed"] is None else (middle, high)
    return high


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """List the outputs of a run that have other bits in another one."""
    return [n for n, digest in one["digests"].items() if other["digests"].get(n) != digest]


def compared(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Compare outputs and losses of two runs, bit for bit."""
    count = len(one["digests"])
    return {
        "outputs": count,
        "identical": count - len(differing(one, other)),
        "losses_equal": one["losses"] == other["losses"] and bool(one["losses"]),
    }
