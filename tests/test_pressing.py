"""Ctrl-C in the tests' own process: heard within the block, never after it, and not lost to a solver."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from reports.solver.baselines.moccasin_cp import solve_moccasin
from reports.solver.synthetic import irregular
from tests.graphs import between
from tests.pressing import ctrl_c_pressed, kills


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.default_int_handler])
def test_it_is_pressed_until_the_block_is_left_and_all_is_as_before(before):
    own = signal.signal(signal.SIGINT, before)
    try:
        heard = 0
        with pytest.raises(KeyboardInterrupt), ctrl_c_pressed(0.0):
            while True:
                try:
                    time.sleep(60)
                except KeyboardInterrupt:
                    heard += 1
                    if heard == 2:
                        raise
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, own)


def test_a_process_that_ctrl_c_kills_is_told_from_others():
    told = "import signal; from tests.pressing import kills; "
    for handler, expected in (("SIG_DFL", True), ("SIG_IGN", False)):
        code = f"{told}signal.signal(signal.SIGINT, signal.{handler}); print(kills())"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [str(expected)]


def test_the_published_program_leaves_ctrl_c_to_python():
    could_die = kills()
    solve_moccasin(between(irregular(10), 0.5), time_limit_s=2.0)
    assert kills() is could_die
