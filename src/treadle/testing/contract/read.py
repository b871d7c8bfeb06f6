"""Get, ended, list, counts and now."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.backend import Backend
from treadle.errors import InputError
from treadle.item import Count, Filter, ItemState

from .build import (
    apply,
    cancel,
    claim,
    claim_one,
    contribute,
    dependent,
    die,
    end,
    item,
    items,
    near,
    only,
    retry,
    start,
    start_one,
    submit,
    succeed,
)
from .check import consistent, everything
from .subject import Subject, needs


async def ids(backend: Backend, **where: Any) -> list[str]:
    return [one.id for one in await everything(backend, **where)]


class ReadCases:
    async def test_get_answers_in_the_order_of_the_request(self, backend: Backend) -> None:
        """None for a missing id. A repeated id is answered each time."""
        await submit(backend, item("a"), item("b"))
        found = await backend.get(["b", "missing", "a", "b"])
        assert [one and one.id for one in found] == ["b", None, "a", "b"]
        assert list(await backend.get([])) == []

    async def test_get_reads_a_thousand_items(self, backend: Backend) -> None:
        """A thousand at once."""
        new = items(1000)
        await submit(backend, *new)
        found = await backend.get([one.id for one in reversed(new)])
        assert [one and one.id for one in found] == [one.id for one in reversed(new)]

    async def test_ended_reports_ended_and_missing_items(self, backend: Backend) -> None:
        """One read covers everything that a process waits for. Open items are in neither set."""
        first, second = await start(backend, item("done"), item("half"))
        await apply(backend, contribute(first, b"v"), succeed(second, item("child")))
        await submit(backend, item("open"))
        refs = [("default", name) for name in ("done", "half", "open", "missing")]
        found = await backend.ended(refs, refs)
        assert {ref: one.status for ref, one in found.items.items()} == {
            ("default", "done"): "success",
            ("default", "half"): "success",
        }
        assert {ref: one.value for ref, one in found.groups.items()} == {("default", "done"): b"v"}
        assert found.missing == {("default", "missing")}

    async def test_ended_shows_results_and_failures(self, backend: Backend) -> None:
        """A waiter needs the result, or the reason why there is none."""
        await end(backend, item("dead"), how=die)
        await end(backend, item("good"))
        found = await backend.ended([("default", "dead"), ("default", "good")], [("default", "dead")])
        dead = found.items["default", "dead"]
        assert (dead.reason, dead.error, dead.error_type) == ("aborted", "Oops: no", "Oops")
        assert found.items["default", "good"].result == b"result"
        assert [one.id for one in found.groups["default", "dead"].deaths] == ["dead"]

    async def test_ended_reports_a_member_as_a_missing_group(self, backend: Backend) -> None:
        """The id of an item that is not a root is not a group."""
        await apply(backend, succeed(await start_one(backend, item("root")), item("child")))
        found = await backend.ended([], [("default", "child"), ("default", "root")])
        assert found.missing == frozenset({("default", "child")})
        assert not found.groups

    async def test_ended_accepts_no_ids(self, backend: Backend) -> None:
        """Nothing asked, nothing answered."""
        found = await backend.ended([], [])
        assert (dict(found.items), dict(found.groups), found.missing) == ({}, {}, frozenset())


class ListCases:
    @needs("listing")
    async def test_list_is_newest_first_by_default(self, backend: Backend) -> None:
        """The order is that of submission. Children are submitted by their parent's settlement."""
        lease = await start_one(backend, item("a"))
        await submit(backend, item("b"), item("c"))
        await apply(backend, succeed(lease, item("d")))
        page = await backend.list(Filter())
        assert [one.id for one in page.items] == ["d", "c", "b", "a"]
        assert page.cursor is None
        page = await backend.list(Filter(), oldest_first=True)
        assert [one.id for one in page.items] == ["a", "b", "c", "d"]

    @needs("listing")
    async def test_list_shows_what_get_shows(self, backend: Backend) -> None:
        """Except for the history and `waiting_for`, which are there only if asked for."""
        first, second = await start(backend, item("a", workflow="w", key="k"), item("b"))
        await apply(backend, retry(first, 100), succeed(second))
        await submit(backend, dependent("x", id="c"))
        for listed in await everything(backend):
            read = only(await backend.get([listed.id]))
            assert isinstance(read, ItemState)
            assert (listed.history, listed.waiting_for) == ((), ())
            read.history, read.waiting_for = (), ()
            assert listed == read

    @needs("watching")
    async def test_list_shows_the_history_if_asked(self, backend: Backend) -> None:
        """As `get` shows it, of each item of the page."""
        first, second = await start(backend, item("a"), item("b"))
        await apply(backend, retry(first, message="one"), succeed(second))
        await apply(backend, retry(await claim_one(backend), message="two"))
        await apply(backend, die(await claim_one(backend)))
        await submit(backend, dependent("x", id="c"))
        page = await backend.list(Filter(), history=True, oldest_first=True)
        assert [one.id for one in page.items] == ["a", "b", "c"]
        assert page.items[2].waiting_for == ("x",)
        assert [attempt.message for attempt in page.items[0].history] == ["one", "two", "no"]
        for listed, read in zip(page.items, await backend.get(["a", "b", "c"]), strict=True):
            assert listed == read
        page = await backend.list(Filter(status=("dead",)), history=True)
        assert [len(one.history) for one in page.items] == [3]

    @needs("listing")
    async def test_list_filters_by_each_field(self, backend: Backend) -> None:
        """Every field of the filter, alone."""
        await submit(backend, item("a", "mail", queue="bulk"), item("b", workflow="w"), item("c", key="k"))
        await submit(backend, item("d", tenant="acme"))
        await end(backend, item("e"), how=die)
        assert await ids(backend, type="mail") == ["a"]
        assert await ids(backend, queue="bulk") == ["a"]
        assert await ids(backend, workflow="w") == ["b"]
        assert await ids(backend, key="k") == ["c"]
        assert await ids(backend, tenant="acme") == ["d"]
        assert await ids(backend, status=("dead",)) == ["e"]
        assert await ids(backend, reason="aborted") == ["e"]
        assert await ids(backend, reason="expired") == []
        assert await ids(backend, type="nothing") == []

    @needs("listing")
    async def test_list_by_reason_matches_only_dead_items(self, backend: Backend) -> None:
        """Also when the filter names other statuses."""
        await end(backend, item("a"), how=die)
        assert await ids(backend, status=("dead", "ready"), reason="aborted") == ["a"]
        assert await ids(backend, status=("success", "ready"), reason="aborted") == []
        assert await ids(backend, status=("cancelled",), reason="aborted") == []

    @needs("listing")
    async def test_list_matches_any_of_several_statuses(self, backend: Backend) -> None:
        """No statuses mean every status."""
        await submit(backend, item("ready"), item("scheduled", delay=100), dependent("x", id="blocked"))
        await start(backend, item("running"))
        await end(backend, item("success"))
        await end(backend, item("dead"), how=die)
        await end(backend, item("cancelled"), how=cancel)
        for one in await everything(backend):
            assert one.status == one.id
            assert await ids(backend, status=(one.status,)) == [one.id]
        assert await ids(backend, status=("success", "ready", "blocked")) == ["ready", "blocked", "success"]
        assert len(await ids(backend)) == 7

    @needs("listing")
    async def test_list_filters_by_group(self, backend: Backend) -> None:
        """The root is part of its group."""
        await apply(backend, succeed(await start_one(backend, item("root")), item("a"), item("b")))
        await submit(backend, item("c"))
        assert await ids(backend, group_id="root") == ["root", "a", "b"]
        assert await ids(backend, group_id="c") == ["c"]
        assert await ids(backend, group_id="a") == []

    @needs("listing")
    async def test_list_by_key_shows_every_item_that_had_it(self, backend: Backend) -> None:
        """Including items whose key was taken over."""
        await end(backend, item("a", key="k"))
        await submit(backend, item("b", key="k"))
        assert await ids(backend, key="k") == ["a", "b"]

    @needs("listing")
    async def test_list_filters_by_since_and_until(self, subject: Subject) -> None:
        """Queued at or after `since`, and before `until`."""
        backend = subject.backend
        instants: list[float] = []
        for name in "abc":
            await submit(backend, item(name))
            instants.append(only(await everything(backend, type="work", group_id=name)).queued_at)
            await subject.advance(100)
        assert await ids(backend, since=instants[1]) == ["b", "c"]
        assert await ids(backend, until=instants[1]) == ["a"]
        assert await ids(backend, since=instants[1], until=instants[2]) == ["b"]
        assert await ids(backend, since=instants[2] + 50) == []

    @needs("listing")
    async def test_list_combines_filters_with_and(self, backend: Backend) -> None:
        """Filters add up."""
        await submit(
            backend, item("a", "mail", queue="x"), item("b", "mail", queue="y"), item("c", queue="x")
        )
        await submit(backend, item("d", "mail", queue="x", tenant="acme"))
        where: dict[str, Any] = {"type": "mail", "queue": "x", "status": ("ready",), "tenant": "default"}
        assert await ids(backend, **where) == ["a"]

    @needs("listing")
    async def test_list_returns_pages_with_a_cursor(self, backend: Backend) -> None:
        """A page has at most `limit` items. The cursor is None on the last page."""
        await submit(backend, *(item(f"i{n}") for n in range(10)))
        seen: list[str] = []
        cursor: str | None = None
        for expected in (4, 4, 2):
            page = await backend.list(Filter(), limit=4, cursor=cursor)
            assert len(page.items) == expected
            seen += [one.id for one in page.items]
            cursor = page.cursor
        assert cursor is None
        assert seen == [f"i{n}" for n in reversed(range(10))]

    @needs("listing")
    async def test_a_list_that_fits_one_page_has_no_cursor(self, backend: Backend) -> None:
        """A list that ends with its page has no cursor."""
        await submit(backend, *items(3))
        assert (await backend.list(Filter(), limit=4)).cursor is None
        assert (await backend.list(Filter(type="none"))).items == ()

    @needs("listing", "operating")
    @pytest.mark.parametrize("oldest_first", [False, True])
    async def test_a_cursor_survives_changes(self, backend: Backend, oldest_first: bool) -> None:
        """While items come, go and change, no item that exists throughout is skipped or shown twice."""
        names = [f"i{n}" for n in range(30)]
        await submit(backend, *(item(name) for name in names))
        doomed, seen, cursor = {"i4", "i9", "i10", "i20", "i25"}, list[str](), None
        for step in range(10):
            page = await backend.list(Filter(), limit=5, cursor=cursor, oldest_first=oldest_first)
            seen += [one.id for one in page.items]
            cursor = page.cursor
            if cursor is None:
                break
            await submit(backend, *(item(f"new{step}-{n}") for n in range(2)))
            await backend.delete([page.items[-1].id, *doomed])
            await apply(backend, *(succeed(lease) for lease in await claim(backend, 3)))
        assert len(seen) == len(set(seen))
        gone = set(names) - set(await ids(backend))
        assert set(names) - gone <= set(seen)

    @needs("listing")
    @pytest.mark.parametrize("cursor", ["nonsense", "", "🜂", "null", "'; --", "AAAA"])
    async def test_an_invalid_cursor_is_refused(self, backend: Backend, cursor: str) -> None:
        """`InputError`."""
        await submit(backend, *items(3))
        with pytest.raises(InputError):
            await backend.list(Filter(), cursor=cursor)

    @needs("listing")
    async def test_list_returns_up_to_a_thousand_items(self, backend: Backend) -> None:
        """This is the largest limit."""
        await submit(backend, *items(1005))
        page = await backend.list(Filter(), limit=1000)
        assert len(page.items) == 1000
        rest = await backend.list(Filter(), limit=1000, cursor=page.cursor)
        assert (len(rest.items), rest.cursor) == (5, None)


class CountCases:
    @needs("listing")
    async def test_counts_covers_open_and_dead_items(self, backend: Backend) -> None:
        """By tenant, queue, type and status. `ended=True` adds the other ended items."""
        await submit(backend, *items(3), *items(2, type="mail", queue="bulk"), item(tenant="acme", delay=9))
        await end(backend, item())
        await end(backend, item(), how=die)
        await end(backend, item(), how=cancel)
        await start(backend, item())
        shown = {count for count in await backend.counts() if count.count}
        expected = {
            Count("default", "default", "work", "ready", 3),
            Count("default", "default", "work", "running", 1),
            Count("default", "default", "work", "dead", 1),
            Count("default", "bulk", "mail", "ready", 2),
            Count("acme", "default", "work", "scheduled", 1),
        }
        assert shown == expected
        shown = {count for count in await backend.counts(ended=True) if count.count}
        ended = {
            Count("default", "default", "work", "success", 1),
            Count("default", "default", "work", "cancelled", 1),
        }
        assert shown == expected | ended

    @needs("listing")
    async def test_an_empty_store_counts_nothing(self, backend: Backend) -> None:
        """An ended item leaves no open count behind."""
        assert [count for count in await backend.counts(ended=True) if count.count] == []
        await end(backend, item())
        assert [count for count in await backend.counts() if count.count] == []

    @needs("listing")
    async def test_counts_follow_every_step(self, subject: Subject) -> None:
        """An item is counted in exactly one status at any time."""
        backend = subject.backend
        await submit(backend, item("a", delay=100))
        await consistent(backend)
        await subject.advance(101)
        lease = await claim_one(backend)
        await consistent(backend)
        await apply(backend, retry(lease))
        await consistent(backend)
        await backend.cancel(["a"])
        await consistent(backend)

    async def test_now_is_the_stores_clock(self, subject: Subject) -> None:
        """Epoch seconds that move forward, the same for every connection."""
        before = await subject.backend.now()
        assert before > 1_000_000_000
        await subject.advance(500)
        assert await subject.backend.now() - before == near(500)
        other = await subject.another()
        assert await other.now() == near(before + 500)
