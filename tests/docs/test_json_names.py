"""The names of `--json` are those that docs/command-line.md promises: each is printed, and no other."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from tests.cli import looked_at
from tests.cli.calling import call
from tests.cli.conftest import APP
from tests.cli.looked_at import order, report, send
from tests.docs.command_line import names as command_names
from treadle import Client, Treadle, WorkFailed, work
from treadle.item import Heartbeat, Limit, PermitRequest

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
ROW = re.compile(r"^\| \*([\w ]+)\* \| (.*) \|$", re.MULTILINE)
NAME = re.compile(r"`(\w+)`(\?)?(?: \(\*([\w ]+)\*\))?")
WITHOUT_JSON = {"worker", "web", "migrate", "schema"}
Objects = dict[str, list[dict[str, Any]]]


class Kind(NamedTuple):
    """What an object holds. Each name with what kind of object it holds, or with ""."""

    always: dict[str, str]
    at_times: dict[str, str]
    own_at_times: frozenset[str]
    bases: tuple[str, ...]

    def get(self, name: str) -> str | None:
        return self.always.get(name, self.at_times.get(name))


@cache
def documented() -> dict[str, Kind]:
    kinds: dict[str, Kind] = {}
    rows = dict(ROW.findall(PAGE.read_text().partition("### Names")[2]))

    def read(name: str) -> Kind:
        if name not in kinds:
            text = re.sub(r"\((?!\*)[^)]*\)", "", rows[name].partition(": see")[0])
            bases = tuple(re.findall(r"the names of \*([\w ]+)\*", text))
            found = NAME.findall(text)
            always = {each: holds for each, mark, holds in found if not mark}
            at_times = {each: holds for each, mark, holds in found if mark}
            own = frozenset(at_times)
            for base in bases:
                always |= read(base).always
                at_times |= read(base).at_times
            kinds[name] = Kind(always, at_times, own, bases)
        return kinds[name]

    for name in rows:
        read(name)
    return kinds


@work(name="mail.send")
async def earlier_send(user_id: str) -> int:
    return len(user_id)


@work(name="gone")
async def gone() -> None: ...


@pytest.fixture
def store_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store in which there is something of everything."""
    url = f"sqlite:///{tmp_path / 'work.db'}"
    asyncio.run(_fill(url))
    monkeypatch.setattr(looked_at, "app", _app(url))
    return url


def _app(url: str) -> Treadle:
    app = Treadle(url, work=looked_at.TYPES, poll_interval=0.05, log_failures=False)
    app.schedule("nightly", cron="0 3 * * *", run=report)
    return app


async def _fill(url: str) -> None:
    async with Client(url, work=[gone]) as client:
        await client.enqueue(gone(), id="gone-1")
    async with _app(url) as app:
        with pytest.raises(WorkFailed):
            await app.enqueue(order([1, 3]), id="order-1", workflow="w").group()
        await app.schedules.list()
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
    ("item", "export --history"),
    ("shown item", "show report-1 order-1 earlier-2"),
    ("why", "why gone-1"),
    ("group with members", "group order-1"),
    ("group with members", "group earlier-1"),
    ("group with members", "group report-2"),
    ("workflow", "workflow w"),
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
    ("prune", "prune"),
    ("queue switch", "resume bulk"),
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


def test_every_name_is_printed_and_no_other(store_url: str) -> None:
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
    kinds = documented()
    assert sorted(set(kinds) - set(met)) == [], "each kind of object was met"
    wrong = {kind: _differences(objects, kinds[kind]) for kind, objects in met.items()}
    assert {kind: texts for kind, texts in wrong.items() if texts} == {}
    for name, documents in kinds.items():
        own = [each for other, kin in kinds.items() if name in (other, *kin.bases) for each in met[other]]
        printed = {each for printing in own for each in printing}
        assert sorted(documents.own_at_times - printed) == [], f"{name}: these were never printed"


def _look(kind: str, command: str, met: Objects) -> None:
    seen = call(*command.split(), "--app", APP, "--json")
    objects = seen.objects
    assert objects, (command, seen)
    if kind in ("canary", "refusal"):  # a summary follows
        *objects, summary = objects
        _collect("summary", summary, met)
    for each in objects:
        _collect(kind, each, met)


def _collect(kind: str, value: Any, met: Objects) -> None:
    """Note an object, a list of them or nothing, and the objects inside."""
    for each in _objects(value) if kind != "any" else []:
        met.setdefault(kind, []).append(each)
        for name, inner in each.items():
            if holds := documented()[kind].get(name):
                _collect(holds, inner, met)


def _objects(value: Any) -> list[dict[str, Any]]:
    values = cast("list[Any]", value if isinstance(value, list) else [value])
    return [each for each in values if isinstance(each, dict)]


def _differences(objects: list[dict[str, Any]], kind: Kind) -> list[str]:
    return sorted(set(_each_difference(objects, kind)))


def _each_difference(objects: list[dict[str, Any]], kind: Kind) -> Iterator[str]:
    for each in objects:
        yield from (f"{name} is not printed" for name in kind.always if name not in each)
        for name, value in each.items():
            holds = kind.get(name)
            if holds is None:
                yield f"{name} is not on the page"
            if not holds and _objects(value):
                yield f"what {name} holds is not on the page"


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
