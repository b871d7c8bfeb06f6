"""The state machine finds planted bugs."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.test_model import PROFILE, SqliteMachine
from tests.mutants.hunt import MUTANTS


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("checks_tests")
@pytest.mark.parametrize("name", ["get_leaks", "attempt_not_counted"])
def test_a_planted_bug_makes_the_machine_fail(name: str) -> None:
    quick = settings(PROFILE, max_examples=40, phases=(Phase.generate,))
    with MUTANTS[name].planted(), pytest.raises(AssertionError, match="memory: "):
        run_state_machine_as_test(SqliteMachine, settings=quick)
