"""Check for parameters that a graph cannot train as PyTorch does."""

from __future__ import annotations

from torch import nn

from planner.export.errors import OtherStep


def check_parameters(module: nn.Module) -> None:
    """Raise OtherStep if a parameter has a hook on its gradient, or shares memory with another."""
    seen: dict[int, list[tuple[int, int, str]]] = {}
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise OtherStep(
                None,
                f"{name!r} has a hook on its gradient, which a graph cannot run: remove the hook, "
                "and do its work outside the step or in the module",
            )
        start, count = int(parameter.storage_offset()), int(parameter.numel())
        spans = seen.setdefault(parameter.untyped_storage().data_ptr(), [])
        for first, last, other in spans:
            if start < last and first < start + count:
                raise OtherStep(
                    None,
                    f"{name!r} and {other!r} share memory, but are two parameters of the graph, "
                    "each with its own update: tie them by assigning one Parameter to both",
                )
        spans.append((start, start + count, name))
