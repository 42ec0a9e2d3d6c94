"""A rewritten model trains for some hundred steps as the original does, in the same memory."""

from __future__ import annotations

from tests.reliability.long_run import PLANS, table, train


def test_every_step_is_the_original_s_bit_for_bit_and_memory_is_flat():
    data = train(400, time_limit_s=6.0)
    assert data["steps_that_differ"] == dict.fromkeys(PLANS, 0)
    assert data["last_loss"] < 0.5 * data["first_loss"]
    assert data["most_mib"] - data["least_mib"] < 2.0
    assert "| recompute | 70% | 400 | 0 |" in table(data)
