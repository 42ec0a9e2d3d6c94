"""Optimizers and what loops run beside them, in the graph: three steps on stock ONNX Runtime and in
PyTorch from the same start, loss, parameters and state.

PyTorch's side is the caller's own code, run after the export: so the export leaves it as it was, too.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from planner import optimize
from planner.errors import UsageError
from planner.export.aten.registry import RULES
from planner.export.errors import ExportError, OtherStep, UpdateRefused
from planner.export.training import ExportedGraph, export_training_graph
from planner.export.write.dtypes import array_of

STEPS = 3
Made = optim.Optimizer | Callable[[], Any]


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).to(dtype)


def batch(number: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x, y = (torch.randn(6, width, generator=generator) for width in (4, 2))
    return x.to(dtype), y.to(dtype)


def exported(module: nn.Module, made: Made | str, **options: Any) -> ExportedGraph:
    dtype = next(module.parameters()).dtype
    x, y = batch(0, dtype)
    return export_training_graph(module, x, F.mse_loss, made, targets=y, **options)


class Loop:
    """The graph as a training loop: what it returns as `<name>_new` is fed as `<name>`."""

    def __init__(self, graph: ExportedGraph, module: nn.Module) -> None:
        model = graph.model.SerializeToString()
        self.session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        self.held = {name: array_of(p).copy() for name, p in module.named_parameters()}
        self.held |= graph.initial_state()

    def step(self, x: Tensor, y: Tensor) -> dict[str, np.ndarray]:
        feeds = self.held | {"input": array_of(x), "target": array_of(y)}
        wanted = {item.name for item in self.session.get_inputs()}
        names = [item.name for item in self.session.get_outputs()]
        found = self.session.run(names, {k: v for k, v in feeds.items() if k in wanted})
        made = dict(zip(names, map(np.asarray, found), strict=True))
        self.held |= {n.removesuffix("_new"): a for n, a in made.items() if n.endswith("_new")}
        return made


def assert_near(ours: np.ndarray, theirs: np.ndarray, name: str, eps: float) -> None:
    """Within 32 eps of the largest element: three steps of some ten operations, each rounded."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    assert np.abs(a - b).max() <= 32 * eps * max(np.abs(b).max(), 1e-3), name


def trained_alike(
    module: nn.Module,
    made: Made,
    optimizer: optim.Optimizer | None,
    *,
    steps: int = STEPS,
    **options: Any,
) -> tuple[ExportedGraph, Loop]:
    """Export, train both, compare; each tensor of the optimizer's state is an output."""
    dtype = next(module.parameters()).dtype
    eps = torch.finfo(dtype).eps
    graph = exported(module, made, **options)
    assert graph.unchecked == ""
    loop = Loop(graph, module)
    update = made.step if isinstance(made, optim.Optimizer) else made
    state = optimizer.state if optimizer else {}
    for number in range(steps):
        x, y = batch(number + 1, dtype)
        ours = loop.step(x, y)
        module.zero_grad()
        loss = F.mse_loss(module(x), y)
        loss.backward()
        results = update() or {}
        assert_near(ours["loss"], array_of(loss), "loss", eps)
        for name, value in results.items():
            assert_near(ours[name], array_of(value), name, eps)
        for name, parameter in module.named_parameters():
            assert_near(loop.held[name], array_of(parameter), name, eps)
            for key, value in state.get(parameter, {}).items():
                held = loop.held.get(f"{name}_{key}", loop.held.get(key))
                assert held is not None, key
                theirs = array_of(value) if isinstance(value, Tensor) else np.asarray(value)
                assert_near(held, theirs, f"{name}_{key}", eps)
    return graph, loop


def groups(module: nn.Module, **second: Any) -> list[dict[str, Any]]:
    """Weights, and biases with settings of their own."""
    weights = [p for p in module.parameters() if p.dim() > 1]
    biases = [p for p in module.parameters() if p.dim() < 2]
    return [{"params": weights}, {"params": biases, **second}]


LR = 0.125
KINDS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda m: optim.SGD(groups(m, momentum=0.0), lr=LR, momentum=0.9, nesterov=False),
    "sgd dampened": lambda m: optim.SGD(
        groups(m, dampening=0.0, maximize=True),
        lr=LR,
        momentum=0.9,
        dampening=0.5,
        weight_decay=0.1,
    ),
    "adam": lambda m: optim.Adam(groups(m, amsgrad=True, weight_decay=0.1), lr=LR),
    "adamw": lambda m: optim.AdamW(groups(m, weight_decay=0.0, lr=0.0625), lr=LR, amsgrad=True),
    "nadam": lambda m: optim.NAdam(groups(m, decoupled_weight_decay=True, weight_decay=0.1), lr=LR),
    "radam": lambda m: optim.RAdam(groups(m, weight_decay=0.1), lr=LR, betas=(0.9, 0.5)),
    "adamax": lambda m: optim.Adamax(groups(m, weight_decay=0.1), lr=LR),
    "adagrad": lambda m: optim.Adagrad(
        groups(m, lr_decay=0.1, weight_decay=0.1), lr=LR, initial_accumulator_value=0.5
    ),
    "adadelta": lambda m: optim.Adadelta(groups(m, maximize=True), lr=LR, weight_decay=0.1),
    "rmsprop": lambda m: optim.RMSprop(groups(m, centered=True, momentum=0.9), lr=0.01),
    "rprop": lambda m: optim.Rprop(m.parameters(), lr=0.01),
    "asgd": lambda m: optim.ASGD(groups(m, weight_decay=0.1), lr=LR, t0=1),
    "adafactor": lambda m: optim.Adafactor(groups(m, maximize=True), lr=LR, weight_decay=0.1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_optimizer_trains_as_pytorch_does(kind: str) -> None:
    module = net()
    optimizer = KINDS[kind](module)
    graph, _ = trained_alike(module, optimizer, optimizer)
    names = [item.name for item in graph.state]
    rates = ["lr", "lr_1"] if kind == "adamw" else [] if kind == "rprop" else ["lr"]
    assert [name for name in names if name.startswith("lr")] == rates
    assert ("started" in names) == (kind == "sgd dampened")


def test_muon_computes_its_product_in_bfloat16() -> None:
    """The matrices alone; what is left has its gradients as outputs."""
    module = net()
    optimizer = optim.Muon([p for p in module.parameters() if p.dim() == 2], lr=LR)
    graph = exported(module, optimizer, cast_for_cpu=True)
    assert graph.unchecked == ""
    outputs = {item.name for item in graph.model.graph.output}
    assert {"0.bias_grad", "2.bias_grad", "0.weight_new", "0.weight_momentum_buffer_new"} <= outputs
    x, y = batch(1)
    ours = Loop(graph, module).step(x, y)
    F.mse_loss(module(x), y).backward()
    optimizer.step()
    for name in ("0.weight", "2.weight"):
        theirs = array_of(module.get_parameter(name))
        assert np.abs(ours[f"{name}_new"] - theirs).max() < 4 * LR * 2**-7


class Lion(optim.Optimizer):
    """Chen et al. (2023), as a user writes it."""

    def __init__(self, params: Any, lr: float = 1e-4, decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state, (beta1, beta2) = self.state[p], group["betas"]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                p.data.mul_(1 - group["lr"] * group["decay"])
                update = state["exp_avg"].clone().mul_(beta1).add(p.grad, alpha=1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                state["exp_avg"].mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Counting(optim.Optimizer):
    """Its state is assigned, and its counts are Python's, as those of many optimizers are."""

    def __init__(self, params: Any, lr: float = LR) -> None:
        super().__init__(params, {"lr": lr})
        self.calls = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.calls += 1
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["mean"] = 0, torch.zeros_like(p)
                state["step"] += 1
                state["mean"] = 0.9 * state["mean"] + 0.1 * p.grad
                scale = min(1.0, self.calls / 2) / math.sqrt(1 - 0.9 ** state["step"])
                p.data = p.data - group["lr"] * scale * state["mean"]


class Listed(optim.Optimizer):
    """It computes on lists, by `torch._foreach_*`."""

    def __init__(self, params: Any, lr: float = LR) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p]["mean"] = torch.zeros_like(p)
            means = [self.state[p]["mean"] for p in params]
            self.over("lerp_", means, grads, 0.1)
            spreads = self.over("add", self.over("abs", means), 1e-3)
            self.over("addcdiv_", params, means, spreads, value=-0.1 * group["lr"])
            self.over("addcmul_", params, means, grads, value=[0.01, 0.02, 0.03, 0.04])
            self.over("sub_", params, means, alpha=group["lr"])

    def over(self, name: str, *args: Any, value: Any = None, **by_name: Any) -> Any:
        by_place = () if value is None else (value,)
        return getattr(torch, f"_foreach_{name}")(*args, *by_place, **by_name)


class ListedByName(Listed):
    """The same by `torch.foreach`."""

    def over(self, name: str, *args: Any, **by_name: Any) -> Any:
        if not hasattr(torch, "foreach"):
            pytest.skip("torch.foreach came with PyTorch 2.15")
        return getattr(torch.foreach, name)(*args, **by_name)


@pytest.mark.parametrize("kind", [Lion, Counting, Listed, ListedByName])
def test_an_optimizer_of_ones_own(kind: Any) -> None:
    module = net()
    optimizer = kind(module.parameters(), lr=LR)
    trained_alike(module, optimizer, optimizer)


def test_what_a_loop_runs_around_its_step() -> None:
    """Clipping, its norm, two groups, an average of the weights, and a schedule from the scheduler."""
    module = net()
    optimizer = optim.AdamW(groups(module, weight_decay=0.0), lr=LR, weight_decay=0.1)
    average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    schedule = optim.lr_scheduler.LambdaLR(
        optimizer, lambda epoch: 0.5 * (1 + math.cos(math.pi * min(1.0, epoch / 5)))
    )

    def update() -> dict[str, Tensor]:
        norm = nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        nn.utils.clip_grad_value_(module.parameters(), 0.25)
        optimizer.step()
        average.update_parameters(module)
        schedule.step()
        optimizer.zero_grad()
        return {"grad_norm": norm}

    graph, loop = trained_alike(module, update, optimizer)
    state = {item.name for item in graph.state}
    assert {"step", "average.n_averaged", "average.module.0.weight", "schedule.last_epoch"} <= state
    for name, value in average.named_parameters():
        held = loop.held[f"average.{name}"]
        assert_near(held, array_of(value), name, torch.finfo(torch.float32).eps)
    assert loop.held["average.n_averaged"] == 3
    assert loop.held["lr"] == pytest.approx(optimizer.param_groups[0]["lr"])


def taking_turns(module: nn.Module) -> tuple[Made, optim.Optimizer | None]:
    """Two optimizers by a switch, the second with a rate that changes at a call."""
    first, second = (optim.Adam(part.parameters(), lr=LR) for part in (module[0], module[2]))
    is_first, calls = True, 0

    def update() -> None:
        nonlocal is_first, calls
        calls += 1
        if calls == 3:
            second.param_groups[0]["lr"] = LR / 8
        (first if is_first else second).step()
        is_first = not is_first

    return update, None


def scheduled(module: nn.Module) -> tuple[Made, optim.Optimizer | None]:
    optimizer, calls = optim.SGD(module.parameters(), lr=LR, momentum=0.5), 0
    schedule = optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)

    def update() -> None:
        nonlocal calls
        calls += 1
        for p in module.parameters():
            p.grad /= 1 + calls % 3 + calls // 2
        optimizer.step()
        schedule.step()

    return update, optimizer


@pytest.mark.parametrize("made", [taking_turns, scheduled])
def test_counts_switches_and_rates_that_an_update_changes(made: Any) -> None:
    module = net()
    trained_alike(module, *made(module), steps=6)


def test_gradients_are_added_over_two_batches() -> None:
    module = net()
    optimizer = optim.SGD(module.parameters(), lr=LR)
    total, count = [torch.zeros_like(p) for p in module.parameters()], torch.zeros(())

    def update() -> None:
        count.add_(1)
        for added, p in zip(total, module.parameters(), strict=True):
            added.add_(p.grad)
            p.grad = added.clone()
        if count % 2 == 0:
            optimizer.step()
            for added in total:
                added.zero_()

    graph, loop = trained_alike(module, update, optimizer)
    assert {"total.0", "count"} <= {item.name for item in graph.state}
    assert loop.held["count"] == 3


def test_a_state_that_is_made_late_and_a_count_of_pythons() -> None:
    """The first steps are left out, and PyTorch has no state of Adam's before the first that is not."""
    module = net()
    optimizer = optim.Adam(module.parameters(), lr=LR)
    calls = {"count": 0}

    def update() -> None:
        calls["count"] += 1
        if calls["count"] % 2 == 0:
            optimizer.step()

    _, loop = trained_alike(module, update, optimizer)
    assert loop.held["calls.count"] == 3 and loop.held["step"] == 1


def lengths_of_gradients(module: nn.Module) -> Tensor:
    return torch.nn.utils.get_total_norm(
        [p.grad for p in module.parameters() if p.grad is not None]
    )


def test_a_window_of_lengths_is_a_queue_and_logs_are_no_state() -> None:
    module = net()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    window = deque([torch.tensor(0.1), torch.tensor(0.2), torch.tensor(0.3)], maxlen=3)
    log: list[Tensor] = []
    by_name: dict[str, list[Any]] = defaultdict(list)

    def update() -> None:
        length = lengths_of_gradients(module)
        window.append(length)
        log.append(length)
        by_name["weight"].append(module[0].weight.norm().item())
        by_name["text"].append(f"{length:.3f}")
        for p in module.parameters():
            assert p.grad is not None
            p.grad.mul_(torch.stack(list(window)).mean() / length)
        optimizer.step()

    graph, _ = trained_alike(module, update, None)
    held = set(graph.initial_state())
    assert {"window.1", "window.2"} <= held and not any(name.startswith("log") for name in held)


def test_one_tensor_in_two_places_that_go_apart_is_named() -> None:
    module = net()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    window = [torch.tensor(0.5)] * 3

    def update() -> None:
        window.append(lengths_of_gradients(module))
        window.pop(0)
        torch.nn.utils.clip_grad_value_(module.parameters(), 0.01)
        for p in module.parameters():
            assert p.grad is not None
            p.grad.mul_(torch.stack(window).mean())
        optimizer.step()

    with pytest.raises(UpdateRefused, match=r"'window\.2', which 'window\.0' holds, too: .*clone"):
        exported(module, update)
    window[:] = [value.clone() for value in window]
    trained_alike(module, update, None)


class Slotted:
    """State where no search looks."""

    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = torch.tensor(1.0)


def test_state_where_the_export_does_not_look_is_named() -> None:
    module, held = net(), Slotted()
    optimizer = optim.SGD(module.parameters(), lr=0.1)

    def update() -> None:
        held.scale = held.scale * 0.9
        for p in module.parameters():
            assert p.grad is not None
            p.grad.mul_(held.scale)
        optimizer.step()

    with pytest.raises(UpdateRefused, match=r"does not look .*__slots__"):
        exported(module, update)


def test_an_update_of_complex_parameters_is_refused_by_name() -> None:
    module = ComplexGain()
    with pytest.raises(UpdateRefused, match="complex numbers: name an optimizer"):
        exported(module, optim.Adam(module.parameters()))
    assert exported(module, "adam").unchecked == ""


class ComplexGain(nn.Module):
    """A learned filter, whose transform is that of a vector."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kernel = nn.Parameter(torch.randn(4))
        self.gain = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x) * self.gain * torch.fft.rfft(self.kernel)
        return self.last(torch.fft.irfft(spectrum, n=4))


def test_a_target_network_follows_in_the_update() -> None:
    """Parameters that are not trained, and change: the comparison carries them along on both sides."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.target = net(), net().requires_grad_(False)

        def forward(self, input: Tensor) -> Tensor:
            return self.net(input) - self.target(input + 1)

    module = Pair()
    optimizer = optim.SGD(module.net.parameters(), lr=LR)

    def update() -> None:
        optimizer.step()
        for kept, p in zip(module.target.parameters(), module.net.parameters(), strict=True):
            kept.data.lerp_(p.data, 0.25)

    trained_alike(module, update, optimizer)


def test_the_scale_of_a_loss_is_a_target_that_the_update_changes() -> None:
    """PyTorch's own GradScaler: a step whose gradients are not finite is skipped."""
    module = net()
    optimizer = optim.SGD(module.parameters(), lr=LR, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    scaler.scale(torch.ones(()))  # makes the scale
    scale = scaler._scale
    assert scale is not None

    def update() -> None:
        scaler.step(optimizer)
        scaler.update()

    def loss(result: Tensor, target: Tensor, scale: Tensor) -> Tensor:
        return F.mse_loss(result, target) * scale

    x, y = batch(0)
    targets = {"target": y, "scale": scale}
    graph = export_training_graph(module, x, loss, update, targets=targets)
    loop = Loop(graph, module)
    loop.held["scale"] = np.asarray(8, np.float32)
    for number, factor in enumerate((1.0, math.inf, 1.0, 1.0)):
        x, y = batch(number)
        before = loop.held["0.weight"]
        loop.step(x * factor, y)
        module.zero_grad()
        scaler.scale(F.mse_loss(module(x * factor), y)).backward()
        update()
        assert loop.held["scale"] == scale.item()
        assert np.array_equal(before, loop.held["0.weight"]) == (factor > 1)
        assert_near(loop.held["0.weight"], array_of(module[0].weight), "0.weight", 1e-7)
    assert scale.item() == 8  # halved once, doubled once

    with pytest.raises(UpdateRefused, match=r"'scaler\._scale', which the .* constant"):
        export_training_graph(
            module, x, lambda r, y: scaler.scale(F.mse_loss(r, y)), update, targets=y
        )


def test_training_goes_on_from_a_state_dict_and_back() -> None:
    module, other = net(), net()
    optimizer = optim.Adam(module.parameters(), lr=LR)
    for number in (7, 8):
        x, y = batch(number)
        module.zero_grad()
        F.mse_loss(module(x), y).backward()
        optimizer.step()
    graph, loop = trained_alike(module, optimizer, optimizer)
    assert "started" not in graph.initial_state()
    assert graph.initial_state()["step"] == 2
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            parameter.copy_(torch.from_numpy(loop.held[name]))
    resumed = optim.Adam(other.parameters(), lr=LR)
    keys = ("step", "exp_avg", "exp_avg_sq")
    state = {
        index: {
            k: torch.from_numpy(np.array(loop.held.get(f"{n}_{k}", loop.held.get(k)))) for k in keys
        }
        for index, (n, _) in enumerate(other.named_parameters())
    }
    resumed.load_state_dict(optimizer.state_dict() | {"state": state})
    for trained, own in ((module, optimizer), (other, resumed)):
        x, y = batch(9)
        trained.zero_grad()
        F.mse_loss(trained(x), y).backward()
        own.step()
    assert_near(array_of(other[0].weight), array_of(module[0].weight), "0.weight", 1e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_parameters_of_other_types(dtype: torch.dtype) -> None:
    """State has the type of its parameter; half types round after each operation, as PyTorch's do."""
    module = net(dtype)
    optimizer = optim.AdamW(module.parameters(), lr=LR, eps=1e-3)
    if dtype == torch.float64:
        graph, _ = trained_alike(module, optimizer, optimizer, cast_for_cpu=True)
    else:
        graph = exported(module, optimizer, cast_for_cpu=True)
    assert graph.unchecked == ""
    kinds = {item.dtype.name for item in graph.state if item.shape}
    assert kinds == {str(dtype).removeprefix("torch.")}


def test_the_planned_graph_has_the_same_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(32, 32), nn.Tanh())]
    module = nn.Sequential(*layers)
    optimizer = optim.RMSprop(module.parameters(), centered=True)
    x = torch.randn(256, 32)
    graph = export_training_graph(module, x, F.mse_loss, optimizer, targets=x)
    graph.save(tmp_path / "m.onnx", sidecar=True)
    result = optimize(
        tmp_path / "m.onnx",
        budget="80%",
        budget_of="live",
        output=tmp_path / "p.onnx",
        time_limit_s=1,
    )
    assert result.verification is not None and result.verification.passed
    assert all(output.identical for output in result.verification.outputs)


CALLS = itertools.count(1)


def counted(module: nn.Module) -> Made:
    """A count that no variable holds as a number."""

    def update() -> None:
        with torch.no_grad():
            for p in module.parameters():
                p.sub_(p.grad / next(CALLS))

    return update


def hidden(module: nn.Module) -> Made:
    """A tensor that no operator shows: the trace has what it was."""
    kept = np.ones(1, np.float32)

    def update() -> None:
        kept[:] *= 0.5
        with torch.no_grad():
            for p in module.parameters():
                p.sub_(p.grad * float(kept[0]))

    return update


def wrong_rule(module: nn.Module) -> Made:
    return optim.Adagrad(module.parameters(), lr=LR)


@pytest.mark.parametrize("made", [counted, hidden, wrong_rule])
def test_another_update_than_pytorchs_is_refused(
    made: Callable[[nn.Module], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    if made is wrong_rule:
        monkeypatch.setitem(RULES, "sqrt.default", lambda low, x: low.op("Abs", low.value(x)))
    module = net()
    with pytest.raises(OtherStep, match="the update leaves a different"):
        exported(module, made(module))
    if made is counted:
        assert exported(module, made(module), check=False).unchecked


def looking_up(module: nn.Module) -> Made:
    optimizer = optim.SGD(module.parameters(), lr=LR)
    schedule = optim.lr_scheduler.MultiStepLR(optimizer, [5])

    def update() -> None:
        optimizer.step()
        schedule.step()  # the line

    return update


def followed_by(schedule: Callable[[Any], Any], *metric: float) -> Callable[[Any], Made]:
    def made(module: nn.Module) -> Made:
        optimizer = optim.SGD(module.parameters(), lr=LR, momentum=0.5)
        found = schedule(optimizer)

        def update() -> None:
            optimizer.step()
            found.step(*metric)

        return update

    return made


one_cycle = followed_by(lambda o: optim.lr_scheduler.OneCycleLR(o, LR, total_steps=9))
cyclic = followed_by(lambda o: optim.lr_scheduler.CyclicLR(o, LR / 8, LR))
plateau = followed_by(optim.lr_scheduler.ReduceLROnPlateau, 0.5)


def test_schedules_that_are_refused_work_in_the_spelling_that_is_named() -> None:
    module = net()
    optimizer = optim.SGD(module.parameters(), lr=LR, momentum=0.5)
    schedule = optim.lr_scheduler.CyclicLR(
        optimizer, LR / 8, LR, step_size_up=2, cycle_momentum=False
    )
    trained_alike(module, lambda: (optimizer.step(), schedule.step())[1], optimizer, steps=6)

    module = net()
    optimizer = optim.SGD(module.parameters(), lr=LR, momentum=0.5)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=9, cycle_momentum=False)
    loop = Loop(exported(module, optimizer), module)
    for number in range(6):
        x, y = batch(number)
        loop.held["lr"] = np.array(optimizer.param_groups[0]["lr"], np.float32)
        loop.step(x, y)
        module.zero_grad()
        F.mse_loss(module(x), y).backward()
        optimizer.step()
        schedule.step()
    for name, parameter in module.named_parameters():
        assert_near(loop.held[name], array_of(parameter), name, torch.finfo(torch.float32).eps)


def adding_up(module: nn.Module, **how: Any) -> Made:
    optimizer, calls = optim.SGD(module.parameters(), lr=LR), [0]

    def update() -> None:
        calls[0] += 1
        if calls[0] % 4 == 0:
            optimizer.step()
            optimizer.zero_grad(**how)

    return update


def freezing(module: nn.Module) -> Made:
    optimizer, calls = optim.SGD(module.parameters(), lr=LR), [0]

    def update() -> None:
        calls[0] += 1
        optimizer.step()
        if calls[0] == 5:
            module[0].requires_grad_(False)

    return update


def reading(module: nn.Module) -> Made:
    def update() -> None:
        with torch.no_grad():
            for p in module.parameters():
                p.sub_(p.grad * [0.1, 0.2][int(p.grad.sum() > 0)])  # the line

    return update


def drawing(module: nn.Module) -> Made:
    def update() -> None:
        with torch.no_grad():
            for p in module.parameters():
                p.add_(torch.randn_like(p))

    return update


def failing(module: nn.Module) -> Made:
    """As in PyTorch, a parameter that requires a gradient is not written in place."""

    def update() -> None:
        module[0].weight.sub_(module[0].weight.grad)

    return update


@pytest.mark.parametrize(
    ("made", "error", "what"),
    [
        (lambda m: optim.LBFGS(m.parameters()), UsageError, "LBFGS .* closure"),
        (lambda m: optim.SparseAdam(m.parameters()), UsageError, "dense ones: use Adam"),
        (
            lambda m: optim.SGD(nn.Linear(2, 7).parameters()),
            UsageError,
            r"\[7, 2\] .* not the module",
        ),
        (lambda m: 3, UsageError, "the optimizer is a int; give a torch.optim.Optimizer"),
        (lambda m: "adamv", UsageError, "unknown optimizer 'adamv'; choose one of .*adamw"),
        (lambda m: "adamw:beta=1", UsageError, "no setting 'beta'; it has lr, betas"),
        (lambda m: "adamw:lr", UsageError, "'lr' in 'adamw:lr' is not NAME=VALUE"),
        (lambda m: "adamw:lr=-1", UsageError, "AdamW refuses lr=-1: Invalid learning rate"),
        (lambda m: lambda: None, UpdateRefused, "it changes no parameter of the module"),
        (lambda m: lambda: 3, UsageError, "returns a int; return nothing, or tensors by name"),
        (reading, UpdateRefused, r"index of a tensor|int\(\) of a tensor.*# the line"),
        (failing, UpdateRefused, "RuntimeError: a leaf Variable that requires grad"),
        (drawing, UpdateRefused, "randn_like.* draws at random"),
        (looking_up, UpdateRefused, "looked up in a set or a dict.*# the line"),
        (one_cycle, UpdateRefused, "OneCycleLR moves.* cycle_momentum=False, and call .* `lr`"),
        (cyclic, UpdateRefused, "CyclicLR moves the momentum.*with cycle_momentum=False$"),
        (plateau, UpdateRefused, "ReduceLROnPlateau reads its metric.* outside .* `lr`"),
        (adding_up, UpdateRefused, "adds up the gradient of '0.weight'.*p.grad to a tensor"),
        (lambda m: adding_up(m, set_to_none=False), UpdateRefused, "adds up the gradient"),
        (freezing, UpdateRefused, "sets requires_grad of '0.weight'"),
        (lambda m: lambda: m.nothing, UpdateRefused, "AttributeError.*nothing.*test_updates.py"),
    ],
)
def test_what_cannot_be_exported_is_named(made: Any, error: type[Exception], what: str) -> None:
    module = net()
    with pytest.raises(error, match=what) as found:
        exported(module, made(module))
    assert isinstance(found.value, UsageError | ExportError)
    assert all(p.grad is None and p.requires_grad for p in module.parameters())


def test_a_name_with_settings_is_pytorchs_class() -> None:
    module = net()
    optimizer = optim.RMSprop(module.parameters(), lr=LR, momentum=0.5)
    named = exported(module, f"rmsprop:lr={LR},momentum=0.5", check=False).model
    assert named == exported(module, optimizer, check=False).model
    flags = optim.AdamW(module.parameters(), lr=torch.tensor(LR), betas=(0.9, 0.5), fused=True)
    named = exported(module, f"AdamW:lr={LR},betas=0.9/0.5,foreach=true", check=False).model
    assert named == exported(module, flags, check=False).model
