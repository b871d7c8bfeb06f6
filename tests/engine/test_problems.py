"""`app.problems()`: what a person should look at, by few reads."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.engine.kit import MakeApp, until
from treadle import Abort, Client, InputError, MemoryBackend, Treadle, work
from treadle.item import TELL_TYPE, Demand, Heartbeat
from treadle.operate.store_look import LATE_LOOKED_AT
from treadle.problems import Problem
from treadle.records import MINUTE, Stat
from treadle.testing import CountingBackend, ManualClock
from treadle.worker_info import WorkerInfo, encode_worker_info


@work(name="mail.send")
async def send() -> None: ...


async def test_problems_are_found_by_at_most_five_reads() -> None:
    backend = CountingBackend(MemoryBackend())
    app = Treadle(backend, work=[send])
    await app.enqueue(send(), id="ready")
    await app.enqueue(send(), id="later", delay=3600)
    await app.tenant("acme").enqueue(send(), id="blocked", after=["never-submitted"])
    await app.pause("default")
    app.schedule("nightly", every=60, run=send)
    backend.reset()
    found = await app.problems(max_wait=0)
    assert [each.kind for each in found] == ["no_worker", "not_submitted", "paused"]
    assert found[1].refs == ("blocked",)
    assert found[2].fix == "treadle resume default"
    assert backend.total() <= 6
    assert "never-submitted" not in str(await app.tenant("other").problems(max_wait=0))
    assert [each.kind for each in await app.tenant("acme").problems(max_wait=0)] == [
        "no_worker",
        "not_submitted",
        "paused",
    ]
    with pytest.raises(InputError, match="max_wait"):
        await app.problems(max_wait=-1)
    await app.close()
    with Client(backend).sync as client:
        assert [each.kind for each in client.problems(quick=True)] == ["no_worker", "paused"]


async def test_an_item_that_ends_workers_is_found_behind_any_number_of_others() -> None:
    """Also quickly, and by no more reads if a worker is blocked."""
    backend = CountingBackend(MemoryBackend())
    app = Treadle(backend, work=[send])
    await app.enqueue_many([send() for _ in range(600)], queue="held")
    await app.pause("held")
    await app.enqueue(send(), id="poison")
    await app.enqueue(send(), after=["never-submitted"])
    for n in range(3):
        await backend.beat(Heartbeat(worker="mortal", lease=60))
        await backend.begin((await backend.claim(Demand(worker="mortal", limit=1))).leases)
        await backend.remove_worker("mortal")
        await app.trigger(["poison"] if n else [])
    info = encode_worker_info(WorkerInfo(blocked_since=1.0))
    await backend.beat(Heartbeat(worker="blocked", lease=60, info=info))
    app.schedule("nightly", every=60, run=send)
    backend.reset()
    found = await app.problems(quick=True)
    assert (found[0].kind, found[0].refs) == ("killing", ("poison",))
    assert backend.total() - backend.calls["publish"] <= 6  # `trigger` publishes beside it
    await app.close()


@work(name="scan")
async def scan() -> None: ...


@work(name="break")
async def fail() -> None:
    raise Abort("no")


async def test_only_what_could_run_is_late() -> None:
    """Not what a pause holds back, nor what has no worker, although it is the oldest of its queue."""
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
    app = Treadle(backend, work=[send, scan], clock=clock)

    async def late() -> list[tuple[str, int]]:
        await backend.beat(Heartbeat(worker="w1", lease=60, types=("mail.send",)))
        return [(each.text, each.items) for each in await app.problems() if each.kind == "late"]

    await app.tenant("acme").enqueue(send())
    await app.pause(tenant="acme")
    await app.tenant("beta").enqueue(scan())
    await app.enqueue(send(), lane="held")
    await app.pause(type="mail.send", tenant="default")
    clock.advance(600)
    await app.tenant("other").enqueue_many([send(), send()])
    clock.advance(200)
    assert await late() == []
    clock.advance(200)
    assert await late() == [("queue default: an item has been ready for 6 min 40 s; 2 ready items wait", 2)]
    await app.resume(tenant="acme")
    assert await late() == [("queue default: an item has been ready for 16 min 40 s; 3 ready items wait", 3)]
    await app.close()


async def test_a_look_reads_few_queues_anew_however_many_are_late() -> None:
    """Those whose items have waited for the longest time."""
    clock = ManualClock()
    backend = CountingBackend(MemoryBackend(clock=clock))
    app = Treadle(backend, work=[send, scan], clock=clock)
    await app.pause(type="scan")
    for n in range(60):
        await app.tenant("beta").enqueue(scan(), queue=f"q{n:02}")
        clock.advance(1)
        await app.enqueue(send(), queue=f"q{n:02}")
    clock.advance(600)
    await backend.beat(Heartbeat(worker="w1", lease=60))
    backend.reset()
    late = [each.refs for each in await app.problems() if each.kind == "late"]
    assert (late[0], len(late)) == (("q00",), LATE_LOOKED_AT)
    assert backend.total("lines", "get") <= 2 * LATE_LOOKED_AT
    await app.close()


async def test_a_look_reads_no_lines_if_the_oldest_item_could_run() -> None:
    clock = ManualClock()
    backend = CountingBackend(MemoryBackend(clock=clock))
    app = Treadle(backend, work=[send, scan], clock=clock)
    await app.pause(type="scan")
    await app.enqueue(send(), lane="a")
    clock.advance(100)
    await app.enqueue(scan(), lane="b")
    clock.advance(600)
    await backend.beat(Heartbeat(worker="w1", lease=60))
    backend.reset()
    late = [each.text for each in await app.problems() if each.kind == "late"]
    assert late == ["queue default: an item has been ready for 11 min 40 s; 1 ready item waits"]
    assert backend.total("lines", "get") == 0
    await app.close()


@pytest.mark.every_store
async def test_a_late_queue_with_very_many_lines_is_looked_at_in_part(make_app: MakeApp) -> None:
    """The first of its lines. What waits in others is not known, and not said."""
    app = make_app(send, scan)
    await app.connect()
    await app.pause(type="scan")
    await asyncio.gather(*(app.enqueue(scan(), lane=f"m{n:03}") for n in range(300)))
    await app.enqueue(send(), lane="z")

    async def late() -> list[int]:
        await asyncio.sleep(0.02)
        await app.backend.beat(Heartbeat(worker="w1", lease=60))
        overview = await app.overview()
        assert [each.queue for each in overview.ages] == ["default"]
        return [each.items for each in await app.problems(max_wait=0.01) if each.kind == "late"]

    assert await late() == []
    await app.enqueue(send(), lane="a")
    assert await late() == [2]
    assert len(await app.lines("default", count=1000)) == 302
    await app.resume(type="scan")
    assert await late() == [302]


async def test_a_flood_is_one_if_others_wait_for_long() -> None:
    """Not if only its own items do. The others may be behind it in the same line."""
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
    app = Treadle(backend, work=[send, scan], clock=clock)

    async def floods() -> list[tuple[str, ...]]:
        await backend.beat(Heartbeat(worker="w1", lease=60))
        return [(*each.refs, each.text[-20:]) for each in await app.problems() if each.kind == "flood"]

    await app.tenant("acme").enqueue_many([send() for _ in range(1000)], queue="mail")
    await app.enqueue_many([send() for _ in range(1000)], queue="bulk")
    clock.advance(120)
    for _ in range(2):
        await app.tenant("beta").enqueue_many([send() for _ in range(10)], queue="mail")
        await app.enqueue_many([scan() for _ in range(10)], queue="bulk")
        assert await floods() == []
        clock.advance(30)
    clock.advance(15)
    text = "of them for 1 min 15 s"[-20:]
    assert await floods() == [("bulk", "mail.send", text), ("mail", "acme", text)]
    await app.close()


async def test_a_schedule_whose_items_die_is_a_problem() -> None:
    """From the second one in a row on, and not if the last one did not."""
    clock = ManualClock()
    async with Treadle(MemoryBackend(clock=clock), work=[fail, send], clock=clock, log_failures=False) as app:
        broken = True
        for client in (app, app.tenant("acme")):
            client.schedule("nightly", every=60, run=lambda: fail() if broken else send())
            await client.schedules.list()

        async def run(ended: str, count: int) -> list[tuple[str, str]]:
            await clock.advance(60)
            await until(lambda: app.metrics.get(ended) == count)
            return [(each.text, each.fix) for each in await app.problems() if each.kind == "schedule_failed"]

        assert await run("dead", 2) == []
        acme, own = await run("dead", 4)
        dead = (await app.list("dead", tenant="acme")).items[0]
        assert acme[0] == "schedule acme/nightly: the items of its last runs have died"
        assert acme[1] == f"treadle why {dead.id} --tenant acme"
        assert own[0] == "schedule nightly: the items of its last runs have died"
        (mine,) = [each for each in await app.tenant("acme").problems() if each.kind == "schedule_failed"]
        assert (mine.refs, mine.fix) == (("nightly",), acme[1])
        broken = False
        assert await run("succeeded", 2) == []


NOW = 20_000 * 86_400.0


async def counted(app: Treadle, type: str, dead: int, succeeded: int, *, minutes: float = 0) -> None:
    """What workers counted so many minutes ago."""
    at = (await app.backend.now() - minutes * MINUTE) // MINUTE * MINUTE
    await app.backend.add_stats([Stat(at=at, type=type, queue="q", dead=dead, succeeded=succeeded)])


async def die(app: Treadle, count: int = 1) -> None:
    for handle in await app.enqueue_many([fail() for _ in range(count)]):
        await handle.wait()


async def dying(app: Treadle) -> list[Problem]:
    return [each for each in await app.problems() if each.kind == "dying"]


async def test_a_type_that_dies_now_is_a_problem_on_every_store(make_app: MakeApp) -> None:
    async with make_app(fail) as app:
        await die(app)
        assert await dying(app) == []
        await counted(app, "break", 61, 25)
        (found,) = await dying(app)
        (mark,) = await app.dead.marks()
        assert re.fullmatch(
            r"break dies: 6[12] in the last \d+ (s|min), 71 % of those that ended; Abort: no", found.text
        )
        assert found.fix == (
            f"look at them: treadle dead show {mark.mark}; stop it: treadle pause --type break; "
            "or slow it down: treadle limits set --type break 4"
        )
        assert (found.refs, found.items in (61, 62)) == (("break",), True)
        kinds = [each.kind for each in await app.problems()]
        assert kinds == ["dying", "dead"]
        assert [each.kind for each in await app.tenant("default").problems()] == ["dead"]


@pytest.mark.parametrize(
    ("dead", "succeeded", "minutes", "is_told"),
    [
        pytest.param(20, 80, 0, True, id="just enough"),
        pytest.param(19, 0, 0, False, id="few"),
        pytest.param(20, 81, 0, False, id="most work is done"),
        pytest.param(30, 0, 1, True, id="a minute ago"),
        pytest.param(30, 0, 2, False, id="over"),
        pytest.param(30, 0, 9, False, id="long over"),
    ],
)
async def test_only_many_deaths_that_go_on_are_a_problem(
    dead: int, succeeded: int, minutes: int, is_told: bool
) -> None:
    clock = ManualClock(NOW + 30)
    async with Treadle(MemoryBackend(clock=clock), work=[fail], clock=clock, statistics=False) as app:
        await die(app)
        await counted(app, "break", dead, succeeded, minutes=minutes)
        assert bool(await dying(app)) is is_told


async def test_deaths_are_told_once_by_their_cause() -> None:
    """Not those that follow from others, or of which the release is the cause, nor what is built in."""
    clock = ManualClock(NOW + 30)
    backend = MemoryBackend(clock=clock)
    async with Treadle(backend, work=[fail, send], clock=clock, statistics=False, release="v1") as app:
        cause = await app.enqueue(fail())
        await (await app.enqueue(send(), after=[cause])).wait()
        for type in ("break", "mail.send", TELL_TYPE):
            await counted(app, type, 50, 0)
        assert [each.refs for each in await dying(app)] == [("break",)]
        await app.dead.delete(type="break")
    async with Treadle(backend, work=[fail], clock=clock, statistics=False, release="v2") as app:
        await die(app, 3)
        assert [each.kind for each in await app.problems()] == ["release", "dead"]


async def test_a_type_whose_deaths_are_gone_still_dies() -> None:
    """They were deleted, or run again: what they died of is not known."""
    clock = ManualClock(NOW + 30)
    async with Treadle(MemoryBackend(clock=clock), work=[fail], clock=clock, statistics=False) as app:
        await die(app)
        await counted(app, "other", 40, 0)
        (found,) = await dying(app)
        assert found.text == "other dies: 40 in the last 4 min, 100 % of those that ended"
        assert found.fix.startswith("look at them: treadle dead; stop it: treadle pause --type other;")
