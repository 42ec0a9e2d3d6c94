"""The result of a loss function, or of a module that computes its loss, as named tensors.

loss                                   a scalar tensor
(loss, {"accuracy": a, "top5": b})     other outputs by key
(loss, a, b)                           output_1, output_2
{"loss": loss, "logits": l}            by key
named tuple, dataclass, ModelOutput    by field; the loss is the field `loss`

A tensor within a list, tuple or dict is named by its path: `metrics.top5`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from planner.export.arguments import holds_tensors, path_of, unknown_container
from planner.export.errors import InvalidLoss
from planner.export.write.dtypes import as_real

LOSS = "loss"

_FORMS = 'return the loss, (loss, {"name": tensor, ...}), or a dict with the key "loss"'


def tensors_in(result: Any, source: str) -> dict[str, Tensor]:
    """Return the loss, as `loss`, then every other tensor by name, detached, in the order returned.

    A complex tensor becomes a real one with a last axis of two (`torch.view_as_real`).

    Args:
        source: name of the result's source in messages, such as "loss function".

    Raises:
        InvalidLoss: no tensor is marked as the loss, or another result is not a tensor.
    """
    named = _named(result, source)
    loss = named.pop(LOSS, None)
    if not isinstance(loss, Tensor):
        raise InvalidLoss(_no_loss(result, loss, source))
    found = {LOSS: loss}
    for path, leaf in pytree.tree_flatten_with_path(named)[0]:
        name = path_of(path)
        if leaf is None:
            continue
        if name in found:
            raise InvalidLoss(_twice(name, source))
        if isinstance(leaf, Tensor):
            found[name] = as_real(leaf.detach())
        elif holds_tensors(leaf):
            raise InvalidLoss(unknown_container(name, type(leaf)))
        else:
            raise InvalidLoss(
                f"the {source} returns {name!r} as a {type(leaf).__name__}, which is no tensor: return "
                'the tensor (without .item()), or leave it out, as in (loss, {"logits": logits})'
            )
    return found


def _named(result: Any, source: str) -> dict[str, Any]:
    """Return the parts of a result by name; without the loss if it cannot be identified."""
    if isinstance(result, Tensor):
        return {LOSS: result}
    if isinstance(result, Mapping):
        keys = [str(key) for key in result]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise InvalidLoss(_twice(min(twice), source))
        return dict(zip(keys, result.values(), strict=True))
    if hasattr(result, LOSS):
        return _fields(result)
    if not isinstance(result, tuple) or not result:
        return {}
    loss, *others = result
    if len(others) == 1 and isinstance(others[0], Mapping):
        more = _named(others[0], source)
        if LOSS in more:
            raise InvalidLoss(_twice(LOSS, source))
    else:
        more = {f"output_{index}": value for index, value in enumerate(others, 1)}
    return {LOSS: loss, **more}


def _fields(result: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(result):
        return {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
    if hasattr(result, "_asdict"):
        return dict(result._asdict())
    return {key: value for key, value in vars(result).items() if not key.startswith("_")}


def _twice(name: str, source: str) -> str:
    return f"the {source} returns two tensors called {name!r}; rename a key"


def _no_loss(result: Any, loss: Any, source: str) -> str:
    """Return the error message for a result without a loss."""
    kind = type(result).__name__
    if isinstance(result, Mapping) and LOSS not in result:
        keys = ", ".join(map(repr, result)) or "nothing"
        return f'the {source} returns a {kind} of {keys}, and no "loss": {_FORMS}'
    if isinstance(result, tuple) and result and not hasattr(result, LOSS):
        return (
            f"the {source} returns a {kind}, whose first item is a {type(loss).__name__} and no "
            f"tensor: {_FORMS}"
        )
    if hasattr(result, LOSS) or isinstance(result, Mapping):
        return (
            f"the {source} returns a {kind}, whose loss is a {type(loss).__name__}: give what it is "
            f"computed of (labels), or a loss function; {_FORMS}"
        )
    return (
        f"the {source} returns a {kind}, not a tensor: {_FORMS}; or give a loss function "
        "of the module's result"
    )
