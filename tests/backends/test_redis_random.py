"""Random calls of every verb keep the keys of a Redis store consistent, and leave nothing behind."""

from __future__ import annotations

import pytest

from tests.backends.random_calls import RandomCalls
from tests.backends.redis_audit import COUNTERS
from tests.backends.redis_store import RedisSubject, take_short_ways

LEFT = {*COUNTERS, "meta", "shift", "audits", "held", "releases", "orders"}
"""What an empty store has. The audit looks into `held`. Of orders the version stays."""


@pytest.mark.sample(10)
@pytest.mark.parametrize("seed", range(40))
async def test_random_verbs_keep_the_keys_consistent(
    seed: int, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit runs after each verb. In the end all items are done and pruned, and all keys are gone."""
    take_short_ways(monkeypatch, is_short=seed % 2 == 0)
    subject = RedisSubject(valkey_url)
    await subject.backend.open()
    calls = RandomCalls(seed, subject.backend, subject.advance)
    for step in range(150):
        verb = await calls.step()
        assert subject.audit() == [], (step, verb)
    await calls.finish()
    assert subject.audit() == []
    assert {*subject.keys()} - LEFT == set()
    await subject.close()
