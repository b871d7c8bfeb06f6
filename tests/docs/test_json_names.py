"""The names of `--json` are those that docs/command-line.md promises: each is printed, and no other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.cli import looked_at
from tests.cli.calling import call
from tests.cli.conftest import APP
from tests.cli.looked_at import fulfil, order, report, send
from tests.docs.command_line import names as command_names
from tests.docs.json_names import Kind, Objects, collect, differences, kinds_in
from tests.engine.kit import until_status
from treadle import Client, Context, Treadle, WorkFailed, work
from treadle.errors import BackendError
from treadle.item import Heartbeat, Limit, PermitRequest

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
WITHOUT_JSON = {"worker", "migrate", "schema", "web", "watch", "bulk run"}


@cache
def documented() -> dict[str, Kind]:
    return kinds_in(PAGE.read_text().partition("### Names")[2])


@work(name="mail.send")
async def earlier_send(user_id: str) -> int:
    return len(user_id)


@work(name="gone")
async def gone() -> None: ...


async def one() -> int:
    return 1


@work(name="gone.steps")
async def gone_steps(ctx: Context) -> None:
    await ctx.step("one", one)
    await ctx.emit("chunk")
    ctx.log.warning("a line")


@pytest.fixture
def store_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store in which there is something of everything."""
    url = f"sqlite:///{tmp_path / 'work.db'}"
    asyncio.run(_fill(url))
    monkeypatch.setattr(looked_at, "app", _app(url))
    return url


def _app(url: str) -> Treadle:
    app = Treadle(url, work=looked_at.TYPES, poll_interval=0.05, log_failures=False, release="v2")
    app.schedule("nightly", cron="0 3 * * *", run=report)
    return app


async def _fill(url: str) -> None:
    async with Client(url, work=[gone]) as client:
        await client.enqueue(gone(), id="gone-1")
    async with Treadle(url, work=[gone_steps]) as app:
        await app.enqueue(gone_steps(), id="gone-2").result()
    async with _app(url) as app:
        with pytest.raises(WorkFailed):
            await app.enqueue(order([1, 3]), id="order-1", workflow="w").group()
        await app.schedules.list()
        await app.enqueue(fulfil(90), id="fulfil-1")
        await until_status(app, "fulfil-1", "scheduled")
    async with Client(url, work=[earlier_send, report]) as client:
        await client.enqueue(earlier_send("five"), id="earlier-1", delay=3600)
        await client.complete("earlier-1", 4)
        await client.enqueue(earlier_send("six"), id="earlier-2", delay=3600)
        await client.enqueue(report(), id="report-1", after=["order-1"])
        await client.enqueue(report(), id="report-2", delay=3600)
        await client.cancel("report-2")
        await client.enqueue(report(), id="report-3", queue="claimed")
        assert await client.claim_one(types=[report], queues=["claimed"], lease=600) is not None
        await client.backend.beat(Heartbeat(worker="silent-1", lease=600.0, types=("report",)))
        limit = Limit("report:slots", 1, 1.0, "slots")
        await client.backend.take_permits([PermitRequest((limit,))], worker="silent-1")
        await client.pause("bulk")


LOOKING = [
    ("status", "status"),
    ("item", "list"),
    ("item", "list --all --history"),
    ("copy", f"export {os.devnull}"),
    ("shown item", "show report-1 order-1 earlier-2"),
    ("shown item", "show fulfil-1 gone-2"),
    ("chunk", "show gone-2 --stream"),
    ("logged item", "show gone-2 --logs"),
    ("why", "why gone-1"),
    ("group with members", "group order-1"),
    ("group with members", "group earlier-1"),
    ("group with members", "group report-2"),
    ("workflow", "workflow w"),
    ("group summary", "groups"),
    ("group summary", "workflows"),
    ("mark", "dead"),
    ("death count", "dead --by type"),
    ("death count", "dead --by reason"),
    ("worker", "workers --items"),
    ("limit", "limits"),
    ("schedule", "schedules"),
    ("finding", "doctor"),
    ("check", "check"),
]
CHANGING = [
    ("summary", "requeue --type mail.send --dry-run"),
    ("refusal", "requeue report-1"),
    ("summary", "update report-1 --priority 3"),
    ("canary", "dead requeue --type mail.send --canary 1 --canary-wait 0.1s --yes"),
    ("repair", "repair order-1"),
    ("sent signal", "signal fulfil-1 approval"),
    ("prune", "prune"),
    ("pause switch", "resume bulk"),
    ("limit switch", "limits set --type report 4"),
    ("limit", "limits"),
    ("limit switch", "limits clear --type report"),
    ("schedule switch", "schedules pause nightly"),
    ("schedule switch", "schedules trigger nightly"),
    ("schedule refusal", "schedules pause nosuch"),
    ("schedule switch", "schedules cancel nightly"),
    ("submitted item", "run report {}"),
    ("worker request", "workers drain silent-1"),
    ("worker refusal", "workers drain nosuch"),
    ("audit entry", "audit"),
    ("bulk action", "requeue --type mail.send --background --yes"),
    ("bulk action", "bulk"),
]
WITH_A_WORKER = [
    ("event", "tail --count 1"),
    ("submitted item", "run report {} --wait-group"),
]


def test_every_name_is_printed_and_no_other(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: Objects = {}
    for kind, command in LOOKING:
        _look(kind, command, met)
    (mark,) = {each["mark"] for each in met["mark"]}
    _look("shown mark", f"dead show {mark}", met)
    for kind, command in CHANGING:
        _look(kind, command, met)
    with _at_work(store_url):
        for kind, command in WITH_A_WORKER:
            _look(kind, command, met)
    monkeypatch.setattr(looked_at, "app", asyncio.run(_over_several(tmp_path)))
    for kind, command in WITH_SEVERAL_STORES:
        _look(kind, command, met)
    kinds = documented()
    assert sorted(set(kinds) - set(met)) == [], "each kind of object was met"
    assert differences(met, kinds) == {}
    for name, documents in kinds.items():
        own = [each for other, kin in kinds.items() if name in (other, *kin.bases) for each in met[other]]
        printed = {each for printing in own for each in printing}
        assert sorted(documents.own_at_times - printed) == [], f"{name}: these were never printed"


WITH_SEVERAL_STORES = (
    ("item", "list"),
    ("group summary", "groups"),
    ("mark", "dead"),
    ("store", "stores"),
    ("place", "stores place acme us"),
    ("rebalance plan", "rebalance --tolerance 0"),
    ("moved tenant", "move --tenant acme --to eu"),
    ("given up move", "move --tenant acme --give-up"),
)


async def _over_several(directory: Path) -> Treadle:
    """An app over several stores, with a group, a dead item, and a tenant whose move has begun."""
    stores = {name: f"sqlite:///{directory / name}.db" for name in ("eu", "us")}
    async with Treadle(stores, work=[send, order]) as app:
        assert await app.place("default", "us") == "us"
        await app.enqueue(order([1])).group()
        await (await app.enqueue(send(3))).wait()
        for tenant in ("one", "two"):
            assert await app.place(tenant, "eu") == "eu"
            await app.tenant(tenant).enqueue_many([send(1) for _ in range(10)])
        with pytest.raises(BackendError):  # the move has begun, so the tenant stays
            await app.move_tenant("one", "us", freeze=-1)
    return Treadle(stores, work=[send])


def _look(kind: str, command: str, met: Objects) -> None:
    seen = call(*command.split(), "--app", APP, "--json")
    objects = seen.objects
    assert objects, (command, seen)
    if kind in ("canary", "refusal"):  # a summary follows
        *objects, summary = objects
        collect(documented(), "summary", summary, met)
    for each in objects:
        collect(documented(), kind, each, met)


@contextlib.contextmanager
def _at_work(url: str) -> Generator[None]:
    """A worker in another thread, and something to do for it all the time."""
    stop = threading.Event()

    async def work_and_submit() -> None:
        async with _app(url) as app:
            while not stop.is_set():
                await app.enqueue(send(1)).result()
                await asyncio.to_thread(stop.wait, 0.05)

    thread = threading.Thread(target=lambda: asyncio.run(work_and_submit()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_every_command_that_has_json_is_on_the_page() -> None:
    table = PAGE.read_text().partition("### What a line holds")[2].partition("### Names")[0]
    told = {name for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in _names(cell)}
    assert told == set(command_names()) - WITHOUT_JSON
    assert set(re.findall(r"\*([\w ]+)\*", table)) <= set(documented())


def _names(cell: str) -> Iterator[str]:
    """The commands of a cell. `schedules pause`, `resume` means `schedules resume`."""
    first, *others = re.findall(r"`([^`]+)`", cell)
    yield first
    group = "schedules " if first.startswith("schedules ") else ""
    yield from (f"{group}{name}" for name in others)
