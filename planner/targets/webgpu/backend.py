"""The backend of WebGPU: a plug-in, processes that get a device, and storage buffers in size classes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import PlannerError
from planner.runtime.device.seen import Seen
from planner.targets.backend import Backend, ByteCounter
from planner.targets.webgpu import WEBGPU, software
from planner.targets.webgpu.counting import DRIVER_VARIABLE, Counter
from planner.targets.webgpu.provider import add_device, webgpu_devices, webgpu_session

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
        software.find_device()

    def is_hardware(self) -> bool:
        return software.find_device().kind == "hardware"

    def look(self) -> Seen:
        try:
            device = software.find_device()
        except (PlannerError, ImportError, OSError) as error:
            return Seen(runs=False, why_not=str(error))
        if device.kind == "hardware":
            return Seen(runs=True, devices=("the machine's GPU",))
        counted = "its bytes counted" if device.counts else f"not counted: {device.why_not_counted}"
        return Seen(runs=True, devices=(f"SwiftShader, in software, {counted}",))

    def start(
        self, command: Sequence[str], *, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        return software.start(command, software.find_device(), timeout_s=timeout_s)

    def _session(
        self, model: Path, options: ort.SessionOptions, settings: Mapping[str, str]
    ) -> ort.InferenceSession:
        return webgpu_session(model, options, settings)

    def add_to(self, options: ort.SessionOptions) -> None:
        self.check()
        add_device(options, self.target.options)

    def counter(self) -> ByteCounter | None:
        return Counter() if DRIVER_VARIABLE in os.environ else None

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
