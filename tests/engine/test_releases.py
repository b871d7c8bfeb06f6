"""Releases: `Treadle(release=)`, on workers, failures and deaths, and the problem of a bad one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.kit import until_status
from treadle import Abort, InputError, MemoryBackend, Retry, Treadle, work
from treadle.item import Filter
from treadle.item_facts import DeadMark, MarkRelease
from treadle.operate.why.wording import releases_text
from treadle.testing import ManualClock

BROKEN: set[str] = set()


@work(name="pay", retry=Retry(attempts=1))
async def pay(order: int) -> None:
    if "pay" in BROKEN:
        raise Abort("no such column")


@work(name="flaky", retry=Retry(attempts=3, base=3600))
async def flaky() -> None:
    raise ValueError("no")


@pytest.fixture(autouse=True)
def _mended() -> Any:
    yield
    BROKEN.clear()


async def run(backend: MemoryBackend, release: str, count: int, **settings: Any) -> None:
    async with Treadle(backend, work=[pay], release=release, **settings) as app:
        for handle in await app.enqueue_many([pay(n) for n in range(count)]):
            await handle.wait()


async def test_workers_failures_and_deaths_have_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument wins over the environment. An empty one is none."""
    monkeypatch.setenv("TREADLE_RELEASE", "x" * 101)
    with pytest.raises(InputError, match=r"^TREADLE_RELEASE='x+.* is longer than 100 bytes"):
        Treadle()
    monkeypatch.setenv("TREADLE_RELEASE", "from-env")
    backend = MemoryBackend()
    async with Treadle(backend, work=[flaky], release="v2") as app:
        (worker,) = await app.workers()
        assert worker.info is not None
        assert worker.info.release == "v2"
        handle = await app.enqueue(flaky())
        state = await until_status(app, handle.id, "scheduled")
        assert (state.status, state.release, state.history[0].release) == ("scheduled", "v2", "v2")
        assert [each.id for each in (await app.list(release="v2")).items] == [handle.id]
        assert (await app.list(release="v1")).items == ()
        assert (await app.tenant("other").list(release="v2")).items == ()
        with pytest.raises(InputError, match="release"):
            await app.list(release="")
    BROKEN.add("pay")
    async with Treadle(backend, work=[pay]) as app:
        handle = await app.enqueue(pay(1))
        await handle.wait()
        assert (await handle.state()).release == "from-env"
    async with Treadle(backend, work=[pay], release="") as app:
        handle = await app.enqueue(pay(1))
        await handle.wait()
        assert (await handle.state()).release == ""


async def test_a_lease_by_hand_has_the_release() -> None:
    async with Treadle(work=[pay], release="v2", queues=["none"]) as app:
        handle = await app.enqueue(pay(1))
        lease = await app.claim_one()
        assert lease is not None
        await lease.fail(ValueError("no"))
        assert (await handle.state()).release == "v2"


@pytest.mark.parametrize("release", [7, "a\nb", "x" * 101])
def test_a_release_is_a_short_name(release: Any) -> None:
    with pytest.raises(InputError, match="release"):
        Treadle(release=release)


async def test_dead_items_of_a_release_are_changed() -> None:
    backend = MemoryBackend()
    BROKEN.add("pay")
    await run(backend, "v1", 1)
    await run(backend, "v2", 2)
    BROKEN.clear()
    async with Treadle(backend, work=[pay]) as app:
        assert await app.dead.requeue(release="v2") == 2
        (dead,) = (await app.list("dead")).items
        assert dead.release == "v1"
        action = await app.bulk.start("requeue", release="v1")
        assert (action.total, action.where) == (1, "release:v1")
        await until_status(app, dead.id, "success")


async def test_a_mark_that_only_the_newest_release_has_is_a_problem() -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
    await run(backend, "v1", 3, clock=clock)
    clock.advance(3600)
    async with Treadle(backend, work=[pay], release="v2", clock=clock) as app:
        clock.advance(240)
        BROKEN.add("pay")
        for handle in await app.enqueue_many([pay(n) for n in range(3)]):
            await handle.wait()
        release, dead = await app.problems()
        assert (release.kind, dead.kind) == ("release", "dead")
        (mark,) = await app.dead.marks()
        assert releases_text(mark) == "all 3 deaths of this mark began with v2, 4 min after it started"
        assert release.text == f"pay fails with Abort: no such column: {releases_text(mark)}"
        why = await app.why((await app.list("dead")).items[0])
        assert f"; {releases_text(mark)}" in why.reasons[0].text
        again = f"treadle dead requeue --canary 5 --mark {mark.mark}"
        assert release.fix == f"go back to v1, or mend it; then run the dead items again: {again}"
        assert (release.refs, release.items) == ((mark.mark,), 3)
        assert [each.kind for each in await app.tenant("default").problems()] == ["release", "dead"]
        assert await app.tenant("other").problems() == []
    async with Treadle(backend, work=[pay], release="v1", clock=clock) as app:
        assert "no worker runs v2 any more; run the dead items again: " in (await app.problems())[0].fix
        clock.advance(10)
        await (await app.enqueue(pay(4))).wait()
        assert [each.kind for each in await app.problems()] == ["dead"], "v1 has the mark too"
        (mark,) = await app.dead.marks()
        assert releases_text(mark) == "of the deaths of this mark 3 under v2, 1 under v1"


def test_the_age_of_a_release_has_whole_seconds() -> None:
    releases = (MarkRelease("v2", 3, 10.318, 10.0),)
    mark = DeadMark("m", "pay", "E", "no", 3, False, 1.0, 11.0, "a", "default", releases)
    assert releases_text(mark) == "all 3 deaths of this mark began with v2, 1 s after it started"


async def test_few_or_late_deaths_and_a_first_release_are_no_problem_of_a_release() -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
    BROKEN.add("pay")
    await run(backend, "v1", 3, clock=clock)
    async with Treadle(backend, work=[pay], release="v1", clock=clock) as app:
        assert [each.kind for each in await app.problems()] == ["dead"], "there is nothing to compare"
        await app.dead.delete()
    async with Treadle(backend, work=[pay], release="v2", clock=clock) as app:
        clock.advance(90_000)
        for handle in await app.enqueue_many([pay(n) for n in range(3)]):
            await handle.wait()
        assert [each.kind for each in await app.problems()] == ["dead"], "they began a day later"
    assert len((await backend.list(Filter(release="v2"))).items) == 3


async def test_deaths_that_were_requeued_or_deleted_still_speak_for_an_earlier_release() -> None:
    """The mark forgets them. The items have failures of earlier releases, and the statistics their deaths."""
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
    BROKEN.add("pay")
    await run(backend, "v1", 4, clock=clock)
    clock.advance(7200)
    await run(backend, "v2", 1, clock=clock)
    clock.advance(7200)
    async with Treadle(backend, work=[pay], release="v3", clock=clock) as app:
        ids = [each.id for each in (await app.list("dead")).items]
        assert await app.dead.requeue() == 5
        for id in ids:
            await app.handle(id).wait()
        assert [each.release for each in (await app.list("dead")).items] == ["v3"] * 5
        assert [each.kind for each in await app.problems()] == ["dead"]
        assert [each.kind for each in await app.tenant("default").problems()] == ["dead"]
        assert await app.dead.delete() == 5
        for handle in await app.enqueue_many([pay(n) for n in range(5)]):
            await handle.wait()
        assert [each.kind for each in await app.problems()] == ["dead"], "as many are gone"
        for handle in await app.enqueue_many([pay(n) for n in range(50)]):
            await handle.wait()
        assert [each.kind for each in await app.problems()] == ["release", "dead"]
