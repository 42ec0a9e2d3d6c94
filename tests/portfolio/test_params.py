"""A file of parameters changes what it names, and nothing else."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from planner.errors import UsageError
from planner.exact.policy import ExactPolicy
from planner.files.structuring import fields_of
from planner.portfolio.params import STAGES, changed_stages, params_text, policy_of, read_params
from planner.portfolio.table import POLICY, Policy


def policy(text: str) -> Policy:
    return policy_of(tomllib.loads(text), where="params.toml")


def named(turns, name: str):
    return next((turn for turn in turns if turn.engine.name == name), None)


def test_the_default_is_printed_and_read_again():
    assert policy(params_text()) == POLICY


def other_numbers(values: dict[str, Any]) -> dict[str, Any]:
    """Each number changed, to one that makes sense too."""
    return {
        key: [v / 2 if isinstance(v, float) else v + 1 for v in value]
        if isinstance(value, tuple)
        else value / 2
        if isinstance(value, float)
        else value + 1
        for key, value in values.items()
    }


@pytest.mark.parametrize("name", STAGES)
def test_every_number_of_a_stage_is_printed_and_can_be_given(name: str):
    before = fields_of(getattr(POLICY, name))
    assert set(tomllib.loads(params_text())[name]) == set(before)
    given = other_numbers(before)
    found = policy(tomli_w.dumps({name: given}))
    after = fields_of(getattr(found, name))
    assert {k: list(v) if isinstance(v, tuple) else v for k, v in after.items()} == given
    assert replace(found, **{name: getattr(POLICY, name)}) == POLICY
    assert policy(params_text(found)) == found
    assert changed_stages(found) == (name,)


def test_every_number_of_the_exact_engine_is_printed_and_can_be_given():
    before = {field.name: getattr(ExactPolicy(), field.name) for field in fields(ExactPolicy)}
    assert set(before) <= set(tomllib.loads(params_text())["serial"]["cp-sat"])
    given = other_numbers(before)
    found = policy(tomli_w.dumps({"serial": {"cp-sat": given}}))
    engine = named(found.serial, "cp-sat").engine
    for key, value in given.items():
        assert getattr(engine, key) == (tuple(value) if isinstance(value, list) else value)
    assert policy(params_text(found)) == found
    assert changed_stages(found) == ()


def test_what_is_not_given_is_as_in_the_policy_that_is_changed():
    base = policy("[race]\nmin_s = 7.0\n[portfolio]\nnear_s = 3.0\n")
    found = policy_of(
        tomllib.loads("[race]\nshare = 0.5\n[portfolio]\nlarge_ops = 9\n"), where="", base=base
    )
    assert (found.race.min_s, found.race.share) == (7.0, 0.5)
    assert (found.near_s, found.large_ops) == (3.0, 9)


def test_an_engine_is_left_out_of_every_table():
    found = policy("[engines.refine]\nenabled = false\n")
    for turns, before in (
        (found.rough, POLICY.rough),
        (found.serial, POLICY.serial),
        (found.other, POLICY.other),
    ):
        assert turns == tuple(turn for turn in before if turn.engine.name != "refine")


def test_a_number_of_one_table_is_its_own():
    found = policy("[serial.parts]\npart_stages = [7]\nuntil = 0.7\n[portfolio]\nnear_s = 1.5\n")
    parts = named(found.serial, "parts")
    assert (parts.engine.part_stages, parts.until, found.near_s) == ((7,), 0.7, 1.5)
    assert parts.engine.part_runs == named(POLICY.serial, "parts").engine.part_runs
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
        ("[engines.parts]\npart_stages = []", "part_stages is empty"),
        ("[engines.parts]\npart_stages = [0]", "part_stages is 0, not above 0"),
        ("[engines.parts]\nparts_share = 2.0", "parts_share is 2.0, not between 0 and 1"),
        ("[engines.cp-sat]\nmin_s = nan", "nan is not a finite number - at `engines.cp-sat.min_s`"),
        ("[portfolio]\nnear_s = inf", "inf is not a finite number - at `portfolio.near_s`"),
        ("[portfolio]\nnear_s = nan", "nan is not a finite number - at `portfolio.near_s`"),
        ("[portfolio]\nnear_s = -inf", "-inf is not a finite number - at `portfolio.near_s`"),
        (
            "[engines.parts]\npart_stages = 3",
            "Expected `array`, got `int` - at `engines.parts.part_stages`",
        ),
        ("[portfolio]\nnear_s = -1", "portfolio.near_s is -1.0, not above 0"),
        ("[portfolio]\nnear_share = 2", "portfolio.near_share is 2.0, not between 0 and 1"),
        ("[portfolio]\nspeed = 2", "unknown key 'speed'"),
        ("engines = 1", "engines is 1, not a table"),
        ("[engines]\nanneal = 1", "engines.anneal is 1, not a table"),
        ("[speed]", "unknown table 'speed'"),
        ("race = 1", "race is 1, not a table"),
        ("[race]\nspeed = 1", "unknown key 'speed' - at `race`"),
        ("[race]\nshare = 1.5", "race.share is 1.5, not between 0 and 1"),
        ("[race]\nrough_until = -0.1", "race.rough_until is -0.1, not between 0 and 1"),
        ("[race]\nfirst_orders = 0", "race.first_orders is 0, not above 0"),
        ("[race]\nlast_orders = 1.5", "Expected `int`, got `float` - at `race.last_orders`"),
        ("[race]\nmin_s = nan", "nan is not a finite number - at `race.min_s`"),
        ("[race]\nlever_factor = 0", "race.lever_factor is 0.0, not above 0"),
        ("[race]\nmin_s = 1e-300", "race.min_s is 1e-300, below 1e-09"),
        ("[least-peak]", "unknown table 'least-peak'; there are portfolio, race, frontier, "),
        ("[frontier]\ncompared_shares = []", "frontier.compared_shares is empty"),
        ("[frontier]\ncompared_shares = [0.5, 2]", "compared_shares is 2.0, not between 0 and 1"),
        ("[serial.cp-sat]\nfit_share = 2", "serial.cp-sat.fit_share is 2.0, not between 0 and 1"),
        ("[serial.cp-sat]\npart_stages = [0]", "serial.cp-sat.part_stages is 0, not above 0"),
        ("[serial.cp-sat]\nround_work = 0.0", "serial.cp-sat.round_work is 0.0, not above 0"),
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
