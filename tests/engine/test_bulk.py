"""Bulk actions: `app.bulk` changes many items in the background, portion by portion."""

from __future__ import annotations

import pytest

from tests.engine.kit import PATIENCE, MakeApp
from treadle import Abort, Client, NotFound, Treadle, work
from treadle.bulk_action import BulkState

BAD: set[int] = set()


@work(name="ship", keep=600)
async def ship(n: int) -> int:
    if n in BAD:
        raise Abort(ValueError(f"no {n}"))
    return n


@pytest.fixture(autouse=True)
def all_good() -> None:
    BAD.clear()


async def die(app: Treadle, *numbers: int) -> None:
    """Leave dead items behind, which would succeed if they ran again."""
    BAD.update(numbers)
    await app.enqueue_many([ship(n) for n in numbers])
    await app.worker.drain()
    BAD.clear()


async def ended(app: Client, action: BulkState) -> BulkState:
    await app.handle(action.id).group(PATIENCE)
    state = await app.bulk.state(action.id)
    assert state is not None
    return state


async def statuses(app: Client) -> dict[str, int]:
    found: dict[str, int] = {}
    for count in await app.counts(ended=True):
        if count.type == "ship":
            found[count.status] = found.get(count.status, 0) + count.count
    return found


async def test_two_thousand_dead_items_are_requeued(make_app: MakeApp, sound: None) -> None:
    async with make_app(ship, log_failures=False) as app:
        await die(app, *range(2000))
        await app.enqueue(ship(7), delay=600)
        action = await app.bulk.start("requeue", type="ship")
        assert (action.total, action.more, action.where, action.tenant) == (2000, False, "type:ship", None)
        state = await ended(app, action)
        assert (state.state, state.matched, state.changed, state.skipped) == ("done", 2000, 2000, {})
        await app.worker.drain()
        assert await statuses(app) == {"success": 2000, "scheduled": 1}
        assert [each.id for each in await app.bulk.list()] == [action.id]
        assert await app.bulk.state("none") is None
        with pytest.raises(NotFound, match="bulk action"):
            await app.bulk.stop("none")
