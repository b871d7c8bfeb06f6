"""PostgreSQL is stopped below busy workers: what they log. `make outage` does it for longer."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.outage import outage, own_home
from tests.support import postgres


async def test_an_outage_is_a_few_lines_per_process_and_no_traceback(run_directory: Path) -> None:
    home = own_home(run_directory)
    try:
        log = await outage(home, seconds=5, processes=2)
    finally:
        postgres.stop(home)
    assert not log.others, log.text
    assert len(log.by_process) == 3, log.text
    assert log.most_per_minute() <= 5, log.text
    assert "Traceback" not in log.text
    assert log.text.count("is unavailable, trying again") == 3
    assert "steady" in log.text  # what was stopped is named
