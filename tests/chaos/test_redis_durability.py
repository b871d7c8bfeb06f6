"""A sample of `make redis-durability`: one kill of each kind."""

from pathlib import Path

import pytest

from tests.chaos.redis_durability import cut_log, fail_over, kill_server


async def test_nothing_is_lost_with_a_server_that_syncs_always(valkey_home: Path) -> None:
    report = await kill_server(valkey_home, "always", kills=1, seed=1)
    assert report.is_good, report
    assert report.tally.settlements


async def test_what_is_left_of_a_log_is_whole(valkey_home: Path) -> None:
    """Wherever a loss of power cuts it: a script is in the log as a whole, or not at all."""
    report = await cut_log(valkey_home, cuts=5, seed=1)
    assert report.is_good, report
    assert report.tally.settlements


@pytest.mark.parametrize("replicas", [0, 1])
async def test_a_failover_keeps_what_replicas_have_acknowledged(valkey_home: Path, replicas: int) -> None:
    """Without `replicas`, what the replica did not have is lost. What is left is whole, and leases of what
    was lost are refused."""
    report = await fail_over(valkey_home / f"{replicas}", replicas, kills=1, seed=2)
    assert report.is_good, report
    assert report.tally.settlements
