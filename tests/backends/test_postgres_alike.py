"""Items that differ only in their ids and inputs, which PostgreSQL stores by a shorter statement."""

from __future__ import annotations

import pytest

from tests.backends.postgres_store import opened
from treadle.item import Demand, Heartbeat, Item, Rejected, Submission

SORTED = [f"{n:04}" for n in range(20)]
ORDERS = {"sorted": SORTED, "reversed": SORTED[::-1], "mixed": SORTED[1::2] + SORTED[::2]}


def items(ids: list[str], **fields: object) -> tuple[Item, ...]:
    return tuple([Item(id=id, type="work", input=id.encode(), **fields) for id in ids])  # type: ignore[arg-type]


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("order", ORDERS)
async def test_items_keep_the_order_of_submission(warm_url: str, order: str, alike: bool) -> None:
    async with opened(warm_url) as backend:
        await backend.beat(Heartbeat(worker="w", lease=60.0))
        (answer,) = await backend.submit([Submission(items(ORDERS[order]), alike=alike)])
        assert not isinstance(answer, Rejected)
        assert [one.id for one in answer] == ORDERS[order]
        leases = (await backend.claim(Demand(worker="w", limit=100))).leases
        assert [(lease.id, lease.input) for lease in leases] == [(id, id.encode()) for id in ORDERS[order]]


async def test_submissions_that_differ_from_each_other_are_told_apart(warm_url: str) -> None:
    async with opened(warm_url) as backend:
        first = Submission(items(["a", "b"]), alike=True)
        second = Submission(items(["c", "d"], priority=9, queue="fast", delay=3600.0), alike=True)
        await backend.submit([first, second])
        states = await backend.get(["a", "b", "c", "d"])
        found = [(one.status, one.priority, one.queue) for one in states if one is not None]
        assert found == [("ready", 0, "default")] * 2 + [("scheduled", 9, "fast")] * 2


async def test_alike_items_that_are_not_plain_are_stored_as_such(warm_url: str) -> None:
    async with opened(warm_url) as backend:
        await backend.submit([Submission(items(["a", "b"], after=("x",), need=1), alike=True)])
        states = await backend.get(["a", "b"])
        assert [one.status for one in states if one is not None] == ["blocked", "blocked"]


@pytest.mark.parametrize("order", ORDERS)
async def test_an_id_that_is_taken_refuses_all(warm_url: str, order: str) -> None:
    async with opened(warm_url) as backend:
        await backend.submit([Submission(items(["0007"]))])
        taken, free = await backend.submit(
            [Submission(items(ORDERS[order]), alike=True), Submission(items(["free", "gratis"]), alike=True)]
        )
        assert taken == Rejected("duplicate_id", ("0007",))
        assert not isinstance(free, Rejected)
        states = await backend.get(SORTED)
        assert [one.id for one in states if one is not None] == ["0007"]
