"""What goes wrong: runs that fail half-way, sessions that close, forks, other libraries, no memory."""

from __future__ import annotations

import gc
import threading

import onnxruntime as ort
import pytest

from planner.native import counts, drain
from tests.native.graphs import (
    Feeds,
    bits,
    chain,
    chain_feeds,
    failing_chain,
    plain,
    session,
    sized,
)

SLOW = {"planner.check_swaps": "1", "planner.link_mbps": "20"}
FAILS = (ort.capi.onnxruntime_pybind11_state.Fail, RuntimeError)


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
        drained = threading.Event()
        drained.wait(0.05)  # its copies end on their own
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
