"""What training scripts have at hand: wrapped modules, batches in containers, gradients by inputs. It is
exported with the numbers of PyTorch's own steps, or refused with the spelling that works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.errors import UsageError
from planner.export.errors import ExportError
from planner.export.training import export_training_graph

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0])


class Net(nn.Module):
    """Takes its input through a function, and from a container where one is named."""

    def __init__(self, change: Callable[[Any], Tensor] = lambda x: x, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.change = nn.Linear(width, 8), nn.Linear(8, 3), change

    def forward(self, batch: Any, scale: float | None = None) -> Tensor:
        result = self.last(self.first(self.change(batch)).tanh())
        return result if scale is None else result * scale


def exported(module: nn.Module, inputs: Any = X, loss: Any = F.cross_entropy, **more: Any) -> Any:
    """The graph, after its comparison with PyTorch's own steps."""
    graph = export_training_graph(module, inputs, loss, **{"targets": (LABELS,), **more})
    assert not graph.unchecked
    return graph


# -- wrappers --------------------------------------------------------------------------------------


class Inside(nn.Module):
    """A network with a part that is compiled or scripted."""

    def __init__(self, wrap: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.part, self.last = wrap(nn.Linear(8, 8)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.part(x).tanh())


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["parallel", "compiled"])
def test_a_wrapped_module_is_exported_under_its_own_names(wrap: Callable[[nn.Module], Any]) -> None:
    names = ("first.weight", "first.bias", "last.weight", "last.bias")
    assert exported(wrap(Net())).parameters == names
    exported(Inside(wrap))


def test_what_has_no_shape_or_no_source_is_refused() -> None:
    with pytest.raises(
        UsageError,
        match=r"'weight' belongs to a lazy module and has no shape yet.*run the module once",
    ):
        exported(nn.LazyLinear(3))
    with pytest.raises(UsageError, match=r"TorchScript.*the nn\.Module that it was made of"):
        exported(torch.jit.script(Inside(nn.Sequential)))
    exported(Inside(torch.jit.script))


def test_parts_in_evaluation_mode_stay_so() -> None:
    """The comparison with PyTorch's own step is the judge."""
    torch.manual_seed(0)
    scaled, plain, drop = nn.BatchNorm1d(8), nn.BatchNorm1d(8, affine=False), nn.Dropout(0.5)
    module = nn.Sequential(nn.Linear(8, 8), scaled, nn.Tanh(), plain, drop, nn.Linear(8, 3))
    for norm in (scaled, plain):
        norm.running_mean = torch.randn(8)
        norm.running_var = torch.rand(8) + 0.5
    module.eval()
    assert len(exported(module, random="inputs").draws) == 1
    module.train()
    for part in (scaled, plain, drop):
        part.eval()
    graph = exported(module, random="inputs")
    assert not graph.draws and not any("running" in o.name for o in graph.model.graph.output)


class Making(nn.Module):
    """Registers a tensor as it first runs, beside a parameter without elements."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.last, self.kind = nn.Linear(8, 3), kind
        self.empty = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "made"):
            self.made = self.kind(torch.ones(3))
        return self.last(x) * self.made + self.empty.sum()


@pytest.mark.parametrize("kind", [nn.Parameter, nn.Buffer])
def test_a_tensor_that_is_registered_at_the_first_call(kind: Any) -> None:
    module = Making(kind)
    with pytest.raises(ExportError, match="creates 'made' in its first run: run the module once"):
        exported(module)
    module(X)
    assert "empty" in exported(module, optimizer="adamw").parameters


# -- containers ------------------------------------------------------------------------------------


@dataclass
class Batch:
    x: Tensor


torch.export.register_dataclass(Batch)


@pytest.mark.parametrize(
    ("inputs", "change", "names"),
    [
        (({"x": X},), lambda batch: batch["x"], ("batch.x",)),
        ({"batch": [X, X + 1]}, lambda batch: batch[0] * batch[1], ("batch.0", "batch.1")),
        ((Batch(X), 2.0), lambda batch: batch.x, ("batch.x",)),
        ((X, None), lambda batch: batch, ("batch",)),
    ],
    ids=["a dict in order", "a list by name", "a dataclass and a number", "none"],
)
def test_a_batch_in_a_container_is_inputs(inputs: Any, change: Any, names: tuple[str, ...]) -> None:
    assert exported(Net(change), inputs).inputs[:-1] == names


@pytest.mark.parametrize(
    ("inputs", "targets", "name"),
    [
        (X.numpy(), LABELS, "batch"),
        (X, LABELS.numpy(), "target"),
        (X, {"target": [LABELS.numpy()]}, "target.0"),
    ],
)
def test_arrays_of_numpy_are_no_constants(inputs: Any, targets: Any, name: str) -> None:
    with pytest.raises(UsageError, match=rf"'{name}' is a NumPy array.*torch\.from_numpy"):
        exported(Net(), inputs, targets=targets)


def test_targets_in_containers_beside_constants() -> None:
    def loss(result: Tensor, wanted: dict[str, Tensor], weight: float) -> Tensor:
        return weight * F.cross_entropy(result, wanted["labels"])

    for targets in (({"labels": LABELS}, 0.5), {"wanted": {"labels": LABELS}, "weight": 0.5}):
        assert exported(Net(), loss=loss, targets=targets).inputs == ("batch", "wanted.labels")


# -- gradients within the step ---------------------------------------------------------------------


def physics(how: str) -> nn.Module:
    """A loss of the network's derivatives by its input."""

    class Equation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, x: Tensor) -> Tensor:
            if how == "asked":
                x = x.requires_grad_(True)
            first = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)[0]
            second = torch.autograd.grad(first[:, :1].sum(), x, create_graph=True)[0]
            return ((first[:, 1:] - second[:, :1]) ** 2).mean()

    return Equation()


@pytest.mark.parametrize("how", ["asked", "given"])
def test_derivatives_by_an_input(how: str) -> None:
    x = X[:, :2].clone().requires_grad_(how == "given")
    exported(physics(how), x, None, targets=())
    assert x.requires_grad == (how == "given") and x.grad is None


class Again(torch.autograd.Function):
    """Runs the forward pass again in the backward pass, as hand-written checkpoints do."""

    @staticmethod
    def forward(ctx: Any, run: Any, weights: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.run, ctx.is_returned = run, weights
        ctx.save_for_backward(x, *parameters)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            y = ctx.run(x)
        if ctx.is_returned:
            return None, None, *torch.autograd.grad(y, (x, *parameters), dy)
        torch.autograd.backward(y, dy)
        return None, None, x.grad


class Reversible(nn.Module):
    def __init__(self, *, is_returned: bool) -> None:
        super().__init__()
        self.first, self.last, self.is_returned = nn.Linear(8, 8), nn.Linear(8, 8), is_returned

    def forward(self, x: Tensor) -> Tensor:
        given = tuple(self.last.parameters()) if self.is_returned else ()
        made = Again.apply(self.last, self.is_returned, self.first(x), *given)
        return made.square().mean()


def test_a_backward_pass_that_runs_autograd_again() -> None:
    exported(Reversible(is_returned=True), X, None, targets=())
    with pytest.raises(ExportError, match=r"test_refusals.*in backward.*torch\.utils\.checkpoint"):
        exported(Reversible(is_returned=False), X, None, targets=())


# -- what a module makes on its first call -----------------------------------------------------------


@cache
def angles(count: int) -> Tensor:
    return torch.arange(float(count)).cos()


class Table(nn.Module):
    """Scales its input by a table that it makes once."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.net, self.how = Net(), how
        self.kept: Tensor | None = None
        self.by_size: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "attribute":
            if self.kept is None:
                self.kept = torch.arange(8.0).cos()
            return self.net(x * self.kept)
        if self.how == "dict":
            table = self.by_size.setdefault(x.shape[1], torch.arange(8.0).cos())
            return self.net(x * table)
        return self.net(x * angles(8))


@pytest.mark.parametrize("how", ["attribute", "dict"])
def test_a_table_that_is_made_on_the_first_call(how: str) -> None:
    module = Table(how)
    exported(module)
    assert module.kept is None and not module.by_size


def test_a_cache_outside_of_the_module_is_refused_and_works_once_filled() -> None:
    with pytest.raises(ExportError, match=r"functools\.cache.*run the module once"):
        exported(Table("cache"))
    angles.cache_clear()
    module = Table("cache")
    module(X)
    exported(module)


# -- reads for a log -----------------------------------------------------------------------------------

LOG: list[Any] = []

READS: dict[str, Callable[[Tensor], Any]] = {
    "array": lambda x: x.detach().cpu().numpy(),
    "mean of an array": lambda x: x.detach().numpy().mean() * 2,
    "number": lambda x: f"{x.mean().item():.3f}" + f"{x.mean():.3f}",
    "list": lambda x: (x.mean(0).tolist(), round(x.mean().item(), 3), repr(x)),
}


def test_what_is_read_for_a_log_changes_nothing() -> None:
    def logged(x: Tensor) -> Tensor:
        LOG.extend(read(x) for read in READS.values())
        return x

    exported(Net(logged))


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x / x.max().item(),
        lambda x: x * float(x.detach().max()),
        lambda x: x * x.detach().max().numpy(),
        lambda x: x * 2 if x.mean().item() > 0 else x,
        lambda x: x + torch.as_tensor(x.detach().numpy()),
    ],
    ids=["item", "float", "numpy", "branch", "back"],
)
def test_what_a_step_goes_on_with_is_refused_with_its_line(
    read: Callable[[Tensor], Tensor],
) -> None:
    net = Net()
    net.change = lambda x: read(net.first(x))
    with pytest.raises(ExportError, match=r"test_refusals\.py:\d+ in <lambda>") as refused:
        exported(net)
    assert "--specialize" not in str(refused.value), (
        "it depends on parameters, and is refused as well"
    )


def test_specialize_is_advised_where_it_works() -> None:
    module = Net(lambda x: x * 2 if x.abs().max() < 9 else x)
    with pytest.raises(ExportError, match="specialize=True"):
        exported(module)
    assert exported(module, specialize=True).assumed


# -- embeddings, masks, edges ---------------------------------------------------------------------------


def test_embeddings_with_sparse_gradients_have_dense_ones() -> None:
    module = nn.Sequential(nn.Embedding(10, 8, sparse=True), nn.Linear(8, 3))
    assert "0.weight" in exported(module, torch.tensor([1, 4, 4, 9])).parameters
    scaled = nn.Sequential(nn.Embedding(10, 8, max_norm=1.0), nn.Linear(8, 3))
    with pytest.raises(ExportError, match=r"max_norm.*embedding_renorm_"):
        exported(scaled, torch.tensor([1, 4, 4, 9]))


def masked(x: Tensor) -> Tensor:
    x = x * 1
    x[:, x[0] > 0.5] = 0.0
    x[1:3, x[0] < -0.5] = 1.0
    x[x[:, 0] > 0] = x[3].tanh()
    x[:, x[1] > 0.2] = x[:, :1] * 2
    x[x > 0.9] = x.mean()
    return x


def test_assignments_by_a_mask() -> None:
    exported(Net(masked))


def test_places_among_edges_that_are_an_input() -> None:
    def loss(result: Tensor, labels: Tensor, edges: Tensor) -> Tensor:
        return F.cross_entropy(result * torch.searchsorted(edges, result.detach()), labels)

    exported(Net(), loss=loss, targets=(LABELS, torch.linspace(-0.5, 0.5, 7)))


class Graph(nn.Module):
    """Sums of neighbours, by a matrix in some place."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 3)
        matrix = (torch.rand(4, 4) > 0.5).float().to_sparse()
        self.matrix = matrix.to_dense() if how == "dense" else matrix
        if how == "buffer":
            self.register_buffer("held", matrix)

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix @ self.layer(x)


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        (
            "attribute",
            ExportError,
            r"layout torch\.sparse_coo, of shape \[4, 4\], is read, at .*forward",
        ),
        ("buffer", UsageError, r"'held' is in the layout torch\.sparse_coo.*to_dense"),
    ],
)
def test_sparse_tensors_are_named(how: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        export_training_graph(Graph(how), torch.randn(4, 8), F.cross_entropy, targets=LABELS)
    dense = Graph("dense")
    graph = export_training_graph(dense, torch.randn(4, 8), F.cross_entropy, targets=LABELS)
    assert graph.unchecked == ""


def test_small_integers_are_inputs() -> None:
    net = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(0, 1))
    ids = torch.randint(0, 9, (1, 4), dtype=torch.int16)
    module = nn.Sequential(Long(), net)
    graph = export_training_graph(module, ids, F.cross_entropy, targets=LABELS)
    assert graph.unchecked == "" and graph.recipes["input"].dtype == "int16"


class Long(nn.Module):
    def forward(self, ids: Tensor) -> Tensor:
        return ids.long()
