"""ONNX Runtime's refusals in a line.

Each process that runs a model imports this module, which therefore imports little.
"""

from __future__ import annotations

import re

from planner.targets import TARGETS

_OLDEST_OPSET = 7


def first_line(error: BaseException) -> str:
    """Return the informative first line of an ONNX Runtime error."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def explain(message: str) -> str:
    """Return ONNX Runtime's reason, with a remedy for the usual ones."""
    found = re.search(
        r"Could not find an implementation for (\S+) node with name '([^']*)'", message
    )
    if found and _is_old(found[1]):
        return (
            f"onnxruntime has no kernel for {found[1]} (node {found[2]!r}), which is of an operator set "
            "before 7: bring the model up first, with onnx.version_converter.convert_version(model, 17)"
        )
    if found:
        return (
            f"onnxruntime has no kernel for {found[1]} (node {found[2]!r}) on the chosen execution "
            "provider and types; training operators of com.microsoft need onnxruntime-training, and a "
            "type that only another provider has (bfloat16) is planned for that one (--device DEVICE "
            "--no-verify), or on the graph as it is (--no-ort-optimize --no-verify)"
        )
    found = re.search(r"([\w.]*:?\w+)\(-?\d+\) is not a registered function/op", message)
    if found:
        return (
            f"onnxruntime does not know the operator {found[1]}; a custom operator's library "
            "must be registered, a training operator needs onnxruntime-training"
        )
    lines = [line for line in message.strip().splitlines() if line.strip()]
    return f"onnxruntime cannot load the model: {lines[0] if lines else 'no reason given'}"


def _is_old(kernel: str) -> bool:
    """Tell whether `AveragePool(1)` is of an operator set that ONNX Runtime no longer supports.

    It supports those from 7 on (onnxruntime.ai/docs/reference/compatibility).
    """
    version = re.search(r"^[A-Z]\w*\((\d+)\)$", kernel)
    return version is not None and int(version[1]) < _OLDEST_OPSET


def explain_refusal(message: str) -> str:
    """Return a message on a device's refusal in a run, with a remedy; other messages unchanged.

    The texts are the arena's (core/framework/bfc_arena.cc), and those of the targets.
    """
    found = re.search(
        r"Available memory of (\d+) is smaller than requested bytes of (\d+)", message
    )
    if found:
        return (
            f"the device's memory limit leaves {found[1]} bytes where {found[2]} are needed: raise "
            "gpu_mem_limit, which also bounds inputs, parameters and outputs, or plan for less"
        )
    if "Failed to allocate memory for requested buffer" in message:
        return f"the device has not enough memory ({message}): plan for a smaller --budget"
    refusals = (item for target in TARGETS.values() for item in target.refusals.items())
    said = next((said for text, said in refusals if text in message), "{message}")
    return said.format(message=message)
