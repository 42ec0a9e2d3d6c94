"""Operators without a rule of ours, taken apart by PyTorch or translated by torchlib, and the rules for
what neither knows: result and gradients against PyTorch, as in `tests.export.test_rules`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import onnxruntime as ort
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from models.recipes import Step
from planner.export import register
from planner.export.aten import registry
from planner.export.errors import UnsupportedOperator
from planner.export.inputs import InputSpec
from planner.export.training import export_training_graph
from tests.export.test_rules import FLOATS, IMAGES, SEQUENCE, Weighted, check, ramp

VOLUME = InputSpec(shape=(2, 3, 6, 5, 4), dtype="float32", kind="normal")
ROWS, COLUMNS = torch.tensor([[0, 2], [3, -1]]), torch.tensor([[1, 1], [-2, 0]])


def assigned(x: Tensor) -> Tensor:
    """In-place assignments of every kind."""
    y = torch.zeros(4, 6) + x.sum()
    y[:, :3] = x[:, 3:] * 2
    y[1] = y[0].tanh()
    y[::2, -1] += 1.5
    y[ROWS[0]] *= 0.5
    y[y > 2] = 0.25
    y[:, ROWS[0]] = x[:, :2].tanh()
    y.add_(x).clamp_(-3, 3)
    return y


def grouped(x: Tensor) -> Tensor:
    """The first row by one matrix, the others by another."""
    ends = torch.tensor([1, 4], dtype=torch.int32)
    return F.grouped_mm(x, torch.stack([x.T, x.T.tanh()]), offs=ends)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "celu": F.celu,
    "elu": F.elu,
    "glu": F.glu,
    "hardshrink": F.hardshrink,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "leaky relu": lambda x: F.leaky_relu(x, 0.2),
    "log sigmoid": F.logsigmoid,
    "mish": F.mish,
    "prelu": lambda x: F.prelu(x, x[0].detach()),
    "relu6": F.relu6,
    "selu": F.selu,
    "softplus": F.softplus,
    "softshrink": F.softshrink,
    "softsign": F.softsign,
    "threshold": lambda x: F.threshold(x, 0.1, 0.0),
    # reductions and scans
    "cumulative product": lambda x: (x + 2).cumprod(1),
    "cumulative sum": lambda x: x.cumsum(0) + x.cumsum(-1),
    "largest and smallest": lambda x: x.max(1)[0] + x.min(1, keepdim=True)[0] + x.amin(0)[0],
    "histogram": lambda x: x[:, 0] * torch.histc(x.detach(), bins=4, min=-1, max=1.5) + x.sum(1),
    "groups of rows": lambda x: grouped(F.pad(x, (0, 2))),
    "distances": lambda x: torch.cdist(x, x[:3].tanh()).sum(1, keepdim=True) * x,
    "distances of another power": lambda x: torch.cdist(x[None], x[None] + 1, p=1.0),
    "product of two": lambda x: F.bilinear(x[:, :2], x[:, 2:5], x.reshape(4, 2, 3), x[:, 0]),
    "log sum exp": lambda x: x.logsumexp(1),
    "norms": lambda x: x.norm(dim=1) + torch.linalg.vector_norm(x) + F.normalize(x, dim=0).sum(1),
    "product": lambda x: x.prod(1),
    "variance": lambda x: x.var(1) + x.std(0)[:4] + torch.var_mean(x, 1, correction=0)[0],
    "argmax as a mask": lambda x: x * (x.argmax(1, keepdim=True) == torch.arange(6)),
    "largest of booleans": lambda x: x * (x > 0).any(1, keepdim=True) * (x > -9).max(1)[0][:, None],
    # parts
    "assignments in place": assigned,
    "diagonal": lambda x: x.diagonal() + torch.diag_embed(x[0]).sum(0)[:4],
    "flip": lambda x: x.flip(1) * x.flip((0, 1)).tanh(),
    "gather and scatter": lambda x: x.scatter(1, ROWS % 4, x[:2, :2].tanh()) + x[:2].take_along_dim(
        COLUMNS % 4, 1
    ).sum(),
    "index add": lambda x: x.index_add(0, ROWS[0] % 4, x[:2] * 3),
    "index select": lambda x: x.index_select(1, COLUMNS[0] % 6),
    "indices behind an axis": lambda x: x[:, COLUMNS % 6].sum(1),
    "indices of both axes": lambda x: x[ROWS, COLUMNS] * 2,
    "indices around an axis": lambda x: x.view(4, 2, 3)[ROWS[0], :, COLUMNS[0]].tanh(),
    "indices side by side": lambda x: x.view(2, 2, 6)[:, ROWS % 2, COLUMNS].tanh(),
    "roll": lambda x: x.roll(2, 1),
    "sorted": lambda x: x.sort(1)[0] * x.topk(3, 1)[0].sum(1, keepdim=True),
    "strided": lambda x: x.as_strided((3, 2), (6, 1)).tanh().sum() + x.unfold(1, 2, 2).tanh(),
    "strided, turned": lambda x: x.tanh().t().as_strided((3, 5), (3, 2)),
    "strided, from within": lambda x: x.tanh()[1:, ::2].as_strided((2, 3), (6, 2)),
    "scatter of maxima": lambda x: torch.zeros(3, 6).scatter_reduce(
        0, torch.tensor([0, 2, 0, 1])[:, None].expand(4, 6), x, "amax"
    ),
    "put at": lambda x: x.index_put((ROWS, COLUMNS), x[:2, :2] * 2, accumulate=True),
    # arithmetic
    "powers of tensors": lambda x: (x * x + 1) ** (x * 0.5) + 2**x,
    "remainders": lambda x: x.remainder(0.7) + x.fmod(0.7) + x.remainder(-0.7)
    + torch.remainder(2.0, x.detach() + 3) + x.remainder(x[0] - 0.1) + (torch.arange(-3, 3) % 4),
    "rounding": lambda x: x.floor() * x + x.round() * x + x.ceil() * x + x.sign() * x,
    "special": lambda x: torch.erf(x) + torch.log1p(x * x) + torch.expm1(x) + torch.atan(x),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5) + torch.lerp(x, x * 2, 0.3),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x.tanh()),
    "batched sum of products": lambda x: torch.baddbmm(x[None], x[None, :, :4], x[None]),
    "matrix and vector": lambda x: x @ x[0],
    "outer": lambda x: torch.outer(x[0], x[1]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    check(Weighted(FUNCTIONS[name], FLOATS.shape), FLOATS)


SAMPLED = [
    (mode, padding, align)
    for mode in ("bilinear", "nearest")
    for padding in ("zeros", "border", "reflection")
    for align in (True, False)
]


class Sampled(nn.Module):
    """An image turned, stretched and sampled, its gradients of the image and of the places."""

    def __init__(self, mode: str, padding: str, *, align: bool) -> None:
        super().__init__()
        self.options = {"mode": mode, "padding_mode": padding, "align_corners": align}
        self.inside = nn.Conv2d(4, 2, 1)
        turn = torch.tensor([[1.1, -0.4, 0.13], [0.5, 1.7, -0.21]])
        self.turn = nn.Parameter(turn, requires_grad=mode != "nearest")  # 0 for the nearest

    def forward(self, x: Tensor) -> Tensor:
        """[samples, 4, height, width] -> [samples, 2, 5, 4]."""
        grid = F.affine_grid(self.turn.expand(len(x), 2, 3), [len(x), 2, 5, 4], False)
        return F.grid_sample(self.inside(x), grid, **self.options)


@pytest.mark.parametrize(("mode", "padding", "align"), SAMPLED)
def test_sampled_images(mode: str, padding: str, align: bool) -> None:
    check(Sampled(mode, padding, align=align), IMAGES)


def test_sampled_volumes() -> None:
    grid = torch.rand(2, 3, 2, 2, 3, generator=torch.Generator().manual_seed(0)) * 2.4 - 1.2

    def sampled(x: Tensor) -> Tensor:
        return F.grid_sample(x, grid, align_corners=True)

    check(Weighted(sampled, VOLUME.shape[1:]), VOLUME)


IMAGE: dict[str, nn.Module] = {
    "average of windows, rounded up": nn.AvgPool2d(2, ceil_mode=True),
    "average of windows, padding not counted": nn.AvgPool2d(
        3, 2, padding=1, count_include_pad=False
    ),
    "average of windows, both": nn.AvgPool2d(
        3, 2, padding=1, ceil_mode=True, count_include_pad=False
    ),
    "average of windows, a divisor": nn.AvgPool2d(3, 2, divisor_override=5),
    "averages of 4 by 2": nn.AdaptiveAvgPool2d((4, 2)),
    "averages of more than there are": nn.AdaptiveAvgPool2d(11),
    "group norm": nn.GroupNorm(2, 4),
    "instance norm": nn.InstanceNorm2d(4, affine=True),
    "response norm": nn.LocalResponseNorm(3),
    "convolution without padding, in words": nn.Conv2d(4, 6, 3, padding="valid"),
    "convolution of the same size, in words": nn.Conv2d(4, 6, 4, padding="same"),
    "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
    "bilinear, corners": nn.Upsample(size=(5, 12), mode="bilinear", align_corners=True),
    "nearest": nn.Upsample(scale_factor=2, mode="nearest"),
    "bicubic": nn.Upsample(size=(7, 11), mode="bicubic"),
    "pixel shuffle": nn.PixelShuffle(2),
    "windows as columns": nn.Unfold(3, padding=1, stride=2),
    "reflected": nn.ReflectionPad2d(2),
    "replicated": nn.ReplicationPad2d((1, 2, 0, 1)),
    "weight norm": nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 6, 3)),
}


@pytest.mark.parametrize("name", IMAGE)
def test_image_module(name: str) -> None:
    check(nn.Sequential(Weighted(torch.tanh, IMAGES.shape), IMAGE[name]), IMAGES)


VOLUMES: dict[str, nn.Module] = {
    "convolution": nn.Conv3d(3, 4, 3, padding=1),
    "transposed": nn.ConvTranspose3d(3, 4, 2, 2),
    "maxima": nn.MaxPool3d(2),
    "averages": nn.AvgPool3d(2),
    "averages of 2": nn.AdaptiveAvgPool3d(2),
    "nearest": nn.Upsample(scale_factor=2),
    "trilinear": nn.Upsample(scale_factor=2, mode="trilinear"),
}


@pytest.mark.parametrize("name", VOLUMES)
def test_volume_module(name: str) -> None:
    check(nn.Sequential(Weighted(torch.tanh, VOLUME.shape), VOLUMES[name]), VOLUME)


SEQUENCES: dict[str, nn.Module] = {
    "average pool": nn.AvgPool1d(2),
    "max pool": nn.MaxPool1d(2),
    "averages of 4": nn.AdaptiveAvgPool1d(4),
    "rms norm": nn.RMSNorm(6),
    "weight norm": nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequence_module(name: str) -> None:
    check(nn.Sequential(Weighted(torch.tanh, SEQUENCE.shape), SEQUENCES[name]), SEQUENCE)


@pytest.mark.parametrize(("kind", "layers"), [(nn.LSTM, 1), (nn.GRU, 2), (nn.RNN, 1)])
def test_recurrent_layers(kind: Callable[..., nn.Module], layers: int) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = kind(6, 5, layers, batch_first=True, bidirectional=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.steps(x)[0][:, -1]

    check(Last(), InputSpec(shape=(2, 3, 6), dtype="float32", kind="normal"))


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_bags_of_embeddings(mode: str, weighted: bool) -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.EmbeddingBag(5, 6, mode=mode)

        def forward(self, x: Tensor) -> Tensor:
            if not weighted:
                return self.bags(x)
            return self.bags(x, per_sample_weights=torch.full((3, 8), 0.5))

    if weighted and mode != "sum":
        return  # PyTorch takes weights for sums alone
    check(Bags(), InputSpec(shape=(3, 8), dtype="int64", kind="randint", high=5))


class _Noisy(nn.Module):
    """A linear layer, and random numbers of one kind."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(self.linear(x))


@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda y: y * 0 + torch.rand_like(y), 0.5),
        (lambda y: y * 0 + torch.randn_like(y), 0.0),
        (lambda y: y * 0 + torch.bernoulli(torch.full_like(y, 0.25)), 0.25),
        (lambda y: y * 0 + torch.empty_like(y).bernoulli_(0.75), 0.75),
        (lambda y: F.rrelu(y * 0 - 1, 0.2, 0.4, training=True), -0.3),
    ],
)
def test_random_numbers_are_drawn_in_every_run(
    draw: Callable[[Tensor], Tensor], mean: float
) -> None:
    x = torch.randn(64, 64)
    step = Step(module=_Noisy(draw), inputs={}, loss=None)
    graph = export_training_graph(step.module, (x,), lambda y: y.mean())
    session = ort.InferenceSession(graph.model.SerializeToString())
    feeds = {"x": x.numpy()}
    for name, value in step.module.state_dict().items():
        feeds[name] = value.numpy()
    feeds = {v.name: feeds[v.name] for v in session.get_inputs()}
    first, second = (session.run(["loss"], feeds)[0] for _ in range(2))
    assert abs(first - mean) < 0.05 and abs(second - mean) < 0.05
    assert first != second


def test_all_that_is_missing_is_named_at_once() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            return (
                torch.linalg.eigvalsh(y).sum() + torch.special.bessel_j0(y.detach()).sum() * y.sum()
            )

    with pytest.raises(UnsupportedOperator) as caught:
        export_training_graph(Odd(), (torch.randn(4, 4),), lambda y: y)
    assert {caught.value.operator, *caught.value.others} >= {
        "aten._linalg_eigh.default",
        "aten.special_bessel_j0.default",
    }


def test_a_rule_of_ones_own_is_used() -> None:
    module = Weighted(lambda x: torch.special.bessel_j0(x.detach()) * x, FLOATS.shape)
    with pytest.raises(UnsupportedOperator, match=r"planner\.export\.register"):
        check(module, FLOATS)

    @register("special_bessel_j0")
    def near_zero(low: registry.Lowering, x: fx.Node) -> registry.Result:
        """1 - x^2 / 4."""
        square = low.op("Mul", low.value(x), low.value(x), tag="square")
        part = low.op("Mul", square, low.scalar(0.25), tag="part")
        return low.op("Sub", low.scalar(1), part)

    try:
        x = 0.01 * torch.randn(4, 6)
        nn.init.ones_(module.weight)
        graph = export_training_graph(module, x, ramp)
        feeds = {"x": x.numpy(), "weight": module.weight.detach().numpy()}
        session = ort.InferenceSession(graph.model.SerializeToString())
        (loss,) = session.run(["loss"], feeds)
        assert loss == pytest.approx(ramp(module(x)).item(), rel=1e-5)
    finally:
        del registry.RULES["special_bessel_j0.default"]


@pytest.mark.parametrize(
    "function",
    [
        F.hardswish,
        lambda x: x.cumsum(1),
        lambda x: x.max(1)[0] + x.topk(2, 1)[0].sum(1),
        lambda x: x.roll(1, 1)[:, torch.tensor([1, 0, 2])],
        lambda x: F.interpolate(x[:, None], scale_factor=2, mode="linear"),
    ],
)
@pytest.mark.parametrize("loss", [lambda y: (y**2).mean(), lambda y: F.huber_loss(y, 0 * y)])
def test_an_open_batch_stays_open_under_a_mean(
    function: Callable[[Tensor], Tensor], loss: Callable[[Tensor], Tensor]
) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return function(self.linear(x))

    torch.manual_seed(0)
    module, x = Net(), torch.randn(7, 6)
    graph = export_training_graph(module, torch.randn(4, 6), loss, dynamic_batch=True)
    session = ort.InferenceSession(graph.model.SerializeToString())
    held = {name: p.detach().numpy() for name, p in module.named_parameters()}
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(names, {"x": x.numpy(), **held}), strict=True))
    expected = loss(module(x))
    expected.backward()
    assert found["loss"] == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert found[f"{name}_grad"] == pytest.approx(parameter.grad.numpy(), rel=1e-4, abs=1e-6)
