"""Compare the update with the caller's: PyTorch runs the optimizer on the graph's gradients."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Container, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from planner.export.checking.eager import Arrays
from planner.export.checking.norms import is_equal, norm, off_by
from planner.export.errors import UpdateFailure
from planner.export.lines import line_of_user
from planner.export.optim import GRADIENT_SUFFIX, UPDATED_SUFFIX
from planner.export.trace.step import TrainingStep
from planner.export.update.traced import State, TracedUpdate, lent_gradients, tensors_of
from planner.export.write.dtypes import HALF, array_of
from planner.export.write.lower import LoweredStep

_SHARE, _IN_HALF = 1e-3, 0.1
"""Allowed distance of changes, relative to the norm of PyTorch's, or per element in float16."""

_MOST = 0.5
"""Share of float16 elements that must be this near.

A mean of squares may underflow in float16. ONNX Runtime does not round to float16 between operators:
PyTorch divides by 0 there, and the graph does not.
"""

_EPS = 8
"""Allowed distance by rounding of the values, in units of the type's rounding."""

_UNITS = {"float64": 2.0**-23, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Rounding unit by type; float64 has float32's, because its state partly derives from float32."""

_RATES = (1.0, 0.5, 0.75)
"""Factors of the learning rate, by step."""


class EagerUpdate:
    """Runs the caller's update function, and compares its results with the graph's.

    Args:
        graph: the graph, which must have run with gradients among its outputs.
    """

    def __init__(self, update: TracedUpdate, step: TrainingStep, graph: LoweredStep) -> None:
        self._update, self._module = update, step.module
        self._state: Arrays = {
            item.name: np.full(item.shape, item.initial, item.dtype) for item in graph.state
        }
        self._first = dict(self._state)
        nodes = update.module.graph.nodes
        kinds = {v.dtype for n in nodes if isinstance(v := n.meta.get("val"), Tensor)}
        self._share = _IN_HALF if kinds & HALF else _SHARE
        self._is_coarse = torch.float16 in kinds

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Restore the tensors outside of the module that the function changes, after the block."""
        kept = [(leaf.tensor, leaf.tensor.detach().clone()) for leaf in self._leaves()]
        try:
            yield
        finally:
            self._update.tracer.reach.put_back()
            with torch.no_grad():
                for tensor, was in kept:
                    tensor.copy_(was)

    def _leaves(self) -> list[Any]:
        own = {id(tensor) for tensor in tensors_of(self._module).values()}
        storages = {t.untyped_storage()._cdata for t in tensors_of(self._module).values()}
        return [
            leaf
            for key, leaf in self._update.tracer.leaves.items()
            if id(leaf.tensor) not in own and key[0] not in storages
        ]

    def feeds(self, number: int) -> Arrays:
        """Return the optimizer's inputs at a step."""
        for name in self._update.rates.values:
            if name in self._first:
                first = self._first[name]
                self._state[name] = np.asarray(first * _RATES[number % len(_RATES)], first.dtype)
        return self._state

    def wrong(self, ours: Arrays, inputs: Mapping[str, Tensor]) -> str:
        """Run the function; return a message on the first tensor that differs from the graph's, or "".

        The graph's state is fed at the next step.

        Args:
            ours: outputs of the graph.
            inputs: inputs of the step, which the function may read.
        """
        gradients = {
            name: torch.from_numpy(np.array(ours[name + GRADIENT_SUFFIX], np.float64)).to(p.dtype)
            for name, p in self._module.named_parameters()
            if name + GRADIENT_SUFFIX in ours
        }
        before = {name: array_of(t).copy() for name, t in tensors_of(self._module).items()}
        with torch.no_grad():
            for leaf in self._leaves():
                if leaf.name in inputs:
                    leaf.tensor.copy_(inputs[leaf.name])
        rates = self._update.rates
        with lent_gradients(self._module, gradients), rates.hooked(rates.as_fed(self._state)):
            try:
                returned = self._update.update() or {}
            except Exception as error:
                line = line_of_user(traceback.extract_tb(error.__traceback__))
                raise UpdateFailure(line, error) from error
        return (
            self._wrong_module(ours, before)
            or self._wrong_state(ours)
            or self._wrong_results(ours, returned)
        )

    @property
    def rewritten(self) -> Container[str]:
        """Names of the module's tensors that the function changes."""
        return self._update.updated

    def left(self) -> Arrays:
        """Return the parameters and buffers that the function changes, with their current values."""
        tensors = tensors_of(self._module)
        return {name: array_of(tensors[name]).copy() for name in self._update.updated}

    def _wrong_module(self, ours: Arrays, before: Arrays) -> str:
        for name, tensor in tensors_of(self._module).items():
            theirs = array_of(tensor)
            if name not in self._update.updated:
                if not is_equal(before[name], theirs):
                    return f"the update changes {name!r}, and the graph does not return it"
            elif not self._is_near(ours[name + UPDATED_SUFFIX], theirs, before[name]):
                return f"the update leaves a different {name!r}"
        return ""

    def _wrong_state(self, ours: Arrays) -> str:
        places = self._update.tracer.reach.places()
        for item in self._update.state:
            if item.new is None or (item.path is None and item.key is None):
                continue
            theirs = self._theirs(item, places)
            found = ours[item.name + UPDATED_SUFFIX]
            old = self._state.get(item.name, np.zeros_like(found))
            if theirs is None:  # not created yet, for example after a skipped step
                theirs = self._first.get(item.name)
            if theirs is None or not self._is_near(found, theirs, old):
                return f"the update leaves a different {item.name!r}"
        for item in self._update.state:
            if item.new is not None and item.name in self._state:
                self._state[item.name] = ours[item.name + UPDATED_SUFFIX]
        return ""

    def _theirs(self, item: State, places: Mapping[Any, Any]) -> np.ndarray | None:
        """Return a state tensor's value in the caller's code; None if it is not created yet."""
        if item.path is None:
            held = self._update.tracer.leaves[item.key or ()].tensor
        else:
            held = places[item.path].value if item.path in places else None
        if isinstance(held, Tensor):
            return array_of(held)
        return None if held is None else np.asarray(held, np.float64)

    def _wrong_results(self, ours: Arrays, returned: Mapping[str, Any]) -> str:
        for name, value in returned.items():
            theirs = array_of(torch.as_tensor(value))
            if not self._is_near(ours[name], theirs, np.zeros_like(theirs)):
                return f"the update returns a different {name!r}"
        return ""

    def _is_near(self, ours: np.ndarray, theirs: np.ndarray, old: np.ndarray) -> bool:
        """Tell whether a value has changed as PyTorch's has, up to rounding."""
        if ours.shape != theirs.shape:
            return False
        if theirs.dtype.name not in _UNITS:
            return bool((ours == theirs).all())
        eps = _UNITS[theirs.dtype.name]
        with np.errstate(all="ignore"):
            change = theirs.astype(np.float64) - old.astype(np.float64)
            moved = norm(change)
            if self._is_coarse:
                off = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
                near = off <= self._share * np.abs(change) + _EPS * eps
                return bool(near.mean() >= _MOST)
        allowed = max(self._share * moved, _EPS * eps * norm(theirs))
        if not np.isfinite(allowed):
            allowed = 0.0
        return off_by(ours, theirs) <= allowed + 1e-30
