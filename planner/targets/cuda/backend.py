"""The backend of CUDA: its memory is an arena, its libraries come from PyTorch's or NVIDIA's
packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.targets.backend import Backend

if TYPE_CHECKING:
    import onnx_ir as ir

_STRING = 8  # onnx.TensorProto.STRING

_ACTIVATIONS = {
    "LSTM": ("sigmoid", "tanh", "tanh", "sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh", "sigmoid", "tanh"),
    "RNN": ("tanh", "tanh"),
}
_PEEPHOLE = 7  # input of LSTM


class Cuda(Backend):
    """Sessions on CUDA."""

    def check(self) -> None:
        import onnxruntime as ort

        super().check()
        if hasattr(ort, "preload_dlls"):
            ort.preload_dlls()

    def why_not_fused(self) -> str:
        from planner.native import why_no_compiler

        return why_no_compiler()

    def declines(self, node: ir.Node) -> bool:
        # `GetCapability` in onnxruntime/core/providers/cuda/cuda_execution_provider.cc
        op, given = node.op_type, node.attributes
        if op in _ACTIVATIONS:
            return _declines_recurrent(node)
        if op == "ConvTranspose":
            pads = given.get_ints("pads", ()) or ()
            half = len(pads) // 2
            padding = given.get_string("auto_pad", "NOTSET")
            return tuple(pads[:half]) != tuple(pads[half:]) or padding in (
                "SAME_UPPER",
                "SAME_LOWER",
            )
        if op in ("ArgMax", "ArgMin"):
            return given.get_int("select_last_index", 0) != 0
        return op == "Cast" and given.get_int("to", 0) == _STRING


def _declines_recurrent(node: ir.Node) -> bool:
    op, given = node.op_type, node.attributes
    if any(name in given for name in ("activation_alpha", "activation_beta", "clip")):
        return True
    asked = [name.lower() for name in given.get_strings("activations", ()) or ()]
    if any(a != b for a, b in zip(asked, _ACTIVATIONS[op], strict=False)):
        return True
    if op == "GRU":
        return "linear_before_reset" in given and given.get_int("linear_before_reset") != 1
    if op == "LSTM":
        peephole = len(node.inputs) > _PEEPHOLE and node.inputs[_PEEPHOLE] is not None
        return peephole or given.get_int("input_forget", 0) != 0
    return False


BACKEND = Cuda
