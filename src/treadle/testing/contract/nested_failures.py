"""Nested groups that fail, are repaired, cancelled, pruned or deleted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from treadle.backend import Backend
from treadle.errors import ReferencedError
from treadle.item import GROUP_TYPE, Item, Lease
from treadle.store.rules.settlement import next_version

from .build import (
    apply,
    by_id,
    claim,
    claim_answer,
    claim_ids,
    claim_one,
    contribute,
    dependent,
    die,
    doomed_lease,
    exists,
    group,
    item,
    settle_one,
    start_one,
    state,
    statuses,
    submit,
    succeed,
    whole,
)
from .check import consistent
from .nested_groups import group_ids, nested, open_counts, start_nested
from .repair import kill, requeue, run
from .subject import Subject, needs


class NestedFailureCases:
    @needs("nested")
    async def test_a_nested_group_that_fails_dooms_the_closing_item(self, backend: Backend) -> None:
        """Which fails the outer group, and dooms what waits for it."""
        leases = await start_nested(backend, item("a"), item("b"))
        settled = await apply(backend, die(leases["a"]))
        assert settled.effects.doomed == 0
        assert ((await group(backend, "g")).failed, (await group(backend, "root")).failed) == (1, 0)
        settled = await apply(backend, succeed(leases["b"]))
        assert settled.effects.doomed == 1
        doomed = await doomed_lease(backend)
        assert (doomed.id, doomed.verdict) == ("g", "unsatisfiable")
        await apply(backend, die(doomed))
        await apply(backend, die(await doomed_lease(backend)))
        found = await group(backend, "root")
        assert (found.open, [one.id for one in found.deaths]) == (0, ["g", "next"])
        assert [one.id for one in (await group(backend, "g")).deaths] == ["a"]
        await consistent(backend)

    @needs("nested")
    async def test_a_tolerated_death_does_not_fail_the_nested_group(self, backend: Backend) -> None:
        """The closing item runs."""
        leases = await start_nested(backend, item("a"), dependent("a", id="any", counting="done"))
        await apply(backend, die(leases["a"]))
        assert await run(backend) == ["any", "g", "next"]

    @needs("nested")
    async def test_what_tolerates_the_closing_item_tolerates_the_failure(self, backend: Backend) -> None:
        """`next` counts any end of the nested group, so the outer group does not fail."""
        root = await start_one(backend, item("root"))
        next = dependent("g", id="next", counting="done")
        await apply(backend, succeed(root, *nested("g", item("a")), next))
        assert await kill(backend, "a") == ["next"]
        assert ((await group(backend, "g")).failed, (await group(backend, "root")).failed) == (1, 0)

    @needs("nested", "operating")
    async def test_cancelling_the_parent_ends_everything_in_it(self, backend: Backend) -> None:
        """The closing item, the members at any depth, and what waits for them in the same group."""
        leases = await start_nested(backend, item("a"), item("b"))
        await apply(backend, succeed(leases["a"], *nested("h", item("deep"))))
        changed = await backend.cancel(["root"])
        assert sorted(one.id for one in changed.items) == ["b", "deep", "g", "h", "next"]
        assert sorted(one.id for one in changed.effects.ended_groups) == ["g", "h", "root"]
        assert (changed.effects.released, changed.effects.doomed) == ((), 0)
        assert (await claim_answer(backend)).leases == ()
        assert [(await group(backend, id)).open for id in ("h", "g", "root")] == [0, 0, 0]
        await consistent(backend)

    @needs("nested", "operating")
    async def test_cancelling_a_closing_item_ends_its_nested_group(self, backend: Backend) -> None:
        """With everything in that, at any depth. What is outside of it goes on."""
        root = await start_one(backend, item("root"))
        other = nested("other", item("o"))
        await apply(backend, succeed(root, *nested("g", item("a"), item("b")), *other, item("side")))
        leases = by_id(await claim(backend))
        await apply(backend, succeed(leases["a"], *nested("h", item("deep")), dependent("h", id="late")))
        changed = await backend.cancel(["g"])
        assert sorted(one.id for one in changed.items) == ["b", "deep", "g", "h", "late"]
        assert sorted(one.id for one in changed.effects.ended_groups) == ["g", "h"]
        assert (changed.effects.released, changed.effects.doomed) == ((), 0)
        outcome = await settle_one(backend, succeed(leases["b"]))
        assert (outcome.verb, outcome.loss) == ("stale", "cancelled")
        assert await statuses(backend, "other", "o", "side") == ["blocked", "running", "running"]
        assert await open_counts(backend, "g", "h", "root") == [0, 0, 2]
        await consistent(backend)
        assert [one.id for one in (await backend.cancel(["g"])).items] == []

    @needs("nested", "operating")
    async def test_a_closing_item_that_is_a_descendant_ends_its_nested_group(self, backend: Backend) -> None:
        """All that a closing item of the outer nested group closes, and nothing of the group around it."""
        root = await start_one(backend, item("root"))
        inner = nested("inner", item("a"))
        await apply(backend, succeed(root, *nested("outer", *inner, item("b")), item("side")))
        leases = by_id(await claim(backend))
        await apply(backend, succeed(leases["a"], item("deeper")))
        changed = await backend.cancel(["outer"])
        assert sorted(one.id for one in changed.items) == ["b", "deeper", "inner", "outer"]
        assert sorted(one.id for one in changed.effects.ended_groups) == ["inner", "outer"]
        assert (await state(backend, "side")).status == "running"
        await consistent(backend)

    @needs("nested", "operating")
    async def test_cancelling_an_ended_closing_item_ends_what_is_open_in_its_group(
        self, backend: Backend
    ) -> None:
        """As for the descendants of an ended item."""
        leases = await start_nested(backend, item("a"), dependent("a", id="any", counting="done"))
        await apply(backend, die(leases["a"]))
        assert await run(backend) == ["any", "g", "next"]
        assert await requeue(backend, "a") == ["a"]
        changed = await backend.cancel(["g"])
        assert [one.id for one in changed.items] == ["a"]
        assert sorted(one.id for one in changed.effects.ended_groups) == ["g"]
        await consistent(backend)

    @needs("nested", "operating")
    async def test_cancelling_the_last_member_dooms_the_closing_item(self, backend: Backend) -> None:
        """A cancellation does not fail the nested group, but it is no success."""
        await start_nested(backend, item("a"))
        changed = await backend.cancel(["a"])
        assert (changed.effects.released, changed.effects.doomed) == ((), 1)
        assert (await doomed_lease(backend)).id == "g"

    @needs("nested", "operating")
    async def test_a_requeue_inside_brings_back_everything_around_it(self, backend: Backend) -> None:
        """The closing items at every level, and what waited for them. Each runs exactly once."""
        leases = await start_nested(backend, item("a"))
        await apply(backend, succeed(leases["a"], *nested("h", item("deep")), dependent("h", id="after-h")))
        await submit(backend, dependent(whole("root"), id="last"))
        assert await kill(backend, "deep") == []
        names = ["deep", "h", "after-h", "g", "next", "last"]
        assert await statuses(backend, *names) == ["dead"] * 6
        opened = await requeue(backend, "deep")
        assert (opened[0], sorted(opened)) == ("deep", sorted(names))
        assert await statuses(backend, *names) == ["ready", *["blocked"] * 5]
        found = [await group(backend, id) for id in ("h", "g", "root")]
        assert [(one.open, one.failed) for one in found] == [(1, 0), (2, 0), (2, 0)]
        await consistent(backend)
        assert await run(backend) == names
        found = [await group(backend, id) for id in ("h", "g", "root")]
        assert [(one.open, one.failed) for one in found] == [(0, 0), (0, 0), (0, 0)]
        await consistent(backend)

    @needs("nested", "operating")
    async def test_a_closing_item_that_has_run_stays_ended(self, backend: Backend) -> None:
        """A tolerated death inside is requeued. The nested group opens and ends on its own."""
        leases = await start_nested(backend, item("a"), dependent("a", id="any", counting="done"))
        await apply(backend, die(leases["a"]))
        assert await run(backend) == ["any", "g", "next"]
        assert await requeue(backend, "a") == ["a"]
        assert await open_counts(backend, "g", "root") == [1, 0]
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert group_ids(settled) == ["g"]
        assert await claim_ids(backend) == []
        await consistent(backend)

    @needs("nested", "operating")
    async def test_a_closing_item_may_be_completed(self, backend: Backend) -> None:
        """An operator gives the value. The members go on, and their end releases nothing."""
        await start_nested(backend, item("a"))
        changed = await backend.complete("g", b"given")
        assert [one.id for one in changed.effects.released] == ["next"]
        assert (await group(backend, "root")).value == b"given"
        changed = await backend.complete("a", b"")
        assert ([one.id for one in changed.effects.ended_groups], changed.effects.released) == (["g"], ())
        await consistent(backend)


class NestedRemovalCases:
    @needs("nested", "operating")
    async def test_nothing_is_pruned_before_the_outermost_group_has_ended(self, subject: Subject) -> None:
        """At any depth. After that, all of it is."""
        backend = subject.backend
        root = await start_one(backend, item("root", keep=10))
        inner = nested("h", item("deep", keep=10), keep=10)
        await apply(backend, succeed(root, *nested("g", *inner, keep=10), item("slow", delay=1000, keep=10)))
        assert await run(backend) == ["deep", "h", "g"]
        await subject.advance(100)
        assert await backend.prune() == 0
        assert (await group(backend, "h")).open == 0
        await subject.advance(1000)
        assert await run(backend) == ["slow"]
        await subject.advance(100)
        assert await backend.prune() == 5
        assert list(await backend.group(["root", "g", "h"])) == [None] * 3
        await consistent(backend)

    @needs("nested", "operating")
    async def test_a_repair_keeps_what_is_nested(self, subject: Subject) -> None:
        """The outermost group opens again before the time is over, and ends later."""
        backend = subject.backend
        root = await start_one(backend, item("root", keep=50))
        await apply(backend, succeed(root, *nested("g", item("a", keep=50), keep=50), item("b", keep=50)))
        await kill(backend, "b")
        await requeue(backend, "b")
        await subject.advance(100)
        assert await backend.prune() == 0
        assert await exists(backend, "a")
        assert await run(backend) == ["b"]
        await subject.advance(100)
        assert await backend.prune() == 4

    @needs("nested", "operating")
    async def test_members_of_a_failed_nested_group_are_kept_for_repair(self, subject: Subject) -> None:
        """The closing item died because of them, and may be blocked again."""
        backend = subject.backend
        root = await start_one(backend, item("root", keep=10))
        await apply(backend, succeed(root, *nested("g", item("a", keep=10), item("b", keep=10), keep=10)))
        await kill(backend, "a")
        await subject.advance(100)
        assert await backend.prune() == 1
        assert await statuses(backend, "root", "a", "b", "g") == [None, "dead", "success", "dead"]
        await requeue(backend, "a")
        assert await run(backend) == ["a", "g"]
        await subject.advance(100)
        assert await backend.prune() == 3
        await consistent(backend)

    @needs("nested", "operating")
    async def test_a_nested_group_is_deleted_with_the_group_around_it(self, backend: Backend) -> None:
        """In any state, at any depth."""
        leases = await start_nested(backend, item("a"), item("b"))
        await apply(backend, succeed(leases["a"], *nested("h", item("deep"))))
        changed = await backend.delete(["root"])
        assert sorted(one.id for one in changed.items) == ["a", "b", "deep", "g", "h", "next", "root"]
        assert list(await backend.group(["root", "g", "h"])) == [None] * 3
        assert (await claim_answer(backend)).leases == ()
        await consistent(backend)

    @needs("nested", "operating")
    async def test_an_awaited_nested_group_is_not_deleted(self, backend: Backend) -> None:
        """Its own closing item refers to it, and so does an item outside of the group around it."""
        await start_nested(backend, item("a"))
        with pytest.raises(ReferencedError):
            await backend.delete(["g"])
        await submit(backend, dependent(whole("g"), id="outside"))
        with pytest.raises(ReferencedError) as refusal:
            await backend.delete(["root"])
        assert refusal.value.references == [("g", "outside")]
        assert await exists(backend, "a")

    @needs("nested", "operating")
    async def test_of_a_nested_group_without_members_nothing_is_deleted(self, backend: Backend) -> None:
        """Its closing item is a member of the group around it."""
        await apply(backend, succeed(await start_one(backend, item("root")), *nested("g")))
        assert (await backend.delete(["g"])).items == ()
        assert await statuses(backend, "root", "g") == ["success", "ready"]
        assert len((await backend.delete(["root"])).items) == 2

    @needs("nested", "operating")
    async def test_ids_of_a_deleted_nested_group_are_free(self, backend: Backend) -> None:
        """The same workflow can be stored again."""
        for _ in range(2):
            leases = await start_nested(backend, item("a"))
            await apply(backend, contribute(leases["a"], b"value"))
            assert await run(backend) == ["g", "next"]
            assert (await group(backend, "g")).version == next_version(leases["a"].token, None)
            assert len((await backend.delete(["root"])).items) == 4
        await consistent(backend)


async def crawl(backend: Backend, width: int, depth: int) -> Sequence[str]:
    """Run a tree of nested groups of this width and depth. Return the ids of what has run, in the order."""
    done: list[str] = []
    await submit(backend, item("p"))
    while leases := await claim(backend):
        done += [lease.id for lease in leases]
        await apply(backend, *(succeed(lease, *_pages(lease, width, depth)) for lease in leases))
    return done


def _pages(lease: Lease, width: int, depth: int) -> tuple[Item, ...]:
    if lease.type == GROUP_TYPE or lease.id.endswith("index") or len(lease.id) > depth:
        return ()
    pages = (item(f"{lease.id}{n}") for n in range(width))
    close = f"{lease.id}g"
    return (*nested(close, *pages), dependent(close, id=f"{lease.id}index"))


class NestedLoadCases:
    @needs("nested")
    async def test_an_index_of_a_recursive_crawl_sees_all_pages_below_it(self, backend: Backend) -> None:
        """Each index runs after all pages below it, and after their indexes."""
        done = await crawl(backend, 3, 3)
        at = {id: n for n, id in enumerate(done)}
        assert len(at) == len(done) == 40 + 2 * 13
        for id, place in at.items():
            if id.endswith("index"):
                page = id.removesuffix("index")
                below = [other for other in at if other.startswith(page) and other not in (page, id)]
                assert max(at[other] for other in below) < place
        assert (await group(backend, "p")).open == 0
        await consistent(backend)
