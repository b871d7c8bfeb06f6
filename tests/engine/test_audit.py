"""Who changed what: `app.by(...)` and `app.audits()`."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from pathlib import Path

import pytest

from tests.engine.kit import PATIENCE, MakeApp
from treadle import Client, InputError, NotFound, Retry, work
from treadle.base.timing import SystemClock
from treadle.errors import UnsupportedError, WorkFailed
from treadle.item import AuditNote
from treadle.operate.operator import note_of
from treadle.ports import PortsBackend
from treadle.ports.memory import MemoryPubSub, MemoryQueue, MemoryStore
from treadle.records import AuditEntry
from treadle.testing import Faults


@work(name="add", retry=Retry(attempts=1))
async def add(n: int) -> int:
    if n < 0:
        raise ValueError("negative")
    return n


def brief(entry: AuditEntry) -> tuple[str, str, str | None, int, str]:
    return entry.actor, entry.verb, entry.tenant, entry.count, entry.about


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_changes_of_a_named_client_are_noted(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """With each of its methods, in the order of the calls, and logged. Those of the app itself are not."""
    app = make_app(add)
    caplog.set_level(logging.INFO, "treadle")
    await app.start()
    ann = app.by("ann", reason="a test", address="10.0.0.1")
    dead = await ann.enqueue(add(-1))
    with pytest.raises(WorkFailed):
        await dead.result(PATIENCE)
    later = await app.enqueue_many([add(1), add(2)], delay=1000)
    await app.cancel(later[0])
    assert await ann.dead.requeue(type="add", limit=5) == 1
    with pytest.raises(WorkFailed):
        await dead.result(PATIENCE)
    assert await ann.repair(dead.id) == 1
    with pytest.raises(WorkFailed):
        await dead.result(PATIENCE)
    assert await ann.dead.delete(dead.id) == 1
    await ann.handle(later[1].id).cancel()
    app.schedule("s", every=1000, run=lambda: add(3))
    handle = await ann.schedules.trigger("s")
    assert handle is not None
    await ann.schedules.pause("s")
    await ann.schedules.resume("s")
    await ann.schedules.cancel("s")
    with pytest.raises(NotFound):
        await ann.schedules.cancel("s")
    bob = app.tenant("acme").by("bob")
    assert note_of(app.by("bob").tenant("acme")) == note_of(bob)
    await bob.pause("q")
    await bob.enqueue(add(4)).result(PATIENCE)
    entries = (await app.audits()).entries[::-1]
    assert [brief(entry) for entry in entries] == [
        ("ann", "enqueue", "default", 1, ""),
        ("ann", "requeue", "default", 1, "status:dead type:add"),
        ("ann", "requeue", "default", 1, f"repair of {dead.id}"),
        ("ann", "delete", "default", 1, ""),
        ("ann", "cancel", None, 1, ""),
        ("ann", "trigger_schedule", "default", 1, "s"),
        ("ann", "pause_schedule", None, 1, ""),
        ("ann", "resume_schedule", None, 1, ""),
        ("ann", "cancel_schedule", None, 1, ""),
        ("ann", "cancel_schedule", None, 0, ""),
        ("bob", "pause", "acme", 1, ""),
        ("bob", "enqueue", "acme", 1, ""),
    ]
    assert {(entry.reason, entry.address) for entry in entries[:10]} == {("a test", "10.0.0.1")}
    assert [entry.actor for entry in (await app.tenant("acme").audits(limit=1)).entries] == ["bob"]
    assert len((await app.tenant("acme").audits()).entries) == 2
    logged = [record for record in caplog.records if hasattr(record, "actor")]
    assert [record.verb for record in logged] == [entry.verb for entry in entries]  # type: ignore[attr-defined]
    assert logged[-2].getMessage() == "pause of q by bob: 1 changed"


async def test_an_enqueue_whose_answer_is_lost_is_noted_once(make_faulty: MakeApp, faults: Faults) -> None:
    async with make_faulty(add) as app:
        for lost in (faults.fail("submit", when="after"), faults.fail("submit")):
            await app.by("ann").enqueue(add(1), key=f"k{lost.hits}", key_scope="any", key_policy="replace")
            assert lost.hits == 1
        assert [entry.count for entry in (await app.audits()).entries] == [1, 1]


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_client_cannot_be_named_by_what_is_no_name(make_app: MakeApp) -> None:
    """What is wrong is said by name. A store without an audit refuses the change, and does nothing."""
    app = make_app(add)
    for wrong in ("", " ", "a\nb", "\x1b[2J", "x" * 201, None, 3):
        with pytest.raises(InputError, match="actor="):
            app.by(wrong)  # type: ignore[arg-type]
    for field in ("reason", "address"):
        for wrong in ("a\x00b", "x" * 2001, None):
            with pytest.raises(InputError, match=f"{field}="):
                app.by("ann", **{field: wrong})  # type: ignore[arg-type]
    for wrong in ({"limit": 0}, {"cursor": 3}, {"cursor": "x"}, {"bulk": "no id"}):
        with pytest.raises(InputError):
            await app.audits(**wrong)  # type: ignore[arg-type]
    assert note_of(app.by("x" * 200, reason="y" * 2000)) == AuditNote(actor="x" * 200, reason="y" * 2000)
    clock = SystemClock()
    bare = Client(PortsBackend(MemoryQueue(clock), MemoryPubSub(), MemoryStore(clock)), work=[add])
    handle = await bare.enqueue(add(1), delay=1000)
    for change in (
        bare.by("ann").cancel(handle),
        bare.by("ann").enqueue_many([add(2)]),
        bare.by("ann").handle(handle.id).cancel(),
        bare.by("ann").schedules.cancel("s"),
        bare.audits(),
        bare.drain_worker("w"),
    ):
        with pytest.raises(UnsupportedError, match="audit entries"):
            await change
    assert (await handle.state()).status == "scheduled"
    await bare.close()


def test_code_that_is_not_async_is_noted(tmp_path: Path) -> None:
    """Also what is enqueued in a transaction of the caller."""
    path = tmp_path / "work.db"
    with Client(f"sqlite:///{path}", work=[add]).sync as client:
        ann = client.by("ann").tenant("acme")
        ann.cancel(ann.enqueue(add(1), delay=1000).id)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for end in ("ROLLBACK", "COMMIT"):
                connection.execute("BEGIN IMMEDIATE")
                ann.enqueue_many([add(1), add(2)], tx=connection)
                connection.execute(end)
        assert [(entry.verb, entry.count) for entry in client.audits().entries] == [
            ("enqueue", 2),
            ("cancel", 1),
            ("enqueue", 1),
        ]
