"""Handlers with transactions, end to end: what a handler asks of the store is a part of its transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from treadle.define.decorators import work
from treadle.errors import DuplicateIdError, InputError
from treadle.events import Event, Queued
from treadle.handler.context import Context
from treadle.retry import Retry

from .fleet import PATIENCE, Apps, Checkpoint
from .subject import needs

MANY = 20
"""More transactions than a store has connections for."""


class EngineTransactionCases:
    @needs("transactions")
    async def test_ctx_transaction_includes_what_the_handler_requests(self, fleet: Apps) -> None:
        """Many handlers at once, each with a claim, reads and submits in its block and after it."""
        ran: list[int] = []
        events: list[str] = []

        @work(name="child")
        async def child(n: int) -> int:
            ran.append(n)
            return n

        @work(name="busy")
        async def busy(ctx: Context, n: int) -> list[str]:
            (earlier,) = ctx.dependencies
            async with ctx.transaction() as tx:
                assert await ctx.claim(f"key {n}")
                assert await ctx.results([earlier]) == [0]
                assert [state.status for state in await ctx.states([ctx.id]) if state] == ["running"]
                first = await app.enqueue(child(n))
                second = await app.enqueue(child(n), tx=tx)
                assert [state.status for state in await app.get([first, second]) if state] == ["ready"] * 2
                assert (await second.state()).id == second.id
            (third,) = await app.enqueue_many([child(n)])
            assert not ran.count(n)
            return [first.id, second.id, third.id]

        def note(event: Event) -> None:
            if isinstance(event, Queued):
                events.append(event.id)

        app = await fleet.app(child, busy, on_event=note)
        before = await app.enqueue(child(0))
        handles = await app.enqueue_many([busy(n) for n in range(1, MANY + 1)], after=before)
        unrelated = await app.enqueue(child(-1))
        assert await unrelated.result(PATIENCE) == -1
        children = [id for handle in handles for id in await handle.result(PATIENCE)]
        for id in children:
            await app.handle(id).result(PATIENCE)
        assert sorted(ran) == sorted([-1, 0, *range(1, MANY + 1), *range(1, MANY + 1), *range(1, MANY + 1)])
        assert set(children) <= set(events)

    @needs("transactions")
    async def test_ctx_transaction_undoes_what_the_handler_requested(self, fleet: Apps) -> None:
        """If the handler raises, also after the block. A refused request leaves the rest as it was."""
        submitted: list[str] = []

        @work(name="child")
        async def child() -> None:
            pass

        @work(name="careful", retry=Retry(attempts=2, base=0))
        async def careful(ctx: Context) -> bool:
            async with ctx.transaction():
                claimed = await ctx.claim("key")
                one = child()
                submitted.append((await app.enqueue(one)).id)
                with pytest.raises(DuplicateIdError):
                    await app.enqueue(one)
            if ctx.attempt == 1:
                raise OSError("afterwards")
            return claimed

        @work(name="other")
        async def other(ctx: Context) -> bool:
            return await ctx.claim("key")

        app = await fleet.app(child, careful, other)
        assert await app.enqueue(careful()).result(PATIENCE) is True
        undone, kept = await app.get(submitted)
        assert undone is None
        assert kept is not None
        assert await app.enqueue(other()).result(PATIENCE) is False

    @needs("transactions")
    async def test_what_would_wait_for_the_transaction_is_refused(self, fleet: Apps) -> None:
        """A second transaction, waiting for other items, and what operators do."""
        refused: list[str] = []

        @work(name="child")
        async def child() -> None:
            pass

        async def expect_refusal(name: str, request: Callable[[], Awaitable[Any]]) -> None:
            try:
                await request()
            except InputError:
                refused.append(name)

        @work(name="stuck")
        async def stuck(ctx: Context) -> None:
            async def nested() -> None:
                async with ctx.transaction():
                    pass

            async with ctx.transaction():
                handle = await app.enqueue(child())
                await expect_refusal("nested", nested)
                await expect_refusal("result", handle.result)
                await expect_refusal("group", handle.group)
                await expect_refusal("enqueue and result", lambda: app.enqueue(child()).result())
                await expect_refusal("cancel", handle.cancel)
            await expect_refusal("second", nested)
            await expect_refusal("pause", lambda: app.pause("bulk"))
            await expect_refusal("requeue", lambda: app.dead.requeue(type="child"))
            await expect_refusal("delete", lambda: app.dead.delete(type="child"))
            await expect_refusal("delete one", lambda: app.dead.delete(handle))

        app = await fleet.app(child, stuck)
        await app.enqueue(stuck()).result(PATIENCE)
        assert refused[:5] == ["nested", "result", "group", "enqueue and result", "cancel"]
        assert refused[5:] == ["second", "pause", "requeue", "delete", "delete one"]
        await app.pause("bulk")

    @needs("transactions")
    async def test_a_claimed_key_waits_for_the_transaction_that_claimed_it(self, fleet: Apps) -> None:
        """It is claimed if that transaction commits, free if it rolls back."""
        checkpoint = Checkpoint()

        @work(name="holder", retry=Retry(attempts=1))
        async def holder(ctx: Context) -> None:
            async with ctx.transaction():
                assert await ctx.claim("key")
                await checkpoint.arrive()
                raise OSError("rolled back")

        @work(name="other")
        async def other(ctx: Context) -> bool:
            await checkpoint.reached()
            asyncio.get_running_loop().call_later(0.05, checkpoint.open)
            claimed = await ctx.claim("key")
            assert checkpoint.is_open
            return claimed

        app = await fleet.app(holder, other)
        _, waiting = await app.enqueue_many([holder(), other()])
        assert await waiting.result(PATIENCE) is True
