"""What ONNX Runtime says when a device refuses, in a line that says what to do."""

from __future__ import annotations

import pytest

from planner.runtime.messages import explain_refusal

ARENA = (
    "Non-zero status code returned while running MatMul node. Status Message: bfc_arena.cc:358 "
    "AllocateRawInternal Available memory of 1024 is smaller than requested bytes of 4096"
)
PINNED = "CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMallocHost((void**)&p, size);"
FULL = "bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 4096"
WEBGPU = (
    "WebGPU validation failed. [Invalid Buffer (unlabeled)] is invalid due to a previous error."
)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (ARENA, ["leaves 1024 bytes where 4096 are needed", "raise gpu_mem_limit"]),
        (PINNED, ["pinned host memory is exhausted", "--swap none"]),
        (FULL, ["size 4096", "smaller --budget"]),
        (WEBGPU, ["refused a buffer", "Invalid Buffer"]),
        ("anything else", ["anything else"]),
    ],
)
def test_a_refusal_says_what_to_do(message: str, words: list[str]) -> None:
    said = explain_refusal(message)
    assert all(word in said for word in words)
    assert "\n" not in said
