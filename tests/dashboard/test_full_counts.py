"""Full counts: what a page has no time to count is counted beside requests, once for all who look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import ClassVar, cast

import httpx
import pytest

from tests.dashboard.conftest import AS_JSON, Visitor
from tests.dashboard.jobs import send
from tests.support.sqlite import empty_store
from treadle import Treadle
from treadle.backends.sqlite import SqliteBackend, watch
from treadle.dashboard import counting
from treadle.dashboard.counting import COUNT_EVERY, FullCounts, with_counts
from treadle.item import Count
from treadle.item_facts import Overview, UnservedType
from treadle.testing.counting import CountingBackend

ITEMS, OF_ANA = 300, 230
FRAGMENT = {"x-fragment": "main"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountingBackend:
    """It has no time for a quick overview: that counts a hundred items of each queue."""
    monkeypatch.setattr(watch, "QUICK_SECONDS", 0.0)
    return CountingBackend(SqliteBackend(empty_store(tmp_path / "work.db")))


@pytest.fixture
async def app(store: CountingBackend) -> AsyncGenerator[Treadle]:
    app = Treadle(store, work=[send])
    await app.tenant("ana").enqueue_many([send("a") for _ in range(OF_ANA)])
    await app.tenant("bob").enqueue_many([send("b") for _ in range(ITEMS - OF_ANA)])
    yield app
    await app.close()


async def test_a_page_is_there_at_once_and_exact_when_all_is_counted(app: Treadle, visitor: Visitor) -> None:
    browser = visitor(app)
    first = await browser.get("/queues")
    assert "≈" in first.text
    assert str(ITEMS) not in first.text
    await _counted(browser)
    for path in ("/", "/queues", "/queues/default", "/types", "/types/mail.send"):
        text = (await browser.get(path)).text
        assert ("≈" in text, str(ITEMS) in text) == (False, True), path
    assert "≈" not in str((await browser.get("/menu")).json())
    text = (await browser.get("/tenants")).text
    assert (str(OF_ANA) in text, str(ITEMS - OF_ANA) in text) == (True, True)
    of_ana = (await visitor(app, tenants=["ana"]).get("/queues")).text
    assert str(ITEMS) not in of_ana


async def test_the_pages_of_a_tenant_count_its_items(app: Treadle, visitor: Visitor) -> None:
    browser = visitor(app, tenants=["ana"])
    queues = (await browser.get("/queues", headers=AS_JSON)).json()["queues"]
    assert queues[0]["ready"] == {"count": OF_ANA, "estimated": False}


async def test_a_program_waits_until_all_is_counted(app: Treadle, visitor: Visitor) -> None:
    browser = visitor(app)
    assert "≈" in (await browser.get("/queues")).text  # what a browser was told is not told to a program
    (queue,) = (await browser.get("/queues", headers=AS_JSON)).json()["queues"]
    assert queue["ready"] == {"count": ITEMS, "estimated": False}


async def test_of_more_than_a_million_a_page_says_an_estimate(
    app: Treadle, store: CountingBackend, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "MOST_EXACT", 50)
    monkeypatch.setattr(watch, "COUNTING_SECONDS", 0.0)
    browser = visitor(app)
    (queue,) = (await browser.get("/queues", headers=AS_JSON)).json()["queues"]
    assert queue["ready"]["estimated"]
    assert "≈" in (await browser.get("/queues")).text
    assert store.calls["counts"] == 0


async def test_open_pages_are_told_when_all_is_counted(app: Treadle) -> None:
    told: list[int] = []
    counts = FullCounts(app, lambda: told.append(1))
    assert await counts.get(0) is None
    full = await counts.get(5.0)
    assert full is not None
    assert sum(each.count for each in full.counts) == ITEMS
    assert told == [1]


async def test_fifty_tabs_cost_one_count_in_a_while(app: Treadle, store: CountingBackend) -> None:
    now = 0.0
    counts = FullCounts(app, lambda: None, clock=lambda: now)
    store.reset()
    for number in range(1, 4):
        for _ in range(5):
            await asyncio.gather(*(counts.get(5.0) for _ in range(50)))
            now += COUNT_EVERY / 5.1
        assert store.calls["counts"] == number
        now += 2 * COUNT_EVERY
        assert counts.fresh is None  # nobody has looked for a while


async def test_a_type_without_workers_is_found_beyond_a_brief_look() -> None:
    """Some stores look at the first items of each queue then."""

    class Store:
        asked: ClassVar[list[bool]] = []

        async def overview(self, *, quick: bool, brief: bool = False) -> Overview:
            self.asked.append(brief)
            return Overview(now=1.0, unserved=() if brief else (UnservedType("t", 3, 0.5),))

        async def counts(self) -> list[Count]:
            return [Count("a", "default", "t", "ready", 3)]

    now = 0.0
    counts = FullCounts(cast("Treadle", Store()), lambda: None, clock=lambda: now)
    first = await counts.get(5.0)
    now = COUNT_EVERY
    await counts.get(0.0)
    for _ in range(10):
        await asyncio.sleep(0)
    found = counts.fresh
    assert found is not None
    assert found is not first
    assert [each.type for each in found.unserved] == ["t"]
    assert Store.asked == [False, True, False]


async def test_a_change_here_makes_what_was_counted_old(app: Treadle, visitor: Visitor) -> None:
    browser = visitor(app)
    await _counted(browser)
    answer = await browser.post("/orders/pause", data={"queue": "default"})
    assert answer.status_code == 303
    assert "≈" in (await browser.get("/queues")).text


def test_what_was_counted_takes_the_place_of_estimates_only() -> None:
    quick = Overview(
        now=1.0,
        counts=(
            Count("a", "bulk", "t", "ready", 1000, True),
            Count("a", "default", "t", "ready", 3),
            Count("a", "default", "t", "running", 2),
        ),
        unserved=(UnservedType("t", 900, None), UnservedType("u", 4, None)),
    )
    counts = (
        Count("a", "bulk", "t", "ready", 1234),
        Count("a", "default", "t", "ready", 5),
        Count("a", "default", "t", "running", 9),
        Count("a", "default", "t", "dead", 7),
        Count("b", "bulk", "t", "ready", 55),
        Count("b", "bulk", "v", "ready", 2),
    )
    unserved = UnservedType("t", 1, 5.0), UnservedType("v", 1, 7.0), UnservedType("w", 1, None)
    full = Overview(now=0.5, counts=counts, unserved=unserved)
    found = with_counts(quick, full, "a")
    assert found.counts == (counts[0], *quick.counts[1:])
    assert found.unserved == (UnservedType("t", 1237, None), UnservedType("u", 4, None))
    found = with_counts(quick, full, None)
    assert found.counts == (counts[0], *quick.counts[1:], *counts[4:])
    assert found.unserved == (
        UnservedType("t", 1292, None),
        UnservedType("u", 4, None),
        UnservedType("v", 2, 7.0),
    )


async def test_what_is_counted_beside_requests_is_not_estimated_by_a_page(
    app: Treadle, store: CountingBackend, visitor: Visitor
) -> None:
    """A page reads what there is little of anew: it is not as old as the counts."""
    browser = visitor(app)
    await _counted(browser)
    await app.tenant("bob").enqueue(send("c"), queue="other")
    text = (await browser.get("/queues?n=2")).text
    assert ("≈" in text, str(ITEMS) in text, "other" in text) == (False, True, True)
    assert store.calls["counts"] == 1


async def _counted(browser: httpx.AsyncClient) -> None:
    """Wait until an open page is told, as its browser is."""
    for _ in range(500):
        if "≈" not in (await browser.get("/queues", headers=FRAGMENT)).text:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nothing was counted")
