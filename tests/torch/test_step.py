"""A step whose gradients a session computes, beside the same step in PyTorch: numbers, and what a graph
that has not seen a change must not go on with."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from operator import setitem
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import planner.torch
from planner.errors import InfeasibleBudgetError, ModelError, PlannerError, UsageError
from planner.export.trace.lending import Kept
from planner.export.training import ExportedGraph
from planner.runtime.opened import needs_of
from planner.targets.keys import TARGET_KEY
from planner.torch import Step, making

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


class Net(nn.Module):
    """Running statistics, dropout, a constant buffer, a tied and a frozen parameter."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.inner.weight
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.25)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.last = nn.Linear(6, 3)
        self.scale, self.act = 2.0, torch.tanh
        self.register_buffer("mask", torch.linspace(0.5, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.act(self.norm(self.inner(x)))) * self.mask
        return self.last(torch.tanh(self.frozen(self.tied(x)) * self.scale))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


@pytest.fixture
def unplanned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Graphs are opened as they are exported: what is tried here needs no plan."""

    def as_it_is(graph: ExportedGraph, *_: object, **__: object) -> Path:
        return graph.save(tmp_path / "step.onnx", force=True)[0]

    monkeypatch.setattr(making, "_planned", as_it_is)


def made(module: nn.Module, inputs: Any = X, targets: Any = Y, **more: Any) -> Step:
    given = {"loss_fn": F.cross_entropy, "budget": "80%", "check": False, **more}
    return planner.torch.step(module, inputs, targets=targets, **given)


def near(one: Tensor | None, other: Tensor | None, times: float = 1.0) -> bool:
    """Within the rounding of sums, by the largest element; what is 0 but for rounding is near 0."""
    if one is None or other is None:
        return one is other
    assert one.dtype == other.dtype and one.shape == other.shape
    most = max(float(other.detach().abs().max()), 0.1) if other.numel() else 0.0
    eps = torch.finfo(other.dtype).eps if other.dtype.is_floating_point else 0.0
    eps = torch.finfo(torch.float32).eps if other.is_complex() else eps
    return bool(((one - other).detach().abs() <= 32 * times * eps * most).all())


def agrees(module: nn.Module, eager: nn.Module, times: float = 1.0) -> None:
    """Gradients and state of both are the same."""
    for (name, p), q in zip(module.named_parameters(), eager.parameters(), strict=True):
        assert near(p.grad, q.grad, times), name
    for (name, b), c in zip(module.named_buffers(), eager.buffers(), strict=True):
        assert near(b, c, times), name


@pytest.mark.usefixtures("unplanned")
class TestBackward:
    """Autograd finds in the step what it finds in PyTorch."""

    def test_two_losses_each_keep_their_gradients(self) -> None:
        module = net()
        eager = copy.deepcopy(module)
        step = made(module)
        for loss in (step, lambda x, y: F.cross_entropy(eager(x), y)):
            torch.manual_seed(1)
            first, second = loss(X, Y), loss(X.flip(0), Y)
            (second / 3).backward()
            (first * 0.5).backward()
        agrees(module, eager)

    def test_a_loss_that_is_kept_gives_its_gradients_again(self) -> None:
        step = made(net())
        for factor in (1.0, 0.3):
            step.zero_grad()
            loss = step(X, Y)
            two = list(step.parameters())[:2]
            once = torch.autograd.grad(loss * factor, two, retain_graph=True)
            once = [g.clone() for g in once]
            (loss * factor).backward(retain_graph=True)
            (loss * factor).backward()
            for gradient, parameter in zip(once, two, strict=True):
                assert parameter.grad is not None
                assert torch.equal(parameter.grad, gradient + gradient)
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()

    def test_gradients_are_handed_over_and_not_copied(self) -> None:
        module = net()
        loss = made(module)(X, Y)
        assert loss.grad_fn is not None
        kept = [g.data_ptr() for g in loss.grad_fn.saved_tensors]  # pyright: ignore
        (loss * 0.5).backward()
        trained = [p for p in module.parameters() if p.requires_grad]
        assert [p.grad.data_ptr() for p in trained if p.grad is not None] == kept

    def test_a_loss_without_a_backward_pass_leaves_nothing(self) -> None:
        module = net()
        loss = made(module)(X, Y)
        assert loss.grad_fn is not None
        kept = weakref.ref(loss.grad_fn.saved_tensors[0].untyped_storage())  # pyright: ignore
        del loss
        gc.collect()
        assert kept() is None
        assert all(p.grad is None for p in module.parameters())

    def test_second_derivatives_are_refused(self) -> None:
        step = made(net())
        with pytest.raises(UsageError, match="second derivatives"):
            step(X, Y).backward(create_graph=True)

    def test_hooks_clipping_and_a_scaler_see_the_gradients(self) -> None:
        module = net()
        eager = copy.deepcopy(module)
        step = made(module)
        for owner, loss in ((module, step), (eager, lambda x, y: F.cross_entropy(eager(x), y))):
            seen: list[Tensor] = []
            handle = owner.last.weight.register_hook(lambda g, seen=seen: seen.append(g) or 2 * g)
            optimizer = torch.optim.AdamW([p for p in owner.parameters() if p.requires_grad])
            scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
            torch.manual_seed(1)
            scaler.scale(loss(X, Y)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(owner.parameters(), 0.1)
            scaler.step(optimizer)
            assert len(seen) == 1
            handle.remove()
        agrees(module, eager)

    def test_several_threads(self) -> None:
        module = net().requires_grad_(True)
        module.drop.p = 0.0
        step, found = made(module), {}
        inputs = [X * (1 + k / 8) for k in range(8)]

        def work(k: int) -> None:
            for _ in range(5):
                found[k] = torch.autograd.grad(step(inputs[k], Y), list(module.parameters()))

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for k, gradients in found.items():
            loss = F.cross_entropy(module(inputs[k]), Y)
            theirs = torch.autograd.grad(loss, list(module.parameters()))
            assert all(near(g, t) for g, t in zip(gradients, theirs, strict=True))


def replace(module: Net) -> None:
    module.last.weight = nn.Parameter(torch.full((3, 6), 0.1))


def freeze(module: Net) -> None:
    module.last.requires_grad_(False)


def strides(module: Net) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 2:
                parameter.set_(parameter.t().contiguous().t())  # pyright: ignore


def load(module: Net) -> None:
    module.load_state_dict(net(5).state_dict())


def in_place(module: Net) -> None:
    with torch.no_grad():
        module.norm.running_mean.add_(1)  # pyright: ignore
        module.frozen.weight.mul_(2)


@pytest.mark.usefixtures("unplanned")
def test_what_changes_between_steps_is_seen() -> None:
    module = net()
    step = made(module)
    step(X, Y).backward()
    eager = net()
    eager.load_state_dict(module.state_dict())
    for change in (replace, strides, load, in_place, freeze):
        for owner in (module, eager):
            owner.zero_grad()
            change(owner)
        torch.manual_seed(1)
        step(X.t().contiguous().t(), Y).backward()
        torch.manual_seed(1)
        F.cross_entropy(eager(X), Y).backward()
        agrees(module, eager)


def untie(module: Net) -> None:
    module.tied.weight = nn.Parameter(module.inner.weight.detach().clone())


def tie(module: Net) -> None:
    module.frozen.bias = module.inner.bias


def grow(module: Net) -> None:
    module.last.weight = nn.Parameter(torch.zeros(4, 6))


def shift(module: Net) -> None:
    module.mask.data.add_(1)  # which no version counter sees


def set_to(path: str, value: object) -> Callable[[Net], None]:
    def change(module: Net) -> None:
        owner, _, name = path.rpartition(".")
        setattr(module.get_submodule(owner), name, value)

    change.__name__ = path
    return change


CHANGES: list[tuple[Callable[[Net], Any], str]] = [
    (set_to("scale", 3.0), "'scale' is 3.0 and was 2.0"),
    (set_to("drop.p", 0.5), "'drop.p' is 0.5 and was 0.25"),
    (lambda m: m.norm.eval(), "'norm.training' is False"),
    (set_to("drop", nn.Identity()), "'drop"),
    (set_to("act", torch.relu), "'act' is .*relu.* and was .*tanh"),
    (set_to("last.forward", F.relu), "'last.forward' is .*relu.* and was None"),
    (set_to("extra", nn.Linear(2, 2)), "'extra.*was added or taken away"),
    (lambda m: m.last.register_forward_hook(lambda *_: None), "'last.__hooks__' is 1"),
    (shift, "'mask' has changed"),
    (set_to("mask", torch.ones(6)), "'mask' has changed"),
    (untie, "'tied.weight' was the same tensor as 'inner.weight'.*a tensor of its own"),
    (tie, "'frozen.bias' was a tensor of its own"),
    (lambda m: m.double(), "is torch.float64 and was torch.float32"),
    (grow, r"'last.weight' has the shape \[4, 6\]"),
    (lambda m: m.last.to("meta"), "is on meta; the step runs on dense tensors on the CPU"),
    (lambda m: m.frozen.requires_grad_(True), "'frozen.weight' requires a gradient and did not"),
]


@pytest.mark.usefixtures("unplanned")
def test_what_the_graph_has_as_constants_may_not_change() -> None:
    module = net()
    step = made(module)
    for change, match in CHANGES:
        before = Kept(module, copied=True)
        change(module)
        with pytest.raises(UsageError, match=match):
            step(X, Y)
        before.put_back()
    module.frozen.requires_grad_(False)
    step(X, Y).backward()


class Moving(nn.Module):
    """State that the step assigns, a parameter that it writes, and a flag that decides."""

    centered: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("centered", torch.tensor(1))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.last.weight.div_(self.last.weight.norm(dim=1, keepdim=True))
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.last(x - self.mean if self.centered else x)


@pytest.mark.usefixtures("unplanned")
def test_state_that_the_step_changes_and_a_flag_that_may_not() -> None:
    module, eager = Moving(), Moving()
    step = made(module)
    for number in range(3):
        for one, loss in ((module, step(X, Y)), (eager, F.cross_entropy(eager(X), Y))):
            one.zero_grad()
            loss.backward()
            with torch.no_grad():
                one.last.weight -= (number + 1) * one.last.weight.grad
        agrees(module, eager)
    module.centered.fill_(0)
    with pytest.raises(UsageError, match="'centered' has changed"):
        step(X, Y)


@pytest.mark.usefixtures("unplanned")
def test_what_a_loss_function_reads_besides_may_not_change() -> None:
    weight, sum_of = 0.5, torch.ones(3)

    def loss(out: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(out, target, sum_of) * weight

    step = made(net(), loss_fn=loss)
    step(X, Y).backward()
    sum_of[0] = 2.0
    with pytest.raises(UsageError, match=r"'loss_fn.sum_of' has changed"):
        step(X, Y)
    sum_of[0] = 1.0
    weight = 0.25
    with pytest.raises(UsageError, match=r"'loss_fn.weight' is 0.25 and was 0.5"):
        step(X, Y)


RATE, EVEN = 1.0, torch.ones(3)


def smoothed(out: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    return F.cross_entropy(out, target, weight) * RATE


class Criterion:
    """Losses that read this object, a default, and a function that reads a global."""

    def __init__(self) -> None:
        self.scale, self.unread = 1.0, 0
        self.rates = nn.Identity()
        self.rates.of = [1.0, 2.0]

    def __call__(self, out: Tensor, target: Tensor, weight: Tensor = EVEN) -> Tensor:
        return smoothed(out, target, weight) * self.scale * self.rates.of[0]


@pytest.mark.usefixtures("unplanned")
@pytest.mark.parametrize("form", ["object", "method", "partial"])
def test_what_a_loss_function_reaches_may_not_change(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, weight = Criterion(), torch.ones(3)
    partial = functools.partial(lambda weight, out, target: loss(out, target, weight), weight)
    step = made(net(), loss_fn={"object": loss, "method": loss.__call__}.get(form, partial))
    loss.unread += 1
    step(X, Y).backward()
    held = weight if form == "partial" else EVEN
    changes: list[tuple[Callable[[Any], None], Any, Any, str]] = [
        (lambda value: setattr(loss, "scale", value), 2.0, 1.0, r"scale' is 2.0 and was 1.0"),
        (lambda value: setitem(loss.rates.of, 0, value), 3.0, 1.0, r"rates.of' is \[3.0, 2.0\]"),
        (held.fill_, 2.0, 1.0, r"\.0' has changed|loss_fn.0' has changed"),
        (lambda value: monkeypatch.setattr(f"{__name__}.RATE", value), 2.0, 1.0, "RATE' is 2.0"),
    ]
    for change, now, before, match in changes:
        change(now)
        with pytest.raises(UsageError, match=match):
            step(X, Y)
        change(before)
        step(X, Y)


@pytest.mark.usefixtures("unplanned")
def test_a_call_has_the_form_of_the_examples() -> None:
    step = made(net(), {"x": X}, {"target": Y})
    calls: list[tuple[Any, Any, str]] = [
        ({"x": X.double()}, {"target": Y}, r"'x' is torch.float64 and was torch.float32"),
        ({"x": X[:3]}, {"target": Y[:3]}, r"'x' has the shape \[3, 6\].*dynamic_batch=True"),
        ({"x": X.clone().requires_grad_()}, {"target": Y}, r"'x' requires a gradient.*detach"),
        ({"x": X.to_sparse()}, {"target": Y}, r"'x' is torch.sparse_coo"),
        ({"x": X, "y": X}, {"target": Y}, "the step takes 'x', 'target', and is given 'x', 'y'"),
        ({"x": X, "k": 2}, {"target": Y}, "'k' is 2 and was 'missing'"),
        ({"x": X}, (), "the step takes 'x', 'target', and is given 'x'"),
    ]
    for inputs, targets, match in calls:
        with pytest.raises(UsageError, match=match):
            step(inputs, targets)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UsageError, match="autocast=torch"):
        step({"x": X}, {"target": Y})
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(UsageError, match="neither copied nor pickled"):
            copied(step)
    step({"x": X}, {"target": Y}).backward()


@pytest.mark.usefixtures("unplanned")
def test_evaluation_is_pytorch_s() -> None:
    module = net()
    eager = copy.deepcopy(module)
    step = made(module)
    for context in (contextlib.nullcontext, torch.no_grad, torch.inference_mode):
        training = context is not contextlib.nullcontext
        step.train(training), eager.train(training)
        assert module.training == training
        with context():
            torch.manual_seed(1)
            x, same = (X.clone().requires_grad_(not training) for _ in range(2))
            loss = step(x, Y)
            torch.manual_seed(1)
            other = F.cross_entropy(eager(same), Y)
            assert torch.equal(loss, other)
        if not training:
            loss.backward(), other.backward()
            assert near(x.grad, same.grad)
        agrees(module, eager)
    assert list(module.state_dict()) == list(eager.state_dict())
    assert {id(p) for p in step.parameters()} == {id(p) for p in module.parameters()}


@pytest.mark.usefixtures("unplanned")
@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [
        (torch.float64, None),
        (torch.bfloat16, None),
        (torch.float16, None),
        (torch.float32, torch.bfloat16),
    ],
)
def test_types(dtype: torch.dtype, autocast: torch.dtype | None) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    eager = copy.deepcopy(module)
    step = made(module, X.to(dtype), autocast=autocast)
    around = torch.autocast("cpu", autocast) if autocast else contextlib.nullcontext()
    for _ in range(2):
        torch.manual_seed(1)
        step(X.to(dtype), Y).backward()
        torch.manual_seed(1)
        with around:
            loss = F.cross_entropy(eager(X.to(dtype)), Y)
        loss.backward()
    agrees(module, eager, times=2**16 / 8 if autocast else 1)


@pytest.mark.usefixtures("unplanned")
def test_what_a_loss_function_returns_besides_is_given_back_in_any_mode() -> None:
    def loss_fn(out: Tensor, y: Tensor) -> dict[str, Tensor]:
        right = out.argmax(1) == y
        turned = torch.polar(out, out)
        return {"logits": out, "loss": F.cross_entropy(out, y), "right": right, "turned": turned}

    module = net()
    module.drop.p = 0.0
    eager = copy.deepcopy(module)
    step = made(module, loss_fn=loss_fn)
    loss, others = step(X, Y)
    expected = loss_fn(eager(X), Y)
    assert near(loss, expected.pop("loss"))
    assert [*others] == [*expected]
    for name, tensor in expected.items():
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        assert others[name].dtype == real.dtype
        assert near(others[name].float(), real.float(), 4) and not others[name].requires_grad, name
    loss.backward()
    loss_fn(eager(X), Y)["loss"].backward()
    assert near(module.last.weight.grad, eager.last.weight.grad)
    module.eval()
    evaluated, beside = step(X, Y)
    assert evaluated.shape == () and [*beside] == [*others]
    assert near(beside["logits"], module(X)) and beside["turned"].dtype == torch.float32


@pytest.mark.usefixtures("unplanned")
def test_complex_parameters() -> None:
    class Rotation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.turn = nn.Parameter(torch.randn(6, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return torch.view_as_real(x * self.turn).tanh().flatten(1)

    module = Rotation()
    eager = copy.deepcopy(module)
    given = torch.complex(X, X.flip(0))
    step = made(module, given, (), loss_fn=lambda out: out.square().sum())
    for x in (given, given.conj()):
        step(x).backward()
        eager(x).square().sum().backward()
        agrees(module, eager)


@pytest.mark.usefixtures("unplanned")
def test_open_sizes_with_random_tensors_that_follow_from_them() -> None:
    torch.manual_seed(0)

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 8), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(F.dropout(self.first(x.reshape(-1, 3)), 0.5).reshape(-1, 16))

    module = Flat()
    eager = copy.deepcopy(module)
    step = made(module, dynamic_batch=True)
    for rows in (12, 5, 1, 40):
        x, y = torch.randn(rows, 6), torch.arange(rows) % 3
        torch.manual_seed(1)
        step(x, y).backward()
        torch.manual_seed(1)
        F.cross_entropy(eager(x), y).backward()
        agrees(module, eager)
    with pytest.raises(UsageError, match=r"'target' has the shape \[3\]"):
        step(X, Y[:3])


@pytest.fixture(scope="module")
def kept_plans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of plans of these tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*(copy.deepcopy(layer) for _ in range(4) for layer in layers))


def square(out: Tensor) -> Tensor:
    return out.square().mean()


def test_a_planned_step_trains_as_pytorch_does_and_its_plan_is_kept(kept_plans: Path) -> None:
    module = mlp()
    eager = copy.deepcopy(module)
    x = torch.randn(256, 32)

    def step_of(module: nn.Module) -> Step:
        return planner.torch.step(
            module,
            x,
            square,
            budget="80%",
            dynamic_batch=True,
            time_limit_s=1,
            check=False,
            verify=False,
        )

    step = step_of(module)
    needs = needs_of(step.model_path)
    assert TARGET_KEY in needs.props
    assert needs.pool is not None and not needs.pool.is_proved
    written = Path(step.model_path).stat().st_mtime_ns
    again = step_of(mlp())
    assert again.model_path == step.model_path
    assert Path(again.model_path).stat().st_mtime_ns == written

    optimizers = [torch.optim.AdamW(m.parameters(), 1e-3) for m in (module, eager)]
    for number in range(6):
        rows = x[: (256, 64)[number % 2]]
        for loss, optimizer in zip((step, lambda x: square(eager(x))), optimizers, strict=True):
            torch.manual_seed(number)
            optimizer.zero_grad(set_to_none=number % 3 > 0)
            for part in rows.chunk(2):
                (loss(part) / 2).backward()
            optimizer.step()
    for p, q in zip(module.parameters(), eager.parameters(), strict=True):
        assert near(p, q, times=64)

    with pytest.raises(ModelError, match="batch is 4096, and the plan is for 256"):
        step(torch.randn(4096, 32))
    module.zero_grad()
    step(x).backward()  # it goes on


def test_a_budget_that_no_plan_meets_is_refused(kept_plans: Path) -> None:
    with pytest.raises(InfeasibleBudgetError, match="least feasible budget"):
        planner.torch.step(
            mlp(), torch.randn(256, 32), square, budget="1%", time_limit_s=1, check=False
        )
    with pytest.raises(PlannerError, match="is on meta"):
        planner.torch.step(mlp().to("meta"), X, square, budget="80%")
