"""Ids that are used again, and a store that has forgotten its last changes: workers remember more than it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import FAST
from tests.engine.kit import PATIENCE, MakeApp, until
from tests.support.rollback import Restore, copy_of
from tests.support.sqlite import empty_store
from treadle import Context, Result, Treadle, work
from treadle.backend import Backend
from treadle.testing.contract.build import apply, beat, claim, items, settle, submit, succeed

pytestmark = pytest.mark.every_store

LONG = 10 * PATIENCE
"""A lease that does not end during a test."""


class Parts:
    """Members of a group that append their names, on one of two workers. Each waits until the test lets it
    go."""

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

        @work(name="one", queue="one", keep=0)
        async def one(ctx: Context, name: str) -> Result[None, list[str] | None]:
            return await self._append(ctx, name)

        @work(name="two", queue="two", keep=0)
        async def two(ctx: Context, name: str) -> Result[None, list[str] | None]:
            return await self._append(ctx, name)

        @work(name="flow", queue="one", keep=0)
        async def flow(ctx: Context, on_one: list[str], on_two: list[str]) -> Result[None, list[str] | None]:
            return ctx.queue([*map(one, on_one), *map(two, on_two)])

        self.types = one, two, flow
        self.flow = flow

    async def _append(self, ctx: Context, name: str) -> Result[None, list[str] | None]:
        await self.gates[name].wait()
        return ctx.result(None, append=lambda old: [*(old or []), name])

    async def let_go(self, app: Treadle, *names: str) -> None:
        """Let members of the group `g` append, one after the other."""
        await until(lambda: self.gates.keys() >= set(names))
        for name in names:
            before = await value_of(app)
            self.gates[name].set()
            async with asyncio.timeout(PATIENCE):
                while await value_of(app) == before:  # noqa: ASYNC110  it has no event
                    await asyncio.sleep(0.01)


async def value_of(app: Treadle) -> list[str] | None:
    found = await app.group("g")
    return None if found is None else found.value  # type: ignore[return-value]


async def prune(backend: Backend) -> None:
    await backend.open()
    while (await backend.get(["g"]))[0] is not None:
        await backend.prune()


@pytest.mark.parametrize("removal", ["deleted", "pruned"])
async def test_a_later_group_with_the_id_has_nothing_of_the_first_one(
    make_app: MakeApp, store: Callable[[], Backend], removal: str
) -> None:
    """Each of two workers has folded a value of the group that is gone."""
    parts = Parts()
    async with make_app(*parts.types, queues=["one"]) as app, make_app(*parts.types, queues=["two"]):
        handle = await app.enqueue(parts.flow(["A1"], ["A2"]), id="g")
        await parts.let_go(app, "A1", "A2")
        assert await handle.group(PATIENCE) == ["A1", "A2"]
        await (app.delete("g") if removal == "deleted" else prune(store()))
        handle = await app.enqueue(parts.flow(["B2"], ["B1"]), id="g")
        await parts.let_go(app, "B1", "B2")
        assert await handle.group(PATIENCE) == ["B1", "B2"]


# ------------------------------------------------------------------------------------------------- a rollback


class Place:
    """A store that can go back in time."""

    def __init__(self, url: str) -> None:
        self._url = url

    def app(self, *types: Any, **settings: Any) -> Treadle:
        url = self._url if "://" in self._url else f"sqlite:///{self._url}"
        return Treadle(url, work=types, **{**FAST, **settings})

    async def copy(self) -> Restore:
        return await copy_of(self._url)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "sqlite":
        file: Path = request.getfixturevalue("quick_file")
        return Place(str(empty_store(file)))
    return Place(request.getfixturevalue("prepared_url" if request.param == "postgres" else "valkey_url"))


@pytest.fixture
async def stack() -> AsyncGenerator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def test_what_was_folded_from_a_forgotten_value_is_folded_again(
    place: Place, stack: AsyncExitStack
) -> None:
    """The second worker has folded `x2`, and the store has forgotten it. Others fold on, and then it does.
    No lease ends meanwhile: `x2` would run once more."""
    parts = Parts()
    first, second = (place.app(*parts.types, queues=[queue], lease=LONG) for queue in ("one", "two"))
    for app in (first, second):
        await app.start()
        stack.push_async_callback(app.stop, drain=0)
    await first.enqueue(parts.flow(["x1", "x3"], ["x2", "x4"]), id="g")
    await parts.let_go(first, "x1")
    restore = await place.copy()
    await parts.let_go(first, "x2")
    assert await value_of(first) == ["x1", "x2"]
    await restore()
    assert await value_of(first) == ["x1"]
    await parts.let_go(first, "x3", "x4")
    assert await value_of(first) == ["x1", "x3", "x4"]


async def test_tokens_of_forgotten_claims_are_not_given_again(place: Place, stack: AsyncExitStack) -> None:
    """So nothing ends by a claim that the store has forgotten."""
    app = place.app()
    await app.connect()
    stack.push_async_callback(app.stop)
    await submit(app.backend, *items(50))
    await beat(app.backend)
    restore = await place.copy()
    forgotten = await claim(app.backend)
    await restore()
    leases = await claim(app.backend)
    assert {lease.id for lease in leases} == {lease.id for lease in forgotten}
    assert not {lease.token for lease in leases} & {lease.token for lease in forgotten}
    late = await settle(app.backend, *map(succeed, forgotten))
    assert {outcome.verb for outcome in late.outcomes} == {"stale"}
    await apply(app.backend, *map(succeed, leases))


async def test_a_forgotten_schedule_fires_on(place: Place, stack: AsyncExitStack) -> None:
    """The store has never heard of it, and its worker goes on."""
    fired: list[float] = []

    @work(name="tick")
    async def tick() -> None:
        fired.append(asyncio.get_running_loop().time())

    app = place.app(tick, poll_interval=0.05)  # it looks at its schedules every ten of these
    await app.connect()
    restore = await place.copy()
    app.schedule("s", every=0.1, run=tick)
    await app.start()
    stack.push_async_callback(app.stop, drain=0)
    await until(lambda: fired)
    await restore()
    fired.clear()
    await until(lambda: len(fired) >= 2)
    (state,) = await app.schedules.list()
    assert state.state == "active"


async def test_items_that_the_store_has_forgotten_are_a_line_and_a_summary(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not know whether they were deleted."""
    caplog.set_level("INFO", logger="treadle")
    go, begun = asyncio.Event(), 0

    @work(name="holds")
    async def holds() -> None:
        nonlocal begun
        begun += 1
        await go.wait()

    async with place.app(holds) as app:
        await app.connect()
        restore = await place.copy()
        await app.enqueue_many([holds() for _ in range(15)])
        await until(lambda: begun == 15)
        await restore()
        go.set()
        await until(lambda: not app.active())
    gone = [text for text in caplog.messages if "has forgotten" in text]
    assert len(gone) == 2
    assert gone[0].startswith("holds ")
    assert "is gone: it was deleted while it ran here, or the store has forgotten it" in gone[0]
    assert gone[1].startswith("14 more items are gone: they were deleted, or the store has forgotten them: ")
    assert gone[1].endswith("and 4 more")
