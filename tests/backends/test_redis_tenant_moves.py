"""Tenants leave Redis, and come, in portions: processes die between them, sleep, and wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.backends.redis_store import RedisSubject
from tests.backends.test_redis_stages import items, staged
from tests.backends.test_tenant_moves import (
    OWNED,
    TENANT,
    come,
    contents,
    frozen_for_a_move,
    here,
    leave,
    nothing_of_it,
    present,
)
from treadle.backends.redis import tenant_moves
from treadle.backends.redis.link import RedisLink
from treadle.errors import BackendError, StoreUnavailable, TenantElsewhere
from treadle.item import Item, Submission
from treadle.store.rules.tenant_moves import activated, committed, copying, prepared
from treadle.testing.contract.build import apply, dependent, item, start_one, submit, succeed
from treadle.testing.contract.check import consistent

SOON = 0.3


class Died(Exception):
    pass


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each portion has one item. Who does nothing is taken over from soon."""
    monkeypatch.setattr(tenant_moves, "ITEMS", 1)
    monkeypatch.setattr(tenant_moves, "SECONDS", SOON)


@pytest.fixture
async def subject(valkey_url: str) -> AsyncIterator[RedisSubject]:
    subject = RedisSubject(valkey_url)
    await subject.backend.open()
    yield subject
    await subject.close()
    assert subject.audit() == []


@pytest.fixture
async def other(valkey_url: str) -> AsyncIterator[RedisSubject]:
    """The new store."""
    other = RedisSubject(valkey_url)
    await other.backend.open()
    yield other
    await other.close()
    assert other.audit() == []


async def fill(subject: RedisSubject) -> None:
    """A bit of everything, and the work of another tenant."""
    backend = subject.backend
    await submit(backend, item("theirs", tenant="default", type="other"))
    ended = await start_one(backend, item("ended", tenant=TENANT))
    await apply(backend, succeed(ended))
    await start_one(backend, item("running", tenant=TENANT))
    await submit(backend, dependent("running", id="next", tenant=TENANT), item("ready", tenant=TENANT))
    assert await backend.claim_key("lock", "me", 500, tenant=TENANT)


class Portions:
    """Counts the portions of a step. The process dies before one is done, or before it learns of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
        self.calls, self.dies_at, self.answer_is_lost = 0, 0, False
        run = RedisLink.run

        async def counted(link: RedisLink, what: Any, args: Sequence[Any] = (), **how: Any) -> Any:
            if what.name != script:
                return await run(link, what, args, **how)
            self.calls += 1
            if self.calls == self.dies_at and not self.answer_is_lost:
                raise Died
            answer = await run(link, what, args, **how)
            if self.calls == self.dies_at:
                raise Died
            return answer

        monkeypatch.setattr(RedisLink, "run", counted)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("answer_is_lost", [False, True])
@pytest.mark.parametrize("dies_at", range(1, 9))
async def test_the_next_process_goes_on_with_a_tenant_that_leaves(
    dies_at: int, answer_is_lost: bool, subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody sees a part of it."""
    await fill(subject)
    mark = await frozen_for_a_move(subject.backend)
    portions = Portions(monkeypatch, "leave")
    portions.dies_at, portions.answer_is_lost = dies_at, answer_is_lost
    died = False
    try:
        await leave(subject.backend, mark)
    except Died:
        died = True
    assert died == (dies_at <= portions.calls)
    other = await subject.another()
    assert await other.get(["ready", "ended"], tenant=TENANT) == [None, None]
    with pytest.raises(TenantElsewhere):
        await submit(other, item("more", tenant=TENANT))
    assert await nothing_of_it(other)
    assert (await other.get(["theirs"]))[0] is not None
    await consistent(other)
    assert portions.calls >= 6


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("answer_is_lost", [False, True])
@pytest.mark.parametrize("dies_at", range(1, 12))
async def test_the_next_process_goes_on_with_a_tenant_that_comes(
    dies_at: int,
    answer_is_lost: bool,
    subject: RedisSubject,
    other: RedisSubject,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each item comes once."""
    await fill(subject)
    await submit(other.backend, item("others", tenant="default"))
    mark = await frozen_for_a_move(subject.backend)
    found = await leave(subject.backend, mark)
    portions = Portions(monkeypatch, "receive")
    portions.dies_at, portions.answer_is_lost = dies_at, answer_is_lost
    died = False
    try:
        await come(other.backend, mark, found)
    except Died:
        died = True
    assert died == (dies_at <= portions.calls)
    late = await other.another()
    states = await late.get(["ended", "running", "next", "ready"], tenant=TENANT)
    assert [state and state.status for state in states] == ["success", "running", "blocked", "ready"]
    owned = present(activated(present(copying(present(prepared(None, 1, is_empty=True)), 1, 2)), 1, 2))
    assert contents(await here(late, owned, TENANT)) == contents(found)
    assert (await late.tenant_moves.staged(TENANT))[0] == 0
    await consistent(late)
    assert portions.calls >= 8


@pytest.mark.usefixtures("small")
async def test_a_mover_that_has_slept_through_the_end_of_its_freeze_changes_nothing(
    subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(subject)
    mark = await frozen_for_a_move(subject.backend)
    monkeypatch.setattr(tenant_moves, "call_moving", asleep(tenant_moves.call_moving))
    async with subject.backend.tenant_moves.give(TENANT, mark) as giving:
        assert len(await giving.read(3)) == 3
        other = await subject.another()
        await submit(other, item("more", tenant=TENANT))
        with pytest.raises(StoreUnavailable):
            await giving.read(3)
        away = present(committed(mark, mark.move, mark.freeze, await other.now()))
        with pytest.raises(StoreUnavailable):
            await giving.commit(away)
    assert (await other.get(["more"], tenant=TENANT))[0] is not None


def asleep(call: Any) -> Any:
    """What puts off the end of a freeze does nothing."""

    async def called(link: RedisLink, script: str, *arguments: Any) -> Any:
        return None if script == "extend" else await call(link, script, *arguments)

    return called


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("script", ["leave", "receive"])
async def test_a_process_that_wakes_up_when_another_has_gone_on_does_nothing(
    script: str, subject: RedisSubject, other: RedisSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its portion is done already, and items are there once."""
    await fill(subject)
    mark = await frozen_for_a_move(subject.backend)
    run, call, calls = RedisLink.run, tenant_moves.call_moving, 0
    woken: list[Any] = []
    asleep_now = asyncio.Event()

    async def sleeping(link: RedisLink, what: Any, args: Sequence[Any] = (), **how: Any) -> Any:
        nonlocal calls
        if what.name != script:
            return await run(link, what, args, **how)
        calls += 1
        if calls != 3:
            return await run(link, what, args, **how)
        asleep_now.set()
        await asyncio.sleep(5 * SOON)
        woken.append(await run(link, what, args, **how))
        return woken[0]

    async def called(link: RedisLink, name: str, *arguments: Any) -> Any:
        puts_off = name == "extend" and len(arguments) == 2
        return None if puts_off else await call(link, name, *arguments)

    monkeypatch.setattr(RedisLink, "run", sleeping)
    monkeypatch.setattr(tenant_moves, "call_moving", called)

    async def move() -> None:
        await come(other.backend, mark, await leave(subject.backend, mark))

    moving = asyncio.ensure_future(move())
    await asyncio.wait_for(asleep_now.wait(), 20)
    late = await (subject if script == "leave" else other).another()
    await consistent(late)
    assert not moving.done()
    await moving
    assert woken in ([None], [0])
    await consistent(other.backend)
    assert await nothing_of_it(subject.backend)


async def test_all_calls_wait_while_a_tenant_is_read(subject: RedisSubject) -> None:
    """Those that read, and heartbeats, too. None of them fails."""
    await fill(subject)
    backend = subject.backend
    mark = await frozen_for_a_move(backend)
    calls = [
        lambda: backend.get(["theirs"]),
        backend.counts,
        backend.schedules,
        lambda: backend.unknown_leases("w", []),
        lambda: backend.claim_key("theirs", "me", 5, tenant="default"),
        lambda: submit(backend, item("more", tenant="default", key="k")),
    ]
    async with backend.tenant_moves.give(TENANT, mark) as giving:
        waiting = [asyncio.ensure_future(call()) for call in calls]
        await asyncio.wait(waiting, timeout=0.2)
        assert not any(one.done() for one in waiting)
        assert await giving.read(3)
    await asyncio.gather(*waiting)


async def test_a_stage_of_a_tenant_that_leaves_is_not_decided(
    subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a new one begun. That of another tenant is begun again."""
    backend = subject.backend
    await submit(backend, item("first", tenant=TENANT))
    plain = items("a", "b", tenant=TENANT)
    stage = await staged(subject, *(one.id for one in plain))
    await leave(backend, await frozen_for_a_move(backend))
    assert await backend._decide_stage(stage, 2) is None
    many = tuple(Item(id=f"m{n}", type="work", input=b"", tenant=TENANT) for n in range(1100))
    with pytest.raises(TenantElsewhere):
        await backend.submit([Submission(many)])
    (answer,) = await backend.submit(
        [Submission(tuple(Item(id=f"t{n}", type="work", input=b"") for n in range(1100)))]
    )
    assert len(answer) == 1100
    await backend._drop_stage(stage)


async def test_a_store_into_which_a_tenant_comes_is_not_exported(
    subject: RedisSubject, other: RedisSubject
) -> None:
    """What has come would be left out."""
    await fill(subject)
    mark = await frozen_for_a_move(subject.backend)
    found = await leave(subject.backend, mark)
    importing = present(prepared(None, mark.move, is_empty=True))
    moves = other.backend.tenant_moves
    assert await moves.put_mark(TENANT, None, importing, empty=True)
    assert await moves.stage(TENANT, importing, found)
    async with other.backend.export() as export:
        with pytest.raises(BackendError, match="on its way"):
            await export.read()


async def test_what_was_stored_before_a_tenant_left_is_named(
    subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Submissions of different kinds are not stored in one step."""
    backend = subject.backend
    mark = await frozen_for_a_move(backend)
    run = RedisLink.run
    left: list[bytes] = []

    async def leave_before(link: RedisLink, what: Any, args: Sequence[Any] = (), **how: Any) -> Any:
        if what.name == "submit" and not left:
            left.extend(await leave(backend, mark))
        return await run(link, what, args, **how)

    monkeypatch.setattr(RedisLink, "run", leave_before)
    first, second = item("first", tenant=TENANT), item("second", tenant=TENANT, key="k")
    with pytest.raises(TenantElsewhere) as caught:
        await backend.submit([Submission((first,)), Submission((second,))])
    assert [answer.id for answers in caught.value.answers for answer in answers] == ["first"]
    assert "item first" in contents(left)
    assert "item second" not in contents(left)


async def test_a_freeze_waits_for_one_that_began_in_this_moment(
    subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when several processes end a move, or other tenants move."""
    await fill(subject)
    other = await subject.another()
    began, may_end = asyncio.Event(), asyncio.Event()
    until_here = tenant_moves.RedisTenantMoves.until_here
    tasks: list[asyncio.Task[None]] = []

    async def hold() -> None:
        assert await other.tenant_moves.put_mark("default", None, OWNED)
        async with other.tenant_moves.give("default", OWNED):
            began.set()
            await may_end.wait()

    async def first_another(moves: tenant_moves.RedisTenantMoves, waited: bool) -> bool:
        found = await until_here(moves, waited)
        if moves is subject.backend.tenant_moves and not tasks:
            tasks.append(asyncio.create_task(hold()))
            await began.wait()
            asyncio.get_running_loop().call_later(SOON, may_end.set)
        return found

    mark = await frozen_for_a_move(subject.backend)
    monkeypatch.setattr(tenant_moves.RedisTenantMoves, "until_here", first_another)
    assert await leave(subject.backend, mark)
    assert tasks
    await asyncio.gather(*tasks)
