"""Any GPU, by ONNX Runtime's WebGPU plug-in."""

from __future__ import annotations

from planner.targets.target import ASKABLE, AnchorRule, Target

_NUMBERS = frozenset({"float", "float16", "int32", "uint32"})
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})

_SNIPPET = """\
import onnxruntime_ep_webgpu as webgpu  # a provider beside stock onnxruntime

ort.register_execution_provider_library("webgpu", webgpu.get_library_path())
devices = [d for d in ort.get_ep_devices() if d.ep_name == webgpu.get_ep_name()]
# the layout that the plan is made for: NHWC puts transposes around convolutions
options.add_provider_for_devices(devices[:1], {{"preferredLayout": "NCHW"}})

{session}
assert "WebGpuExecutionProvider" in session.get_providers(), "fell back to the CPU"
"""

WEBGPU = Target(
    name="webgpu",
    title="WebGPU",
    package=__name__,
    provider="WebGpuExecutionProvider",
    extra="webgpu",
    plugin="onnxruntime_ep_webgpu",
    distribution="onnxruntime-ep-webgpu",
    # NHWC, the default, puts transposes around convolutions each time a session is created
    options={"preferredLayout": "NCHW"},
    anchors=(
        AnchorRule(op_type="GatherND", dtypes=_NUMBERS, scalars=False),
        AnchorRule(op_type="Neg", dtypes=frozenset({"float", "float16"}), scalars=True),
        AnchorRule(op_type="Not", dtypes=frozenset({"bool"}), scalars=True),
    ),
    host_anchors=(
        AnchorRule(op_type="OptionalHasElement", dtypes=ASKABLE, opset=18),
        AnchorRule(op_type="Size"),
    ),
    view_dtypes=_NUMBERS | {"bool", "uint8"},
    expand_dtypes=_NUMBERS | {"bool", "uint8"},
    optional_inputs=False,
    # `MayInplace` in providers/webgpu/tensor/scatter_elements.cc and scatter_nd.cc, nowhere else
    inplace=_SCATTERS,
    sums=_SCATTERS,
    capture="enableGraphCapture",
    # "The Indices output is not supported yet" (providers/webgpu/nn/pool.cc)
    keep_on_cpu={"MaxPool": 2},
    keep_option="forceCpuNodeNames",
    memory="WebGPU_Buf",
    # as measured
    refusals={"Invalid Buffer": "the device refused a buffer, for want of memory ({message})"},
    absolute=1e-5,
    relative=5e-2,
    snippet=_SNIPPET,
)
