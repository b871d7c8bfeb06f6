"""Headers: who sees them, and who inherits them (SPEC §18)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.kit import PATIENCE, MakeApp, until_status
from tests.engine.traced_handlers import in_process
from tests.engine.traces import Spans
from treadle import Abort, Context, Failure, InputError, Result, Treadle, dependency, work
from treadle.testing import run_inline

REQUEST = {"request": "r-1"}


@work(name="headers.show")
async def show(ctx: Context) -> dict[str, str]:
    return dict(ctx.headers)


@work(name="headers.in_thread")
def in_thread(ctx: Context) -> dict[str, str]:
    return dict(ctx.headers)


@work.batch(name="headers.batch", size=2, max_wait=0.01)
async def in_batch(contexts: list[Context], n: list[int]) -> list[dict[str, str]]:
    return [dict(ctx.headers) for ctx in contexts]


@work(name="headers.parent")
async def parent(ctx: Context, headers: dict[str, str] | None) -> Result[Any, Any]:
    return ctx.queue(show(), headers=headers).next(last(), headers=headers)


@work(name="headers.last")
async def last(ctx: Context) -> list[dict[str, str]]:
    return [dict(ctx.headers), *await ctx.results(ctx.dependencies)]


@work(name="headers.nested")
async def nested(ctx: Context) -> Result[Any, Any]:
    return ctx.group(parent(None)).next(show())


async def test_handlers_read_headers(make_app: MakeApp) -> None:
    async with make_app(show, in_thread, in_batch) as app:
        for each in (show(), in_thread(), in_batch(1)):
            handle = await app.enqueue(each, headers=REQUEST)
            assert await handle.result(PATIENCE) == REQUEST
            assert (await handle.state()).headers == REQUEST
        assert await app.enqueue(show()).result(PATIENCE) == {}
        handles = await app.enqueue_many([show(), show()], headers=REQUEST)
        assert [await handle.result(PATIENCE) for handle in handles] == [REQUEST, REQUEST]
        page = await app.list(type="headers.show", limit=3)
        assert [state.headers for state in page.items] == [REQUEST, REQUEST, {}]


@pytest.mark.usefixtures("processes")
async def test_handlers_in_processes_read_headers() -> None:
    async with Treadle(work=[in_process], processes=1) as app:
        assert await app.enqueue(in_process(), headers=REQUEST).result(PATIENCE) == REQUEST


async def test_headers_are_read_only(make_app: MakeApp) -> None:
    @work(name="headers.writes")
    async def writes(ctx: Context) -> str:
        with pytest.raises(TypeError):
            ctx.headers["request"] = "r-2"  # type: ignore[index]
        return ctx.headers["request"]

    async with make_app(writes) as app:
        assert await app.enqueue(writes(), headers=REQUEST).result(PATIENCE) == "r-1"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, REQUEST),
        ({}, {}),
        ({"step": "2"}, {"request": "r-1", "step": "2"}),
        ({"request": "r-2"}, {"request": "r-2"}),
    ],
)
async def test_children_inherit_headers(
    make_app: MakeApp, given: dict[str, str] | None, expected: dict[str, str]
) -> None:
    async with make_app(parent, show, last) as app:
        handle = await app.enqueue(parent(given), headers=REQUEST)
        assert await handle.group(PATIENCE) == [expected, expected]


async def test_groups_in_groups_and_dependencies_inherit_headers(make_app: MakeApp) -> None:
    async with make_app(nested, parent, show, last) as app:
        assert await app.enqueue(nested(), headers=REQUEST).group(PATIENCE) == REQUEST
        assert {state.headers.get("request") for state in (await app.list()).items} == {"r-1"}
        first = await app.enqueue(show())
        waiting = await app.enqueue(dependency(on=[first], queue=[show()]), headers={"request": "r-2"})
        assert await waiting.group(PATIENCE) == {"request": "r-2"}


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)  # memory has no transactions
async def test_what_a_transaction_commits_carries_headers_and_the_trace(make_app: MakeApp) -> None:
    """The settlement of the handler, with its children, and a submit of its own."""
    spans = Spans()

    @work(name="commits")
    async def commits(ctx: Context) -> Result[Any, Any]:
        async with ctx.transaction() as tx:
            await app.enqueue(show(), id="submitted", headers={"by": "hand"}, tx=tx)
        return ctx.queue(show(), headers={"own": "x"})

    async with make_app(commits, show, telemetry=spans.telemetry) as app:
        queued = await app.enqueue(commits(), headers=REQUEST).group(PATIENCE)
        assert queued == {**REQUEST, "own": "x"}
        assert await app.handle("submitted").result(PATIENCE) == {"by": "hand"}
        own = spans.one("process commits").context
        for span in await spans.until("process headers.show", 2):
            origin = span.parent or span.links[0].context
            assert origin.trace_id == own.trace_id


async def test_compensation_inherits_headers(make_app: MakeApp) -> None:
    seen: list[dict[str, str]] = []

    @work(name="headers.refund")
    async def refund(ctx: Context, failure: Failure) -> None:
        seen.append(dict(ctx.headers))

    @work(name="headers.charge", on_dead=refund)
    async def charge() -> None:
        raise Abort("no money")

    async with make_app(charge, refund) as app:
        handle = await app.enqueue(charge(), headers=REQUEST)
        await handle.group(PATIENCE, partial=True)
    assert seen == [REQUEST]


async def test_compensation_of_a_type_that_is_not_here_inherits_headers(make_app: MakeApp) -> None:
    @work(name="headers.elsewhere")
    async def elsewhere() -> None: ...

    @work(name="headers.dies", on_dead=elsewhere())
    async def dies() -> None:
        raise Abort("dead")

    async with make_app(dies) as app:
        handle = await app.enqueue(dies(), headers=REQUEST)
        await until_status(app, handle.id, "dead")
        (state,) = (await app.list(type="headers.elsewhere")).items
        assert state.headers == REQUEST


async def test_children_that_would_carry_too_much_are_refused(make_app: MakeApp) -> None:
    async with make_app(parent, show, last) as app:
        handle = await app.enqueue(parent({"more": "y" * 5000}), headers={"much": "x" * 5000})
        state = await until_status(app, handle.id, "dead")
        assert state.reason == "bad_result"
        assert "at most 8,192" in (state.error or "")


async def test_a_manual_lease_has_headers(make_app: MakeApp) -> None:
    app = make_app(show)
    await app.enqueue(show(), headers=REQUEST)
    lease = await app.claim_one()
    assert lease is not None
    assert dict(lease.headers) == REQUEST
    await lease.complete({})


async def test_a_schedule_gives_headers(make_app: MakeApp) -> None:
    async with make_app(show) as app:
        schedule = app.schedule("nightly", every=3600, run=show, headers={"by": "nightly"})
        handle = await schedule.trigger()
        assert handle is not None
        assert await handle.result(PATIENCE) == {"by": "nightly"}


async def test_headers_stay_through_a_requeue(make_app: MakeApp) -> None:
    broken = [True]

    @work(name="headers.mended")
    async def mended(ctx: Context) -> dict[str, str]:
        if broken.pop() if broken else False:
            raise Abort("broken")
        return dict(ctx.headers)

    async with make_app(mended) as app:
        handle = await app.enqueue(mended(), headers=REQUEST)
        await until_status(app, handle.id, "dead")
        await app.requeue(handle)
        assert await handle.result(PATIENCE) == REQUEST


async def test_options_of_a_type_compute_headers(make_app: MakeApp) -> None:
    @work(name="headers.computed", options=lambda given: {"headers": {"n": str(given["n"]), "by": "type"}})
    async def computed(ctx: Context, n: int) -> dict[str, str]:
        return dict(ctx.headers)

    async with make_app(computed) as app:
        assert await app.enqueue(computed(1)).result(PATIENCE) == {"n": "1", "by": "type"}
        given = {"by": "caller", **REQUEST}
        assert await app.enqueue(computed(1), headers=given).result(PATIENCE) == {"n": "1", **given}


def test_a_type_has_no_headers() -> None:
    with pytest.raises(TypeError, match="no option 'headers'"):
        work(name="headers.of_type", headers={})(lambda: None)  # type: ignore[call-overload]


async def test_bad_headers_store_nothing(make_app: MakeApp) -> None:
    app = make_app(show)
    with pytest.raises(InputError, match="headers"):
        await app.enqueue(show(), headers={"n": 1})  # type: ignore[dict-item]
    assert (await app.list()).items == ()


async def test_inline_apps_have_headers(make_app: MakeApp) -> None:
    app = make_app(show)
    async with run_inline(app):
        assert await app.enqueue(show(), headers=REQUEST).result(PATIENCE) == REQUEST
