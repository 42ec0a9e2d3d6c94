"""The backend of WebGPU: a plug-in, and storage buffers in size classes."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import UsageError
from planner.runtime.device.seen import Seen
from planner.targets.backend import Backend
from planner.targets.webgpu import WEBGPU
from planner.targets.webgpu.provider import (
    add_device,
    webgpu_devices,
    webgpu_session,
    why_no_adapter,
)

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime as ort

    from planner.graph.model import OpId, TrainingGraph
    from planner.plan.planfile import Arena
    from planner.results import ArenaForecast
    from planner.runtime.options import Memory


class WebGpu(Backend):
    """Sessions on WebGPU."""

    def is_installed(self) -> bool:
        return importlib.util.find_spec(WEBGPU.plugin) is not None

    def check(self) -> None:
        super().check()
        webgpu_devices()

    def find(self) -> None:
        super().check()
        if reason := why_no_adapter():
            raise UsageError(
                f"there is no WebGPU adapter here: {reason}; plan where there is one, or without "
                f"{self.target.distribution} from the provider's list of kernels, with --no-verify"
            )

    def look(self) -> Seen:
        if reason := why_no_adapter():
            return Seen(runs=False, why_not=f"there is no WebGPU adapter here: {reason}")
        return Seen(runs=True, devices=("the machine's GPU",))

    def start(
        self, command: Sequence[str], *, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        self.find()
        return super().start(command, timeout_s=timeout_s)

    def _session(
        self, model: Path, options: ort.SessionOptions, settings: Mapping[str, str]
    ) -> ort.InferenceSession:
        return webgpu_session(model, options, settings)

    def add_to(self, options: ort.SessionOptions, settings: Mapping[str, str]) -> None:
        self.check()
        add_device(options, settings)

    def forecast(
        self,
        graph: TrainingGraph,
        order: Sequence[OpId],
        memory: Memory = "default",
        arena: Arena | None = None,
    ) -> ArenaForecast:
        from planner.targets.webgpu.buckets import forecast_buckets

        return forecast_buckets(graph, order)

    def declines(self, node: ir.Node) -> bool:
        # `GetCapability` in onnxruntime/core/providers/webgpu/webgpu_execution_provider.cc
        unsupported = any(i < len(node.inputs) and node.inputs[i] is not None for i in (3, 4, 6))
        present = len(node.outputs) > 1 and bool(node.outputs[1].name)
        shared = node.attributes.get_int("past_present_share_buffer", 0) != 0
        is_attention = node.op_type == "Attention" and node.domain == "com.microsoft"
        return is_attention and (unsupported or present or shared)


BACKEND = WebGpu
