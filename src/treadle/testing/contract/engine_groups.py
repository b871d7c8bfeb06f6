"""Groups, chains, folds, dependencies and batches, end to end."""

from __future__ import annotations

import asyncio

from treadle.define.condition import at_least, group
from treadle.define.decorators import work
from treadle.doers import balanced
from treadle.errors import Abort, GroupFailed
from treadle.handler.context import Context
from treadle.handler.result import Result

from .fleet import PATIENCE, Apps, failure
from .subject import needs


class EngineGroupCases:
    async def test_group_waits_for_every_member(self, fleet: Apps) -> None:
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

    async def test_next_runs_after_all_members_have_ended(self, fleet: Apps) -> None:
        """Fan-out and fan-in, chained. The released work reads the results of its dependencies."""

        @work(name="square")
        async def square(n: int) -> int:
            return n * n

        @work(name="total")
        async def total(ctx: Context) -> int:
            return sum(await ctx.results(square))

        @work(name="double")
        async def double(ctx: Context) -> int:
            return 2 * await ctx.result_of(total)

        @work(name="flow")
        async def flow(ctx: Context, n: int) -> Result[None, int]:
            return ctx.queue([square(each) for each in range(n)]).next(total()).next(double())

        app = await fleet.app(flow, square, total, double)
        assert await app.enqueue(flow(10)).group(PATIENCE) == 2 * sum(n * n for n in range(10))

    @needs("folds")
    async def test_concurrent_appends_are_exact(self, fleet: Apps) -> None:
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

    async def test_after_releases_an_item_when_its_condition_is_met(self, fleet: Apps) -> None:
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

    async def test_an_item_whose_condition_cannot_be_met_ends(self, fleet: Apps) -> None:
        """`dead: unsatisfiable`."""

        @work(name="step")
        async def step() -> None: ...

        @work(name="bad")
        async def bad() -> None:
            raise Abort("bad")

        app = await fleet.app(step, bad)
        waiting = await app.enqueue(step(), after=await app.enqueue(bad()))
        assert (await failure(waiting.result(PATIENCE))).reason == "unsatisfiable"

    async def test_group_names_the_failed_member(self, fleet: Apps) -> None:
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

    async def test_a_member_that_died_fails_a_group_with_a_value(self, fleet: Apps) -> None:
        """`.value` is the value so far, and `group(partial=True)` returns it."""

        @work(name="good")
        async def good() -> int:
            return 5

        @work(name="bad")
        async def bad() -> int:
            raise Abort("bad leaf")

        @work(name="root")
        async def root(ctx: Context) -> Result[None, int]:
            return ctx.queue(good()).next(bad())

        app = await fleet.app(root, good, bad)
        handle = await app.enqueue(root())
        error = await failure(handle.group(PATIENCE))
        assert isinstance(error, GroupFailed)
        assert (error.value, [death.type for death in error.failed]) == (5, ["bad"])
        assert await handle.group(PATIENCE, partial=True) == 5

    @needs("nested", "folds")
    async def test_a_crawl_of_nested_groups_sees_every_page(self, fleet: Apps) -> None:
        """Each page with links is a group of its own, on two workers."""

        @work(name="page")
        async def page(ctx: Context, depth: int) -> Result[int | None, int]:
            if not depth:
                return ctx.result(1, append=lambda old: (old or 0) + 1)
            return ctx.group([page(depth - 1) for _ in range(3)]).next(merge())

        @work(name="merge")
        async def merge(ctx: Context) -> Result[int]:
            below: int
            (below,) = await ctx.results(ctx.dependencies)
            return ctx.result(below + 1, append=lambda old: (old or 0) + below + 1)

        @work(name="index")
        async def index(ctx: Context) -> int:
            (pages,) = await ctx.results(ctx.dependencies)
            return int(pages)

        @work(name="crawl")
        async def crawl(ctx: Context) -> Result[None, int]:
            return ctx.group(page(4)).next(index())

        apps = [await fleet.app(page, merge, index, crawl) for _ in range(2)]
        assert await apps[0].enqueue(crawl()).group(PATIENCE) == 3**4 + 3**3 + 3**2 + 3 + 1

    @needs("nested", "operating")
    async def test_a_nested_failure_is_repaired(self, fleet: Apps) -> None:
        """The step that died, and all that waited for it, run in order and once."""
        ran: list[str] = []
        broken = [True]

        @work(name="step")
        async def step(name: str) -> str:
            if name == "fetch" and broken[0]:
                raise Abort("down")
            ran.append(name)
            return name

        @work(name="part")
        async def part(ctx: Context) -> Result[None, str]:
            return ctx.group(step("fetch")).next(step("parse"))

        @work(name="whole")
        async def whole(ctx: Context) -> Result[None, str]:
            return ctx.queue(step("start")).next(ctx.group(part())).next(step("index"))

        app = await fleet.app(step, part, whole)
        handle = await app.enqueue(whole())
        error = await failure(handle.group(PATIENCE))
        assert isinstance(error, GroupFailed)
        assert (error.error, ran) == ("down", ["start"])
        broken[0] = False
        assert await app.repair(handle.id) == 5
        assert await handle.group(PATIENCE) == "index"
        assert ran == ["start", "fetch", "parse", "index"]

    @needs("nested")
    async def test_an_item_runs_after_a_whole_group(self, fleet: Apps) -> None:
        """It has the value of the group."""

        @work(name="leaf")
        async def leaf(n: int) -> int:
            return n

        @work(name="root")
        async def root(ctx: Context) -> Result[None, int]:
            return ctx.queue(leaf(1)).next(leaf(2)).next(leaf(3))

        @work(name="after")
        async def after(ctx: Context) -> list[object]:
            return await ctx.results(ctx.dependencies)

        app = await fleet.idle(leaf, root, after)
        handle = await app.enqueue(root())
        waiting = await app.enqueue(after(), after=[group(handle)])
        last = await app.enqueue(after(), after=[group(waiting)])
        await app.start()
        assert await waiting.result(PATIENCE) == [3]
        assert await last.result(PATIENCE) == [[3]]

    async def test_a_batch_function_runs_many_items_in_one_call(self, fleet: Apps) -> None:
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

    async def test_a_hundred_large_results_are_returned_unchanged(self, fleet: Apps) -> None:
        """A hundred waiters, each for 1,000 bytes."""

        @work(name="leaf")
        async def leaf(n: int) -> bytes:
            return bytes([n % 256]) * 1000

        app = await fleet.app(leaf)
        handles = await app.enqueue_many([leaf(n) for n in range(100)])
        values = await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
        assert values == [bytes([n]) * 1000 for n in range(100)]
