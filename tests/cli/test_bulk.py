"""What a command that changes many items says of them, where not all goes well."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cli.conftest import Store
from tests.cli.looked_at import order, report, send
from treadle import MemoryBackend, Treadle
from treadle.cli.change_items import ask
from treadle.errors import StoreUnavailable, WorkFailed


async def _ended(app: Treadle, *ids: str) -> None:
    """Wait until these have ended."""
    handles = [app.handle(id) for id in ids]
    await asyncio.gather(*(each.result() for each in handles), return_exceptions=True)


def _statuses(store: Store) -> dict[str, str]:
    return {each["id"]: each["status"] for each in store.call("list", "--json").objects}


def test_a_canary_that_cannot_be_tried_does_not_count(memory: Store) -> None:
    """The oldest of them stay dead. The next one is the canary, and it dies again: the last stays."""

    async def fill(app: Treadle) -> None:
        await app.enqueue(report(), id="first", delay=3600)
        for name in ("stays1", "stays2"):
            await app.enqueue(send(1), id=name, after=["first"])
        await app.cancel("first")
        await app.enqueue(send(3), id="tried")
        await app.enqueue(send(3), id="rest")
        await _ended(app, "stays1", "stays2", "tried", "rest")
        arguments = ("requeue", "--type", "mail.send", "--yes", "--canary", "1", "--canary-wait", "20s")
        held = await asyncio.to_thread(memory.call, *arguments)
        assert held.code == 1
        assert "canary: requeued 1 item" in held.out
        assert held.out.endswith(
            "stopped: requeued 1 item, skipped 2 (2 PrerequisiteFailed). The rest is as it was\n"
            "what they wait for has failed. Requeue that first: treadle requeue --cancelled first\n"
        )
        (rest,) = await app.get(["rest"])
        assert rest is not None
        assert len(rest.history) == 2

    memory.work_off(fill)


def test_a_named_item_that_stays_dead_is_told_though_another_brings_more_along(memory: Store) -> None:
    async def fill(app: Treadle) -> None:
        for name, after in (("A", []), ("X", []), ("B", ["A"]), ("C", ["X"])):
            await app.enqueue(send(3), id=name, after=after)
        await _ended(app, *"ABCX")

    memory.work_off(fill)
    done = memory.call("requeue", "A", "C")
    assert (done.code, done.out) == (1, "requeued 2 items (1 asked for; the others wait for them)\n")
    assert "item 'C' stays dead" in done.err
    assert _statuses(memory) == {"A": "ready", "B": "blocked", "C": "dead", "X": "dead"}


def test_what_became_of_items_is_unknown_if_the_answer_is_lost(
    memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill(app: Treadle) -> None:
        for name in ("A", "B"):
            await app.enqueue(report(), id=name, delay=3600)

    memory.fill(fill)
    backend = memory.backend
    assert isinstance(backend, MemoryBackend)
    cancel = backend.cancel

    async def lose_answer(*args: Any, **options: Any) -> Any:
        await cancel(*args, **options)
        raise StoreUnavailable("the connection was lost")

    monkeypatch.setattr(backend, "cancel", lose_answer)
    lost = memory.call("cancel", "--all", "--yes")
    assert lost.code == 3
    assert lost.out.startswith("stopped: cancelled 0 items. The store gave no answer for 2 more items")
    assert "run the command again" in lost.out
    assert _statuses(memory) == {"A": "cancelled", "B": "cancelled"}
    (said,) = memory.call("cancel", "A", "--json").objects
    assert (said["matched"], said["unknown"], said["stopped"]) == (1, 1, True)


def test_what_others_have_changed_meanwhile_is_said(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fill(app: Treadle) -> None:
        await app.enqueue(send(3), id="A")
        await app.enqueue(send(3), id="B")
        await _ended(app, "A", "B")

    memory.work_off(fill)
    backend = memory.backend
    assert isinstance(backend, MemoryBackend)
    delete = backend.delete

    async def delete_after_another(ids: Any, **options: Any) -> Any:
        await delete(ids, **options)
        return await delete(ids, **options)

    monkeypatch.setattr(backend, "delete", delete_after_another)
    done = memory.call("dead", "delete", "--all", "--yes")
    assert (done.code, done.out) == (0, "deleted 0 items, skipped 2 (2 changed by others meanwhile)\n")


def test_a_dry_run_of_delete_counts_whole_groups(memory: Store) -> None:
    async def fill(app: Treadle) -> None:
        for name in ("first", "second"):
            handle = await app.enqueue(order([1, 2, 3]), id=name)
            with pytest.raises(WorkFailed):
                await handle.group()
        await app.enqueue(report(), id="open", delay=3600)

    memory.work_off(fill)
    looked = memory.call("dead", "delete", "--all", "--dry-run")
    assert looked.out == (
        "would delete 8 items (2 asked for; the others are in their groups); nothing was changed\n"
    )
    looked = memory.call("delete", "--all", "--dry-run")
    assert looked.out == "would delete 8 items, and skip 1 (1 GroupStillOpen); nothing was changed\n"
    looked = memory.call("delete", "first", "--dry-run")
    assert looked.out == (
        "would delete 4 items (1 asked for; the others are in their groups); nothing was changed\n"
    )
    (said,) = memory.call("dead", "delete", "--all", "--dry-run", "--json").objects
    assert (said["matched"], said["would_change"], said["would_change_more"]) == (2, 8, False)
    assert memory.call("dead", "delete", "--all", "--yes").out == (
        "deleted 8 items (2 asked for; the others were in their groups)\n"
    )


async def test_a_ctrl_c_just_before_the_question_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()  # as the handler of Ctrl-C does
    with pytest.raises(KeyboardInterrupt):
        ask("cancel 5 items? [y/N] ")
    task.uncancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert capsys.readouterr().err == ""


def test_a_requeue_of_what_could_not_run_says_what_failed_first(memory: Store) -> None:
    """Before and after: the items of the type stay dead until the first of the chain runs again."""

    async def fill(app: Treadle) -> None:
        for number in range(2):
            await app.enqueue(send(3), id=f"price{number}")
            await app.enqueue(report(), id=f"total{number}", after=[f"price{number}"])
            await app.enqueue(order([]), id=f"charge{number}", after=[f"total{number}"])
        await _ended(app, *(f"{name}{number}" for name in ("price", "total", "charge") for number in (0, 1)))

    memory.work_off(fill)
    remedy = "what they wait for has failed. Requeue that first: treadle requeue price0 price1\n"
    for type in ("report", "order.process"):
        looked = memory.call("requeue", "--type", type, "--dry-run")
        assert (looked.code, looked.out) == (
            1,
            f"would requeue 0 items, and skip 2 (2 PrerequisiteFailed); nothing was changed\n{remedy}",
        )
        done = memory.call("requeue", "--type", type, "--yes")
        assert (done.code, done.out) == (
            1,
            f"requeued 0 items, skipped 2 (2 PrerequisiteFailed)\n{remedy}",
        )
    assert "Requeue price1 (mail.send) first" in memory.call("requeue", "charge1").err
    looked = memory.call("requeue", "--all", "--dry-run")
    assert (looked.code, looked.out.split(",")[0]) == (0, "would requeue 6 items")
    assert memory.call("requeue", "--all", "--yes").code == 0
    assert set(_statuses(memory).values()) == {"ready", "blocked"}


def test_many_items_that_failed_first_are_named_by_their_mark_and_tenant(memory: Store) -> None:
    """The command must not reach the items of other tenants that died alike."""

    async def fill(app: Treadle) -> None:
        acme = app.tenant("acme")
        for number in range(4):
            await acme.enqueue(send(3), id=f"price{number}")
            await acme.enqueue(report(), id=f"total{number}", after=[f"price{number}"])
        handles = [acme.handle(f"total{number}") for number in range(4)]
        await asyncio.gather(*(each.result() for each in handles), return_exceptions=True)

    memory.work_off(fill)
    (mark,) = {each["mark"] for each in memory.call("list", "--type", "mail.send", "--json").objects}
    looked = memory.call("requeue", "--type", "report", "--dry-run")
    remedy = f"what they wait for has failed: treadle dead requeue --mark {mark} --tenant acme"
    assert looked.out.splitlines()[-1] == remedy


def test_the_store_was_not_asked_if_an_option_is_wrong(memory: Store) -> None:
    async def fill(app: Treadle) -> None:
        await app.enqueue(report(), id="A", delay=3600)

    memory.fill(fill)
    wrong = memory.call("update", "A", "--queue", "", "--json")
    assert (wrong.code, wrong.objects[-1]["unknown"]) == (2, 0), wrong
