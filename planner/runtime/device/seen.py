"""Test whether a provider of the installed onnxruntime really computes, and on which devices.

Run as a program it multiplies one number by itself, with the provider alone and no fallback to the
CPU: `python -m planner.runtime.device.seen CPUExecutionProvider` prints the devices, a line each, and
ends with status 0, or says why not. A broken driver may end the process; therefore it is a separate
one.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from planner.processes.children import end_with_parent, run_child

_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The result of the attempt.

    Attributes:
        runs: whether a session on the provider gave the right number.
        devices: the devices as the provider names them, or a description.
        why_not: one line on why it does not run; "" where it does.
    """

    runs: bool
    devices: tuple[str, ...] = ()
    why_not: str = ""


def look(provider: str) -> Seen:
    """Try `provider`, one of onnxruntime's own, in a process of its own."""
    try:
        done = run_child([sys.executable, "-m", __name__, provider], timeout_s=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return Seen(runs=False, why_not=f"it did not answer within {_LIMIT_S:g} s")
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return Seen(runs=False, why_not=said[-1] if said else f"status {done.returncode}")
    return Seen(runs=True, devices=tuple(done.stdout.splitlines()))


def main(provider: str) -> int:
    """Print the devices of `provider`, if it computes."""
    import numpy as np
    import onnxruntime as ort
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "x"], ["y"])], "one", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    source = model.SerializeToString()
    session = ort.InferenceSession(source, options, providers=[provider], enable_fallback=0)
    if provider not in session.get_providers():
        raise RuntimeError(f"the session has only {', '.join(session.get_providers())}")
    (found,) = session.run(None, {"x": np.full(1, 3, np.float32)})
    if not np.array_equal(np.asarray(found), np.full(1, 9, np.float32)):
        raise RuntimeError(f"3 times 3 is {found} there")
    print("\n".join(_devices(ort, provider)))
    return 0


def _devices(ort: object, provider: str) -> list[str]:
    if not hasattr(ort, "get_ep_devices"):  # before 1.22
        return []
    found = [d for d in ort.get_ep_devices() if d.ep_name == provider]  # pyright: ignore[reportAttributeAccessIssue]
    return [f"{d.device.type.name} of {d.device.vendor or 'an unnamed vendor'}" for d in found]


if __name__ == "__main__":
    end_with_parent()
    try:
        sys.exit(main(sys.argv[1]))
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
