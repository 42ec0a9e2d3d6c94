import pytest

from planner import errors

CODES = {
    "PlannerError": 1,
    "UsageError": 2,
    "ModelError": 3,
    "InfeasibleBudgetError": 4,
    "VerificationError": 5,
    "TimeLimitError": 6,
    "ThresholdError": 7,
    "MemoryLimitError": 8,
    "Interrupted": 130,
}


def test_every_error_is_known_and_has_its_own_exit_code():
    found = {
        name: cls.exit_code
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, errors.PlannerError)
    }
    assert found == CODES
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize("name", CODES)
def test_the_tree_at_the_top_of_the_file_is_true(name):
    line = next(x for x in (errors.__doc__ or "").splitlines() if name in x.split())
    assert str(CODES[name]) in line.split()


def test_an_infeasible_budget_says_what_was_found():
    error = errors.InfeasibleBudgetError(
        "no plan", least_peak_bytes=5, bound_bytes=3, binding=(("t", 2),)
    )
    assert (error.least_peak_bytes, error.bound_bytes, error.binding) == (5, 3, (("t", 2),))
    assert str(error) == "no plan"
