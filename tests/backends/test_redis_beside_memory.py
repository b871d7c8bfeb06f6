"""RedisBackend answers as MemoryBackend does, in random walks over all verbs."""

from __future__ import annotations

import pytest

from tests.backends.redis_store import take_short_ways
from tests.backends.redis_twin import TwinCalls
from treadle.backends.memory import transitions
from treadle.backends.redis import RedisBackend


@pytest.mark.sample(4)
@pytest.mark.parametrize("one_line", [True, False])
@pytest.mark.parametrize("seed", range(20))
async def test_random_calls_get_the_same_answers(
    seed: int, one_line: bool, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_short_ways(monkeypatch, is_short=seed % 2 == 0)
    backend = RedisBackend(valkey_url, prefix="walk", test_clock=True)
    await backend.open()
    calls = TwinCalls(seed, backend, one_line=one_line)
    monkeypatch.setattr(transitions, "after_loss", calls.backend.after_loss)
    for _ in range(150):
        await calls.step()
    await backend.close()
