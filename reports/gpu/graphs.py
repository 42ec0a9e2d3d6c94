"""What the small checks run on, and the chains of `tests.native.graphs` changed for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from tests.native.graphs import (
    Feeds,
    between,
    chain_feeds,
    chain_nodes,
    model_of,
    options,
    unwaited,
    with_products,
)

LAYERS, AHEAD = 12, 2


@dataclass(frozen=True)
class Where:
    """The device: the GPU, or the CPU's provider for a rehearsal with small tensors and few steps."""

    cuda: bool
    large_side: int = 2048

    @property
    def side(self) -> int:
        """The side of a tensor of side x side floats: 16 MiB on the GPU."""
        return self.large_side if self.cuda else 96

    def many(self, on_gpu: int, rehearsed: int) -> int:
        """The number of repetitions."""
        return on_gpu if self.cuda else rehearsed

    @property
    def device(self) -> str:
        """The device's name in a binding."""
        return "cuda" if self.cuda else "cpu"

    @property
    def provider(self) -> str:
        """The provider's name in a profile."""
        return "CUDAExecutionProvider" if self.cuda else "CPUExecutionProvider"

    def feeds(self, seed: int = 0) -> Feeds:
        """The inputs x and w of a chain."""
        return chain_feeds(self.side, seed)

    def chain(self, copies: str = "beside", products: int = 1) -> onnx.ModelProto:
        """Build a forward and a backward pass whose activations leave and come back.

        Args:
            copies: "beside" the operations; "between" them, by ONNX Runtime's nodes; "none"; or
                "unwaited": what comes back is read before its copy is waited for, which is wrong.
        """
        nodes = chain_nodes(LAYERS, self.side, AHEAD, swaps=copies != "none")
        change = {"between": between, "unwaited": unwaited}.get(copies)
        nodes = with_products(change(nodes) if change else nodes, products)
        shape = [self.side, self.side]
        return model_of(nodes, {"x": shape, "w": shape}, {"b0": shape})

    def session(
        self,
        model: onnx.ModelProto,
        level: int = 99,
        provider: Mapping[str, str] | None = None,
        entries: Mapping[str, str] | None = None,
        **set_to: Any,
    ) -> ort.InferenceSession:
        """Open a session with the library, on one thread."""
        for node in model.graph.node:
            if node.op_type == "SwapBegin" and not node.input:
                node.input.append("x")  # a node that reads nothing might be put on the CPU
        made = options(level, entries=dict(entries or {}), enable_mem_reuse=False, **set_to)
        settings = {"arena_extend_strategy": "kSameAsRequested", "use_tf32": "0"}
        cuda = [("CUDAExecutionProvider", {**settings, **(provider or {})})] if self.cuda else []
        session = ort.InferenceSession(
            model.SerializeToString(), made, providers=[*cuda, "CPUExecutionProvider"]
        )
        if self.cuda and "CUDAExecutionProvider" not in session.get_providers():
            raise RuntimeError("the CUDA provider does not come up")
        return session

    def bits(self, session: ort.InferenceSession, feeds: Feeds) -> list[bytes]:
        """Return the outputs, as bytes, of a run whose inputs but `size` are on the device."""
        binding = session.io_binding()
        for name, array in feeds.items():
            device = "cpu" if name == "size" else self.device
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, device, 0))
        for output in session.get_outputs():
            binding.bind_output(output.name, "cpu")
        session.run_with_iobinding(binding)
        return [array.tobytes() for array in binding.copy_outputs_to_cpu()]


def node_events(session: ort.InferenceSession) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and facts of every node, in the order in which a profiled session ran them."""
    events, end = json.loads(Path(session.end_profiling()).read_text()), "_kernel_time"
    ran = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(end)]
    return [(event["name"].removesuffix(end), event["args"]) for event in ran]
