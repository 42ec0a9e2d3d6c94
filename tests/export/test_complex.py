"""Complex numbers and Fourier transforms: result and gradients against autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import onnxruntime as ort
import torch
from torch import Tensor, nn

from planner.export.errors import UnsupportedOperator
from planner.export.inputs import InputSpec
from planner.export.training import export_training_graph
from tests.export.test_rules import FLOATS, IMAGES, SEQUENCE, Weighted, check, ramp


def pair(x: Tensor, turn: float = 1.0) -> Tensor:
    """Complex numbers of which both parts depend on x."""
    return torch.complex(x, (turn * x).tanh() + 0.5)


def rotary(x: Tensor) -> Tensor:
    """Rotary embeddings as in the original Llama: [batch, steps, width]."""
    angles = torch.outer(torch.arange(5.0), 1 / 100 ** (torch.arange(0, 6, 2) / 6))
    turns = torch.polar(torch.ones_like(angles), angles)
    turned = torch.view_as_complex(x.reshape(2, 5, 3, 2)) * turns
    return torch.view_as_real(turned).flatten(2)


def assigned(x: Tensor) -> Tensor:
    """Fourier layers keep the low frequencies alone."""
    found = torch.fft.rfft(x)
    low = torch.zeros(4, 4, dtype=found.dtype)
    low[:, :2] = found[:, :2] * (1 + 2j)
    return torch.fft.irfft(low, n=6)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "absolute value and angle": lambda x: pair(x).abs() + pair(x + 9).angle(),
    "concatenation, parts, sums": lambda x: torch.view_as_real(
        torch.cat([pair(x)[:, 1:], pair(x, 2)[:, [0, 2]]], 1).sum(0) * 2 - pair(x, 3).mean()
    ),
    "conjugates and quotients": lambda x: torch.view_as_real((pair(x) / pair(x + 3)).conj() / 2),
    "differences and numbers": lambda x: torch.view_as_real(2 - pair(x) - 1j * x + pair(x, 2) * 1j),
    "exponentials": lambda x: torch.view_as_real(torch.exp(pair(x * 0.1))),
    "polar": lambda x: torch.view_as_real(torch.polar(x.abs() + 1, x)),
    "products of matrices": lambda x: torch.view_as_real(pair(x) @ pair(x.t())),
    "sum of products": lambda x: torch.view_as_real(torch.einsum("bi,oi->bo", pair(x), pair(x, 2))),
    "views": lambda x: torch.view_as_real(
        torch.view_as_complex(x.view(4, 3, 2)).t().reshape(2, 6) * 2
    ),
    # Fourier transforms
    "assigned frequencies": assigned,
    "both ways": lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.linspace(0, 1, 4), n=6),
    "both ways, odd": lambda x: torch.fft.irfft(torch.fft.rfft(x[:, :5]), n=5) * x[:, :5],
    "Hermitian": lambda x: torch.fft.hfft(pair(x)),
    "inverse": lambda x: torch.fft.ifft(pair(x), norm="ortho").real,
    "of complex numbers": lambda x: torch.fft.fft(pair(x), dim=0).imag,
    "of two axes": lambda x: torch.fft.fft2(x).real,
    "shifted": lambda x: torch.fft.fftshift(torch.fft.fft(x + torch.arange(6) ** 2)).abs(),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    check(Weighted(FUNCTIONS[name], FLOATS.shape), FLOATS)


def test_rotary_embeddings() -> None:
    check(Weighted(rotary, SEQUENCE.shape), SEQUENCE)


# 96: taken apart; 202: a long prime within; 1024: several times; above: one product
@pytest.mark.parametrize("length", [96, 202, 1024])
def test_transforms_of_every_length(length: int) -> None:
    spec = InputSpec(shape=(2, length), dtype="float32", kind="normal")

    def there_and_back(x: Tensor) -> Tensor:
        found = torch.fft.rfft(x)
        found = found * torch.linspace(0, 2, found.shape[-1])
        return (torch.fft.irfft(found, n=length) + torch.fft.fft(x).real) ** 2

    check(Weighted(there_and_back, spec.shape), spec)


def test_spectrograms() -> None:
    spec = InputSpec(shape=(2, 64), dtype="float32", kind="normal")
    window = torch.hann_window(16)

    def spectrogram(x: Tensor) -> Tensor:
        return torch.stft(x, 16, 4, window=window, return_complex=True).abs()

    check(Weighted(spectrogram, spec.shape), spec)


def test_filters_of_images() -> None:
    class Filter(nn.Module):
        """As in GFNet: a learned weight for each frequency."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(4, 9, 5, 2))

        def forward(self, x: Tensor) -> Tensor:
            found = torch.fft.rfft2(x, norm="ortho") * torch.view_as_complex(self.weight)
            return torch.fft.irfft2(found, s=(9, 9), norm="ortho")

    check(Filter(), IMAGES)


class Turned(nn.Module):
    """A complex parameter, and a complex buffer or plain attribute."""

    def __init__(self, *, buffer: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, dtype=torch.complex64))
        turns = torch.polar(torch.ones(6), torch.arange(6.0))
        if buffer:
            self.register_buffer("turns", turns)
        else:
            self.turns = turns

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.turns, Tensor)
        return torch.view_as_real(x * self.weight * self.turns)


@pytest.mark.parametrize("buffer", [True, False])
def test_complex_parameters_are_fed_as_pairs(buffer: bool) -> None:
    torch.manual_seed(0)
    module, x = Turned(buffer=buffer), torch.randn(4, 6)
    graph = export_training_graph(module, x, ramp)
    assert graph.recipes["weight"].shape == (6, 2)
    session = ort.InferenceSession(graph.model.SerializeToString())
    weight = torch.view_as_real(module.weight.detach()).numpy()
    loss, grad = session.run(["loss", "weight_grad"], {"x": x.numpy(), "weight": weight})
    expected = ramp(module(x))
    expected.backward()
    assert module.weight.grad is not None
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert grad == pytest.approx(torch.view_as_real(module.weight.grad).numpy(), rel=1e-5)


def test_an_open_batch_stays_open() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            turned = torch.view_as_complex(self.linear(x).unflatten(1, (3, 2))) * (1 + 2j)
            return turned.abs()

    torch.manual_seed(0)
    module, x = Net(), torch.randn(7, 6)
    graph = export_training_graph(module, torch.randn(4, 6), lambda y: y.mean(), dynamic_batch=True)
    session = ort.InferenceSession(graph.model.SerializeToString())
    held = {name: p.detach().numpy() for name, p in module.named_parameters()}
    loss, grad = session.run(["loss", "linear.weight_grad"], {"x": x.numpy(), **held})
    expected = module(x).mean()
    expected.backward()
    assert module.linear.weight.grad is not None
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert grad == pytest.approx(module.linear.weight.grad.numpy(), rel=1e-4, abs=1e-6)


def test_what_is_not_known_of_complex_numbers_is_named() -> None:
    def module(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.sigmoid(pair(x)))

    with pytest.raises(
        UnsupportedOperator, match=r"aten\.sigmoid.*takes complex.*test_complex\.py"
    ):
        check(Weighted(module, FLOATS.shape), FLOATS)
