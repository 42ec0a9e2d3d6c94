"""Types, wrappers, and the forms that batches have."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.recipes.kit import Encoder, Recipe, classes, cnn, mlp, recipe, rows


def _classifier(module: nn.Module, inputs: Any = None, **options: Any) -> Recipe:
    """5 classes of 128 rows."""
    given = rows(128, 6) if inputs is None else inputs
    return Recipe(
        module=module,
        inputs=given,
        loss=F.cross_entropy,
        targets=classes(5, 128),
        options=options,
    )


@recipe
def float64() -> Recipe:
    net = mlp(6, 16, 5).double()
    net[1] = nn.Tanh()
    return _classifier(net, rows(128, 6).double(), optimizer=optim.Adam(net.parameters()))


@recipe
def bfloat16() -> Recipe:
    """A module in bfloat16, its rows float32; parameters in the file, which NumPy has no type for."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 5).bfloat16()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.bfloat16()).float()

    return _classifier(Half(), cast_for_cpu=True, store_parameters=True)


@recipe
def float16() -> Recipe:
    net = mlp(6, 16, 5).half()
    return _classifier(net, rows(128, 6).half(), optimizer=optim.SGD(net.parameters(), lr=0.1))


@recipe
def autocast_bfloat16() -> Recipe:
    net = mlp(6, 16, 5)
    optimizer = optim.AdamW(net.parameters())
    return _classifier(net, autocast=torch.bfloat16, cast_for_cpu=True, optimizer=optimizer)


@recipe
def autocast_float16() -> Recipe:
    net = mlp(6, 16, 5)
    return _classifier(net, autocast=torch.float16, optimizer=optim.AdamW(net.parameters()))


@recipe
def autocast_within_the_module() -> Recipe:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = mlp(6, 16, 16), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                h = self.net(x)
            return self.head(h.float())

    return _classifier(Mixed(), cast_for_cpu=True)


@recipe
def autocast_of_a_transformer() -> Recipe:
    def loss(logits: Tensor, ids: Tensor) -> Tensor:
        return F.cross_entropy(logits.float().flatten(0, 1), ids.flatten())

    return Recipe(
        module=Encoder(is_causal=True),
        inputs=classes(40, 4, 12),
        loss=loss,
        targets=classes(40, 4, 12),
        options={"autocast": torch.bfloat16, "cast_for_cpu": True},
    )


@recipe
def complex_numbers() -> Recipe:
    class Rotated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.phase, self.net = nn.Parameter(rows(3)), mlp(6, 16, 5)

        def forward(self, x: Tensor) -> Tensor:
            z = torch.view_as_complex(x.unflatten(-1, (3, 2)))
            z = z * torch.polar(torch.ones(3), self.phase)
            return self.net(torch.view_as_real(z).flatten(1))

    return _classifier(Rotated())


@recipe
def channels_last() -> Recipe:
    net = cnn().to(memory_format=torch.channels_last)
    return Recipe(
        module=net,
        inputs=rows(8, 3, 8, 8).to(memory_format=torch.channels_last),
        loss=F.cross_entropy,
        targets=classes(5, 8),
        options={"optimizer": optim.SGD(net.parameters(), lr=0.1)},
    )


@recipe
def open_batch() -> Recipe:
    net = mlp(6, 16, 5)
    return _classifier(net, dynamic_batch=True, optimizer=optim.AdamW(net.parameters()))


@recipe
def data_parallel() -> Recipe:
    net = mlp(6, 16, 5)
    return _classifier(nn.DataParallel(net), optimizer=optim.AdamW(net.parameters()))


@recipe
def compiled() -> Recipe:
    net = mlp(6, 16, 5)
    whole = torch.compile(net, backend="eager")
    return _classifier(whole, optimizer=optim.AdamW(net.parameters()))


@recipe
def compiled_within() -> Recipe:
    class Compiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = torch.compile(mlp(6, 16), backend="eager"), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(_gated(self.net(x)))

    return _classifier(Compiled())


@torch.compile(backend="eager")
def _gated(x: Tensor) -> Tensor:
    return x * x.sigmoid()


@recipe
def checkpointed() -> Recipe:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(6, 16), nn.Linear(16, 5)
            self.blocks = nn.ModuleList(mlp(16, 32, 16) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = x + checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    return _classifier(Checkpointed())


@recipe
def checkpointed_in_segments() -> Recipe:
    class Segments(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 16, 16, 5)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint_sequential(self.net, 2, x, use_reentrant=False)

    return _classifier(Segments())


@recipe
def batch_is_a_dict() -> Recipe:
    class Batched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 5)

        def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
            logits = self.net(batch["x"])
            return {"logits": logits, "loss": F.cross_entropy(logits, batch["y"])}

    batch = {"x": rows(128, 6), "y": classes(5, 128)}
    return Recipe(module=Batched(), inputs=(batch,), loss=lambda found: found["loss"])


@recipe
def batch_is_a_list() -> Recipe:
    """Images of several sizes, and a list of labels."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = cnn(norm=False)

        def forward(self, images: list[Tensor], labels: list[Tensor]) -> Tensor:
            pairs = zip(images, labels, strict=True)
            return torch.stack(
                [F.cross_entropy(self.net(x[None]), y[None]) for x, y in pairs]
            ).sum()

    images = [rows(3, 8, 8), rows(3, 6, 10)]
    return Recipe(module=Listed(), inputs=(images, [classes(5), classes(5)]))


@dataclass
class _Batch:
    x: Tensor
    y: Tensor
    scale: float = 1.0


@recipe
def batch_is_a_dataclass() -> Recipe:
    torch.export.register_dataclass(_Batch)

    class Batched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 5)

        def forward(self, batch: _Batch) -> Tensor:
            return batch.scale * F.cross_entropy(self.net(batch.x), batch.y)

    return Recipe(module=Batched(), inputs=(_Batch(rows(128, 6), classes(5, 128), 0.5),))


_Pair = namedtuple("_Pair", ["x", "y"])


@recipe
def batch_is_a_named_tuple() -> Recipe:
    class Batched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 5)

        def forward(self, batch: _Pair) -> Tensor:
            return F.cross_entropy(self.net(batch.x), batch.y)

    return Recipe(module=Batched(), inputs=(_Pair(rows(128, 6), classes(5, 128)),))


@recipe
def keyword_constants() -> Recipe:
    class Configured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(6, 16, 5)

        def forward(
            self, x: Tensor, *, scale: float = 1.0, mode: str = "plain", mask: Tensor | None = None
        ) -> Tensor:
            h = self.net(x) * scale
            return h.tanh() if mode == "tanh" else h if mask is None else h * mask

    given = {"x": rows(128, 6), "scale": 0.5, "mode": "tanh", "mask": None}
    return _classifier(Configured(), given)


@recipe
def loss_is_a_module_with_parameters() -> Recipe:
    """Network and loss in one module, as a center loss has them."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.centers = mlp(6, 16, 5), nn.Parameter(rows(5, 5))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            z = self.net(x)
            return F.cross_entropy(z, y) + 0.1 * (z - self.centers[y]).square().sum(1).mean()

    return Recipe(module=Whole(), inputs=(rows(128, 6), classes(5, 128)))


@recipe
def logs_within_the_step() -> Recipe:
    class Logged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.log = mlp(6, 16, 5), []

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(self.net(x), y)
            self.log.append(f"{loss.item():.3f}")
            return loss

    return Recipe(module=Logged(), inputs=(rows(128, 6), classes(5, 128)))


@recipe
def custom_function() -> Recipe:
    """A backward pass of one's own: gradients reversed, as for domain adaptation."""

    class Domains(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.label, self.domain = mlp(6, 16), nn.Linear(16, 5), nn.Linear(16, 2)

        def forward(self, x: Tensor, y: Tensor, domain: Tensor) -> Tensor:
            h = self.net(x)
            where = self.domain(_Reversed.apply(h, 0.3))
            return F.cross_entropy(self.label(h), y) + F.cross_entropy(where, domain)

    return Recipe(module=Domains(), inputs=(rows(128, 6), classes(5, 128), classes(2, 128)))


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return -ctx.share * slope, None
