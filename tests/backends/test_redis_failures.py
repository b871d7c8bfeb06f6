"""A call of the server fails in the middle of a script: nothing is half done."""

from __future__ import annotations

import os

import pytest

from tests.backends.random_calls import RandomCalls
from tests.backends.redis_failures import failing
from tests.backends.redis_store import RedisSubject, take_short_ways

SEEDS = int(os.environ.get("TREADLE_REDIS_FAILURES", "1"))
"""`make redis-failures` sets it."""
EACH = SEEDS > 1
"""Whether each call fails. If not, one of many does."""


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_script_that_fails_at_any_call_has_done_nothing_by_halves(
    seed: int, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_short_ways(monkeypatch, is_short=seed % 2 == 0)
    subject = RedisSubject(valkey_url)
    await subject.backend.open()
    await subject.stand_still()
    with failing(subject, step=1 if EACH else 11) as backend:
        calls = RandomCalls(1000 + seed, backend, subject.advance)
        for _ in range(60):
            await calls.step()
        assert backend.failures > 50
    await subject.close()
