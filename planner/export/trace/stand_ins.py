"""PyTorch functions that fail in a trace on shapes, rewritten with others that do not."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.modules.adaptive import _ASMoutput
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from planner.export.apart import foreach, linalg
from planner.export.apart.assigning import assigned
from planner.export.apart.ctc import ctc_loss
from planner.export.apart.indexing import narrowed, place_in
from planner.export.apart.recurrent import by_layer
from planner.export.apart.sampling import grid_sample
from planner.export.errors import ExportError, at
from planner.export.lines import line_of_user
from planner.export.trace.logged import Logged
from planner.export.trace.losses import (
    gaussian_nll_loss,
    linear_cross_entropy,
    multi_margin_loss,
    multilabel_margin_loss,
)

_GROUPED: Any = torch.__dict__["_grouped_mm"]
"""The function that `torch.nn.functional.grouped_mm` calls."""


_DATA: Any = Tensor.data
"""The attribute `data`, whose assignment is a function, too."""

_REAL_GRADIENTS = frozenset(
    {torch.ops.aten.slice_scatter.default, torch.ops.aten.select_scatter.default}
)
"""Operators of assignments to a part of a tensor, which have gradients for real numbers only."""

_BY_MASK = frozenset({Tensor.__getitem__, Tensor.masked_select, torch.masked_select})


_READS: dict[Any, Callable[[Tensor], Any]] = {
    Tensor.__array__: Logged.refused,
    Tensor.__format__: lambda tensor: f"<{list(tensor.shape)}>",
    Tensor.item: functools.partial(Logged.read, Tensor.item),
    Tensor.numpy: Logged.of,
    Tensor.tolist: functools.partial(Logged.read, Tensor.tolist),
}
"""Functions that read values for logs, and their replacements in a trace."""


class StandIns(TorchFunctionMode):
    """A mode that calls the stand-in of each function that has one."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _BY_MASK and len(args) == 2:
            x, mask = args if func is Tensor.__getitem__ else _as_large(*args)
            args = (x, _places(mask))
            func = Tensor.__getitem__ if isinstance(args[1], tuple) else func
        elif func is Tensor.__setitem__ and _is_each(args[2]):
            args = (args[0], _places(args[1]), args[2])
        kwargs = kwargs or {}
        _check_dense(args)
        if getattr(func, "__name__", "").startswith(foreach.PREFIX):
            return foreach.one_by_one(func.__name__, args, kwargs)
        if func in _READS and isinstance(args[0], Tensor):
            return _READS[func](args[0])
        if func is nn.functional.embedding or func is nn.functional.embedding_bag:
            kwargs = _dense(kwargs)
        called: Callable[..., Any] = _INSTEAD.get(func) or func
        if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            called = _OF_LIBRARIES.get(str(func).removesuffix(".default"), func)
        return called(*args, **kwargs)


class Scattering(TorchFunctionMode):
    """A mode without gradients for operators that have none for complex numbers.

    The tracer's last pass, which needs no gradients, runs under it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = func in _REAL_GRADIENTS and args[0].is_complex()
        with torch.no_grad() if kept else contextlib.nullcontext():
            return func(*args, **(kwargs or {}))


def _dense(options: dict[str, Any]) -> dict[str, Any]:
    """Return an embedding's options with a dense gradient: the same numbers, and rows of zeros.

    Raises:
        ExportError: the embedding scales its weights down when it reads them (`max_norm`).
    """
    if options.get("max_norm") is not None:
        raise ExportError(
            f"an embedding with max_norm changes its weights in the step{at(_line())}: call "
            "torch.embedding_renorm_ between the steps, or scale the rows that are read in the module"
        )
    return {**options, "sparse": False}


def _check_dense(args: Any) -> None:
    """Raise ExportError where an operand is sparse, which no graph has."""
    for part in args:
        if isinstance(part, Tensor) and part.layout is not torch.strided:
            raise ExportError(
                f"a tensor in layout {part.layout}, of shape {list(part.shape)}, is read{at(_line())}; "
                "a graph has dense tensors; keep it so (to_dense()), or add rows by index_add"
            )


def _set_data(x: Tensor, value: Tensor) -> None:
    """Perform `x.data = value` as a copy, which a trace sees."""
    if (x.shape, x.dtype) == (value.shape, value.dtype):
        x.data.copy_(value)
    else:
        x.data = value


def _packed(*_: Any, **__: Any) -> Any:
    """Reject `pack_padded_sequence`, whose number of rows is the sum of the lengths."""
    raise ExportError(
        f"the sizes of a packed sequence depend on the values of its lengths{at(_line())}: give "
        "the recurrent layer the padded batch (its results are the same up to each length, "
        "except in a backward direction), mask its results, and take the last states with "
        "output.gather at lengths - 1"
    )


def _line() -> str:
    return line_of_user(traceback.extract_stack())


def _adaptive_log_softmax(module: nn.AdaptiveLogSoftmaxWithLoss, x: Tensor, target: Tensor) -> Any:
    """Compute `nn.AdaptiveLogSoftmaxWithLoss` from the log probabilities of all classes.

    PyTorch's own selects the rows of each cluster, whose number depends on values.
    """
    every = module.log_prob(torch.atleast_2d(x))
    output = every.gather(1, torch.atleast_1d(target).unsqueeze(1)).squeeze(1)
    output = output.reshape(target.shape)
    return _ASMoutput(output, -output.mean())


def _converted(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Run `nn.Module.to` within a forward pass; return the module itself if it has the type already.

    PyTorch's own would replace every parameter, which fails for a trace's parameters.
    """
    _, dtype, *_ = torch.__dict__["_C"]._nn._parse_to(*args, **kwargs)
    held = (*module.parameters(), *module.buffers())
    if any(t.is_floating_point() and t.dtype != dtype for t in held if dtype is not None):
        return _TO(module, *args, **kwargs)
    return module


_TO = nn.Module.to


@contextlib.contextmanager
def modules_stood_in() -> Iterator[None]:
    """Patch modules within the block to compute their result in a form that a trace on shapes accepts."""
    softmax: Any = nn.AdaptiveLogSoftmaxWithLoss
    every: Any = nn.Module
    autograd: Any = torch.autograd
    densities: Any = torch.distributions.Distribution
    with (
        # Distributions would read their arguments' values to validate them; `validate_args=True` sets it.
        mock.patch.object(densities, "_validate_args", property(lambda _: False, lambda *_: None)),
        mock.patch.object(softmax, "forward", _adaptive_log_softmax),
        mock.patch.object(every, "to", _converted),
        mock.patch.object(autograd, "backward", _no_backward),
        mock.patch.object(nn.modules.transformer, "_detect_is_causal_mask", _is_said_causal),
    ):
        yield


def _is_said_causal(_: Any, is_causal: bool | None = None, *__: Any) -> bool:
    """Tell whether a mask is declared causal.

    Without a declaration, `nn.Transformer` would read the mask's values to choose a kernel that needs no
    mask; the results are the same with the mask.
    """
    return is_causal is True


def _no_backward(*_: Any, **__: Any) -> None:
    """Reject `torch.autograd.backward`, which adds to `.grad`, unseen by a trace."""
    raise ExportError(
        f"the step runs a backward pass of its own{at(_line())}, which adds its gradients to "
        ".grad, and a graph does not return these; use torch.autograd.grad (a custom backward "
        "needs the parameter among the function's inputs), and torch.utils.checkpoint in place "
        "of your own checkpointing"
    )


def _as_large(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return a tensor and its selection mask expanded to one shape; a constant mask stays constant."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    with _disable_current_modes() if type(mask) is Tensor else contextlib.nullcontext():
        mask = mask.expand(shape)
    return x.expand(shape), mask


def _is_each(value: Any) -> bool:
    """Tell whether a value that is assigned by a mask has an entry for each of its places."""
    return isinstance(value, Tensor) and value.dim() > 0 and value.numel() != 1


def _places(index: Any) -> Any:
    """Return an index with constant masks replaced by the positions of their True elements."""
    if isinstance(index, tuple):
        parts = (_places(part) for part in index)
        split = (part if isinstance(part, tuple) else (part,) for part in parts)
        return tuple(part for some in split for part in some)
    if type(index) is not Tensor or index.dtype != torch.bool or not index.dim() or index.is_meta:
        return index
    with _disable_current_modes():
        return tuple(place.clone() for place in index.nonzero().unbind(1))


def _item(x: Tensor, index: Any) -> Tensor:
    """Compute `x[index]`, in which a traced tensor of rank 0 may stand for a number."""
    while (split := place_in(x, index)) is not None:
        chosen, index = split
        x = x[chosen]
    return x[index]


def _cov(x: Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Tensor:
    """Compute `torch.cov` without weights in other operators: PyTorch's own reads the weights' values."""
    if fweights is not None or aweights is not None:
        return torch.cov(x, correction=correction, fweights=fweights, aweights=aweights)
    rows = torch.atleast_2d(x)
    rows = rows - rows.mean(1, keepdim=True)
    return (rows @ rows.T / (rows.shape[1] - correction)).squeeze()


def _corrcoef(x: Tensor) -> Tensor:
    """Compute `torch.corrcoef`."""
    found = _cov(x)
    if not found.dim():
        return found / found
    spread = found.diagonal().sqrt()
    return (found / spread[:, None] / spread[None]).clamp(-1, 1)


def _grouped_mm(
    rows: Tensor, weights: Tensor, offs: Tensor | None = None, *others: Any, **more: Any
) -> Tensor:
    """Multiply each row by the matrix of its group: [rows, in], [groups, in, out] -> [rows, out].

    PyTorch's own costs as much as one matrix product over all rows, but its shapes depend on the number
    of rows of each group. Here every matrix multiplies all rows, with other groups' rows set to zero,
    which changes no sum.

    Args:
        offs: end of each group's rows, [groups]; rows after the last end give 0.
    """
    is_plain = rows.dim() == 2 and weights.dim() == 3
    if offs is None or not is_plain or any(v is not None for v in (*others, *more.values())):
        return _GROUPED(rows, weights, offs, *others, **more)
    place = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
    zero = torch.zeros((), dtype=rows.dtype, device=rows.device)
    out, start = None, torch.zeros_like(offs[:1])
    for group in range(weights.shape[0]):
        end = offs[group : group + 1]
        inside = (place >= start) & (place < end)
        found = torch.where(inside, rows, zero) @ weights[group]
        out, start = found if out is None else out + found, end
    assert out is not None
    return out


def _cdist(x: Tensor, y: Tensor, p: float = 2.0, *_: Any, **__: Any) -> Tensor:
    """Compute the distances of all pairs: [..., rows, n], [..., others, n] -> [..., rows, others]."""
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), ord=p, dim=-1)


def _cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """Compute `torch.cholesky`, which takes `upper` as a positional argument."""
    return linalg.cholesky(x, upper=upper)


def _pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """Compute the distance of each pair of rows: [rows, n] -> [pairs]."""
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1).unbind()
    return torch.linalg.vector_norm(x[first] - x[second], ord=p, dim=-1)


def _bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Compute `torch.bincount` with a fixed length; ONNX Runtime rejects values beyond it at run time."""
    if not minlength:
        return torch.bincount(x, weights)
    added = torch.ones_like(x, dtype=torch.int64) if weights is None else weights
    return torch.zeros(minlength, dtype=added.dtype).scatter_add(0, x.long(), added)


def _bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.bilinear`: [..., i], [..., j], [out, i, j] -> [..., out]."""
    product = torch.einsum("...i,oij,...j->...o", x, weight, y)
    return product if bias is None else product + bias


_INSTEAD: dict[Any, Callable[..., Any]] = {
    _GROUPED: _grouped_mm,
    Tensor.__getitem__: _item,
    Tensor.__setitem__: assigned,
    **dict.fromkeys((torch.narrow, Tensor.narrow), narrowed),
    _DATA.__set__: _set_data,
    torch.__dict__["_C"]._VariableFunctions._pack_padded_sequence: _packed,
    **dict.fromkeys((torch.bincount, Tensor.bincount), _bincount),
    torch.bilinear: _bilinear,
    torch.cdist: _cdist,
    torch.ctc_loss: ctc_loss,
    torch.nn.functional.ctc_loss: ctc_loss,
    torch.nn.functional.gaussian_nll_loss: gaussian_nll_loss,
    torch.nn.functional.grid_sample: grid_sample,
    torch.nn.functional.linear_cross_entropy: linear_cross_entropy,
    torch.nn.functional.multi_margin_loss: multi_margin_loss,
    torch.nn.functional.multilabel_margin_loss: multilabel_margin_loss,
    **dict.fromkeys((torch.inverse, torch.linalg.inv, Tensor.inverse), linalg.inv),
    **dict.fromkeys((torch.det, torch.linalg.det, Tensor.det), linalg.det),
    **dict.fromkeys((torch.slogdet, torch.linalg.slogdet, Tensor.slogdet), linalg.slogdet),
    **dict.fromkeys((torch.logdet, Tensor.logdet), linalg.logdet),
    **dict.fromkeys((torch.cholesky, Tensor.cholesky), _cholesky),
    **dict.fromkeys((torch.cholesky_solve, Tensor.cholesky_solve), linalg.cholesky_solve),
    **dict.fromkeys((torch.cholesky_inverse, Tensor.cholesky_inverse), linalg.cholesky_inverse),
    **dict.fromkeys(
        (torch.matrix_exp, torch.linalg.matrix_exp, Tensor.matrix_exp), linalg.matrix_exp
    ),
    **dict.fromkeys((torch.pdist, torch.nn.functional.pdist), _pdist),
    **dict.fromkeys((torch.cov, Tensor.cov), _cov),
    **dict.fromkeys((torch.corrcoef, Tensor.corrcoef), _corrcoef),
    **{run: by_layer(run) for run in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)},
    torch.linalg.cholesky: linalg.cholesky,
    torch.linalg.solve: linalg.solve,
    torch.linalg.solve_triangular: linalg.solve_triangular,
}

_OF_LIBRARIES: dict[str, Callable[..., Any]] = {"transformers.grouped_mm_fallback": _grouped_mm}
"""Stand-ins for operators that a library registers when it is imported, by name."""
