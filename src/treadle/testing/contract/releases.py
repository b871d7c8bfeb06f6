"""Releases: under which release of the workers' code items fail and die, and when each release began."""

from __future__ import annotations

from functools import partial
from typing import Any

from treadle.backend import Backend
from treadle.item import Filter, Heartbeat
from treadle.item_facts import KEPT_RELEASES, MarkRelease, Release

from .build import (
    LEASE,
    apply,
    cancel,
    claim_one,
    defer,
    die,
    end,
    item,
    items,
    near,
    only,
    retry,
    start,
    start_one,
    state,
    succeed,
)
from .check import everything
from .marks import die_of
from .subject import Subject, needs


async def register(backend: Backend, *releases: str) -> None:
    """A worker of each release, with its name."""
    for release in releases:
        await backend.beat(Heartbeat(worker=release, lease=LEASE, release=release))


async def fail_on(backend: Backend, release: str, id: str) -> None:
    """One attempt of an item fails under a release, and it waits for the next."""
    await register(backend, release)
    await apply(backend, retry(await start_one(backend, item(id), release), delay=LEASE))


async def kill_on(backend: Backend, release: str, mark: str, count: int, tenant: str = "default") -> None:
    await register(backend, release)
    leases = await start(backend, *items(count, tenant=tenant), worker=release)
    await apply(backend, *(die_of(mark, lease) for lease in leases))


async def released(backend: Backend, **where: object) -> list[str]:
    return [one.id for one in await everything(backend, **where)]


class ReleaseCases:
    @needs("watching")
    async def test_a_failed_attempt_has_the_release_of_its_worker(self, backend: Backend) -> None:
        """The item has that of its last failure, everywhere where its state is read."""
        await register(backend, "v1", "v2")
        await apply(backend, retry(await start_one(backend, item("x"), "v1")))
        await apply(backend, retry(await claim_one(backend, "v2")))
        found = await state(backend, "x")
        assert ([each.release for each in found.history], found.release) == (["v1", "v2"], "v2")
        assert only((await backend.list(Filter())).items).release == "v2"
        await apply(backend, die(await claim_one(backend, "v1")))
        found = await state(backend, "x")
        assert ([each.release for each in found.history], found.release) == (["v1", "v2", "v1"], "v1")
        ended = await backend.ended([("default", "x")], [("default", "x")])
        assert ended.items["default", "x"].release == "v1"
        assert only(ended.groups["default", "x"].deaths).release == "v1"

    @needs("watching")
    async def test_workers_without_a_release_work_beside_others(self, backend: Backend) -> None:
        """An attempt that fails on such a worker has none, and so has its item."""
        await register(backend, "v2")
        await apply(backend, retry(await start_one(backend, item("x"), "v2")))
        await apply(backend, retry(await claim_one(backend)))
        found = await state(backend, "x")
        assert ([each.release for each in found.history], found.release) == (["v2", ""], "")
        assert [each.worker for each in found.history] == ["v2", "w"]

    @needs("watching")
    async def test_a_lost_attempt_has_the_release_of_its_worker(self, subject: Subject) -> None:
        """Whether the worker is removed or its lease lapses."""
        backend = subject.backend
        await register(backend, "v1", "v2")
        await start_one(backend, item("x"), "v1")
        await start_one(backend, item("y"), "v2")
        await backend.remove_worker("v1")
        await subject.advance(LEASE + 1)
        await claim_one(backend, limit=1)
        for id, release in (("x", "v1"), ("y", "v2")):
            attempt = only((await state(backend, id)).history)
            assert (attempt.error_type, attempt.worker, attempt.release) == ("LeaseLost", release, release)

    @needs("watching")
    async def test_what_did_not_fail_has_no_release(self, backend: Backend) -> None:
        """Nor what has succeeded since."""
        await register(backend, "v2")
        new = ("good", "deferred", "running", "again")
        leases = {each.id: each for each in await start(backend, *map(item, new), worker="v2")}
        await apply(backend, succeed(leases["good"]), defer(leases["deferred"], 60), retry(leases["again"]))
        assert (await state(backend, "again")).release == "v2"
        await apply(backend, succeed(await claim_one(backend, "v2")))
        assert [(await state(backend, id)).release for id in new] == [""] * 4
        assert only((await state(backend, "again")).history).release == "v2"

    @needs("watching")
    async def test_items_are_listed_by_the_release_of_their_last_failure(self, backend: Backend) -> None:
        """Dead ones and those that wait for their next attempt, but none that has succeeded."""
        await fail_on(backend, "v1", "old")
        await fail_on(backend, "v2", "new")
        dead, gone, well = await start(backend, item("dead"), item("gone"), item("well"), worker="v2")
        await apply(backend, die_of("m", dead), cancel(gone), retry(well))
        await apply(backend, succeed(await claim_one(backend, "v2")))
        await end(backend, item("none"), how=die)
        assert await released(backend, release="v1") == ["old"]
        assert await released(backend, release="v2") == ["new", "dead"]
        assert await released(backend, release="v2", status=("dead",)) == ["dead"]
        assert await released(backend, release="v2", status=("dead", "success")) == ["dead"]
        assert await released(backend, release="v2", status=("scheduled",)) == ["new"]
        assert await released(backend, release="v2", status=("success",)) == []
        assert await released(backend, release="v2", mark="m", reason="aborted") == ["dead"]
        assert await released(backend, release="v1", mark="m") == []
        assert await released(backend, release="v2", type="other") == []
        assert await released(backend, release="v3") == []

    @needs("watching")
    async def test_items_are_requeued_by_their_release(self, backend: Backend) -> None:
        """Those of other releases stay dead."""
        await kill_on(backend, "v1", "m", 2)
        await kill_on(backend, "v2", "m", 3)
        assert len((await backend.requeue(Filter(release="v2"))).items) == 3
        assert len(await released(backend, status=("dead",))) == 2
        assert only(only(await backend.marks()).releases).release == "v1"

    @needs("watching")
    async def test_a_mark_says_under_which_releases_its_items_died(self, subject: Subject) -> None:
        """The release of the first death comes first. Deaths without a release are in none."""
        backend = subject.backend
        await kill_on(backend, "v2", "m", 3)
        second = await backend.now()
        await subject.advance(10)
        await kill_on(backend, "v1", "m", 2)
        await kill_on(backend, "v1", "other", 1, tenant="a")
        first = await backend.now()
        await subject.advance(10)
        await kill_on(backend, "v2", "m", 1, tenant="a")
        await end(backend, item("x"), how=partial(die_of, "m"))
        await end(backend, item("y"), how=partial(die_of, "plain"))
        found = {each.mark: (each.count, each.releases) for each in await backend.marks()}
        v1 = MarkRelease("v1", 2, near(first), near(first))
        assert found["m"] == (7, (MarkRelease("v2", 4, near(second), near(second)), v1))
        assert found["other"] == (1, (MarkRelease("v1", 1, near(first), near(first)),))
        assert found["plain"] == (1, ())
        mine = {each.mark: each.releases for each in await backend.marks(tenant="a")}
        assert mine["m"] == (MarkRelease("v2", 1, near(first + 10), near(second)),)
        assert all(mark.releases for mark in await backend.marks(cap=1) if mark.mark == "other")

    @needs("watching")
    async def test_marks_of_one_release_are_found(self, backend: Backend) -> None:
        """All of them are answered, those of other releases perhaps without what else is known of them."""
        await kill_on(backend, "v1", "old", 2)
        await kill_on(backend, "v1", "both", 1)
        await kill_on(backend, "v2", "both", 3)
        await kill_on(backend, "v2", "new", 2, tenant="a")
        await end(backend, item("x"), how=partial(die_of, "plain"))
        cases: tuple[dict[str, Any], ...] = ({}, {"tenant": "a"}, {"cap": 1}, {"count": 1000})
        for asked in cases:
            known = {each.mark: each for each in await backend.marks(**asked)}
            for release in ("v1", "v2", "v3", ""):
                found = {each.mark: each for each in await backend.marks(**asked, release=release)}
                assert found.keys() == known.keys()
                for name, mark in known.items():
                    if [each.release for each in mark.releases] == [release]:
                        assert found[name] == mark
                    counts = found[name].count, found[name].capped, found[name].releases
                    assert counts == (mark.count, mark.capped, mark.releases)

    @needs("watching")
    async def test_with_a_cap_releases_have_no_more_deaths_than_there_are(self, backend: Backend) -> None:
        """They have as many as were counted at least. The first death is that of all of them."""
        for release, count in (("v1", 3), ("v2", 4)):
            await kill_on(backend, release, "m", count)
            await kill_on(backend, release, "m", count, tenant="a")
        whole = {each.release: each for each in only(await backend.marks()).releases}
        assert {name: each.count for name, each in whole.items()} == {"v1": 6, "v2": 8}
        for cap in (1, 4, 6, 13, 14, 200):
            for tenant, died in ((None, 14), ("a", 7)):
                mark = only(await backend.marks(tenant=tenant, cap=cap))
                assert (mark.count, mark.capped) == (min(cap, died), died > cap)
                found = {each.release: each.count for each in mark.releases}
                assert all(count <= whole[name].count for name, count in found.items())
                assert min(cap, died) <= sum(found.values()) <= died
                assert {each.began_at for each in mark.releases} <= {each.began_at for each in whole.values()}

    @needs("watching")
    async def test_an_item_that_died_again_counts_for_its_last_release(self, backend: Backend) -> None:
        """Neither a requeue nor a delete leaves a count behind."""
        await kill_on(backend, "v1", "m", 1)
        await backend.requeue(Filter(mark="m"))
        assert list(await backend.marks()) == []
        await register(backend, "v2")
        await apply(backend, die_of("m", await claim_one(backend, "v2")))
        assert [(each.release, each.count) for each in only(await backend.marks()).releases] == [("v2", 1)]
        await backend.delete([each.group_id for each in await everything(backend)])
        await end(backend, item("x"), how=partial(die_of, "m"))
        assert only(await backend.marks()).releases == ()

    @needs("watching")
    async def test_the_store_knows_when_each_release_began(self, subject: Subject) -> None:
        """With its first worker, the newest first. Later workers of it change nothing, nor does their end."""
        backend = subject.backend
        assert (await backend.overview()).releases == ()
        began = await backend.now()
        await register(backend, "v1")
        await backend.beat(Heartbeat(worker="w", lease=LEASE))
        await subject.advance(10)
        await register(backend, "v2")
        await backend.remove_worker("v1")
        await subject.advance(10)
        await register(backend, "v1", "v2")
        expected = (Release("v2", near(began + 10)), Release("v1", near(began)))
        assert (await backend.overview()).releases == expected
        assert (await backend.overview(tenant="x", quick=True)).releases == expected

    @needs("watching")
    async def test_old_releases_are_forgotten(self, subject: Subject) -> None:
        """The newest are kept."""
        backend = subject.backend
        for n in range(KEPT_RELEASES + 2):
            await register(backend, f"v{n}")
            await subject.advance(1)
        names = [each.name for each in (await backend.overview()).releases]
        assert names == [f"v{n}" for n in range(KEPT_RELEASES + 1, 1, -1)]
