"""The commands that change items, on PostgreSQL."""

from __future__ import annotations

import asyncio
import uuid
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.backends.postgres_store import connected
from tests.cli import looked_at
from tests.cli.calling import Called, call
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


def _execute(url: str, *statements: str) -> None:
    async def execute() -> None:
        async with connected(url) as admin:
            for each in statements:
                await admin.execute(each)

    asyncio.run(execute())


def test_a_role_that_may_only_read_is_refused_changes(prepared_url: str) -> None:
    role = f"reader_{uuid.uuid4().hex[:12]}"
    _execute(
        prepared_url,
        f"create role {role} login; grant usage on schema treadle to {role}",
        f"grant select on all tables in schema treadle to {role}",
    )
    try:
        url = urlunsplit(urlsplit(prepared_url)._replace(netloc=f"{role}@"))
        assert call("status", "--url", url).code == 0
        refused = call("pause", "bulk", "--url", url)
        assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1)
        assert (
            "refuses it: the role lacks a right: InsufficientPrivilegeError: permission denied" in refused.err
        )
        assert "SECURITY.md" in refused.err
    finally:
        _execute(prepared_url, f"drop owned by {role}; drop role {role}")


def test_migrate_replaces_functions_of_an_earlier_release(prepared_url: str) -> None:
    """Also if the tables are the same."""
    _execute(
        prepared_url,
        "drop function treadle.remove_worker(text)",
        "update treadle.meta set value = 'old' where name = 'functions'",
    )
    assert call("migrate", prepared_url).out.endswith(" is up to date\n")
    _execute(prepared_url, "select treadle.remove_worker('unknown')")
