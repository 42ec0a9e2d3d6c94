"""Rules of ours for what torchlib translates, too: each has a case in which torchlib's is worse.

Without the rule, the case is not exported, ONNX Runtime does not load it, its numbers are off, or its
graph has more nodes. A rule without such a case is one to delete, unless it serves an operator that
torchlib does not know.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import numpy as np
import onnxruntime as ort
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.export.aten.registry import RULES, Result, Rule
from planner.export.training import export_training_graph
from planner.export.write import torchlib
from tests.export import test_reach, test_rules
from tests.export.test_rules import CONVOLUTIONS, Weighted, ramp

Make = Callable[[], tuple[nn.Module, Tensor]]

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-2}


def of_function(function: Callable[[Tensor], Tensor], *shape: int) -> Make:
    return lambda: (Weighted(function, shape), torch.randn(shape))


def of_images(module: nn.Module) -> Make:
    shape = (2, 4, 9, 9)

    def make() -> tuple[nn.Module, Tensor]:
        own = copy.deepcopy(module)  # it is changed, and another test's
        return nn.Sequential(Weighted(torch.tanh, shape), own), torch.randn(shape)

    return make


CASES: dict[str, Make] = {
    **{name: of_function(f, 4, 6) for name, f in test_rules.FUNCTIONS.items()},
    **{name: of_function(f, 4, 6) for name, f in test_reach.FUNCTIONS.items()},
    **{name: of_images(module) for name, module in CONVOLUTIONS.items()},
}


class Bags(nn.Module):
    """A bag of embeddings, looked up by what is no parameter's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.bags(x)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x)


def of_indices(module: nn.Module) -> Make:
    return lambda: (module, torch.arange(24).reshape(3, 8) % 5)


def heads(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x * 2, x * 3)


WHERE = torch.tensor([1, 0, 3, 2])

CASES |= {
    "bags": of_indices(Bags()),
    "words": of_indices(Words()),
    "attention": of_function(heads, 1, 2, 5, 8),
    "layer norm": of_function(lambda x: F.layer_norm(x, (6,)), 4, 6),
    "cross entropy": of_function(lambda x: F.cross_entropy(x, WHERE), 4, 6),
    "squared error": of_function(lambda x: F.mse_loss(x.tanh(), x), 4, 6),
    "nearest": of_function(lambda x: F.interpolate(x, scale_factor=1.5), 1, 2, 4, 4),
    "maxima in 3-D": of_function(lambda x: F.max_pool3d(x, 2), 1, 2, 4, 4, 4),
    "means in 3-D": of_function(lambda x: F.avg_pool3d(x, 3, 2, 1), 1, 2, 5, 5, 5),
    "means that leave padding out": of_images(nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
    "means of what is there": of_images(nn.AvgPool2d(3, 2, divisor_override=5)),
    "integers that are no NaN": of_function(lambda x: x * ~torch.isnan((2 * x).to(torch.int64))),
    "remainders near multiples": of_function(
        lambda x: x + (x.detach() * 0 + torch.arange(6) * 0.1).remainder(0.1), 4, 6
    ),
    "there and back": of_function(lambda x: x.tanh().transpose(0, 1).transpose(0, 1).tanh(), 4, 6),
    "booleans": of_function(lambda x: x * (((x > 0) ^ (x > 1)) | ~(x < 2)), 4, 6),
    "comparisons of two": of_function(lambda x: x * ((x >= x * 2) | (x <= x.exp())), 4, 6),
    "memory": of_function(lambda x: x * x.new_empty(6).fill_(2) * torch.empty(6).fill_(2), 4, 6),
    "squeezed": of_function(lambda x: x[:, :1].unsqueeze(0).squeeze().tanh(), 4, 6),
    "folded": of_function(lambda x: x.t().reshape(3, 8).tanh(), 4, 6),
    "dropout": of_function(lambda x: F.dropout(x, 0.5), 4, 6),
    "coins": of_function(lambda x: x * torch.bernoulli(torch.full((6,), 0.5)), 4, 6),
    "coins in place": of_function(lambda x: x * torch.empty(6).bernoulli_(0.5), 4, 6),
    "coins of one kind": of_function(lambda x: x * torch.bernoulli(x.detach(), 0.5), 4, 6),
    "uniform": of_function(lambda x: x * torch.rand(6) + torch.rand_like(x), 4, 6),
    "normal": of_function(lambda x: x * torch.randn(6) + torch.randn_like(x), 4, 6),
    "normal in place": of_function(lambda x: x * torch.empty(6).normal_(1, 2), 4, 6),
    "integers": of_function(
        lambda x: x * torch.randint(5, (6,)) + torch.randint(2, 5, (6,)) + torch.randint_like(x, 3),
        4,
        6,
    ),
    "integers of a range": of_function(lambda x: x + torch.randint_like(x, 2, 5), 4, 6),
}

HOLES = torch.tensor([0.0, 0.0, torch.nan, 0.0, 0.0, 0.0])
ENDS = torch.tensor([0.0, torch.inf, 0.0, -torch.inf, 0.0, 0.0])
AROUND = torch.full((4, 4), torch.inf).fill_diagonal_(0)
PLACES = torch.tensor([[0, 2, 1, 0, 1, 2]] * 4)


def kept(x: Tensor) -> Tensor:
    """x where bounds on one side leave what is infinite on the other."""
    wide, least = x + ENDS, torch.tensor(0.0)
    above = (wide.clamp_min(0.0) == torch.inf) & (torch.clamp_min(wide, least) == torch.inf)
    return x * (above | (wide.clamp_max(0.0) == -torch.inf))


CASES |= {
    "sorted, with NaN": of_function(lambda x: (x + HOLES).sort(1)[0].nan_to_num(9.0), 4, 6),
    "ranked, with NaN": of_function(lambda x: (x + HOLES).topk(2, 1)[0].nan_to_num(9.0), 4, 6),
    "where NaN is": of_function(lambda x: x * (x + HOLES).argmax(1, keepdim=True), 4, 6),
    "smallest, with NaN": of_function(
        lambda x: (x + HOLES).amin(1).nan_to_num(9.0) + (x + HOLES).min(1)[0].nan_to_num(2.0), 4, 6
    ),
    "scattered, with NaN": of_function(
        lambda x: x[:, :3].scatter_reduce(1, PLACES, x + HOLES, "amax").nan_to_num(9.0), 4, 6
    ),
    "parts of memory": of_function(lambda x: x.as_strided((5, 4), (3, 2)).tanh(), 4, 6),
    "diagonal beside infinity": of_function(lambda x: (x[:, :4] + AROUND).diagonal(), 4, 6),
    "kept infinite": of_function(kept, 4, 6),
    "logarithm of a sigmoid": of_function(lambda x: torch.log(torch.sigmoid(x - 30)), 4, 6),
    "logarithms near 1": of_function(lambda x: torch.log1p(x.abs() * 1e-9).log(), 4, 6),
    "powers near 1": of_function(lambda x: torch.expm1(x.abs() * 1e-9).log(), 4, 6),
}

SHOWN_BY: dict[torch.dtype, dict[str, str]] = {
    torch.float32: {
        "addmm": "addmm.default",
        "amax": "div.Tensor mul.Tensor sum.dim_IntList",
        "arithmetic": "detach.default",
        "assignments in place": "copy.default index.Tensor",
        "attention": "_scaled_dot_product_flash_attention_for_cpu.default",
        "bags": "_embedding_bag.default",
        "batch norm": "_native_batch_norm_legit_functional.default",
        "chunk and unbind": "mm.default unbind.int",
        "coins": "bernoulli.default",
        "coins in place": "bernoulli.p",
        "cumulative product": "cumsum.default flip.default max.dim",
        "diagonal beside infinity": "diagonal.default",
        "dropout": "native_dropout.default",
        "gather": "new_zeros.default",
        "gather and scatter": "expand.default",
        "hardtanh": "hardtanh_backward.default",
        "histogram": "histc.default",
        "integers": "add.Tensor randint.default",
        "integers that are no NaN": "isnan.default",
        "kept infinite": "clamp_min.default clamp_max.default clamp_min.Tensor",
        "layer norm": "native_layer_norm.default",
        "log sigmoid": "sub.Tensor",
        "logarithm of a sigmoid": "sigmoid.default",
        "logarithms near 1": "log1p.default",
        "max pool": "max_pool2d_with_indices.default",
        "mean": "mean.default",
        "means of what is there": "avg_pool2d.default",
        "mm": "t.default",
        "parts of memory": "as_strided.default",
        "powers near 1": "expm1.default",
        "product of two": "permute.default",
        "ranked, with NaN": "topk.default",
        "remainders near multiples": "remainder.Scalar",
        "scattered, with NaN": "scatter_reduce.two",
        "slices": "slice.Tensor",
        "smallest, with NaN": "amin.default min.dim",
        "sorted, with NaN": "sort.default",
        "squared error": "mse_loss.default",
        "stack": "stack.default",
        "there and back": "transpose.int",
        "where NaN is": "argmax.default",
    },
    torch.float16: {
        "abs": "abs.default",
        "amax": "amax.default",
        "arithmetic": "exp.default neg.default sub.Tensor",
        "cat": "cat.default",
        "clamp": "clamp.default ge.Scalar le.Scalar",
        "comparisons": "gt.Scalar ne.Tensor",
        "cosine": "cos.default sin.default",
        "gather": "scatter_add.default",
        "gelu, tanh": "gelu.default",
        "index add": "index_put.default",
        "log and root": "log.default sqrt.default",
        "log softmax": "_log_softmax.default",
        "matrix and vector": "mv.default",
        "maximum": "eq.Tensor lt.Tensor maximum.default minimum.default",
        "pad": "constant_pad_nd.default",
        "power": "pow.Tensor_Scalar",
        "reciprocal root": "reciprocal.default rsqrt.default",
        "relu": "relu.default",
        "sigmoid": "sigmoid.default",
        "silu": "empty_like.default",
        "softmax": "_softmax.default",
        "special": "erf.default",
        "tanh": "tanh.default",
        "powers of tensors": "pow.Scalar pow.Tensor_Tensor",
        "remainders": "div.Tensor_mode",
    },
}
"""Cases, by type, in which torchlib was worse than these rules of ours: asked first, so that the rest is
asked only for rules that these show nothing of. `PLANNER_OWN_RULES=all` asks them all; without it every
fourth is asked."""


def nodes_of(make: Make, dtype: torch.dtype) -> int:
    """Nodes of a case's graph, after its numbers; what it draws at random comes from outside."""
    torch.manual_seed(0)
    module, x = make()
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.5, 0.5)
    x = x.to(dtype) if x.is_floating_point() else x
    module = module.to(dtype)
    graph = export_training_graph(module, (x,), ramp, random="inputs", check=False)
    session = ort.InferenceSession(graph.model.SerializeToString())
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    held[graph.inputs[0]] = x
    held = {name: value.detach().numpy() for name, value in held.items()}
    wanted = [given.name for given in session.get_inputs()]
    if set(wanted) <= set(held):
        (loss,) = session.run(["loss"], {name: held[name] for name in wanted})
        expected = ramp(module(x)).detach().numpy()
        tolerance = TOLERANCE[dtype]
        np.testing.assert_allclose(np.asarray(loss), expected, tolerance, tolerance)
    return len(graph.model.graph.node)


@pytest.fixture
def watched() -> Iterator[tuple[set[str], dict[str, Rule]]]:
    """(names of the rules that have been used since that was emptied, the rules)."""
    names: set[str] = set()
    rules = dict(RULES)

    def watching(name: str) -> Rule:
        def rule(*args: object, **more: object) -> Result:
            names.add(name)
            return rules[name](*args, **more)

        return rule

    RULES.update({name: watching(name) for name in rules})
    yield names, rules
    RULES.clear()
    RULES.update(rules)


def known_to_torchlib(name: str) -> bool:
    operator, _, overload = name.rpartition(".")
    target = getattr(getattr(torch.ops.aten, operator, None), overload, None)
    return target is not None and torchlib.knows(target)


Ask = tuple[torch.dtype, str, set[str]]
"""A case, and the rules that are asked about."""


def asked() -> tuple[list[Ask], set[str]]:
    """(what is asked, in turn; rules that are not asked about)."""
    shown = [
        (dtype, case, set(names.split()))
        for dtype, by in SHOWN_BY.items()
        for case, names in by.items()
    ]
    every = 1 if os.environ.get("PLANNER_OWN_RULES") == "all" else 4
    put_off = set[str]().union(*(names for i, (_, _, names) in enumerate(shown) if i % every))
    everything = itertools.product(TOLERANCE, CASES)
    return [*shown[::every], *((dtype, case, set(RULES)) for dtype, case in everything)], put_off


def test_each_rule_is_better_than_torchlib_somewhere(
    watched: tuple[set[str], dict[str, Rule]],
) -> None:
    used, ours = watched
    overlapping = [name for name in RULES if known_to_torchlib(name)]
    assert len(overlapping) > 50
    questions, put_off = asked()
    kept = {id(ours[name]) for name in RULES if name not in overlapping or name in put_off}
    left = {name for name in overlapping if id(ours[name]) not in kept}

    def is_better(name: str, count: int, case: str, dtype: torch.dtype) -> bool:
        rule = RULES.pop(name)
        try:
            return nodes_of(CASES[case], dtype) > count
        except Exception:  # of any kind: the case is not exported, not loaded, or wrong
            return True
        finally:
            RULES[name] = rule

    for dtype, case, shown in questions:
        if not left & shown:
            continue
        used.clear()
        try:
            count = nodes_of(CASES[case], dtype)
        except Exception:  # not of this type: PyTorch, or ONNX Runtime, has no kernel
            continue
        for name in sorted(used & left & shown):
            if name in left and is_better(name, count, case, dtype):
                left = {other for other in left if ours[other] is not ours[name]}
    assert not left, f"as good without: {' '.join(sorted(left))}"
