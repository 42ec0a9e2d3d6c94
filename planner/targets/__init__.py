"""Targets: the execution providers that a model can be written for, a folder each.

A model is normalised, planned, pinned and verified for one target. The target's folder holds all that
differs between providers, and no code outside of it names one:

    __init__.py     its row (`Target`): options of its sessions, operators that pin the order, kernels
                    that write in place, the tolerance, the code that a reader is shown
    kernels.toml    the kernels that its provider has, for a target with a memory of its own
    backend.py      `BACKEND`, a class: how a process sees the device, how a session is opened there, the
                    bytes that its allocator will hold (`planner.targets.backend`); imported on first use

This module is the table of them.

Measured on onnxruntime 1.31.1: with onnxruntime-ep-webgpu 0.4.0 on software Vulkan
(reports/device.md), and onnxruntime-gpu on an H100 (reports/cuda.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Literal

from planner.errors import UsageError
from planner.targets.cpu import CPU as HOST
from planner.targets.cuda import CUDA
from planner.targets.target import Target
from planner.targets.webgpu import WEBGPU

Device = Literal["cpu", "webgpu", "cuda", "any"]
"""Names of the targets, as `--device` takes them: the keys of `TARGETS`."""

ANY = replace(
    HOST,
    name="any",
    title="every target",
    everywhere=True,
    # GatherND has a kernel beside the tensor on each of them
    anchors=WEBGPU.anchors,
    host_anchors=CUDA.host_anchors,
    unfolds=False,  # unfolding takes a Size of a tensor on the device
    view_dtypes=WEBGPU.view_dtypes,
    fused=None,
    overlap="never",
)
"""The target of one file for all devices, where none of them leaves a node to the CPU
(`planner.pipeline.target.everywhere`)."""

TARGETS: Mapping[str, Target] = {target.name: target for target in (HOST, WEBGPU, CUDA, ANY)}


def devices() -> tuple[Target, ...]:
    """Return the targets with a memory of their own."""
    return tuple(target for target in TARGETS.values() if target.own_memory)


def target_named(device: str) -> Target:
    """Return the row of a device.

    Raises:
        UsageError: no target has that name.
    """
    if device not in TARGETS:
        raise UsageError(f"--device is {listed(TARGETS)}, not {device!r}")
    return TARGETS[device]


def titles(of: Callable[[Target], bool]) -> str:
    """List the targets for which `of` holds, for a sentence."""
    return listed((target.title for target in TARGETS.values() if of(target)), "and")


def listed(words: Iterable[str], last: str = "or") -> str:
    """Join words for a sentence: `a, b or c`."""
    *head, tail = words
    return f"{', '.join(head)} {last} {tail}" if head else tail
