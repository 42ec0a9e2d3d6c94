"""Plans of training graphs on the device: made, run beside the original, run in a pool of the budget.

A case is a graph at a budget. Each of its checks is a process of its own; the files that the first one
makes stay in a folder, and the others read them.
"""

from __future__ import annotations

import gc
import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, numpy_helper

import planner
from planner import native
from planner.choices import FuseMode
from planner.runtime.arrays import storable
from planner.runtime.binding.bind import Bound
from planner.runtime.binding.kinds import FeedKind
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.memory.paged import device_pool_bytes, pool_bytes
from planner.runtime.options import hold_no_more, most_threads
from planner.targets import HOST
from planner.targets.backend import backend_of
from planner.targets.cuda import CUDA
from reports.gpu.basics import Found, least_ms
from reports.gpu.graphs import Where
from reports.shared import ZOO, read_rows, write_rows

_TYPES = {"bf16": TensorProto.BFLOAT16, "fp16": TensorProto.FLOAT16}
_OVER = (0, 1, 2, 5, 10, 20)
_NEAR = 1e-3
_PLAN_S = 20.0
"""Time limit of a search: the same check also measures operations and reads the plan back."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A graph at a budget, in percent of its peak.

    Attributes:
        half: "bf16" or "fp16": the graph with all of its float32 in that type.
        swap: "auto", "only", or "none": recompute alone, with `graph_capture` too.
        fuse: as `--fuse` has it.
        provider: options of the CUDA provider.
        rounds: steps whose bits are compared; if more than 3, they run in a pool of the budget.
    """

    graph: str
    percent: int
    half: str = ""
    swap: str = "auto"
    fuse: FuseMode = "none"
    provider: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 3

    @property
    def name(self) -> str:
        """The name of its rows."""
        kind = f" {self.half}" if self.half else ""
        how = {"none": " recompute", "only": " swaps"}.get(self.swap, "")
        how += f" fused {self.fuse}" if self.fuse != "none" else ""
        return f"{self.graph}{kind} {self.percent}%{how}"

    @property
    def checks(self) -> tuple[str, ...]:
        """The names of its checks, in order."""
        kinds = ("plan", "steps", "pool", *["graph"] * (self.swap == "none"))
        return tuple(f"{self.name}: {kind}" for kind in kinds)


CASES = (
    Case(graph="gpt2_medium_b8x1024", percent=50),
    Case(graph="gpt2_small", percent=60),
    Case(graph="gpt2_small", percent=40),
    Case(graph="bert_base", percent=60),
    Case(graph="resnet50_b32", percent=60, provider={"cudnn_conv_algo_search": "HEURISTIC"}),
    Case(graph="gpt2_small", percent=60, half="bf16"),
    Case(graph="gpt2_small", percent=60, half="fp16"),
    Case(graph="bert_base", percent=60, half="bf16"),
    Case(graph="bert_base", percent=60, half="fp16"),
    Case(graph="gpt2_small", percent=60, swap="none"),
    Case(graph="bert_base", percent=80, swap="none"),
    Case(graph="gpt2_small", percent=100, swap="none", fuse="exact"),
    Case(graph="gpt2_small", percent=100, swap="none", fuse="auto"),
    Case(graph="bert_base", percent=100, swap="none", fuse="auto"),
    *(
        Case(graph=sample, percent=percent, swap=swap, rounds=600)  # 10,800 steps together
        for sample in ("mlp_adamw", "gpt", "resnet18")
        for percent in (80, 60, 40)
        for swap in ("auto", "only")
    ),
)

REHEARSED = (
    Case(graph="mlp_adamw", percent=50),
    Case(graph="gpt", percent=40, swap="only", rounds=4),
    Case(graph="gpt", percent=60, swap="none"),
    Case(graph="gpt", percent=100, swap="none", fuse="exact"),
    Case(graph="gpt", percent=100, swap="none", fuse="auto"),
)
"""The cases of the samples, on the CPU."""


def check(name: str, where: Where, graphs: Path, work: Path) -> Found:
    """Return a check by its name."""
    title, _, kind = name.rpartition(": ")
    case = next(c for c in (CASES if where.cuda else REHEARSED) if c.name == title)
    folder = work / title
    folder.mkdir(parents=True, exist_ok=True)
    graphs = ZOO if case.rounds > 3 or not where.cuda else graphs
    run = _Run(case=case, where=where, graphs=graphs, folder=folder)
    return {"plan": run.plan, "steps": run.steps, "pool": run.pool, "graph": run.graph}[kind]()


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The checks of one case."""

    case: Case
    where: Where
    graphs: Path
    folder: Path

    @property
    def _model(self) -> Path:
        return self.folder / "model.onnx"

    @property
    def _planned(self) -> Path:
        return self.folder / "planned.onnx"

    def plan(self) -> Found:
        """Plan the case, with times of this device."""
        source = self.graphs / f"{self.case.graph}.onnx"
        if not source.is_file():
            raise FileNotFoundError(f"{source}: give the folder of the graphs (--graphs)")
        if self.case.half:
            onnx.save(in_half(onnx.load(source), _TYPES[self.case.half]), self._model)
        else:
            shutil.copyfile(source, self._model)
        _copy_sidecar(source.with_suffix(".inputs.json"), self._model, self.case.half)
        copies: Found = {"copies": "overlapped"} if self.case.swap != "none" else {}
        result = planner.optimize(
            self._model,
            budget=f"{self.case.percent}%",
            budget_of="live",
            swap=self.case.swap,  # pyright: ignore[reportArgumentType]
            fuse=self.case.fuse,
            device="cuda" if self.where.cuda else "cpu",
            output=self._planned,
            time_limit_s=1.0 if self.graphs == ZOO else _PLAN_S,
            verify=False,
            force=True,
            **copies,
        )
        plan, after = result.plan, (result.after.graph, result.after.timeline.order)
        on_host = partial(pool_bytes, threads=most_threads(), host_in_pool=True)
        found = {
            "budget_bytes": plan.budget_bytes,
            "peak_bytes": [plan.baseline.peak_bytes, plan.planned.peak_bytes],
            "pages_bytes": (device_pool_bytes if self.where.cuda else on_host)(*after),
            "predicted": plan.planned.time_us / plan.baseline.time_us,
            "times": plan.cost_source,
            "swapped": plan.planned.swapped_tensors,
            "on_host": sorted(plan.resident),
            "recomputed": plan.planned.recomputed_ops,
            "fused": plan.fused_nodes,
            "unchanged": plan.unchanged,
        }
        write_rows(self.folder / "facts.json", found)
        is_fused = self.case.fuse == "none" or plan.fused_nodes > 0
        return {**found, "holds": plan.planned.peak_bytes <= plan.budget_bytes and is_fused}

    def _session(self, path: Path, room_bytes: int = 0) -> ort.InferenceSession:
        """Open a file; with `room_bytes`, in a pool of so many."""
        cuda = self.where.cuda
        pool = f"{room_bytes}B" if room_bytes and not cuda else None
        options = planner.session_options(path, pool=pool)
        hold_no_more(options)
        options.log_severity_level = 3
        if not cuda:
            options.intra_op_num_threads = 1
            return backend_of(HOST).open(path, options, {})
        inside = native.device_pool_options(room_bytes) if room_bytes else {}
        provider = {**CUDA.options, **self.case.provider, **inside}
        return backend_of(CUDA).open(path, options, provider)

    def _data(self, seed: int) -> dict[str, np.ndarray]:
        return make_inputs(self._model, seed)[0]

    @property
    def _facts(self) -> Found:
        return read_rows(self.folder / "facts.json", {})

    def _room(self, data: Mapping[str, np.ndarray]) -> int:
        """Return what the budget has beside the planned file's inputs on the device."""
        waiting, budget = self._facts["on_host"], self._facts["budget_bytes"]
        return budget - sum(a.nbytes for name, a in data.items() if name not in waiting)

    def steps(self) -> Found:
        """Run both models in turns, with values bound where each session keeps them: bits and times."""
        inputs = self._data(0)
        # floating-point inputs stay; what else there is comes anew with each step
        kept = {name: array for name, array in inputs.items() if array.dtype.kind not in "iub"}
        is_many = self.case.rounds > 3 and (self.where.cuda or not self._facts["on_host"])
        room = self._room(inputs) if is_many else 0
        bound = {
            path.stem: planner.bind(self._session(path, size), kept, updates={}, results=())
            for path, size in ((self._model, 0), (self._planned, room))
        }
        names = [output.name for output in bound["model"].session.get_outputs()]
        different, unsteady = set[str](), set[str]()
        for seed in range(self.case.rounds):
            fed = {name: array for name, array in self._data(seed).items() if name not in kept}
            wanted, again = (_bits(bound["model"], names, fed) for _ in range(2))
            found = _bits(bound["planned"], names, fed)
            different |= {name for name in names if found[name] != wanted[name]}
            unsteady |= {name for name in names if again[name] != wanted[name]}
        gap = max(_gap(bound["model"].output(n), bound["planned"].output(n)) for n in names)
        fed = {name: array for name, array in inputs.items() if name not in kept}
        ms = least_ms(
            {name: lambda one=one: one.step(fed) for name, one in bound.items()},
            8 if self.where.cuda else 2,
        )
        places = [*bound["planned"].places.values()]
        return {
            "ms": ms,
            "ratio": ms["planned"] / ms["model"],
            "predicted": self._facts["predicted"],
            "outputs": len(names),
            "steps": self.case.rounds,
            "different": sorted(different)[:10],
            "unsteady": len(unsteady),
            "gap": gap,
            "places": {place: places.count(place) for place in sorted(set(places))},
            "swaps": asdict(native.counts()) if self.case.swap != "none" else {},
            "holds": gap < _NEAR if self.case.fuse == "auto" else different <= unsteady,
        }

    def pool(self) -> Found:
        """Find the least pool from the budget on that the rewritten file runs in, not the original."""
        budget = self._facts["budget_bytes"]
        if self._facts["on_host"] and not self.where.cuda:
            return {"skipped": "what is on the host is in the CPU's pool too", "holds": True}
        data = self._data(0)
        found: Found = {"budget_bytes": budget, "plan": self._in_plans_pool(data), "tries": {}}
        for percent in _OVER:
            size = self._room(data) + budget * percent // 100
            said = self._in_pool(self._planned, size, data)
            found["tries"][percent] = said or "runs"
            if not said:
                there = native.pool(device=self.where.cuda)
                found |= {"over_percent": percent, "pool": asdict(there) if there else {}}
                break
        room = budget - sum(array.nbytes for array in data.values())
        found["original"] = self._in_pool(self._model, room, data) or "runs"
        found["holds"] = found.get("over_percent", 100) <= 1 and found["original"] != "runs"
        return found

    def _in_plans_pool(self, data: Mapping[str, np.ndarray]) -> Found:
        """Run in the pool of the file's plan; a device's holds inputs, outputs and workspace, too.

        Its pages beyond those predicted are what a plan has to set aside (`--reserve`).
        """
        on_device = [(CUDA.provider, dict(self.case.provider)), HOST.provider]
        providers = on_device if self.where.cuda else None
        said = _said(
            partial(planner.open_session, self._planned, providers=providers, pool="plan"),
            lambda session: session.run(None, dict(data)),
        )
        there, predicted = native.pool(device=self.where.cuda), self._facts["pages_bytes"]
        if said or there is None:
            return {"said": said}
        return {"beyond_bytes": there.pages_most * there.page_bytes - predicted, **asdict(there)}

    def _in_pool(self, path: Path, room_bytes: int, data: Mapping[str, np.ndarray]) -> str:
        """Return the error of a run in a pool of the given bytes; "" if it runs."""
        opened = partial(self._session, path, room_bytes)
        return _said(opened, lambda session: self._run_in_place(session, data))

    def _run_in_place(self, session: ort.InferenceSession, data: Mapping[str, np.ndarray]) -> None:
        """Run with inputs where the session reads them, and outputs in its own memory."""
        binding, owners = session.io_binding(), []
        read, made = session.get_input_memory_infos(), session.get_output_memory_infos()
        for item, info in zip(session.get_inputs(), read, strict=True):
            device = "cuda" if info.name == "Cuda" else "cpu"
            value = ort.OrtValue.ortvalue_from_numpy(storable(data[item.name]), device, 0)
            kind, shape = FeedKind.of(item).onnx_type, data[item.name].shape
            binding.bind_input(item.name, device, 0, kind, shape, value.data_ptr())
            owners.append(value)
        for item, info in zip(session.get_outputs(), made, strict=True):
            binding.bind_output(item.name, "cuda" if info.name == "Cuda" else "cpu", 0)
        session.run_with_iobinding(binding)

    def graph(self) -> Found:
        """Check that replayed launches (`graph_capture`) have the bits of a plain session."""
        captured = planner.open_session(self._planned, graph_capture=self.where.cuda)
        bound, plain = planner.bind(captured, {}), self._session(self._planned)
        names = [output.name for output in plain.get_outputs()]
        different = set[str]()
        for seed in range(4):
            found, wanted = bound.step(self._data(seed)), plain.run(None, self._data(seed))
            pairs = zip(names, wanted, strict=True)
            different |= {n for n, a in pairs if np.asarray(a).tobytes() != found[n].tobytes()}
        return {"outputs": len(names), "different": sorted(different)[:10], "holds": not different}


def _said(
    opened: Callable[[], ort.InferenceSession], run: Callable[[ort.InferenceSession], None]
) -> str:
    """Return the error of three runs of a session, which is closed then; "" if they run."""
    try:
        session = opened()
        for _ in range(3):
            run(session)
    except Exception as error:
        return str(error)[:300] or type(error).__name__
    finally:
        session = None
        gc.collect()
    return ""


def _gap(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference, as a share of the largest element."""
    if one.dtype.kind in "iub":
        return float(np.any(one != other))
    one, other = one.astype(np.float64), other.astype(np.float64)
    if not one.size:
        return 0.0
    return float(np.abs(one - other).max() / max(1e-12, np.abs(one).max()))


def _bits(bound: Bound, names: list[str], fed: Mapping[str, Any]) -> dict[str, str]:
    """Return digests of a step's outputs."""
    bound.step(fed)
    digest = hashlib.sha256
    return {name: digest(bound.output(name).tobytes()).hexdigest() for name in names}


def _copy_sidecar(source: Path, model: Path, half: str) -> None:
    """Write the recipes of the inputs beside the model, in its types."""
    if not source.is_file():
        return
    text = source.read_text(encoding="utf-8")
    if half:
        name = {"bf16": "bfloat16", "fp16": "float16"}[half]
        text = text.replace('"float32"', f'"{name}"')
    model.with_suffix(".inputs.json").write_text(text, encoding="utf-8")


def in_half(model: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    """Return the model with float32 replaced by a half type: values, constants, and casts to it.

    What is beyond the type's range becomes the largest that it has.
    """

    def tensor(of: onnx.TensorProto) -> None:
        if of.data_type == TensorProto.FLOAT:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
            most = 6e4 if kind == TensorProto.FLOAT16 else 3e38
            array = np.clip(numpy_helper.to_array(of), -most, most).astype(dtype)
            of.CopyFrom(numpy_helper.from_array(array, of.name))

    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = kind
    for initializer in graph.initializer:
        tensor(initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                tensor(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == 1:
                attribute.i = kind
    for place, node in reversed([*enumerate(graph.node)]):
        for k, name in enumerate(node.output[1:] if node.op_type == "LayerNormalization" else ()):
            if name:  # its statistics are float32
                node.output[1 + k] = f"{name}__float32"
                cast = onnx.helper.make_node("Cast", [node.output[1 + k]], [name], f"{name}__half")
                cast.attribute.append(onnx.helper.make_attribute("to", kind))
                graph.node.insert(place + 1, cast)
    return model
