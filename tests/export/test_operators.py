"""Operators that are taken apart or spelled out by planner: result and gradients against autograd, as in
`tests.export.test_rules`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import numpy as np
import onnxruntime as ort
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.export.apart.linalg import LARGEST
from planner.export.errors import DataDependentControlFlow, ExportError, UnsupportedOperator
from planner.export.inputs import InputSpec
from planner.export.training import export_training_graph
from tests.export.test_reach import VOLUME, Sampled
from tests.export.test_rules import FLOATS, IMAGES, INDICES, Weighted, check

SQUARES = InputSpec(shape=(2, 4, 4), dtype="float32", kind="normal")
PLACES = torch.tensor([[0, 2, 1, 0, 1, 2]] * 4)
ROWS = torch.tensor([0, 2, 0, 1])
MASK = torch.tensor([[True, False, True, False, False, True]] * 4)


def scattered(kind: str, *, own: bool = True) -> Callable[[Tensor], Tensor]:
    """Elements reduced into columns of twos, which count or do not."""
    return lambda x: torch.full((4, 3), 2.0).scatter_reduce(1, PLACES, x, kind, include_self=own)


def reduced(kind: str) -> Callable[[Tensor], Tensor]:
    """Rows reduced into others."""
    return lambda x: torch.full((3, 6), 0.5).index_reduce(0, ROWS, x, kind)


def inside(x: Tensor) -> Tensor:
    return x.tanh() * 0.9


EDGES = torch.tensor([[-1.0, 1.0, 0.0, 6.0, 0.5, 2.0]] * 4)


def at(x: Tensor, values: Tensor) -> Tensor:
    """These values, with the gradient of x."""
    return x - x.detach() + values


def attention(x: Tensor, shown: Tensor) -> Tensor:
    """Of four queries, of which the second sees nothing."""
    heads = x.reshape(1, 1, 4, 6)
    return F.scaled_dot_product_attention(heads, heads * 2, heads.tanh(), attn_mask=shown)


SHOWN = torch.tensor(
    [[True, False, True, True], [False] * 4, [True] * 4, [False, True, True, False]]
)

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    # where a rule may go wrong
    "attention to nothing": lambda x: attention(x, SHOWN),
    "attention to nothing, by a sum": lambda x: attention(
        x, torch.zeros(4, 4).masked_fill(~SHOWN, -torch.inf)
    ),
    "clipped, at the bounds": lambda x: F.hardtanh(at(x, EDGES)) + F.relu6(at(x, EDGES)) * 2,
    "root of what a ReLU keeps at 0": lambda x: F.relu(at(x, EDGES)).sqrt(),
    "pooled by norm, of zeros": lambda x: F.lp_pool1d(at(x, EDGES.relu() * 0), 2, 2),
    "means without a batch": lambda x: (
        F.avg_pool1d(x, 2) * F.avg_pool1d(x, 2, ceil_mode=True, count_include_pad=False)
    ),
    "logarithms of sums of large powers": lambda x: (
        torch.logaddexp(x * 300, x.flip(1) * 200) + torch.logaddexp2(x * 90, x)
    ),
    "logarithms of running sums": lambda x: torch.logcumsumexp(x * 150, 1),
    # one of several
    "median of all": lambda x: x.median() * x,
    "medians": lambda x: x.median(1)[0],
    "mode": lambda x: (x * 0 + torch.round(x.detach())).mode(1)[0] + x[:, 0],
    "running largest and smallest": lambda x: x.cummax(1)[0] + x.cummin(0)[0] * 2,
    "second of each": lambda x: x.kthvalue(2, dim=1)[0] + x.kthvalue(6, 1, keepdim=True)[0].sum(),
    "where the most of narrow numbers is": lambda x: (
        x * (8 * x.detach()).to(torch.int16).argmax(1, keepdim=True)
    ),
    "sorted, in order": lambda x: x.sort(dim=0, descending=True, stable=True)[0] + x.msort(),
    "places among edges": lambda x: x * torch.searchsorted(torch.linspace(-1, 1, 5), x.detach()),
    "places among own edges": lambda x: x * torch.searchsorted(
        x.detach().sort(1)[0], x.detach(), right=True
    ),
    "buckets": lambda x: x * torch.bucketize(x.detach(), torch.linspace(-1, 1, 5), right=True),
    # scattering
    "scattered means": scattered("mean"),
    "scattered means of them alone": scattered("mean", own=False),
    "scattered products": scattered("prod"),
    "scattered minima": scattered("amin", own=False),
    "reduced maxima": reduced("amax"),
    "reduced means": reduced("mean"),
    "reduced products": reduced("prod"),
    "put in a flat place": lambda x: x.put(torch.tensor([1, 9]), x[0, :2] * 2) * 3,
    "scattered by a mask": lambda x: torch.zeros(4, 6).masked_scatter(MASK, x * 2),
    "picked by a known mask": lambda x: x[MASK] * 2 + x.masked_select(MASK).tanh(),
    "rows repeated, in all": lambda x: x.repeat_interleave(
        torch.tensor([1, 2, 0, 3]), dim=0, output_size=6
    ),
    "classes as ones": lambda x: x * F.one_hot(torch.tensor([0, 2, 4, 5]), 6),
    # special functions
    "gamma": lambda x: torch.lgamma(x.abs() + 0.1) + torch.digamma(x.abs() + 0.3),
    "gamma below zero": lambda x: torch.lgamma(inside(x) * 0.4 - 1.5),
    "trigamma": lambda x: torch.polygamma(1, x.abs() + 0.5),
    "inverse of erf": lambda x: torch.erfinv(inside(x)),
    "largest that are numbers": lambda x: torch.fmax(x, -x) + torch.fmin(x, x * 2),
    "hypotenuse": lambda x: torch.hypot(x, x + 1) + torch.copysign(x, x + 1),
    "numbers for what is none": torch.nan_to_num,
    "densities": lambda x: torch.distributions.Beta(
        x.abs() + 1, x.abs() + 2, validate_args=False
    ).log_prob(x.sigmoid()),
    "covariances": lambda x: torch.cov(x) + torch.corrcoef(x),
    "distances of pairs": torch.pdist,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    check(Weighted(FUNCTIONS[name], FLOATS.shape), FLOATS)


def positive(x: Tensor) -> Tensor:
    """A symmetric matrix far from singular."""
    return x @ x.mT + 2 * torch.eye(4)


MATRICES: dict[str, Callable[[Tensor], Tensor]] = {
    "Cholesky factor": lambda x: torch.linalg.cholesky(positive(x)),
    "by a Cholesky factor": lambda x: torch.cholesky_solve(
        x[..., :2], torch.linalg.cholesky(positive(x))
    ),
    "determinant": torch.linalg.det,
    "determinant's logarithm": lambda x: torch.slogdet(x)[1] + torch.logdet(positive(x)),
    "exponential": torch.linalg.matrix_exp,
    "inverse": lambda x: torch.linalg.inv(x + 3 * torch.eye(4)),
    "inverse of a Cholesky factor's": lambda x: torch.cholesky_inverse(
        torch.linalg.cholesky(positive(x))
    ),
    "solution": lambda x: torch.linalg.solve(positive(x), x[..., :2]),
    "solution of a vector": lambda x: torch.linalg.solve(positive(x), x[..., 0]),
    "solution on the right": lambda x: torch.linalg.solve(positive(x), x[:, :2], left=False),
    "solution of a triangle": lambda x: torch.linalg.solve_triangular(
        positive(x), x, upper=True
    ),
    "density of several": lambda x: torch.distributions.MultivariateNormal(
        x[0, 0], positive(x), validate_args=False
    ).log_prob(x[:, 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", MATRICES)
def test_matrices(name: str) -> None:
    check(Weighted(MATRICES[name], SQUARES.shape), SQUARES)


def test_rows_are_chosen_by_the_largest_number() -> None:
    """Elimination in the given order would divide by 0."""
    swapped = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0], [4.0, 0.0, 0.0]])

    def inverse(x: Tensor) -> Tensor:
        return torch.linalg.inv(swapped * x[:3, :3].exp()) + torch.linalg.det(swapped * x[:3, :3])

    check(Weighted(inverse, FLOATS.shape), FLOATS)


def test_large_matrices_are_refused_with_the_line() -> None:
    spec = InputSpec(shape=(LARGEST + 1, LARGEST + 1), dtype="float32", kind="normal")
    with pytest.raises(ExportError, match=rf"up to {LARGEST} rows.*") as caught:
        check(Weighted(torch.linalg.inv, spec.shape), spec)
    assert "test_rules.py" in str(caught.value)  # where the function is called


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "adaptive": lambda x: F.adaptive_max_pool2d(x, (4, 2)),
    "fractional": lambda x: F.fractional_max_pool2d(
        x, 2, output_size=(3, 5), _random_samples=torch.full((2, 4, 2), 0.37)
    ),
    "undone": lambda x: F.max_unpool2d(
        *F.max_pool2d(x[..., :8, :8], 2, return_indices=True), (2, 2)
    ).tanh(),
    "undone, and its places": lambda x: F.max_pool2d(x, 3, 2, return_indices=True)[0]
    * F.max_pool2d(x, 3, 2, return_indices=True)[1],
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_pools_of_images(name: str) -> None:
    check(Weighted(POOLS[name], IMAGES.shape), IMAGES)


@pytest.mark.parametrize("size", [2, (3, 2, 3)])
def test_adaptive_pools_of_volumes(size: int | tuple[int, ...]) -> None:
    check(Weighted(nn.AdaptiveMaxPool3d(size), VOLUME.shape), VOLUME)


@pytest.mark.parametrize(
    ("padding", "align"),
    [("zeros", True), ("border", False), ("reflection", True), ("reflection", False)],
)
def test_images_sampled_by_cubics(padding: str, align: bool) -> None:
    check(Sampled("bicubic", padding, align=align), IMAGES)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(5, 3), (4, 13)])
def test_images_resized_without_aliases(mode: str, size: tuple[int, int]) -> None:
    def resized(x: Tensor) -> Tensor:
        return F.interpolate(x, size=size, mode=mode, antialias=True)

    check(Weighted(resized, IMAGES.shape), IMAGES)


def test_cells_of_recurrent_layers() -> None:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LSTMCell(6, 5), nn.GRUCell(5, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x)[0])

    check(Cells(), FLOATS)


def test_embeddings_scaled_by_frequency() -> None:
    rows = InputSpec(shape=(3, 8), dtype="int64", kind="randint", high=5)
    check(nn.Embedding(5, 6, scale_grad_by_freq=True), rows)


@pytest.mark.parametrize("head_bias", [False, True])
def test_a_softmax_over_clusters(head_bias: bool) -> None:
    class Clusters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = Weighted(torch.tanh, FLOATS.shape)
            self.softmax = nn.AdaptiveLogSoftmaxWithLoss(
                6, 20, [4, 10], div_value=2.0, head_bias=head_bias
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.softmax(self.scale(x), torch.tensor([3, 4, 19, 10])).loss

    check(Clusters(), FLOATS)


def test_orthogonal_weights() -> None:
    torch.manual_seed(0)
    linear = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley")
    spec = InputSpec(shape=(2, 4), dtype="float32", kind="normal")
    check(linear, spec)


class Calls(nn.Module):
    """A linear map, then any function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x)).sum()


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (torch.linalg.svdvals, "aten._linalg_svd"),
        (lambda x: torch.linalg.qr(x)[0], "aten.linalg_qr"),
        (lambda x: torch.unique(x.detach()).sum() * x, "_unique2"),
        (lambda x: x[x > 0], "nonzero"),
        (lambda x: F.embedding_bag(ROWS.view(2, 2), x, mode="max"), "aten._embedding_bag"),
    ],
)
def test_what_is_not_supported_is_named(function: Callable[[Tensor], Tensor], named: str) -> None:
    with pytest.raises((UnsupportedOperator, DataDependentControlFlow), match=named) as caught:
        export_training_graph(Calls(function), torch.randn(4, 6))
    assert "test_operators.py" in str(caught.value)


def test_systems_of_each_row_by_vmap() -> None:
    """Linear algebra within `torch.func.vmap`, whose gradients are the written ones."""

    def solved(x: Tensor) -> Tensor:
        a, b = positive(x), x[:, :2]
        factor = torch.linalg.cholesky(a)
        by_factor = torch.cholesky_solve(b, factor)
        return torch.linalg.solve(a, b) + by_factor + torch.linalg.det(x) + torch.slogdet(a)[1]

    check(Weighted(torch.func.vmap(solved), SQUARES.shape), SQUARES)


def test_bags_with_weights_of_their_own() -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags, self.weights = (
                nn.EmbeddingBag(5, 6, mode="sum"),
                nn.Parameter(torch.randn(3, 8)),
            )

        def forward(self, rows: Tensor) -> Tensor:
            return self.bags(rows, per_sample_weights=self.weights)

    check(Bags(), INDICES)


def test_densities_check_their_arguments_outside() -> None:
    def density(x: Tensor) -> Tensor:
        normal = torch.distributions.Normal(x, x.exp())
        asked = torch.distributions.Normal(0.0, 1.0, validate_args=True)
        return normal.log_prob(x.detach() * 2) + asked.log_prob(x)

    check(Weighted(density, FLOATS.shape), FLOATS)


def test_counts_of_classes() -> None:
    classes = torch.tensor([0, 2, 2, 1])
    check(Weighted(lambda x: x * torch.bincount(classes + 0, minlength=6), FLOATS.shape), FLOATS)


@pytest.mark.parametrize("rows", [4, 7])
def test_diagonals_of_open_sizes(rows: int) -> None:
    """A product of all pairs has as many rows as the batch."""

    def squares(result: Tensor) -> Tensor:
        return result.square().sum()

    module = Weighted(lambda x: (x @ x.T).diagonal(1), (6,))
    nn.init.normal_(module.weight)
    graph = export_training_graph(module, torch.randn(4, 6), squares, dynamic={"x": {0: "rows"}})
    assert not graph.unchecked
    session = ort.InferenceSession(graph.model.SerializeToString())
    x = torch.randn(rows, 6)
    loss = squares(module(x))
    (expected,) = torch.autograd.grad(loss, module.weight)
    feeds = {"x": x.numpy(), "weight": module.weight.detach().numpy()}
    found, slope = map(np.asarray, session.run(["loss", "weight_grad"], feeds))
    np.testing.assert_allclose(found, loss.item(), 1e-5)
    np.testing.assert_allclose(slope, expected.numpy(), 1e-4, 1e-5)
