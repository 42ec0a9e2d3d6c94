"""A file of parameters changes what it names, and nothing else."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from planner.errors import UsageError
from planner.portfolio.params import params_text, policy_of, read_params
from planner.portfolio.table import POLICY, Policy


def policy(text: str) -> Policy:
    return policy_of(tomllib.loads(text), where="params.toml")


def named(turns, name: str):
    return next((turn for turn in turns if turn.engine.name == name), None)


def test_the_default_is_printed_and_read_again():
    assert policy(params_text()) == POLICY


def test_an_engine_is_left_out_of_every_table():
    found = policy("[engines.refine]\nenabled = false\n")
    for turns, before in (
        (found.rough, POLICY.rough),
        (found.serial, POLICY.serial),
        (found.other, POLICY.other),
    ):
        assert turns == tuple(turn for turn in before if turn.engine.name != "refine")


def test_a_number_of_one_table_is_its_own():
    found = policy("[serial.guards]\nstrides = [3]\nuntil = 0.7\n[portfolio]\nnear_s = 1.5\n")
    guards = named(found.serial, "guards")
    assert (guards.engine.strides, guards.until, found.near_s) == ((3,), 0.7, 1.5)
    assert guards.engine.max_instants == named(POLICY.serial, "guards").engine.max_instants
    assert found.other == POLICY.other


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[engines.magic]", "no engine 'magic' in engines; there are anneal, "),
        ("[rough.cp-sat]", "no engine 'cp-sat' in rough"),
        ("[engines.anneal]\nuntil = 0", "engines.anneal.until is 0, not a share"),
        ("[engines.anneal]\nuntil = 1.5", "engines.anneal.until is 1.5, not a share"),
        ("[engines.anneal]\nuntil = true", "engines.anneal.until is True, not a share"),
        ("[engines.anneal]\nspeed = 1", "unknown key 'speed'"),
        ("[engines.anneal]\nenabled = 1", "engines.anneal.enabled is 1, not true or false"),
        ("[engines.anneal]\nmin_iterations = 0", "min_iterations is 0, not above 0"),
        (
            "[engines.anneal]\nmin_iterations = 1.5",
            "Expected `int`, got `float` - at `engines.anneal.min_iterations`",
        ),
        ("[engines.guards]\nstrides = []", "strides is empty"),
        ("[engines.guards]\nstrides = [0]", "strides is 0, not above 0"),
        ("[engines.guards]\nprogram_share = 2.0", "program_share is 2.0, not between 0 and 1"),
        ("[engines.cp-sat]\nmin_s = nan", "nan is not a finite number - at `engines.cp-sat.min_s`"),
        ("[portfolio]\nnear_s = inf", "inf is not a finite number - at `portfolio.near_s`"),
        ("[portfolio]\nnear_s = nan", "nan is not a finite number - at `portfolio.near_s`"),
        ("[portfolio]\nnear_s = -inf", "-inf is not a finite number - at `portfolio.near_s`"),
        (
            "[engines.guards]\nstrides = 3",
            "Expected `array`, got `int` - at `engines.guards.strides`",
        ),
        ("[portfolio]\nnear_s = -1", "portfolio.near_s is -1.0, not above 0"),
        ("[portfolio]\nnear_share = 2", "portfolio.near_share is 2.0, not between 0 and 1"),
        ("[portfolio]\nspeed = 2", "unknown key 'speed'"),
        ("engines = 1", "engines is 1, not a table"),
        ("[engines]\nanneal = 1", "engines.anneal is 1, not a table"),
        ("[speed]", "unknown table 'speed'"),
    ],
)
def test_what_makes_no_sense_is_one_clear_line(text: str, says: str):
    with pytest.raises(UsageError) as raised:
        policy(text)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["[", "a = " + "[" * 5000, "\x00"])
def test_a_file_that_is_not_toml(text: str, tmp_path: Path):
    path = tmp_path / "params.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not a file of parameters"):
        read_params(path)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(UsageError, match="nothing"):
        read_params(tmp_path / "nothing.toml")
