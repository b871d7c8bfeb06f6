"""What pages answer to programs: the names of docs/dashboard-programs.md, and instants as texts."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.dashboard.conftest import AS_JSON, MakeApp, Visitor
from tests.docs.json_names import Kind, Objects, collect, differences, kinds_in
from treadle import Retry, WorkFailed, work
from treadle.backend import Backend
from treadle.dashboard.app import VIEWS
from treadle.doers import concurrency
from treadle.item import Heartbeat
from treadle.records import BacklogSample, Stat
from treadle.worker_info import UndecodableType, WorkerInfo, encode_worker_info

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "dashboard-programs.md").read_text()
EPOCH = 1_000_000_000
"""No number is as large: instants are texts."""
GIVEN = ("input", "result", "timing")
"""What these hold is as it was given."""


def documented() -> dict[str, Kind]:
    names = (DOCS / "command-line.md").read_text().partition("### Names")[2]
    return kinds_in(names + PAGE.partition("### Names")[2])


def kinds_of_pages() -> dict[str, str]:
    """The kind of object that each page answers with."""
    table = PAGE.partition("## What pages answer")[2].partition("### Names")[0]
    return dict(re.findall(r"^\| `(/[^`]*)` \| \*([\w ]+)\*", table, re.MULTILINE))


def test_every_page_is_in_the_table() -> None:
    assert set(kinds_of_pages()) == {view.path for view in VIEWS}


@work(name="pay", retry=Retry(attempts=1))
async def pay(order: int) -> int:
    if order < 0:
        raise ValueError(f"quoted-message {order}")
    return order


async def test_pages_have_the_names_of_the_docs(
    memory_store: Callable[[], Backend], make_app: MakeApp, visitor: Visitor
) -> None:
    go_on, started, ticked = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @work(name="slow", queue="slow", doer=concurrency(1))
    async def slow() -> None:
        started.set()
        await go_on.wait()

    @work(name="tick")
    async def tick() -> None:
        ticked.set()

    app = make_app(memory_store, pay, slow, tick)
    app.schedule("hourly", every=3600, start=time.time() + 0.5, run=tick)
    await app.start()
    await app.enqueue(slow())
    await started.wait()
    await ticked.wait()
    await app.enqueue(pay(2), id="good", workflow="w").result()
    for order in (-1, -2):
        dead = await app.tenant("acme").enqueue(pay(order))
        with pytest.raises(WorkFailed):
            await dead.result()
    await app.enqueue(pay(3), id="later", delay=3600)
    await app.enqueue(pay(4), id="blocked", after=["later"])
    await app.pause("idle")
    await app.tenant("acme").enqueue(pay(5), queue="idle", lane="x")
    minute = (await app.backend.now()) // 60 * 60
    await app.backend.add_stats([Stat(at=minute, type="pay", queue="default", started=3, failed=2, dead=2)])
    await app.backend.put_samples([BacklogSample(at=minute), BacklogSample(at=minute, queue="idle", ready=1)])
    bad = UndecodableType(count=1, error="quoted-message", until=minute)
    info = encode_worker_info(WorkerInfo(host="far", pid=7, lease=60, undecodable={"pay": bad}))
    await app.backend.beat(Heartbeat(worker="odd", lease=60, types=("pay",), info=info))
    bulk = await app.by("ann", reason="test").bulk.start("cancel", type="pay", status="scheduled")
    (mark,) = await app.dead.marks()
    parts = {"{queue}": "idle", "{type}": "pay", "{mark}": mark.mark, "/bulk/{id}": f"/bulk/{bulk.id}"}
    parts |= {"/groups/{id}": "/groups/good", "/workflows/{id}": "/workflows/w", "{id}": "blocked"}
    client, careful = visitor(app), visitor(app, payloads=False)
    kinds, met = documented(), cast("Objects", {})
    for path, kind in kinds_of_pages().items():
        address = path
        for part, value in parts.items():
            address = address.replace(part, value)
        answer = await client.get(address, headers=AS_JSON)
        assert answer.status_code == 200, (address, answer.text)
        collect(kinds, kind, answer.json(), met)
        assert [*_large_numbers(answer.json())] == [], address
        hidden = await careful.get(address, headers=AS_JSON)
        assert "quoted-message" not in hidden.text, address
        collect(kinds, kind, hidden.json(), met)
    assert differences(met, kinds) == {}
    own = re.findall(r"^\| \*([\w ]+)\* \|", PAGE.partition("### Names")[2], re.MULTILINE)
    bases = {base for kind in met for base in kinds[kind].bases}
    assert sorted(set(own) - set(met) - bases) == [], "each kind of object was met"
    go_on.set()


def _large_numbers(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in cast("dict[str, Any]", value).items():
            if key not in GIVEN:
                yield from _large_numbers(each, key)
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _large_numbers(each, name)
    elif isinstance(value, int | float) and value > EPOCH:
        yield name
