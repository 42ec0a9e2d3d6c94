"""Inputs and outputs of a graph as tensors, and a session that reads and writes their memory directly."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime as ort
import sympy
import torch
from onnx import helper
from torch import Tensor

from planner.errors import ModelError, UsageError
from planner.export.draws import Draw
from planner.export.write.dtypes import as_real, torch_dtype
from planner.running.classes import open_session
from planner.runtime.messages import first_line
from planner.runtime.options import stop_spinning

_CPU = "cpu"


class DimSizes(dict[str, int]):
    """Sizes of the open dims in one call, by name."""

    def shape(self, dims: tuple[int | str, ...]) -> tuple[int, ...]:
        """Return dims as numbers, evaluating expressions like `8*batch`."""
        return tuple(
            dim if isinstance(dim, int) else int(sympy.parse_expr(dim, local_dict=dict(self)))
            for dim in dims
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An input or output of a graph.

    Attributes:
        kind: ONNX's number for the element type.
        dims: its shape; an open dim is a name or an expression of names.
    """

    name: str
    kind: int
    dims: tuple[int | str, ...]

    @staticmethod
    def of(value: onnx.ValueInfoProto) -> Entry:
        """Return the entry of a value in the model."""
        found = value.type.tensor_type
        dims = tuple(dim.dim_param or dim.dim_value for dim in found.shape.dim)
        return Entry(name=value.name, kind=found.elem_type, dims=dims)

    @property
    def dtype(self) -> torch.dtype:
        """PyTorch's element type."""
        return torch_dtype(helper.tensor_dtype_to_np_dtype(self.kind))

    def read(self, tensor: Tensor, sizes: DimSizes) -> Tensor:
        """Return a tensor as the session reads it: itself, or a copy if it is not contiguous.

        Args:
            sizes: sizes of the open dims; those of this tensor are added.

        Raises:
            UsageError: the tensor is not dense and on the CPU, or has another type or shape than in the
                trace.
        """
        if tensor.device.type != _CPU or tensor.layout is not torch.strided:
            kind = f"on {tensor.device}" if tensor.device.type != _CPU else f"{tensor.layout}"
            raise UsageError(
                f"{self.name!r} is {kind}; the step runs on dense tensors on the CPU: convert it "
                "(.to('cpu'), .to_dense())"
            )
        plain = as_real(tensor.detach()).resolve_neg().contiguous()
        if plain.dtype != self.dtype:
            raise UsageError(
                f"{self.name!r} is {tensor.dtype} and was {self.dtype} when the step was traced; convert "
                "it, or make the step again (planner.torch.step)"
            )
        known = tuple(
            d if isinstance(d, int) else sizes.setdefault(d, size)
            for d, size in zip(self.dims, plain.shape, strict=False)
        )
        if len(self.dims) != plain.dim() or known != plain.shape:
            wanted = ", ".join(map(str, self.dims))
            raise UsageError(
                f"{self.name!r} has the shape {list(plain.shape)}, and the step was made for [{wanted}]; "
                "dynamic_batch=True, or dynamic={...}, leaves sizes open"
            )
        return plain

    def empty(self, sizes: DimSizes) -> Tensor:
        """Allocate an uninitialized tensor for this entry."""
        return torch.empty(sizes.shape(self.dims), dtype=self.dtype)

    def drawn(self, draw: Draw, sizes: DimSizes) -> Tensor:
        """Draw a random tensor from PyTorch's generator."""
        blank = self.empty(sizes)
        if draw.kind == "bernoulli":
            return blank.bernoulli_(draw.chance)
        return blank.uniform_() if draw.kind == "uniform" else blank.normal_()


class TensorSession:
    """A session of a rewritten file that reads inputs and writes outputs in CPU tensors without copies.

    Runs are serialized, since the file's arena has room for one. The session uses as many threads as
    PyTorch has when it is opened. They stop spinning when a run ends, which leaves the cores to PyTorch.
    """

    def __init__(self, path: Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        stop_spinning(options)
        self._session = open_session(path, options)
        self._lock = threading.Lock()

    def run(
        self,
        inputs: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
        kinds: Mapping[str, Entry],
    ) -> None:
        """Run the graph once.

        Args:
            inputs: all inputs of the graph, contiguous.
            outputs: all outputs of the graph, in contiguous memory that nothing else reads during the
                run.
            kinds: the entry of each input and output.

        Raises:
            ModelError: ONNX Runtime fails, for example if a batch needs more memory than the plan's arena
                has.
        """
        binding = self._session.io_binding()
        for tensors, bind in ((inputs, binding.bind_input), (outputs, binding.bind_output)):
            for name, tensor in tensors.items():
                bind(name, _CPU, 0, kinds[name].kind, tuple(tensor.shape), tensor.data_ptr())
        try:
            with self._lock:
                self._session.run_with_iobinding(binding)
        except Exception as error:
            raise ModelError(f"ONNX Runtime does not run the step: {first_line(error)}") from error
