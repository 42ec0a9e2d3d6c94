"""What goes wrong: runs that fail half-way, sessions that close, forks, other libraries, no memory."""

from __future__ import annotations

import gc
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import NodeProto, TensorProto, helper

import planner
from planner.errors import ModelError
from planner.native import counts, drain, library_path
from tests.native.graphs import (
    Feeds,
    bits,
    chain,
    chain_feeds,
    child,
    failing_chain,
    failing_stores,
    model_of,
    options,
    plain,
    session,
    sized,
    store_feeds,
    stores,
    swap,
)

SLOW = {"planner.check_swaps": "1", "planner.link_mbps": "20"}


def fail(failing: ort.InferenceSession, feeds: Feeds) -> None:
    """A run that stops in the backward pass, with copies under way."""
    with pytest.raises(Exception, match="MAYFAIL"):
        failing.run(None, sized(feeds, good=False))


def test_the_run_after_one_that_failed_is_refused_by_name_and_the_next_is_right():
    reference, swapped = plain(chain(swaps=False)), session(failing_chain(), entries=SLOW)
    before = counts()
    for seed in range(2):
        feeds = chain_feeds(seed=seed)
        fail(swapped, feeds)
        assert counts().live_slots > 0
        with pytest.raises(
            Exception, match=r"SwapBegin.*earlier run of this session failed.*drain"
        ):
            swapped.run(None, sized(feeds))
        assert counts().live_slots == 0
        assert bits(swapped, sized(feeds)) == bits(reference, feeds)
    assert counts().violations == before.violations


def test_none_is_refused_after_drain():
    reference, swapped = plain(chain(swaps=False)), session(failing_chain(), entries=SLOW)
    for seed in range(2):
        feeds = chain_feeds(seed=seed)
        fail(swapped, feeds)
        assert drain() > 0
        assert drain() == counts().live_slots == 0
        assert bits(swapped, sized(feeds)) == bits(reference, feeds)


def test_after_a_step_that_failed_while_it_stored_the_next_is_right():
    reference = planner.bind(plain(stores(store=False)), store_feeds())
    stored = planner.bind(session(failing_stores(), entries=SLOW), store_feeds())
    before = counts()
    for seed in range(3):
        x = {"x": chain_feeds(64, seed=seed)["x"]}
        with pytest.raises(ModelError, match="MAYFAIL"):
            stored.step(sized(x, 64, good=False))
        assert counts().live_slots == 0
        (found,), (wanted,) = stored.step(sized(x, 64)).values(), reference.step(x).values()
        assert found.tobytes() == wanted.tobytes()
        for name, array in reference.values().items():
            assert array.tobytes() == stored.values()[name].tobytes()
    after = counts()
    assert after.abandoned > before.abandoned and after.violations == before.violations


@pytest.mark.parametrize("arena", [True, False])
def test_copies_that_a_failed_run_left_write_into_nothing_else(arena: bool):
    """Other threads run on while copies of a failed run are under way, and get the buffers it freed."""
    reference = plain(chain(swaps=False))
    swapped = session(failing_chain(), entries=SLOW, enable_cpu_mem_arena=arena)
    before, wrong, stop = counts().violations, [], threading.Event()

    def work(seed: int) -> None:
        feeds = chain_feeds(seed=seed)
        wanted = bits(reference, feeds)
        while not stop.is_set():
            if bits(swapped, sized(feeds)) != wanted:
                wrong.append(seed)

    others = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for other in others:
        other.start()
    for _ in range(4):
        fail(swapped, chain_feeds(seed=9))
        time.sleep(0.05)  # its copies end on their own
        with pytest.raises(Exception, match="an earlier run of this session failed"):
            swapped.run(None, sized(chain_feeds(seed=9)))
    stop.set()
    for other in others:
        other.join()
    assert not wrong
    assert counts().violations == before
    assert counts().live_slots == 0


def test_a_session_that_closes_while_copies_run_waits_for_them():
    before = counts()
    swapped = session(failing_chain(), entries=SLOW)
    fail(swapped, chain_feeds())
    del swapped
    gc.collect()
    after = counts()
    assert after.abandoned > before.abandoned
    assert after.violations == before.violations
    assert after.live_slots == after.slots == after.slot_bytes == 0


EARLY = """
import sys, threading, time
from planner.native import drain
from tests.native.graphs import chain_feeds, failing_chain, session, sized
from tests.native.test_faults import fail
pool = {"planner.pool_bytes": "4194304"} if "pool" in sys.argv[1] else {}
entries = {"planner.link_mbps": "2"} | pool
failing = session(failing_chain(ahead=6, node="F4"), entries=entries)
fail(failing, chain_feeds())
if "drained" in sys.argv[1]:
    draining = threading.Thread(target=drain)
    draining.start()
    time.sleep(0.05)  # its copies take longer
if "another pool" in sys.argv[1]:
    other = session(failing_chain(), entries=entries)
del failing
print("closed")
"""


@pytest.mark.parametrize("memory", ["arena", "pool", "another pool", "another pool, drained"])
def test_memory_that_a_failed_run_was_copied_from_stays_until_it_is(memory: str):
    """What is copied out lies in the buffer of the tensor before it, which no reference keeps."""
    assert child(EARLY, memory).split() == ["closed"]


FORK = """
import os, signal, sys
from tests.native.graphs import bits, chain, chain_feeds, plain, session
entries = {"planner.pool_bytes": str(1 << 20)} if sys.argv[1] == "pool" else {}
feeds, wanted = chain_feeds(), bits(plain(chain(swaps=False)), chain_feeds())
swapped = session(chain(), entries=entries)
assert bits(swapped, feeds) == wanted

def refused(what):
    try:
        what()
    except Exception as error:
        assert "was forked from one that had loaded" in str(error), error
        print("refused", flush=True)

if not (pid := os.fork()):
    signal.alarm(20)
    refused(lambda: swapped.run(None, feeds))
    refused(lambda: session(chain()))
    del swapped
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert bits(swapped, feeds) == wanted
print("right")
"""


@pytest.mark.parametrize("memory", ["arena", "pool"])
def test_a_child_of_a_fork_is_refused_by_name_and_the_parent_goes_on(memory: str):
    assert child(FORK, memory).split() == ["refused", "refused", "right"]


def test_two_copies_of_the_library_keep_their_sessions_apart(tmp_path: Path):
    other = Path(shutil.copy(library_path(), tmp_path / "other.so"))
    reference = plain(chain(swaps=False))
    sessions = [session(failing_chain(), library=each) for each in (None, other, None)]
    for seed in range(3):
        feeds = chain_feeds(seed=seed)
        fail(sessions[0], feeds)
        drain()
        for each in sessions:
            assert bits(each, sized(feeds)) == bits(reference, feeds)
    both = options(library=other)
    both.register_custom_ops_library(str(library_path()))  # the first one's operators serve it
    served = ort.InferenceSession(chain().SerializeToString(), both)
    assert bits(served, chain_feeds()) == bits(reference, chain_feeds())


def test_two_copies_of_the_library_have_a_pool_each(tmp_path: Path):
    other = Path(shutil.copy(library_path(), tmp_path / "other.so"))
    entries = {"planner.pool_bytes": str(1 << 20)}
    reference = bits(plain(chain(swaps=False)), chain_feeds())
    sessions = [session(chain(), library=each, entries=entries) for each in (None, other, None)]
    assert all(bits(each, chain_feeds()) == reference for each in sessions)


SHORT = """
import resource
import numpy as np
from onnx import helper
from planner.native import counts
from tests.native.graphs import bits, model_of, session, swap
count = 16 << 20  # 64 MiB: malloc maps each
nodes = [
    swap("SwapBegin", [], "r"),
    helper.make_node("Neg", ["x"], ["f"], "F"),
    swap("SwapOut", ["f", "r"], "t"),
    swap("SwapOutDone", ["t", "f"], "u"),
    swap("SwapIn", ["u"], "y", dtype=1, shape=[count]),
    swap("SwapInDone", ["y"], "z"),
    helper.make_node("ReduceSum", ["z"], ["s"], "S", keepdims=0),
]
feeds = {"x": np.ones(count, np.float32)}
entries = {"planner.pool_bytes": str(160 << 20)}
swapped = session(model_of(nodes, {"x": [count]}, {"s": []}), entries=entries)
taken = int(open("/proc/self/statm").read().split()[0]) * 4096
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (taken + (32 << 20), hard))
try:
    swapped.run(None, feeds)
except Exception as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
assert counts().live_slots == 0, counts()
assert swapped.run(None, feeds)[0] == -count
"""


def test_no_memory_for_a_slot_is_an_error_of_that_swap_and_the_next_run_is_right():
    said = child(SHORT)
    assert "SwapOut:t" in said and f"no memory for a host slot of {64 << 20} bytes" in said


NO_THREAD = """
import resource
from planner.native import counts
from tests.native.graphs import bits, chain, chain_feeds, plain, session
wanted = bits(plain(chain(swaps=False)), chain_feeds())
swapped = session(chain(), entries={"planner.pool_bytes": str(1 << 20)})
taken = int(open("/proc/self/statm").read().split()[0]) * 4096
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 20), hard))  # no room for a thread's stack
try:
    swapped.run(None, chain_feeds())
except Exception as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
assert counts().live_slots == 0, counts()
assert bits(swapped, chain_feeds()) == wanted
"""


def test_no_thread_to_copy_with_is_an_error_of_that_swap_and_the_next_run_is_right():
    assert "SwapOut:t0" in child(NO_THREAD)


def test_what_a_failed_run_left_on_a_thread_that_is_gone_ends_with_the_next_run_on_any():
    reference, swapped = plain(chain(swaps=False)), session(failing_chain(), entries=SLOW)
    feeds = chain_feeds()
    for _ in range(3):
        thread = threading.Thread(target=fail, args=(swapped, feeds))
        thread.start()
        thread.join()  # of Python's part: the system's ends a little later
        assert counts().live_slots > 0
        until = time.monotonic() + 10
        while counts().live_slots and time.monotonic() < until:
            assert bits(swapped, sized(feeds)) == bits(reference, feeds)
        assert counts().live_slots == 0


def test_a_file_that_does_not_keep_the_protocol_is_refused():
    nodes = [
        swap("SwapBegin", [], "r"),
        swap("SwapOut", ["x", "r"], "t"),
        swap("SwapOutDone", ["t", "w"], "u"),  # another tensor than x
        swap("SwapIn", ["u"], "y", dtype=1, shape=[4]),
        swap("SwapInDone", ["y"], "z"),
        helper.make_node("Cast", ["z"], ["o"], to=TensorProto.FLOAT),
    ]
    shapes = {"x": [4], "w": [4]}
    feeds = {name: np.ones(4, np.float32) for name in shapes}

    def says(changed: int, node: NodeProto, said: str) -> None:
        made = [*nodes[:2], swap("SwapOutDone", ["t", "x"], "u"), *nodes[3:]]
        made[changed] = node
        with pytest.raises(Exception, match=said):
            session(model_of(made, shapes, {"o": [4]})).run(None, feeds)
        drain()

    says(2, nodes[2], "SwapOutDone reads another tensor than its SwapOut")
    wrong_type = swap("SwapIn", ["u"], "y", dtype=TensorProto.DOUBLE, shape=[4])
    says(3, wrong_type, "dtype is not the type that was swapped out")
    byte = onnx.numpy_helper.from_array(np.zeros(1, np.uint8))
    no_run = helper.make_node("Constant", [], ["r"], value=byte)
    says(0, no_run, "not of a SwapBegin")


def test_a_file_that_stores_in_room_of_another_size_is_refused():
    model = stores(store=True)
    room = next(node for node in model.graph.node if node.op_type == "StoreTo")
    next(a for a in room.attribute if a.name == "shape").ints[0] = 32
    output = next(o for o in model.graph.output if o.name == room.output[0])
    output.type.tensor_type.ClearField("shape")
    with pytest.raises(Exception, match=r"StoreTo are not those of what is stored"):
        session(model).run(None, {**store_feeds(), "x": chain_feeds(64)["x"]})
    drain()


def test_a_file_that_tells_the_dims_of_what_is_copied_in_is_refused():
    told = chain()
    told.graph.value_info.append(helper.make_tensor_value_info("y3", TensorProto.FLOAT, [96, 96]))
    with pytest.raises(Exception, match=r"must not tell the dims of what SwapIn"):
        session(told)
