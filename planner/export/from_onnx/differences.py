"""Check gradients against finite differences of the graph's own loss, on ONNX Runtime.

A parameter p that moves along its gradient g by h |p| g/|g| changes the loss by h |p| |g| + O(h^2), and
several parameters together by the sum. The check is independent of how the gradients were computed. In
float32 the quotient has an error of the loss's rounding divided by h; several lengths h are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from planner.export.errors import ExportError
from planner.files.temporary import temporary_folder

_LENGTHS = (1e-2, 1e-3, 1e-1, 1e-4)
"""Lengths of a change, relative to the parameters' norms, tried until one confirms the gradients."""

_NEAR = 0.05
"""Allowed relative difference of the quotient from the gradients' prediction, at one of these lengths."""

_ROUNDING = 256 * float(np.finfo(np.float32).eps)
"""Rounding error of a loss, relative to its size, after about a hundred layers."""

_GROUPS = 32
"""Largest number of groups of parameters that move together; each group takes two runs or more."""

_SEEN = 0.2
"""Largest share of the loss's change that its rounding may have for a length to be conclusive."""

Arrays = Mapping[str, np.ndarray]


def check_gradients(
    forward: onnx.ModelProto, gradients: onnx.ModelProto, parameters: Arrays
) -> None:
    """Compare each `<parameter>_grad` with finite differences of `loss`, at drawn inputs.

    Args:
        forward: model whose output is the loss.
        gradients: model with the gradients beside the loss.
        parameters: starting values of the parameters.

    Raises:
        ExportError: a gradient is not that of the loss, by name; or ONNX Runtime cannot load the model.
        ModelError: ONNX Runtime cannot run it.
    """
    from planner.runtime.feeds.inputs import make_inputs

    with temporary_folder() as folder:
        path = folder / "gradients.onnx"
        onnx.save(gradients, path)
        drawn, _ = make_inputs(path)
        feeds = {**drawn, **parameters}
        found = _runner(path)(feeds)
        path = folder / "forward.onnx"
        onnx.save(forward, path)
        run = _runner(path)
    read = {value.name for value in forward.graph.input}
    kept = {name: array for name, array in feeds.items() if name in read}
    ways: dict[str, tuple[np.ndarray, float]] = {}
    for name, start in parameters.items():
        gradient = np.asarray(found[f"{name}_grad"], np.float64)
        norm, size = float(np.linalg.norm(gradient)), float(np.linalg.norm(start)) or 1.0
        if not np.isfinite(norm):
            raise ExportError(
                f"the gradient of {name!r} is not finite at drawn inputs; leave the comparison out with "
                "--no-check (check=False)"
            )
        if norm and name in read:
            ways[name] = (size * gradient / norm, size * norm)
    for group in _groups(list(ways)):

        def loss(share: float, group: Sequence[str] = group) -> float:
            moved = {
                name: (parameters[name] + share * ways[name][0]).astype(np.float32)
                for name in group
            }
            return float(run({**kept, **moved})["loss"])

        _check(group, sum(ways[name][1] for name in group), loss)


def _groups(names: Sequence[str]) -> list[Sequence[str]]:
    length = -(-len(names) // _GROUPS) or 1
    return [names[at : at + length] for at in range(0, len(names), length)]


def _runner(path: Path) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """Return a function that runs a model and returns its outputs by name."""
    import onnxruntime as ort

    from planner.runtime.profile import run_session

    options = ort.SessionOptions()
    options.log_severity_level = 3
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ExportError(f"ONNX Runtime cannot load it: {str(error).splitlines()[0]}") from None
    names = [output.name for output in session.get_outputs()]

    def run(feeds: Arrays) -> dict[str, np.ndarray]:
        return dict(zip(names, run_session(session, dict(feeds)), strict=True))

    return run


def _check(names: Sequence[str], said: float, loss: Callable[[float], float]) -> None:
    """Raise ExportError if no length confirms the gradients, and one was conclusive.

    Args:
        said: change of the loss that the gradients predict, per share that the parameters move.
        loss: returns the loss after a move by a share.
    """
    quotients: list[float] = []
    for share in _LENGTHS:
        ahead, behind = loss(share), loss(-share)
        quotient = (ahead - behind) / (2 * share)
        rough = _ROUNDING * max(abs(ahead), abs(behind)) / (2 * share)
        if abs(quotient - said) <= _NEAR * said + rough:
            return
        if rough <= _SEEN * said:
            quotients.append(quotient)
    if quotients:
        nearest = min(quotients, key=lambda found: abs(found - said))
        raise ExportError(
            f"the gradients of {', '.join(map(repr, names))} do not match the loss: along them it "
            f"changes by {nearest:.4g}, and they predict {said:.4g}; freeze these (--freeze), or "
            "leave the comparison out with --no-check (check=False)"
        )
