"""The commands that change items, on PostgreSQL."""

from __future__ import annotations

import asyncio

import pytest

from tests.cli import looked_at
from tests.cli.calling import Called
from tests.cli.conftest import Store
from tests.cli.looked_at import report, send
from treadle import Treadle


def test_items_are_changed_by_filters_and_dead_ones_are_requeued(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(postgres_url)
    monkeypatch.setattr(looked_at, "app", store.app())

    async def fill(app: Treadle) -> list[Called]:
        works = [send(3 * n) for n in range(4)]
        await asyncio.gather(*(app.enqueue(each).result() for each in works), return_exceptions=True)
        await app.enqueue_many([report() for _ in range(3)], delay=3600)
        await app.tenant("acme").enqueue(report(), delay=3600)

        async def call(*arguments: str) -> Called:
            return await asyncio.to_thread(store.call, *arguments)

        return [
            await call("dead", "--json"),
            await call("trigger", "--type", "report", "--tenant", "acme", "--yes"),
            await call("cancel", "--type", "report", "--status", "scheduled", "--yes", "--json"),
            # They die again: the canary holds the others back.
            await call("requeue", "--type", "mail.send", "--canary", "1", "--yes"),
            await call("dead", "delete", "--type", "mail.send", "--yes"),
            await call("run", "report", '{"day": "monday"}', "--wait"),
            await call("pause", "bulk"),
            await call("prune"),
        ]

    dead, trigger, cancel, requeue, delete, run, pause, prune = store.work_off(fill)
    assert [each["count"] for each in dead.objects] == [4]
    assert trigger.out == "triggered 1 item\n"
    assert cancel.objects[0]["changed"] == 3
    assert requeue.code == 1
    assert "canary: 0 succeeded, 1 failed" in requeue.out
    assert delete.out == "deleted 4 items\n"
    assert (run.code, run.out) == (0, '{"day":"monday"}\n')
    assert (pause.code, prune.code) == (0, 0)
