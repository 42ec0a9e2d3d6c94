"""Observe how the values of a model add up over parts of a batch, in runs on a few samples.

`planner.micro` chooses the values to observe and draws the conclusions; this module runs them. Random
numbers are switched off in these runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from planner.errors import ModelError
from planner.micro.batch import part
from planner.micro.draws import without_draws
from planner.micro.flow import NEXT_STEP, Flow
from planner.micro.kinds import Kinds, Runs, kinds_of, per_sample_kind
from planner.runtime.inmemory import ModelInMemory
from planner.runtime.options import Opening

Array = npt.NDArray[Any]

SAMPLES = 4
"""The number of samples of a whole batch; each half has half of them."""

_TIME_LIMIT_S = 120.0
_PLAIN = Opening(level="disabled", threads=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A model that runs on a few samples.

    Attributes:
        folder: the folder of the model's external data.
        feeds: inputs of `SAMPLES` samples.
    """

    model: ir.Model
    folder: Path
    flow: Flow
    feeds: Mapping[str, Array]
    seed: int = 0

    def kinds(self, names: Sequence[str]) -> Kinds:
        """Return how the named values add up, and how each output that carries the batch is joined.

        Raises:
            ModelError: a value, which the message names, does neither; or ONNX Runtime cannot run the
                model this way.
        """
        outputs = [str(v.name) for v in self.model.graph.outputs]
        joined = [name for name in outputs if name in self.flow.axis]
        sizes = self._sizes(names)
        model = without_draws(self.model)
        runs = self._runs(model, [*names, *joined, *sizes], self._with_ignored())
        for name in sizes:
            whole, half = runs.whole[name], runs.halves[0][name]
            if not np.array_equal(whole, half):
                raise ModelError(
                    f"{name!r}{self._maker(name)} depends on the size of the batch, and is an "
                    "output or is computed with totals over the batch: micro-batches have "
                    f"another size; {NEXT_STEP}"
                )
        found = kinds_of(runs, names, {name: self._counts_of(name) for name in names})
        of = dict(found.of)
        strange = list(found.strange)
        for name in joined:
            kind = per_sample_kind(runs, name, self.flow.axis[name])
            if kind is None:
                strange.append(name)
            else:
                of[name] = kind
        if strange:
            raise ModelError(self._strange(model, strange[0]))
        return Kinds(of=of, assumed=found.assumed)

    def _runs(self, model: ir.Model, names: Iterable[str], feeds: Mapping[str, Array]) -> Runs:
        clone = model.clone()
        values = {str(v.name): v for node in clone.graph for v in node.outputs if v.name}
        values.update((str(v.name), v) for v in clone.graph.inputs)
        clone.graph.outputs.clear()
        for name in dict.fromkeys(names):
            value = values[name]
            value.type = value.type or ir.TensorType(self.flow.types[name].dtype)
            clone.graph.outputs.append(value)
        file = ModelInMemory(data=ir.to_proto(clone).SerializeToString(), folder=self.folder)
        axes, half = self.flow.batch.inputs, SAMPLES // 2
        results = [
            file.run(fed, opening=_PLAIN, seed=self.seed, time_limit_s=_TIME_LIMIT_S)
            for fed in (feeds, part(feeds, axes, 0, half), part(feeds, axes, half, SAMPLES))
        ]
        copies = [{k: np.array(v) for k, v in result.items()} for result in results]
        return Runs(copies[0], (copies[1], copies[2]))

    def _sizes(self, names: Sequence[str]) -> list[str]:
        """Return values that may follow the batch's size, and that outputs or operations on totals
        read."""
        flow, found = self.flow, dict[str, None]()
        totals = set(names)
        for node in self.model.graph:
            read = [str(v.name) for v in node.inputs if v is not None]
            if not any(n in totals for n in read) or not flow.is_behind(node):
                continue
            if any(v.name in totals for v in node.outputs):
                continue
            totals.update(str(v.name) for v in node.outputs)
            found.update((n, None) for n in read if n in flow.sized)
        outputs = [str(v.name) for v in self.model.graph.outputs]
        found.update((n, None) for n in outputs if n in flow.sized and n not in flow.axis)
        return list(found)

    def _counts_of(self, name: str) -> list[str]:
        """Return the counts from which a value was computed, without itself."""
        flow = self.flow
        scalars = {c for c in flow.counts if math.prod(flow.types[c].shape) == 1}
        values = {str(v.name): v for node in self.model.graph for v in node.outputs}
        seen, stack, found = {name}, [values[name]], dict[str, None]()
        while stack:
            node = stack.pop().producer()
            for value in () if node is None else node.inputs:
                if value is None or str(value.name) in seen:
                    continue
                seen.add(str(value.name))
                if value.name in scalars:
                    found[str(value.name)] = None
                stack.append(value)
        return list(found)

    def _with_ignored(self) -> dict[str, Array]:
        """Return the inputs, with the first target ignored where the model may ignore some.

        Where a mask compares an input with a constant, the input's first element is set to that
        constant.
        """
        feeds, flow = dict(self.feeds), self.flow
        for node in self.model.graph if flow.counts else ():
            if node.op_type != "Equal" or not all(v.name in flow.masks for v in node.outputs):
                continue
            read = [v for v in node.inputs if v is not None]
            constants = [v.const_value for v in read if v.const_value is not None]
            fed = [str(v.name) for v in read if v.name in flow.batch.inputs]
            if len(constants) != 1 or len(fed) != 1 or math.prod(constants[0].shape.numpy()) != 1:
                continue
            array = np.array(feeds[fed[0]])
            array[(0,) * array.ndim] = constants[0].numpy().reshape(-1)[0]
            feeds[fed[0]] = array
        return feeds

    def _strange(self, model: ir.Model, name: str) -> str:
        """Return a message on a value that fits no kind; it names the first operation that mixes
        samples."""
        flow = self.flow
        what = f"{name!r}{self._maker(name)}"
        if name in flow.axis:
            text = f"the rows of output {what} are not those of runs on parts of the batch"
        else:
            text = f"{what} is neither a sum nor a mean over the samples of the batch"
        real = [
            n
            for node in model.graph
            for n in (str(v.name) for v in node.outputs if v.name)
            if n in flow.axis and n in flow.samples and n in flow.needed
        ]
        runs = self._runs(model, real, self.feeds) if real else Runs({}, ({}, {}))
        for other in real:
            if other != name and self._mixes(runs, other):
                text += f"; samples first meet in {other!r}{self._maker(other)}"
                break
        return f"{text}: the totals of micro-batches would not be those of the whole batch; {NEXT_STEP}"

    def _mixes(self, runs: Runs, name: str) -> bool:
        """Tell whether a value of the whole batch has other elements than its halves, in whatever
        order."""
        axis, whole = self.flow.axis[name], runs.whole[name]
        if whole.dtype.kind != "f":
            return False
        if whole.shape[axis] == SAMPLES:
            return per_sample_kind(runs, name, axis) is None
        rows = np.concatenate([half[name].reshape(-1) for half in runs.halves])
        if rows.size != whole.size:
            return True
        one, both = (np.sort(np.abs(a.astype(np.float64)), axis=None) for a in (whole, rows))
        limit = 1e-3 * float(one.max(initial=0.0))
        return not any(np.allclose(one, s * both, rtol=0, atol=limit) for s in (1.0, 0.5))

    def _maker(self, name: str) -> str:
        for node in self.model.graph:
            if any(v.name == name for v in node.outputs):
                return f" (node {node.name!r}, {node.op_type})"
        return ""
