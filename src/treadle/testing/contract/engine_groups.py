"""What items have to do with each other: groups, chains, folds, gates, batches."""

from __future__ import annotations

import asyncio

from treadle.condition import at_least
from treadle.context import Context
from treadle.decorators import work
from treadle.doers import balanced
from treadle.errors import Abort, GroupFailed
from treadle.result import Result

from .fleet import PATIENCE, Fleet, failure
from .subject import needs


class EngineGroupCases:
    async def test_a_group_ends_with_its_last_member(self, fleet: Fleet) -> None:
        """Children join the group; who waits for it waits for all, and gets the last contribution."""
        ran: list[int] = []

        @work(name="leaf")
        async def leaf(n: int) -> int:
            ran.append(n)
            return n

        @work(name="root")
        async def root(ctx: Context, n: int) -> Result[None, int]:
            return ctx.queue([leaf(each) for each in range(n)])

        app = await fleet.app(root, leaf)
        handle = await app.enqueue(root(20))
        assert await handle.group(PATIENCE) in range(20)
        assert sorted(ran) == list(range(20))

    async def test_next_comes_when_all_have_ended(self, fleet: Fleet) -> None:
        """Fan-out and fan-in, chained; the released work sees what it waited for."""

        @work(name="square")
        async def square(n: int) -> int:
            return n * n

        @work(name="total")
        async def total(ctx: Context) -> int:
            return sum(await ctx.results(ctx.dependencies))

        @work(name="double")
        async def double(ctx: Context) -> int:
            values: list[int] = await ctx.results(ctx.dependencies)
            return 2 * sum(values)

        @work(name="flow")
        async def flow(ctx: Context, n: int) -> Result[None, int]:
            return ctx.queue([square(each) for each in range(n)]).next(total()).next(double())

        app = await fleet.app(flow, square, total, double)
        assert await app.enqueue(flow(10)).group(PATIENCE) == 2 * sum(n * n for n in range(10))

    @needs("folds")
    async def test_folds_are_exact(self, fleet: Fleet) -> None:
        """`append`, by three workers at once: nothing is lost, nothing counted twice."""

        @work(name="one", doer=balanced(3))  # one doer for all of them: none can take everything
        async def one(ctx: Context) -> Result[int]:
            await asyncio.sleep(0.001)
            return ctx.result(1, append=lambda old: (old or 0) + 1)

        @work(name="many")
        async def many(ctx: Context, n: int) -> Result[None, int]:
            return ctx.queue([one() for _ in range(n)])

        apps = [await fleet.app(one, many) for _ in range(3)]
        assert await apps[0].enqueue(many(60)).group(PATIENCE) == 60

    async def test_a_gate_opens_when_its_condition_holds(self, fleet: Fleet) -> None:
        """`after`: all of them, or enough of them."""

        @work(name="step")
        async def step(n: int) -> int:
            return n

        @work(name="bad")
        async def bad() -> None:
            raise Abort("bad")

        app = await fleet.idle(step, bad)
        first, second = await app.enqueue_many([step(1), step(2)])
        failing = await app.enqueue(bad())
        both = await app.enqueue(step(3), after=[first, second])
        enough = await app.enqueue(step(4), after=[first, failing], when=at_least(1))
        assert (await both.state()).status == "blocked"
        await app.start()
        assert [await both.result(PATIENCE), await enough.result(PATIENCE)] == [3, 4]

    async def test_a_gate_that_cannot_open_ends_at_once(self, fleet: Fleet) -> None:
        """`dead: unsatisfiable`."""

        @work(name="step")
        async def step() -> None: ...

        @work(name="bad")
        async def bad() -> None:
            raise Abort("bad")

        app = await fleet.app(step, bad)
        waiting = await app.enqueue(step(), after=await app.enqueue(bad()))
        assert (await failure(waiting.result(PATIENCE))).reason == "unsatisfiable"

    async def test_a_group_without_a_value_says_what_failed(self, fleet: Fleet) -> None:
        """`GroupFailed`, naming the member."""

        @work(name="bad")
        async def bad() -> None:
            raise Abort("bad leaf")

        @work(name="root")
        async def root(ctx: Context) -> Result[None, None]:
            return ctx.queue(bad())

        error = await failure((await fleet.app(root, bad)).enqueue(root()).group(PATIENCE))
        assert isinstance(error, GroupFailed)
        assert error.error == "bad leaf"

    async def test_a_batch_runs_together(self, fleet: Fleet) -> None:
        """One call for many items; each has its own value, or its own failure."""
        sizes: list[int] = []

        @work.batch(name="embed", size=10, max_wait=0.2)
        async def embed(texts: list[str]) -> list[int]:
            sizes.append(len(texts))
            return [Abort("empty") if not text else len(text) for text in texts]  # type: ignore[misc]

        app = await fleet.idle(embed)
        handles = await app.enqueue_many([embed("x" * n) for n in range(10)])
        await app.start()
        assert (await failure(handles[0].result(PATIENCE))).error == "empty"
        assert [await handle.result(PATIENCE) for handle in handles[1:]] == list(range(1, 10))
        assert max(sizes) > 1

    async def test_results_cross_the_store_whole(self, fleet: Fleet) -> None:
        """A large fan-in, waited for by many."""

        @work(name="leaf")
        async def leaf(n: int) -> bytes:
            return bytes([n % 256]) * 1000

        app = await fleet.app(leaf)
        handles = await app.enqueue_many([leaf(n) for n in range(100)])
        values = await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
        assert values == [bytes([n]) * 1000 for n in range(100)]
