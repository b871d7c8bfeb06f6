"""kill -9 at random moments of handlers of ten steps. `python -m tests.chaos.steps` kills more often."""

from __future__ import annotations

import os
import sys

import pytest

from tests.chaos.steps import on

KILLS = int(os.environ.get("TREADLE_KILLS", "12"))
ITEMS = max(40, 2 * KILLS)


@pytest.mark.usefixtures("processes", "long_load")
@pytest.mark.timeout(300 + 10 * KILLS)
@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_killed_and_suspended_processes_leave_no_trace_in_journeys(store: str) -> None:
    report = on(store, KILLS, ITEMS, seed=4)
    sys.stdout.write(f"\n{report}")
    report.check()
    assert report.journeys >= ITEMS
    assert report.kills == KILLS
