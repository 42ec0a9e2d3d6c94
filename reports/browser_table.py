"""What `reports.browser` measured, as its page says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.browser_runs import BOTH


def table(found: Mapping[str, Any]) -> str:
    """Return the report."""
    wasm, plan = found["wasm"], found["plan"]
    longer = wasm["step_ms"]["rewritten"] / wasm["step_ms"]["original"]
    lines = [
        "# In the browser",
        "",
        "By `python -m reports.browser`: the same rewritten file on stock onnxruntime-web in Chromium. "
        "How to do it, and what holds there: `docs/browser.md`.",
        "",
        f"{found['package']}, Chromium {found['chromium']}, {found['machine']}; native onnxruntime "
        f"{found['onnxruntime']}. `{found['model']}`, budget {found['budget']}, no copies: "
        f"{plan['before_mib']:.1f} MiB -> {plan['after_mib']:.1f} MiB of live tensors, "
        f"x{plan['slower']:.2f} the predicted time.",
        "",
        "## WebAssembly, one thread",
        "",
        "| | original | rewritten |",
        "|---|---:|---:|",
        _row("heap when the session is made, MiB", wasm["ready_mib"], "{:.1f}"),
        _row(
            f"heap after {found['steps']} steps, MiB (it never shrinks)", wasm["held_mib"], "{:.1f}"
        ),
        _row("least maximum of the memory under which it trains, MiB", wasm["least_cap_mib"], "{}"),
        _row("median step, ms, the least of three rounds", wasm["step_ms"], "{:.0f}"),
        _row(f"under a maximum of {wasm['cap_mib']} MiB", _outcomes(wasm), "{}"),
        "",
        f"{wasm['identical']} of {wasm['outputs']} outputs of the first step are bit-identical between "
        f"the two; the {found['steps']} losses ({wasm['losses'][0]:.4f} -> {wasm['losses'][-1]:.4f}) are "
        f"{'' if wasm['losses_equal'] else 'not '}the same, bit for bit, and under the cap those of the "
        f"rewritten model are {'the same again' if wasm['capped_losses_equal'] else 'others'}. A step of "
        f"the rewritten model takes x{longer:.2f} as long.",
        "",
        "| level of optimizations | nodes run, original / rewritten | those of native ONNX Runtime, in "
        "its order | outputs identical | largest difference from native |",
        "|---|---:|---|---:|---:|",
        *[
            f"| {row['level']} | {row['original']['nodes']} / {row['rewritten']['nodes']} | "
            f"{' / '.join('yes' if row[name]['as_native'] else 'no' for name in BOTH)} | "
            f"{row['identical']} of {row['outputs']} | "
            f"{max(row[name]['worst_share'] for name in BOTH):.1e} |"
            for row in wasm["orders"]
        ],
        "",
        "The last column is a share of the output's largest element. The page under the cap:",
        "",
        "![Both models under a maximum of the WebAssembly memory](page/browser.png)",
        "",
        _copies_line(wasm["copies"]),
        "",
        *_gpu_lines(found["webgpu"]),
    ]
    return "\n".join(lines) + "\n"


def _copies_line(copies: Mapping[str, Any]) -> str:
    if copies["failed"]:
        return f"A plan with copies alone fails: {copies['failed']}."
    same = "the same" if copies["losses_equal"] else "other"
    return (
        f"With copies alone (`--swap only`, {copies['nodes']} `MemcpyToHost` and `MemcpyFromHost`) the "
        f"model runs with {same} losses, and its heap is {copies['held_mib']:.1f} MiB: host and device "
        "are one heap."
    )


def _gpu_lines(gpu: Mapping[str, Any]) -> list[str]:
    lines = ["## WebGPU", ""]
    if gpu["why_not"]:
        return [*lines, f"Not measured: {gpu['why_not']}."]
    own = gpu["original_differs_from_itself"]
    return [
        *lines,
        f"Adapter: {gpu['adapter']} (software where it says swiftshader: memory is real, times are not). "
        "Planned with `--device webgpu`.",
        "",
        "| | original | rewritten |",
        "|---|---:|---:|",
        _row(
            "buffers, counted as they are made and destroyed, at most MiB",
            gpu["held_mib"],
            "{:.1f}",
        ),
        _row("median step, ms", gpu["step_ms"], "{:.0f}"),
        _row(f"with at most {gpu['cap_mib']} MiB of buffers", _outcomes(gpu), "{}"),
        "",
        f"{gpu['identical']} of {gpu['outputs']} outputs are bit-identical between the two; different: "
        f"{_names(gpu['differ'])}. The original run twice differs from itself in: {_names(own)}. Losses "
        f"of {gpu['steps']} steps differ by {gpu['losses_apart']:.1e} of their value at most.",
    ]


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _row(title: str, values: Mapping[str, Any], form: str) -> str:
    return f"| {title} | " + " | ".join(form.format(values[name]) for name in BOTH) + " |"


def _outcomes(found: Mapping[str, Any]) -> dict[str, str]:
    return {
        n: f"fails ({r['failed'].rpartition(': ')[2]})"
        if r["failed"]
        else f"runs, {r['steps']} step{'s' * (r['steps'] > 1)}"
        for n, r in found["under_cap"].items()
    }
