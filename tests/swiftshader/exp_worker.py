"""Exp of 4 MiB on a counted WebGPU device, as a process of its own: what the driver counted, as JSON."""

from __future__ import annotations

import gc
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from planner.targets.webgpu.provider import webgpu_session
from tests.swiftshader.counting import Counter

SIDE = 1024  # 4 MiB of float32


def exp_model() -> bytes:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [SIDE, SIDE]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "exp", [x], [y])
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def session() -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return webgpu_session(exp_model(), options)


def capped_run(counter: Counter, cap: int) -> str:
    """The error of one run in a new session under `cap`; empty where there is none."""
    counter.cap(cap)
    made = session()
    try:
        (y,) = made.run(None, {"x": np.ones((SIDE, SIDE), np.float32)})
        assert np.allclose(y, np.e)
    except ort.capi.onnxruntime_pybind11_state.Fail as error:
        return str(error)
    finally:
        counter.cap(0)
    return ""


def main() -> None:
    started = time.perf_counter()
    counter = Counter()
    answer = {"start": asdict(counter.stats())}
    made = session()
    answer |= {"session_s": time.perf_counter() - started, "providers": made.get_providers()}
    for name in ("first", "second"):
        (y,) = made.run(None, {"x": np.ones((SIDE, SIDE), np.float32)})
        answer[name] = asdict(counter.stats())
    answer |= {"mean": float(y.mean())}
    del made
    gc.collect()
    answer["gone"] = asdict(counter.stats())
    counter.reset_peak()
    answer["reset"] = asdict(counter.stats())
    answer["caps"] = {cap: capped_run(counter, int(cap)) for cap in sys.argv[1:]}
    answer["end"] = asdict(counter.stats())
    lines = Path("/proc/self/maps").read_text().splitlines()
    drivers = {tuple(line.split()[3:]) for line in lines if "counting-driver" in line}
    answer["drivers"] = sorted(drivers)  # device, inode and path of every copy that is mapped
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
