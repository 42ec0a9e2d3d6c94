"""planner run: real scripts in processes of their own, beside the same scripts in plain Python."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest

import planner
from planner.cli.main import main
from planner.targets.keys import BLOCK_KEY, LEVEL_KEY, OPTIONS_KEY, ORDER_KEY, POOL_KEY, TARGET_KEY
from planner.targets.keys import PACKED_KEY as PACKED
from tests.process import PLANNER

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "models" / "zoo"
TRAIN = ("-m", "models.scripts.train_session")
Done = subprocess.CompletedProcess[str]
Start = Callable[..., Done]

OPEN = """
import json, sys
import onnxruntime
from onnxruntime import InferenceSession

def seen(session):
    options = session.get_session_options()
    def entry(key):
        try:
            return options.get_session_config_entry(key)
        except RuntimeError:
            return None
    return {
        "pattern": options.enable_mem_pattern, "reuse": options.enable_mem_reuse,
        "level": options.graph_optimization_level.name, "order": options.execution_order.name,
        "packing": entry("session.disable_prepacking"), "pool": entry("session.use_env_allocators"),
        "providers": session.get_providers(),
    }
"""
"""What a session was really opened with, as ONNX Runtime has it."""

DESCEND = """
import sys
import numpy as np
import onnxruntime
from models.scripts.train_session import initial

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
outputs = [output.name for output in session.get_outputs()]
random = np.random.default_rng(0)
values = {i.name: random.integers(0, 512, i.shape) if "int" in i.type else initial(i.name, i.shape)
          for i in session.get_inputs()}
for step in range(int(sys.argv[2])):
    found = dict(zip(outputs, session.run(None, values), strict=True))
    print(float(found["loss"]).hex())
    values |= {n: v - 0.1 * found[n + "_grad"] for n, v in values.items() if n + "_grad" in found}
"""
"""Training on a model that gives gradients."""

AS_NEEDED = {"pattern": False, "reuse": False, "level": "ORT_ENABLE_ALL", "order": "DEFAULT"}
ON_CPU = {"packing": None, "providers": ["CPUExecutionProvider"]}


def started(*arguments: str | Path, cwd: Path, cache: Path) -> Done:
    """Run Python; what is kept lies in `cache`."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples, and what planner makes of the smallest."""
    folder = tmp_path_factory.mktemp("run")
    for name in ("mlp_adamw", "gpt"):
        shutil.copy(ZOO / f"{name}.onnx", folder)
        shutil.copy(ZOO / f"{name}.inputs.json", folder)
    planner.optimize(
        folder / "mlp_adamw.onnx",
        budget="85%",
        swap="none",
        output=folder / "planned.onnx",
        plan_path=folder / "mlp.plan.json",
        time_limit_s=0.5,
        verify=False,
    )
    return folder


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Run Python, with a folder of its own for what is kept."""

    return functools.partial(started, cwd=tmp_path, cache=tmp_path / "cache")


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """A function from a script's text to its file."""

    def written(text: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return written


def losses(done: Done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith("median")]


def lines(done: Done) -> list[str]:
    """What planner said."""
    return [line for line in done.stderr.splitlines() if line.startswith("planner: ")]


def with_metadata(source: Path, target: Path, props: Mapping[str, str]) -> Path:
    model = onnx.load(source)
    for key, value in props.items():
        known = next((p for p in model.metadata_props if p.key == key), None)
        (known or model.metadata_props.add(key=key)).value = value
    onnx.save(model, target)
    return target


def needed(model: str | Path) -> dict:
    """What a session of a file of planner's is opened with on the CPU."""
    has_pool = POOL_KEY in {p.key for p in onnx.load(model).metadata_props}
    return AS_NEEDED | ON_CPU | {"pool": "1" if has_pool else None}


def rewritten(done: Done) -> str:
    """The file that was opened in place of an original."""
    return next(x for x in lines(done) if "opened as " in x).rpartition("opened as ")[2]


def opened(done: Done) -> list[dict]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# numbers


@pytest.fixture(scope="module")
def trained(folder: Path) -> list[str]:
    """What training on the original prints."""
    steps = ("--model", folder / "mlp_adamw.onnx", "--steps", "12")
    plain = started(*TRAIN, *steps, cwd=folder, cache=folder)
    assert plain.stderr == ""
    assert len(set(losses(plain))) == 12  # it learns
    return losses(plain)


def test_a_rewritten_file_trains_as_the_original_does(
    start: Start, folder: Path, trained: list[str]
):
    steps = ("--steps", "12")
    ours = start(*PLANNER, "run", *TRAIN, "--model", folder / "planned.onnx", *steps)
    assert losses(ours) == trained
    assert ours.stderr == ""


def test_an_original_trains_as_ever_within_a_budget(start: Start, folder: Path, trained: list[str]):
    model = folder / "mlp_adamw.onnx"
    plan = ("--budget", "75%", "--time-limit", "0.5", "--explain")
    words = (*PLANNER, "run", *plan, *TRAIN, "--model", model, "--steps", "12")
    first, again = start(*words), start(*words)
    assert losses(first) == losses(again) == trained
    assert "once" in lines(first)[0] and "planned now" in lines(first)[1]
    assert len(lines(again)) == 2 and "kept from an earlier start" in lines(again)[0]
    file = rewritten(again)
    assert file == rewritten(first)
    kinds = [{p.key for p in onnx.load(f).metadata_props} for f in (model, file)]
    assert TARGET_KEY not in kinds[0] and TARGET_KEY in kinds[1]


def test_a_model_that_gives_gradients_trains_as_ever_within_a_budget(
    start: Start, folder: Path, script
):
    train = (script(DESCEND), folder / "gpt.onnx", "3")
    plan = ("--budget", "60%", "--time-limit", "0.5", "--explain", "--no-verify")
    plain, ours = start(*train), start(*PLANNER, "run", *plan, *train)
    assert losses(ours) == losses(plain)
    assert len(set(losses(plain))) == len(losses(plain)) > 2  # it learns
    assert "planned now" in lines(ours)[1]


# options


def test_a_session_gets_what_its_file_needs(start: Start, folder: Path, script, tmp_path: Path):
    """By name or from the package, by a class that inherits, from bytes; not one of another model."""
    path = script(
        OPEN
        + """
class Mine(onnxruntime.InferenceSession):
    def __init__(self, path):
        super().__init__(path, providers=["CPUExecutionProvider"])

planned, original = sys.argv[1:]
made = [onnxruntime.InferenceSession(planned), InferenceSession(path_or_bytes=planned), Mine(planned)]
made += [InferenceSession(open(planned, "rb").read()), InferenceSession(original)]
assert all(isinstance(s, InferenceSession) for s in made)
assert InferenceSession is onnxruntime.InferenceSession
assert InferenceSession.__name__ == "InferenceSession"
again = InferenceSession(planned)
again.set_providers(["CPUExecutionProvider"])
for session in [*made, again]:
    print(json.dumps(seen(session)))
"""
    )
    files = (folder / "planned.onnx", folder / "mlp_adamw.onnx")
    done = start(*PLANNER, "run", path, *files)
    *ours, original, again = opened(done)
    assert ours == [needed(files[0])] * 4 and again == ours[0]
    assert original["pattern"] and original["reuse"]
    assert done.stderr == ""
    assert opened(start(path, *files))[0]["pattern"]  # without planner run


def test_what_the_file_says_is_applied_and_explained(
    start: Start, folder: Path, tmp_path: Path, script
):
    told = [
        (LEVEL_KEY, "disabled", "level", "ORT_DISABLE_ALL"),
        (ORDER_KEY, "priority", "order", "PRIORITY_BASED"),
        (PACKED, "0", "packing", "1"),
        (POOL_KEY, '{"bytes": 268435456, "is_proved": true}', "pool", "1"),
    ]
    models = [
        with_metadata(folder / "planned.onnx", tmp_path / f"{name}.onnx", {key: value})
        for key, value, name, _ in told
    ]
    path = script(OPEN + "for p in sys.argv[1:]: print(json.dumps(seen(InferenceSession(p))))\n")
    done = start(*PLANNER, "run", "--explain", path, *models)
    found = zip(models, told, opened(done), lines(done), strict=True)
    for model, (*_, name, seen), session, line in found:
        assert session == needed(model) | {name: seen}
        assert line.startswith(f"planner: {model}: planned for the CPU, budget ")
        assert (seen in line) or ("a pool of 256.00 MiB" in line)


def test_the_scripts_own_options_stay_and_what_is_against_the_plan_is_said(
    start: Start, folder: Path, script
):
    path = script(
        OPEN
        + """
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
options.intra_op_num_threads = 1
options.add_session_config_entry("session.set_denormal_as_zero", "1")
session = InferenceSession(sys.argv[1], options, ["CPUExecutionProvider"])
found = session.get_session_options()
assert found.intra_op_num_threads == 1 and found.execution_mode.name == "ORT_PARALLEL"
assert found.get_session_config_entry("session.set_denormal_as_zero") == "1"
assert options.enable_mem_pattern and options.enable_mem_reuse  # the script's object is as it was
print(json.dumps(seen(session)))
print(json.dumps(seen(InferenceSession(sys.argv[2], options))))
"""
    )
    files = (folder / "planned.onnx", folder / "mlp_adamw.onnx")
    done = start(*PLANNER, "run", path, *files)
    planned, original = opened(done)
    assert planned == needed(files[0]) | {"level": "ORT_ENABLE_BASIC"}
    assert original["pattern"] and original["reuse"]
    said = lines(done)
    assert len(said) == 2 and all(line.startswith(f"planner: {files[0]}: ") for line in said)
    assert "graph_optimization_level is ORT_ENABLE_BASIC" in said[0] and "ORT_ENABLE_ALL" in said[0]
    assert "execution_mode is ORT_PARALLEL" in said[1] and "ORT_SEQUENTIAL" in said[1]
    strict = start(*PLANNER, "run", "--strict", path, *files)
    assert strict.returncode == 1 and "UsageError" in strict.stderr.splitlines()[-1]


def test_the_plan_follows_the_level_and_the_order_of_the_script(start: Start, folder: Path, script):
    path = script(
        OPEN
        + """
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
print(json.dumps(seen(InferenceSession(sys.argv[1], options))))
"""
    )
    plan = ("--budget", "80%", "--time-limit", "0.5", "--explain", "--no-verify")
    done = start(*PLANNER, "run", *plan, path, folder / "mlp_adamw.onnx")
    (seen,) = opened(done)
    assert seen["level"] == "ORT_DISABLE_ALL" and seen["order"] == "PRIORITY_BASED"
    file = rewritten(done)
    props = {p.key: p.value for p in onnx.load(file).metadata_props}
    assert props[LEVEL_KEY] == "disabled" and props[ORDER_KEY] == "priority"
    assert len(lines(done)) == 3  # nothing contradicts


RUN = (
    OPEN
    + """
import numpy as np
session = InferenceSession(sys.argv[1])
feeds = {i.name: np.ones(i.shape, np.float32 if "float" in i.type else np.int64)
         for i in session.get_inputs()}
session.run(None, feeds)
print(json.dumps(seen(session)))
"""
)


def test_a_file_runs_in_no_smaller_pool_than_it_asks_for(
    start: Start, folder: Path, tmp_path: Path, script
):
    pool = json.dumps({"bytes": 1 << 19, "is_proved": True})
    model = with_metadata(folder / "planned.onnx", tmp_path / "m.onnx", {POOL_KEY: pool})
    done = start(*PLANNER, "run", script(RUN), model)
    assert done.returncode != 0 and "the pool has" in done.stderr


def test_a_loop_may_keep_what_a_step_gave(start: Start, folder: Path, tmp_path: Path, script):
    """On the CPU outputs lie in the session's pool, which has room for one step."""
    path = script(
        RUN
        + """
kept = [session.run(None, feeds) for _ in range(8)]
assert all(a.tobytes() == b.tobytes() for a, b in zip(kept[0], kept[-1], strict=True))
print(json.dumps({"arrays": sum(a.base is None for a in kept[0])}))
"""
    )
    names = [o.name for o in onnx.load(folder / "planned.onnx").graph.output]
    for size in (8 << 20, 16 << 20):  # 8 steps' outputs are 25 MiB
        pool = json.dumps({"bytes": size, "is_proved": True})
        model = with_metadata(folder / "planned.onnx", tmp_path / "m.onnx", {POOL_KEY: pool})
        done = start(*PLANNER, "run", path, model)
        assert opened(done)[-1] == {"arrays": len(names)}


# other places than the plan's


def test_another_provider_than_the_plans_is_said(
    start: Start, folder: Path, tmp_path: Path, script
):
    cuda = {TARGET_KEY: "cuda", OPTIONS_KEY: "{}"}
    model = with_metadata(folder / "planned.onnx", tmp_path / "m.onnx", cuda)
    path = script(
        OPEN
        + """
available = onnxruntime.get_available_providers()
print(json.dumps(seen(InferenceSession(sys.argv[1]))))
for path in sys.argv[1:]:
    InferenceSession(path, None, available)
"""
    )
    done = start(*PLANNER, "run", path, model, folder / "planned.onnx")
    assert opened(done)[0]["providers"] == ["CPUExecutionProvider"]
    line, given = lines(done)
    assert "planned for CUDA, and opens on the CPU" in line and "onnx-planner[gpu]" in line
    assert "planned for CUDA, and the script opens it on CPUExecutionProvider" in given


def test_a_file_for_another_processor_is_refused(
    start: Start, folder: Path, tmp_path: Path, script
):
    model = with_metadata(folder / "planned.onnx", tmp_path / "m.onnx", {BLOCK_KEY: "7"})
    path = script(OPEN + "InferenceSession(sys.argv[1])\n")
    done = start(*PLANNER, "run", path, model)
    assert done.returncode == 1
    assert "plan the original model on this machine" in done.stderr.splitlines()[-1]


def test_what_cannot_be_planned_is_opened_as_it_is_and_said(
    start: Start, folder: Path, tmp_path: Path, script
):
    model = onnx.load(folder / "mlp_adamw.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, tmp_path / "open.onnx")
    path = script(OPEN + "for p in sys.argv[1:]: print(json.dumps(seen(InferenceSession(p))))\n")
    arguments = (path, folder / "mlp_adamw.onnx", tmp_path / "open.onnx")
    budget = ("--budget", "100KB", "--time-limit", "0.5", "--no-verify")
    done = start(*PLANNER, "run", *budget, *arguments)
    assert all(found["pattern"] for found in opened(done))
    infeasible, unbound = lines(done)
    assert "opened as it is, not planned: " in infeasible and "budget" in infeasible
    assert "--dim batch=1" in unbound
    again = start(*PLANNER, "run", *budget, "--explain", *arguments)
    assert "once" not in again.stderr and again.stderr.count("not planned: ") == 2
    strict = start(*PLANNER, "run", *budget, "--strict", *arguments)
    assert strict.returncode == 1 and "UsageError" in strict.stderr.splitlines()[-1]
    sized = ("--budget", "1GB", "--explain", "--no-verify", "--shape", "features=1024x64")
    found = start(*PLANNER, "run", *sized, *arguments)
    assert all(session["pattern"] for session in opened(found))
    assert found.stderr.count("is within 953.67 MiB") == 2


def test_a_plan_for_more_than_the_budget_is_said(start: Start, folder: Path, script):
    path = script(OPEN + "InferenceSession(sys.argv[1])\n")
    (line,) = lines(start(*PLANNER, "run", "--budget", "1MB", path, folder / "planned.onnx"))
    assert "more than --budget 1MB" in line
    assert not lines(start(*PLANNER, "run", "--budget", "1GB", path, folder / "planned.onnx"))


# files beside the model, bytes, threads


def test_tensors_beside_the_model_are_those_of_its_folder(
    start: Start, folder: Path, tmp_path: Path, script
):
    """The rewritten file lies with them, and another state of them is another plan."""
    path = script(
        """
import sys
import numpy as np
import onnxruntime
for path in sys.argv[1:]:
    session = onnxruntime.InferenceSession(path)
    random = np.random.default_rng(0)
    feeds = {i.name: np.array(random.uniform(size=i.shape), np.float32) if "float" in i.type else
             np.zeros(i.shape, np.int64) for i in session.get_inputs()}
    print(float(session.run(["loss"], feeds)[0]).hex())
"""
    )
    plan = ("--budget", "85%", "--time-limit", "0.5", "--explain", "--no-verify")
    source = folder / "mlp_adamw.onnx"
    a, b = (_with_data(source, tmp_path / name, seed) for name, seed in (("a", 0), ("b", 1)))
    plain, both = start(path, b, a), start(*PLANNER, "run", *plan, path, b, a)
    again = start(*PLANNER, "run", *plan, path, a)
    _with_data(source, tmp_path / "a", 2)
    changed, other = start(path, a), start(*PLANNER, "run", *plan, path, a)
    assert losses(both) == losses(plain) and losses(again) == losses(plain)[1:]
    assert losses(other) == losses(changed)
    assert len({*losses(plain), *losses(changed)}) == 3
    assert [done.stderr.count("planned now") for done in (both, again, other)] == [2, 0, 1]
    files = [Path(x.rpartition("opened as ")[2]) for x in lines(both) if "opened as " in x]
    assert [file.parent for file in files] == [b.parent, a.parent]
    assert Path(rewritten(other)).parent == a.parent


def _with_data(source: Path, folder: Path, seed: int) -> Path:
    """A model whose largest parameter is stored in a file beside it."""
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    model = onnx.load(source)
    sizes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    name = max((n for n in sizes if n.endswith("weight")), key=lambda n: np.prod(sizes[n]))
    value = np.random.default_rng(seed).normal(size=sizes[name]).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    model.graph.input.remove(next(v for v in model.graph.input if v.name == name))
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data")
    return path


def test_bytes_are_planned_once_for_all_threads(start: Start, folder: Path, script):
    path = script(
        OPEN
        + """
from concurrent.futures import ThreadPoolExecutor
data = open(sys.argv[1], "rb").read()
options = onnxruntime.SessionOptions()
with ThreadPoolExecutor(4) as pool:
    for session in pool.map(lambda _: InferenceSession(data, options), range(4)):
        print(json.dumps(seen(session)))
assert options.enable_mem_pattern
"""
    )
    plan = ("--budget", "80%", "--time-limit", "0.5", "--explain", "--no-verify")
    done = start(*PLANNER, "run", *plan, path, folder / "mlp_adamw.onnx")
    assert opened(done) == [needed(rewritten(done))] * 4
    assert done.stderr.count("planned now") == 1 and done.stderr.count("kept from") == 3
    assert all("a model given as bytes: " in line for line in lines(done))


def test_a_plan_file_is_applied_to_its_model_and_to_no_other(
    start: Start, folder: Path, script, tmp_path: Path, capsys
):
    plan = folder / "mlp.plan.json"
    code = script(OPEN + "for path in sys.argv[1:]:\n    session = InferenceSession(path)\n")
    models = (folder / "mlp_adamw.onnx", folder / "gpt.onnx")
    words = (*PLANNER, "run", "--explain", "--plan", plan, code, *models)
    first, second = start(*words), start(*words)
    assert first.returncode == second.returncode == 0, first.stderr
    made = rewritten(first)
    applied = planner.apply(models[0], plan, output=tmp_path / "applied.onnx")
    assert Path(made).read_bytes() == applied.read_bytes()
    assert any("planned now" in line for line in lines(first))
    assert rewritten(second) == made
    assert any("kept from an earlier start" in line for line in lines(second))
    assert sum(
        "gpt.onnx: not written by planner; opened as the script asks" in x for x in lines(first)
    )
    assert main(["run", "--plan", str(tmp_path / "none.json"), str(code)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_processes_that_start_together_plan_once(start: Start, folder: Path, script):
    path = script(OPEN + "print(json.dumps(seen(InferenceSession(sys.argv[1]))))\n")
    plan = ("--budget", "80%", "--time-limit", "0.5", "--explain", "--no-verify")
    with ThreadPoolExecutor(2) as pool:
        done = [
            pool.submit(start, *PLANNER, "run", *plan, path, folder / "mlp_adamw.onnx")
            for _ in range(2)
        ]
    found = [future.result() for future in done]
    assert [opened(d) for d in found] == [[needed(rewritten(found[0]))]] * 2
    assert sorted("planned now" in d.stderr for d in found) == [False, True]


def test_what_is_no_model_is_left_to_onnx_runtime(start: Start, tmp_path: Path, script):
    path = script(
        OPEN
        + """
for wrong in ("none.onnx", b"text", 7):
    try:
        InferenceSession(wrong)
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""
    )
    plain, ours = start(path), start(*PLANNER, "run", "--budget", "80%", path)
    assert opened(ours) == opened(plain) and len(opened(ours)) == 3


# the script itself

LOOK = """
import atexit, json, os, signal, sys, threading
print(json.dumps({"argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__,
                  "main": vars(sys.modules["__main__"]) is globals(), "spec": __spec__ is None,
                  "int": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
                  "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
                  "threads": threading.active_count(), "onnxruntime": "onnxruntime" in sys.modules,
                  "errors": sys.stdout.errors, "input": sys.stdin.readline()}))
sys.stdout.flush()
atexit.register(lambda: print("at exit", sys.modules["__main__"].word))
word = "main"
if "raise" in sys.argv:
    def within():
        raise ValueError("wrong")
    within()
if "stop" in sys.argv:
    raise KeyboardInterrupt
if "exit" in sys.argv:
    sys.exit(7)
if "say" in sys.argv:
    sys.exit("why")
"""


@pytest.mark.parametrize("word", ["on", "raise", "stop", "exit", "say"])
def test_a_script_ends_as_in_python(start: Start, script, word: str):
    path = script(LOOK)
    arguments = (path.name, word, "--budget", "-h", "--", "x")
    plain, ours = start(*arguments), start(*PLANNER, "run", *arguments)
    assert ours.returncode == plain.returncode
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)
    if word == "on":
        assert start(*PLANNER, "run", "--explain", "--", *arguments).stdout == plain.stdout


def test_a_module_and_a_folder_run_as_in_python(start: Start, script, tmp_path: Path):
    (tmp_path / "package").mkdir()
    script(LOOK, "package/look.py")
    script(LOOK, "package/__main__.py")
    for arguments in (("-m", "package.look", "raise"), ("-m", "package"), ("package", "exit")):
        plain, ours = start(*arguments), start(*PLANNER, "run", *arguments)
        assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)
        assert ours.returncode == plain.returncode


def test_what_is_not_there_is_one_line(start: Start, script, capsys):
    missing = ("-m", "no.module")
    assert start(*PLANNER, "run", *missing).stderr == start(*missing).stderr
    for arguments in (["none.py"], ["--budget", "16", "x.py"]):
        assert main(["run", *arguments]) != 0
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("planner: error: ")
    broken = start(*PLANNER, "run", script("if\n"))
    assert broken.returncode == 1 and broken.stderr == start("script.py").stderr


def test_nothing_is_changed_outside_the_process(start: Start, folder: Path, script):
    """Nor for planner's own functions within it, which measure what options do."""
    path = script(
        OPEN
        + """
import subprocess
from pathlib import Path
from planner.runtime.options import Opening
from planner.runtime.profile import create_session
print(json.dumps(seen(create_session(Path(sys.argv[1]), Opening().options()))))
if len(sys.argv) == 2:
    subprocess.run([sys.executable, __file__, *sys.argv[1:], "child"], check=True)
else:
    print(json.dumps(seen(InferenceSession(sys.argv[1]))))
"""
    )
    found = opened(start(*PLANNER, "run", path, folder / "planned.onnx"))
    assert len(found) == 3 and all(f["pattern"] and f["reuse"] for f in found)
