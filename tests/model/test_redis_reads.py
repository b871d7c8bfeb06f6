"""What operators read from Redis is what they read from memory, after every step of random programs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from tests.model import values as v
from tests.model.compare import plain
from tests.model.machine import BackendMachine
from tests.model.test_model import LONG, PROFILE, record_run
from treadle.backend import Backend
from treadle.item import Filter, ItemState, Lease


@pytest.mark.timeout(0 if LONG else 600)
def test_operators_read_from_redis_what_they_read_from_memory(clocked_redis: Any) -> None:
    class RedisReadMachine(BackendMachine):
        async def connect(self) -> Backend:
            return await clocked_redis.open(self.clock)

        async def clock_moved(self) -> None:
            await clocked_redis.set(self.clock.now())

        async def disconnect(self) -> None:
            await clocked_redis.close(self.other)

        def _settlement(self, draw: Any, lease: Lease) -> dict[str, Any]:
            return super()._settlement(draw, lease) | {"mark": draw(st.sampled_from(("", "m", "n")))}

        @rule(where=v.filters, limit=st.integers(1, 4), reach=st.integers(1, 6), oldest_first=st.booleans())
        def list_with_reach(self, where: Filter, limit: int, reach: int, oldest_first: bool) -> None:
            self.both(lambda backend, _: _reached(backend, where, limit, reach, oldest_first))

        @invariant()
        def operators_read_the_same(self) -> None:
            self.both(lambda backend, _: _read_for_operators(backend))

    # Everything is read after each step: a program takes four seconds.
    few = PROFILE if LONG else settings(PROFILE, max_examples=4)
    run_state_machine_as_test(RedisReadMachine, settings=few)
    record_run("model reads of Redis")


async def _reached(backend: Backend, where: Filter, limit: int, reach: int, oldest_first: bool) -> Any:
    """All items, with their history. How far a page looks is the backend's own choice."""
    found: list[ItemState] = []
    cursor: str | None = None
    while True:
        page = await backend.list(
            where, limit=limit, cursor=cursor, oldest_first=oldest_first, history=True, reach=reach
        )
        assert (page.reached_at is not None) is (len(page.items) < limit and page.cursor is not None)
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found


async def _read_for_operators(backend: Backend) -> Any:
    listed = (await backend.list(Filter(), limit=1000, oldest_first=True)).items
    found: list[Any] = []
    for tenant in (None, *v.TENANTS):
        ids = sorted({state.id for state in listed if tenant in (None, state.tenant)})
        found += [await backend.explain(id, tenant=tenant) for id in ids]
        found += [await backend.related(id, tenant=tenant, count=2) for id in ids]
        overview = await backend.overview(tenant=tenant)
        found.append(msgspec.structs.replace(overview, workers=(), ages=()))
        found.append([age.queue for age in overview.ages])
        found.append([plain(worker) for worker in overview.workers])
        found += [list(await backend.lines(queue, tenant=tenant, count=3, cap=2)) for queue in v.QUEUES]
        marks = await backend.marks(tenant=tenant, cap=2)
        found.append(sorted((each.mark, each.count, each.capped, each.oldest_queued_at) for each in marks))
        found.append([each.last_at for each in marks])
    return found
