"""Batches: one call of a handler for many items (SPEC §1)."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, MakeApp, Seen, failure, until
from treadle import Abort, AcceptInfo, Context, Defer, Result, Retry, work
from treadle.doers import priority
from treadle.events import Failed, LeaseLost, Started


async def test_a_batch_runs_when_it_is_full(make_app: MakeApp) -> None:
    """T24: Seven items, size three. Each item gets its own output, and at least one batch is full."""
    sizes: list[int] = []

    @work.batch(size=3, max_wait=0.05, name="double")
    async def double(numbers: list[int]) -> list[int]:
        sizes.append(len(numbers))
        return [2 * n for n in numbers]

    async with make_app(double) as app:
        handles = await app.enqueue_many([double(n) for n in range(1, 8)])
        assert [await handle.result(PATIENCE) for handle in handles] == [2, 4, 6, 8, 10, 12, 14]
    assert sum(sizes) == 7
    assert 3 in sizes
    assert max(sizes) <= 3


async def test_a_batch_runs_after_max_wait(make_app: MakeApp) -> None:
    """T25: Size 100, two items. The first item waits for `max_wait` and no longer."""
    sizes: list[int] = []

    @work.batch(size=100, max_wait=0.05, name="double")
    async def double(numbers: list[int]) -> list[int]:
        sizes.append(len(numbers))
        return [2 * n for n in numbers]

    async with make_app(double) as app:
        began = time.monotonic()
        handles = await app.enqueue_many([double(1), double(2)])
        assert [await handle.group(PATIENCE) for handle in handles] == [2, 4]
        assert time.monotonic() - began >= 0.05
    assert sizes == [2]


async def test_a_batch_that_returns_the_wrong_number_of_outputs_fails(make_app: MakeApp) -> None:
    """T26, §1: Each item is retried by its own policy. The message names both numbers."""
    runs: list[int] = []
    seen = Seen()

    @work.batch(size=3, max_wait=0.05, name="embed", retry=AT_ONCE)
    async def embed(texts: list[str]) -> list[str]:
        runs.append(len(texts))
        return texts[:2] if len(runs) == 1 else texts

    async with make_app(embed, on_event=seen) as app:
        handles = await app.enqueue_many([embed(text) for text in "abc"])
        assert [await handle.result(PATIENCE) for handle in handles] == ["a", "b", "c"]
        assert [(await handle.state()).attempt for handle in handles] == [2, 2, 2]
    assert [str(event.error) for event in seen.of(Failed)] == [
        'batch "embed" returned 2 outputs for 3 inputs'
    ] * 3


@pytest.mark.parametrize("outputs", [None, 5, "abc", {"a": 1}])
async def test_a_batch_that_does_not_return_a_list_is_dead_at_once(
    make_app: MakeApp, outputs: object
) -> None:
    """§1: The error says that a list is expected."""

    @work.batch(size=3, max_wait=0.02, name="embed")
    async def embed(texts: list[str]):  # type: ignore[no-untyped-def]
        return outputs

    async with make_app(embed) as app:
        error = await failure(app.enqueue(embed("a")).result(PATIENCE))
        assert (error.reason, error.error_type) == ("bad_result", "BadResultError")
        assert "list" in error.error


async def test_a_batch_that_raises_retries_each_item_by_its_own_policy(make_app: MakeApp) -> None:
    """§1: Items with attempts left run again. The others are dead."""
    runs: list[list[str]] = []

    @work.batch(size=2, max_wait=0.05, name="embed", retry=AT_ONCE)
    async def embed(texts: list[str]) -> list[str]:
        runs.append(sorted(texts))
        if len(runs) == 1:
            raise OSError("down")
        return texts

    app = make_app(embed)
    patient = await app.enqueue(embed("patient"))
    once = await app.enqueue(embed("once"), retry=Retry(attempts=1))
    async with app:
        assert (await failure(once.result(PATIENCE))).error == "down"
        assert await patient.result(PATIENCE) == "patient"
    assert runs == [["once", "patient"], ["patient"]]


async def test_an_exception_in_the_list_fails_only_its_item(make_app: MakeApp) -> None:
    """§1."""

    @work.batch(size=3, max_wait=0.05, name="parse")
    async def parse(texts: list[str]) -> list[int | Exception]:
        return [int(text) if text.isdigit() else Abort(ValueError(text)) for text in texts]

    async with make_app(parse) as app:
        good, bad, other = await app.enqueue_many([parse("1"), parse("x"), parse("3")])
        assert (await good.result(PATIENCE), await other.result(PATIENCE)) == (1, 3)
        error = await failure(bad.result(PATIENCE))
        assert (error.reason, error.error) == ("aborted", "x")


async def test_deferring_a_batch_defers_each_item(make_app: MakeApp) -> None:
    """T27: By `Defer` and by `on_failure`. There are two runs, and no retry is counted."""
    runs: list[str] = []

    @work.batch(size=2, max_wait=0.05, name="busy")
    async def busy(numbers: list[int]) -> list[int]:
        runs.append("busy")
        if len(runs) == 1:
            raise Defer(delay=0.01)
        return [2 * n for n in numbers]

    @work.batch(size=2, max_wait=0.05, name="limited", on_failure=lambda *_: Defer(delay=0.01))
    async def limited(numbers: list[int]) -> list[int]:
        runs.append("limited")
        if runs.count("limited") == 1:
            raise OSError("429")
        return [2 * n for n in numbers]

    async with make_app(busy, limited) as app:
        for type_ in (busy, limited):
            handles = await app.enqueue_many([type_(1), type_(2)])
            assert [await handle.result(PATIENCE) for handle in handles] == [2, 4]
            assert [(await handle.state()).attempt for handle in handles] == [1, 1]
        assert app.metrics.get("retried") == 0
        assert app.metrics.get("deferred") == 4


async def test_the_doer_limits_batches_not_items(make_app: MakeApp) -> None:
    """§1: Two batches of five items run at once, never three batches."""
    barrier = Barrier()
    running: list[int] = []
    peak: list[int] = []

    @work.batch(size=5, max_wait=0.02, name="slow", doer=priority(2))
    async def slow(numbers: list[int]) -> list[int]:
        running.append(1)
        peak.append(len(running))
        await barrier.wait()
        running.pop()
        return numbers

    async with make_app(slow) as app:
        handles = await app.enqueue_many([slow(n) for n in range(20)])
        await until(lambda: barrier.count == 2)
        await asyncio.sleep(0.1)
        assert barrier.count == 2
        barrier.go.set()
        assert [await handle.result(PATIENCE) for handle in handles] == list(range(20))
    assert max(peak) == 2


async def test_the_timeout_of_one_item_is_named_by_every_item_of_the_batch(make_app: MakeApp) -> None:
    """The call was stopped after the shortest timeout. Items with none said "its timeout of 0 s"."""

    @work.batch(size=2, max_wait=PATIENCE, name="slow", retry=Retry(attempts=1))
    async def slow(numbers: list[int]) -> list[int]:
        await asyncio.sleep(PATIENCE)
        return numbers

    async with make_app(slow) as app:
        first = await app.enqueue(slow(1), timeout=0.05)
        second = await app.enqueue(slow(2))
        assert "ran longer than its timeout of 0.05 s" in (await failure(first.result(PATIENCE))).error
        died = await failure(second.result(PATIENCE))
    assert died.error_type == "AttemptTimeout"
    assert died.error == (
        f"attempt of '{second.id}' ended with its batch, at the timeout of 0.05 s of '{first.id}'"
    )


async def test_a_timeout_fails_every_item_of_the_batch(make_app: MakeApp) -> None:
    """§5: `timeout` limits one attempt, which is one call. The call is cancelled and every item fails."""
    cancelled: list[int] = []

    @work.batch(size=2, max_wait=0.05, name="slow", timeout=0.05, retry=Retry(attempts=1))
    async def slow(numbers: list[int]) -> list[int]:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(len(numbers))
        return numbers

    async with make_app(slow) as app:
        handles = await app.enqueue_many([slow(1), slow(2)])
        for handle in handles:
            error = await failure(handle.result(PATIENCE))
            assert (error.error_type, error.reason) == ("AttemptTimeout", "exhausted")
    assert cancelled == [2]


async def test_a_deadline_expires_one_item_of_a_batch(make_app: MakeApp) -> None:
    """§5: The call goes on for the other items."""
    barrier = Barrier()

    @work.batch(size=2, max_wait=0.2, name="slow")
    async def slow(numbers: list[int]) -> list[int]:
        await barrier.wait()
        return numbers

    async with make_app(slow) as app:
        late = await app.enqueue(slow(1), expires_in=0.4)
        other = await app.enqueue(slow(2))
        await barrier.reached()
        assert (await failure(late.result(PATIENCE))).reason == "expired"
        barrier.go.set()
        assert await other.result(PATIENCE) == 2
        assert (await late.state()).result is None


async def test_the_output_of_a_cancelled_item_is_dropped(make_app: MakeApp) -> None:
    """§10: The call goes on for the other items."""
    barrier, seen = Barrier(), Seen()

    @work.batch(size=2, max_wait=0.2, name="slow")
    async def slow(numbers: list[int]) -> list[int]:
        await barrier.wait()
        return numbers

    async with make_app(slow, on_event=seen) as app:
        gone, other = await app.enqueue_many([slow(1), slow(2)])
        await barrier.reached()
        await gone.cancel()
        await seen.until(LeaseLost, gone.id)
        barrier.go.set()
        assert await other.result(PATIENCE) == 2
        assert (await gone.state()).status == "cancelled"


async def test_an_item_that_is_cancelled_while_collected_is_not_in_the_batch(make_app: MakeApp) -> None:
    """§10."""
    calls: list[list[int]] = []

    @work.batch(size=3, max_wait=30, name="collect")
    async def collect(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        return numbers

    async with make_app(collect) as app:
        first = await app.enqueue(collect(1))
        await until(app.active)
        await first.cancel()
        await until(lambda: not app.active())
        handles = await app.enqueue_many([collect(2), collect(3), collect(4)])
        assert [await handle.result(PATIENCE) for handle in handles] == [2, 3, 4]
    assert calls == [[2, 3, 4]]


async def test_stop_runs_collected_items_within_the_drain(make_app: MakeApp) -> None:
    """§17."""

    @work.batch(size=100, max_wait=60, name="double")
    async def double(numbers: list[int]) -> list[int]:
        return [2 * n for n in numbers]

    app = make_app(double)
    await app.start()
    handles = await app.enqueue_many([double(1), double(2)])
    await until(lambda: len(app.active()) == 2)
    await app.stop(drain=PATIENCE)
    assert [await app.handle(handle.id).result(PATIENCE) for handle in handles] == [2, 4]


async def test_a_stop_during_a_call_releases_its_items(make_app: MakeApp) -> None:
    """§10: Another worker starts them at once. The attempt is not counted."""
    barrier = Barrier()
    calls: list[int] = []

    @work.batch(size=2, max_wait=0.02, name="held")
    async def held(numbers: list[int]) -> list[int]:
        calls.append(len(numbers))
        if len(calls) == 1:
            try:
                await barrier.wait()
            finally:
                ended.append("cancelled")
        return numbers

    ended: list[str] = []
    first = make_app(held, lease=60)
    await first.start()
    handles = await first.enqueue_many([held(1), held(2)])
    await barrier.reached()
    await first.stop(drain=0)
    assert ended == ["cancelled"]
    async with make_app(held) as second:
        for handle, expected in zip(handles, (1, 2), strict=True):
            other = second.handle(handle.id)
            assert await other.result(PATIENCE) == expected
            assert (await other.state()).attempt == 1


async def test_sync_batches_run_in_threads(make_app: MakeApp) -> None:
    """§1."""

    @work.batch(size=3, max_wait=0.02, name="threaded")
    def threaded(numbers: list[int]) -> list[str]:
        return [f"{n} {threading.current_thread().name.partition('_')[0]}" for n in numbers]

    async with make_app(threaded) as app:
        found = await app.enqueue(threaded(1)).result(PATIENCE)
    assert found.startswith("1 treadle")


async def test_batch_items_can_be_children(make_app: MakeApp) -> None:
    """§1, §2: They are children like any others, and each contributes to the group."""
    seen = Seen()

    @work.batch(size=10, max_wait=0.02, name="double")
    async def double(numbers: list[int]) -> list[int]:
        return [2 * n for n in numbers]

    @work(name="total")
    async def total(ctx: Context) -> int:
        return sum(await ctx.results(ctx.dependencies))

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue([double(n) for n in range(10)]).next(total())

    async with make_app(root, double, total, on_event=seen) as app:
        assert await app.enqueue(root()).group(PATIENCE) == 90
    assert len([event for event in seen.of(Started) if event.type == "double"]) == 10


@pytest.mark.parametrize("polite", [True, False], ids=["polite", "ignores cancellation"])
async def test_a_batch_does_not_begin_after_stop(make_app: MakeApp, polite: bool) -> None:
    """§10: It was asking `accept`. The handler began for the other items, and ran on although all of them had
    been given back."""
    barrier, answered = Barrier(), asyncio.Event()
    began: list[list[int]] = []

    @work.batch(size=3, max_wait=0.01, name="batch")
    async def batch(numbers: list[int]) -> list[int]:
        began.append(numbers)
        return numbers

    async def accept(info: AcceptInfo) -> bool:
        try:
            await barrier.wait()
        except asyncio.CancelledError:
            answered.set()
            if polite:
                raise
        return True

    app = make_app(batch, accept=accept)
    handles = await app.enqueue_many([batch(n) for n in range(3)])
    await app.start()
    await barrier.reached()
    barrier.go.clear()
    stopping = asyncio.ensure_future(app.stop(drain=0))
    await answered.wait()
    barrier.go.set()
    await stopping
    other = make_app(batch)
    assert [(await other.handle(each.id).state()).status for each in handles] == ["ready"] * 3
    assert began == []


def test_a_batch_function_with_a_context_is_refused() -> None:
    """§17: The definition raises TypeError."""
    with pytest.raises(TypeError, match="Context"):

        @work.batch(size=2)
        async def wrong(ctx: Context, numbers: list[int]) -> list[int]:
            return numbers


def test_a_batch_function_with_a_default_is_refused() -> None:
    """A Work without an input would have no place in the list."""
    with pytest.raises(TypeError, match="its list of inputs has no default"):

        @work.batch(size=2)
        async def echo(ns: list[int] = []) -> list[int]:  # noqa: B006
            return ns
