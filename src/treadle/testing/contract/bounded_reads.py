"""Bounded reads: lists that look at a limited number, lines of a queue, what has to do with an item."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

import pytest
from msgspec.structs import replace

from treadle.backend import Backend
from treadle.item import Filter, Page
from treadle.records import Line, RelatedItem

from .build import (
    apply,
    cancel,
    claim,
    claim_ids,
    dependent,
    die,
    end,
    item,
    items,
    near,
    only,
    start_one,
    submit,
    succeed,
    verdicts,
    whole,
)
from .subject import Subject, needs

FILTERS: Final = (
    Filter(),
    Filter(type="mail"),
    Filter(type="none"),
    Filter(queue="bulk", tenant="acme"),
    Filter(workflow="w"),
    Filter(workflow="w", status=("dead",)),
    Filter(workflow="w", tenant="default", type="mail"),
    Filter(key="k"),
    Filter(key="k", status=("success",)),
    Filter(group_id="root"),
    Filter(group_id="root", type="mail"),
    Filter(status=("ready",), type="mail"),
    Filter(status=("scheduled",), tenant="acme"),
    Filter(status=("blocked", "running")),
    Filter(status=("dead",)),
    Filter(status=("dead",), type="mail", reason="aborted"),
    Filter(reason="aborted", tenant="acme"),
    Filter(mark="m", tenant="acme"),
    Filter(status=("success",)),
    Filter(status=("success",), type="mail"),
    Filter(status=("cancelled",), queue="bulk"),
    Filter(status=("success", "dead"), type="mail"),
    Filter(status=("ready", "success"), type="mail"),
    Filter(failed_group=True, type="mail"),
    Filter(killing=True, tenant="acme"),
    Filter(type="mail", since=1.0, until=1e12),
    Filter(status=("success",), since=1.0),
    Filter(until=1.0),
)


async def fill(backend: Backend) -> None:
    """Items of each status, with all labels."""
    for n in range(4):
        labels: dict[str, Any] = {"tenant": ("default", "acme")[n % 2], "queue": ("default", "bulk")[n // 2]}
        for type in ("work", "mail"):
            await end(backend, item(type=type, workflow="w", **labels))
            if n < 2:
                await end(backend, item(type=type, key="k", **labels))
            await end(backend, item(type=type, workflow="w", **labels), how=die)
            await end(backend, item(type=type, **labels), how=cancel)
        await submit(backend, item(delay=100, **labels), dependent("none", type="mail", **labels))
    lease = await start_one(backend, item("root"))
    await apply(backend, succeed(lease, *items(3, type="mail"), item(type="work")))
    (lease,) = await claim(backend, 1)
    await apply(backend, replace(die(lease), mark="m"))
    await submit(backend, item(type="mail"), item(type="mail", tenant="acme"))


async def walk(backend: Backend, where: Filter, **options: Any) -> AsyncGenerator[Page]:
    cursor: str | None = None
    while True:
        page = await backend.list(where, cursor=cursor, **options)
        yield page
        cursor = page.cursor
        if cursor is None:
            return


class ReachCases:
    @needs("watching")
    @pytest.mark.parametrize("oldest_first", [False, True])
    async def test_pages_with_a_reach_show_what_others_show(
        self, backend: Backend, oldest_first: bool
    ) -> None:
        """For any filter: each item once, in the same order. A page that is short and not the last one says
        how far it has looked."""
        await fill(backend)
        for where in FILTERS:
            whole = await backend.list(where, limit=1000, oldest_first=oldest_first)
            for limit, reach in ((3, 4), (2, 1), (5, 1000)):
                seen: list[str] = []
                pages = walk(backend, where, limit=limit, oldest_first=oldest_first, reach=reach)
                async for page in pages:
                    seen += [each.id for each in page.items]
                    short = len(page.items) < limit and page.cursor is not None
                    assert (page.reached_at is not None) is short, (where, limit, reach)
                assert seen == [each.id for each in whole.items], (where, limit, reach)

    @needs("watching")
    async def test_a_rare_item_is_reached_by_going_on(self, subject: Subject) -> None:
        """Also if items are added and removed meanwhile."""
        backend = subject.backend
        await end(backend, item("rare", type="mail"))
        for _ in range(3):
            await subject.advance(100)
            await end(backend, *items(10))
        where = Filter(type="mail", status=("success",))
        first = await backend.list(where, reach=10)
        assert (first.items, first.reached_at) == ((), near(await backend.now()))
        assert first.cursor is not None
        await backend.delete([each.id for each in (await backend.list(Filter(), limit=12)).items])
        await end(backend, *items(5))
        found: list[str] = []
        reached: list[float] = [first.reached_at or 0.0]
        steps = 0
        cursor: str | None = first.cursor
        while cursor is not None:
            page = await backend.list(where, reach=10, cursor=cursor)
            found += [each.id for each in page.items]
            reached += [page.reached_at] if page.reached_at is not None else []
            cursor, steps = page.cursor, steps + 1
        assert found == ["rare"]
        assert reached == sorted(reached, reverse=True)
        assert steps >= 2


class LineCases:
    @needs("watching")
    async def test_lines_of_a_queue(self, subject: Subject) -> None:
        """By tenant and lane, with what is handed out next and since when it waits. Parked items belong to
        their lines; items that are not ready, and other queues, do not."""
        backend = subject.backend
        await submit(backend, item("a", lane="x"), item("strange", type="gone", lane="x"))
        await subject.advance(10)
        await submit(backend, item("b", lane="x"), item("urgent", lane="y", priority=5), item("c", lane="y"))
        await submit(backend, item("d", tenant="acme"), item(queue="bulk"), item(delay=100, lane="z"))
        await submit(backend, dependent("none", lane="z"))
        now = await backend.now()
        expected = [("acme", "", 1, "d", 0), ("default", "x", 3, "a", 10), ("default", "y", 2, "urgent", 0)]
        found = await backend.lines("default")
        assert [(each.tenant, each.lane, each.count, each.first) for each in found] == [
            each[:4] for each in expected
        ]
        assert [now - each.oldest_ready for each in found] == [near(each[4]) for each in expected]
        assert not any(each.capped for each in found)
        taken = await claim_ids(backend, types={"work": 100}, tenants=("default",), queues=("default",))
        assert sorted(taken) == ["a", "b", "c", "urgent"]
        await submit(backend, item("e", lane="x"))
        parked = only(await backend.lines("default", tenant="default"))
        assert (parked.lane, parked.count, parked.first) == ("x", 2, "strange")
        assert now - parked.oldest_ready == near(10)
        assert [each.tenant for each in await backend.lines("default", tenant="acme")] == ["acme"]
        assert await backend.lines("default", tenant="other") == []
        assert await backend.lines("nothing") == []

    @needs("watching")
    async def test_items_that_can_only_end_are_in_no_line(self, subject: Subject) -> None:
        """Neither before a worker has them, nor while it ends them."""
        backend = subject.backend
        await submit(backend, item("a"), item("late", expires_in=5.0), item("b"))
        await subject.advance(10)
        assert await verdicts(backend) == {"late": "expired"}
        assert [each.count for each in await backend.lines("default")] == [2]

    @needs("watching")
    async def test_lines_are_cut(self, backend: Backend) -> None:
        """After `count` lines, and `cap` items of each."""
        for lane in ("a", "b", "c"):
            await submit(backend, *items(5, lane=lane))
        found = await backend.lines("default", count=2, cap=3)
        assert [(each.lane, each.count, each.capped) for each in found] == [("a", 3, True), ("b", 3, True)]
        whole = await backend.lines("default", cap=5)
        assert [(each.lane, each.count, each.capped) for each in whole] == [
            ("a", 5, False),
            ("b", 5, False),
            ("c", 5, False),
        ]
        assert all(isinstance(each, Line) for each in whole)


class RelatedCases:
    @needs("watching")
    async def test_children_and_dependents(self, backend: Backend) -> None:
        """In the order of submission, of the item's own tenant."""
        await submit(backend, item("root"), item("root", tenant="acme"))
        await submit(backend, dependent("root", id="after", type="mail"), dependent("other", id="not"))
        await submit(backend, dependent("root", id="after", tenant="acme"))
        await submit(backend, dependent(whole("root"), id="after-group"))
        lease = only([each for each in await claim(backend) if each.tenant == "default"])
        await apply(backend, succeed(lease, item("one"), item("two", type="mail", delay=100)))
        found = await backend.related("root", tenant="default")
        assert found is not None
        assert found.children == (
            RelatedItem("one", "work", "ready"),
            RelatedItem("two", "mail", "scheduled"),
        )
        assert found.dependents == (
            RelatedItem("after", "mail", "ready"),
            RelatedItem("after-group", "work", "blocked"),
        )
        assert await backend.related("root") == found
        cut = await backend.related("root", count=1)
        assert cut is not None
        assert (cut.children, cut.dependents) == (found.children[:1], found.dependents[:1])
        other = await backend.related("root", tenant="acme")
        assert other is not None
        assert ([each.id for each in other.children], [each.id for each in other.dependents]) == (
            [],
            ["after"],
        )
        assert await backend.related("root", tenant="other") is None
        assert await backend.related("none") is None
        alone = await backend.related("two")
        assert alone is not None
        assert (alone.children, alone.dependents) == ((), ())

    @needs("watching")
    async def test_an_item_that_names_its_parent_is_its_child(self, backend: Backend) -> None:
        """Although it was submitted on its own."""
        await end(backend, item("old"), how=die)
        await submit(backend, item("new", parent="old"), item("new", parent="old", tenant="acme"))
        found = await backend.related("old")
        assert found is not None
        assert found.children == (RelatedItem("new", "work", "ready"),)
