"""Which operators training graphs hold, and whether planner has rules for each.

shape     the operator has a shape rule
flops     its arithmetic is known (`planner.cost.work`)
effect    it is known whether it may run twice: ONNX's own operators are functions of their inputs,
          but for those that `planner.graph.rules` names; of com.microsoft's each must be named
in place  its kernel's buffers were measured (`tests.graph.ort_cases`, `tests.training.cases`), or
          follow from its definition
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx_shape_inference import registry

from planner.graph import rules
from planner.graph.effects import effect_of
from planner.graph.operators.table import operator_of
from planner.onnxio import shape_rules
from tests.graph.ort_cases import cases as stock_cases
from tests.training.cases import cases as training_cases

Key = tuple[str, str, int]
"""Domain, operator, version of its operator set."""

EXPANDED = frozenset({"DivGrad"})
"""Operators without a CPU kernel, that ONNX Runtime runs as the nodes of their definition."""

BLOCKED = "com.microsoft.nchwc"
"""Domain of convolutions and pools in blocks of channels, which ONNX Runtime's optimizers write on some
processors: in place only as contrib_ops/cpu/nchwc_ops.cc says, and so in the operator table."""

LOSSES = ("CrossEntropyLoss", "MSELoss", "BCEWithLogitsLoss", "L1Loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """What is known of one operator."""

    domain: str
    op_type: str
    shape: bool
    flops: bool
    effect: bool
    in_place: bool

    @property
    def all(self) -> bool:
        """Everything is."""
        return self.shape and self.flops and self.effect and self.in_place


def covered(key: Key) -> Covered:
    """Look an operator up in planner's tables."""
    domain, op_type, version = key
    shape_rules.register()
    measured = {(c.domain, c.op_type) for _, c in (*stock_cases(), *training_cases())}
    shares = rules.view_input(op_type, domain), rules.inplace_pairs(op_type, domain, "float")
    return Covered(
        domain=domain,
        op_type=op_type,
        shape=registry.get(domain, op_type, version=version) is not None,
        flops=operator_of(op_type, domain).cost is not None,
        effect=effect_of(op_type, domain, {}, training=True).is_known,
        in_place=(domain, op_type) in measured
        or op_type in EXPANDED
        or domain == BLOCKED
        or shares[0] is not None
        or bool(shares[1]),
    )


def operators(models: Iterable[onnx.ModelProto]) -> set[Key]:
    """Operators of some models."""
    found: set[Key] = set()
    for model in models:
        versions = {i.domain: i.version for i in model.opset_import}
        found |= {(n.domain, n.op_type, versions.get(n.domain, 1)) for n in model.graph.node}
    return found


def artifact_operators() -> dict[str, list[Key]]:
    """Operators of the training models that this build generates, as they are and as it optimizes
    them, by net."""
    from models.artifacts.generate import generate
    from models.artifacts.mixed import mixed
    from models.artifacts.nets import NETS, mlp, resnet18
    from planner.onnxio.load import load_model
    from planner.runtime.optimizers.normalize import normalize

    made = {name: (build(), "CrossEntropyLoss") for name, build in NETS.items()}
    made["resnet50's depths"] = (resnet18(depths=(3, 4, 6, 3)), "CrossEntropyLoss")
    made |= {f"mixed, {loss}": (mixed(), loss) for loss in LOSSES}
    made["mlp, symbolic batch"] = (mlp(batch="batch"), "CrossEntropyLoss")
    found: dict[str, list[Key]] = {}
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        for name, (net, loss) in made.items():
            generate(net, Path(folder), loss)
            path = Path(folder) / "training_model.onnx"
            keys = operators([onnx.load(path)])
            dims = {"batch": 8} if "symbolic" in name else {}
            optimized = normalize(load_model(path, dims=dims))
            imports = optimized.graph.opset_imports
            keys |= {(n.domain, n.op_type, imports[n.domain]) for n in optimized.graph}
            found[name] = sorted(keys)
    return found


if __name__ == "__main__":
    print(json.dumps(artifact_operators()), file=sys.stdout)
