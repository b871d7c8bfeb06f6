"""Groups, chains, folds, dependencies and batches, end to end."""

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
    async def test_group_waits_for_every_member(self, fleet: Fleet) -> None:
        """Children join the group. `group()` returns the last contribution."""
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

    async def test_next_runs_after_all_members_have_ended(self, fleet: Fleet) -> None:
        """Fan-out and fan-in, chained. The released work reads the results of its dependencies."""

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
    async def test_concurrent_appends_are_exact(self, fleet: Fleet) -> None:
        """Three workers append at once: nothing is lost and nothing is counted twice."""

        @work(name="one", doer=balanced(3))  # few at once, so that no worker runs everything
        async def one(ctx: Context) -> Result[int]:
            await asyncio.sleep(0.001)
            return ctx.result(1, append=lambda old: (old or 0) + 1)

        @work(name="many")
        async def many(ctx: Context, n: int) -> Result[None, int]:
            return ctx.queue([one() for _ in range(n)])

        apps = [await fleet.app(one, many) for _ in range(3)]
        assert await apps[0].enqueue(many(60)).group(PATIENCE) == 60

    async def test_after_releases_an_item_when_its_condition_is_met(self, fleet: Fleet) -> None:
        """All prerequisites, or enough of them."""

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

    async def test_an_item_whose_condition_cannot_be_met_ends(self, fleet: Fleet) -> None:
        """`dead: unsatisfiable`."""

        @work(name="step")
        async def step() -> None: ...

        @work(name="bad")
        async def bad() -> None:
            raise Abort("bad")

        app = await fleet.app(step, bad)
        waiting = await app.enqueue(step(), after=await app.enqueue(bad()))
        assert (await failure(waiting.result(PATIENCE))).reason == "unsatisfiable"

    async def test_group_names_the_failed_member(self, fleet: Fleet) -> None:
        """`GroupFailed` carries its error."""

        @work(name="bad")
        async def bad() -> None:
            raise Abort("bad leaf")

        @work(name="root")
        async def root(ctx: Context) -> Result[None, None]:
            return ctx.queue(bad())

        error = await failure((await fleet.app(root, bad)).enqueue(root()).group(PATIENCE))
        assert isinstance(error, GroupFailed)
        assert error.error == "bad leaf"

    async def test_a_batch_function_runs_many_items_in_one_call(self, fleet: Fleet) -> None:
        """Each item has its own value or its own failure."""
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

    async def test_a_hundred_large_results_are_returned_unchanged(self, fleet: Fleet) -> None:
        """A hundred waiters, each for 1,000 bytes."""

        @work(name="leaf")
        async def leaf(n: int) -> bytes:
            return bytes([n % 256]) * 1000

        app = await fleet.app(leaf)
        handles = await app.enqueue_many([leaf(n) for n in range(100)])
        values = await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
        assert values == [bytes([n]) * 1000 for n in range(100)]
