"""Prune on Redis goes in portions: of batches, of groups, and of items that take longer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.backends.redis_store import RedisSubject
from treadle.item import Contribution, Demand, Filter, Heartbeat, Item, Settlement, Submission

KEEP = 10.0


@pytest.fixture
async def subject(valkey_url: str) -> AsyncIterator[RedisSubject]:
    subject = RedisSubject(valkey_url)
    await subject.backend.open()
    await subject.backend.beat(Heartbeat(worker="w", lease=1e9))
    yield subject
    await subject.close()


def item(id: str, **fields: Any) -> Item:
    return Item(id=id, type="work", input=b"", keep=KEEP, **fields)


async def submit(subject: RedisSubject, *items: Item) -> None:
    await subject.backend.submit([Submission(items)])


async def succeed_all(subject: RedisSubject, *children: Item, each: int = 100) -> None:
    """Claim all that is ready, and settle it, `each` in a call. The first one gets the children."""
    leases = (await subject.backend.claim(Demand(worker="w", limit=1000))).leases
    ends = [Settlement(lease=lease, kind="success", contribution=Contribution()) for lease in leases]
    if children:
        ends[0] = Settlement(lease=leases[0], kind="success", children=children)
    for first in range(0, len(ends), each):
        settled = await subject.backend.settle(ends[first : first + each])
        assert {outcome.verb for outcome in settled.outcomes} <= {"applied"}


async def prune_in_portions(subject: RedisSubject, limit: int) -> list[int]:
    """Prune until nothing is left to prune, and look at the store after each time."""
    found: list[int] = []
    while True:
        found.append(await subject.backend.prune(limit))
        assert subject.audit() == []
        if not found[-1]:
            return found[:-1]


@pytest.mark.parametrize("each", [1, 90])
async def test_a_prune_takes_no_more_than_its_limit_from_a_batch(subject: RedisSubject, each: int) -> None:
    await submit(subject, *(item(f"i{n}") for n in range(360)))
    await succeed_all(subject, each=each)
    await subject.advance(KEEP + 1)
    assert await prune_in_portions(subject, 70) == [70, 70, 70, 70, 70, 10]
    assert {"item", "state", "id", "fades", "fade", "pages", "kinds"}.isdisjoint(subject.keys())


async def test_one_prune_takes_as_many_portions_as_its_limit_allows(subject: RedisSubject) -> None:
    await submit(subject, *(item(f"i{n}") for n in range(700)))
    await succeed_all(subject, each=300)
    await subject.advance(KEEP + 1)
    assert await subject.backend.prune(650) == 650
    assert await subject.backend.prune(650) == 50


async def test_a_large_group_is_pruned_in_portions(subject: RedisSubject) -> None:
    await submit(subject, item("root"))
    await succeed_all(subject, *(item(f"m{n}", parent="root") for n in range(700)))
    await subject.advance(KEEP + 1)
    assert await subject.backend.prune() == 0
    await succeed_all(subject)
    await subject.advance(KEEP - 2)
    assert await subject.backend.prune() == 0
    await subject.advance(3)
    assert await prune_in_portions(subject, 150) == [150, 150, 150, 150, 101]
    assert {"item", "groups", "members", "children", "fades"}.isdisjoint(subject.keys())


async def test_a_group_that_opens_again_while_it_is_pruned_keeps_the_rest(subject: RedisSubject) -> None:
    backend = subject.backend
    await submit(subject, item("root"))
    await succeed_all(
        subject, *(item(f"m{n}", parent="root") for n in range(400)), item("bad", parent="root")
    )
    leases = (await backend.claim(Demand(worker="w", limit=1000))).leases
    kinds: dict[str, Any] = {"bad": "dead"}
    await backend.settle([Settlement(lease=lease, kind=kinds.get(lease.id, "success")) for lease in leases])
    await subject.advance(KEEP + 1)
    assert await backend.prune(120) == 120
    assert len((await backend.requeue(["bad"])).items) == 1
    assert await prune_in_portions(subject, 1000) == []
    await succeed_all(subject)
    await subject.advance(KEEP + 1)
    assert await backend.prune() == 282
    assert subject.audit() == []


async def test_plain_items_that_another_waits_for_are_kept(subject: RedisSubject) -> None:
    await submit(subject, *(item(f"i{n}") for n in range(50)))
    await submit(subject, item("later", after=("i7", "\x1ei9", "never"), need=3))
    await succeed_all(subject)
    await subject.advance(KEEP + 1)
    assert await prune_in_portions(subject, 1000) == [48]
    await subject.backend.cancel(["later"])
    assert await subject.backend.prune() == 2
    assert subject.audit() == []


async def test_items_with_children_and_labels_leave_nothing_behind(subject: RedisSubject) -> None:
    await submit(subject, item("parent"), *(item(f"k{n}", key=f"key{n}", workflow="flow") for n in range(5)))
    await submit(subject, item("child", parent="parent", delay=1e6))
    await submit(subject, item("other", tenant="acme"), item("parent", tenant="acme"))
    await succeed_all(subject)
    await subject.advance(KEEP + 1)
    assert await prune_in_portions(subject, 3) == [3, 3, 2]
    left = (await subject.backend.list(Filter())).items
    assert [state.id for state in left] == ["child"]
    assert {"key", "keyed", "workflows", "children"}.isdisjoint(subject.keys())
