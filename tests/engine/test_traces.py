"""Traces: every row of the table in docs/headers-and-traces.md, on every native backend."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan

from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, MakeApp, Seen, failure
from tests.engine.traced_handlers import trace_in_process
from tests.engine.traces import Spans, linked_ids
from treadle import (
    Abort,
    Client,
    Context,
    Defer,
    Failure,
    InputError,
    Result,
    Treadle,
    Worker,
    WorkFailed,
    group,
    work,
)
from treadle.backend import Backend
from treadle.base.headers import trace_of
from treadle.contrib.otel import OpenTelemetry
from treadle.contrib.otel.spans import pack, server_of
from treadle.define.work import Work
from treadle.events import Queued
from treadle.handler.telemetry import MOST_BYTES
from treadle.item import Fire
from treadle.testing import Faults


@work(name="value")
async def value(n: int) -> int:
    return n


@work(name="total")
async def total(ctx: Context) -> int:
    return sum(await ctx.results(ctx.dependencies))


@work(name="fan")
async def fan(ctx: Context, n: int) -> Result[Any, int]:
    return ctx.queue([value(i) for i in range(n)]).next(total())


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_an_awaited_item_is_a_child_of_its_send(make_app: MakeApp) -> None:
    spans = Spans()
    async with make_app(value, telemetry=spans.telemetry) as app:
        spans.telemetry.use_store("postgresql://ada:***@db.example:5433/shop")
        with spans.tracer.start_as_current_span("request"):
            assert await app.enqueue(value(1), id="one", queue="mail").result(PATIENCE) == 1
    assert {spans.shape(span)[:3] for span in spans.all()} == {
        ("send mail", "PRODUCER", "request"),
        ("process value", "CONSUMER", "send mail"),
        ("request", "INTERNAL", None),
    }
    assert not any(span.links for span in spans.all())
    assert len({span.context.trace_id for span in spans.all()}) == 1
    send, process = facts(spans.one("send mail")), facts(spans.one("process value"))
    common = {
        "messaging.system": "treadle",
        "messaging.destination.name": "mail",
        "messaging.message.id": "one",
        "messaging.message.conversation_id": "one",
        "treadle.type": "value",
        "server.address": "db.example",
        "server.port": 5433,
    }
    assert send == {**common, "messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert process.pop("treadle.wait") >= 0
    assert process == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "treadle.attempt": 1,
        "treadle.outcome": "success",
    }
    (settled,) = spans.one("process value").events
    assert settled.name == "settled"
    assert all(span.status.is_unset for span in spans.all())


async def test_an_item_that_is_not_awaited_begins_a_trace_with_a_link(make_app: MakeApp) -> None:
    spans = Spans()
    async with make_app(value, telemetry=spans.telemetry) as app:
        handle = await app.enqueue(value(1))
        await handle.result(PATIENCE)
    send, process = spans.one("send default"), spans.one("process value")
    assert spans.shape(process) == ("process value", "CONSUMER", None, ["send default"])
    assert process.context.trace_id != send.context.trace_id
    assert linked_ids(process.links) == [handle.id]


@pytest.mark.parametrize(("link", "parent"), [("parent", "send default"), ("link", None)])
async def test_a_style_can_be_forced(make_app: MakeApp, link: Any, parent: str | None) -> None:
    spans = Spans(link=link)
    async with make_app(value, telemetry=spans.telemetry) as app:
        await app.enqueue(value(1)).result(PATIENCE)
        await (await app.enqueue(value(2))).result(PATIENCE)
    for span in spans.all("process value"):
        assert spans.shape(span)[2:] == (parent, [] if parent else ["send default"])


async def test_a_fan_out_and_its_fan_in_hang_under_the_attempt_that_queued_them(make_app: MakeApp) -> None:
    spans = Spans()
    async with make_app(fan, value, total, telemetry=spans.telemetry) as app:
        assert await app.enqueue(fan(50)).group(PATIENCE) == 1225
    assert len(spans.all("process value")) == 50
    for span in spans.all("process value"):
        assert spans.shape(span) == ("process value", "CONSUMER", "process fan", [])
    last = spans.one("process total")
    assert spans.shape(last) == ("process total", "CONSUMER", "process fan", ["process fan"] * 32)
    assert len(set(linked_ids(last.links))) == 32
    assert facts(last)["treadle.dependencies"] == 50
    assert len({span.context.trace_id for span in spans.all()}) == 1


async def test_what_an_unawaited_item_queues_is_in_its_trace(make_app: MakeApp) -> None:
    """A submit that does not wait: one trace for the submit, and one for all that comes of it."""
    spans = Spans()
    async with make_app(fan, value, total, telemetry=spans.telemetry) as app:
        await (await app.enqueue(fan(2))).group(PATIENCE)
    root = spans.one("process fan")
    assert spans.shape(root)[2:] == (None, ["send default"])
    assert spans.shape(spans.all("process value")[0])[2:] == ("process fan", [])
    assert spans.shape(spans.one("process total"))[2:] == ("process fan", ["process fan"] * 2)
    traces = [span.context.trace_id for span in spans.all() if span.name != "send default"]
    assert traces == [root.context.trace_id] * 4
    assert spans.one("send default").context.trace_id != root.context.trace_id


async def test_dependencies_are_linked_by_their_creation_contexts(make_app: MakeApp) -> None:
    spans = Spans()
    async with make_app(fan, value, total, telemetry=spans.telemetry) as app:
        with spans.tracer.start_as_current_span("a"):
            first = await app.enqueue(value(1), queue="first")
        with spans.tracer.start_as_current_span("b"):
            second = await app.enqueue(fan(1), queue="second")
        await app.enqueue(value(3), after=[first, group(second)], queue="last").result(PATIENCE)
    (last,) = [
        span for span in spans.all("process value") if facts(span)["messaging.destination.name"] == "last"
    ]
    assert spans.shape(last)[2:] == ("send last", ["send first", "send second"])
    assert linked_ids(last.links) == [first.id, second.id]


async def test_a_step_has_a_span_in_that_of_its_attempt(make_app: MakeApp) -> None:
    """Not in an attempt that finds it recorded. An attempt that waits has the outcome `suspend`."""
    spans = Spans()

    async def fine() -> int:
        with spans.tracer.start_as_current_span("inside"):
            return 1

    async def bad() -> None:
        raise ValueError("no")

    @work(name="stepping", retry=AT_ONCE)
    async def stepping(ctx: Context) -> int | None:
        paid = await ctx.step("pay", fine)
        if (answer := await ctx.signal("go", int)) == 1:
            await ctx.step("check", bad)
        return answer if paid else None

    async with make_app(stepping, telemetry=spans.telemetry) as app:
        handle = await app.enqueue(stepping())
        await spans.until("process stepping")
        await app.signal(handle, "go", 1)
        assert isinstance(await failure(handle.result(PATIENCE)), WorkFailed)
        await spans.until("process stepping", 1 + len(spans.all("step check")))
    pay = spans.one("step pay")
    assert spans.shape(pay) == ("step pay", "INTERNAL", "process stepping", [])
    assert facts(pay) == {"treadle.step.name": "pay"}
    assert spans.shape(spans.one("inside"))[2] == "step pay"
    first, *others = spans.all("process stepping")
    assert facts(first)["treadle.outcome"] == "suspend"
    assert first.status.is_unset
    checks = spans.all("step check")
    assert len(checks) == len(others)
    assert not any(span.status.is_ok or span.status.is_unset for span in checks)
    assert {facts(span)["error.type"] for span in checks} == {"ValueError"}


async def test_all_attempts_share_the_creation_context(make_app: MakeApp) -> None:
    spans = Spans()

    @work(name="flaky", retry=AT_ONCE)
    async def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise OSError("secret message")
        if len(spans.all("process flaky")) < 2:
            raise Defer(delay=0)

    async with make_app(flaky, telemetry=spans.telemetry) as app:
        await app.enqueue(flaky()).result(PATIENCE)
    attempts = spans.all("process flaky")
    assert [facts(span)["treadle.outcome"] for span in attempts] == ["retry", "defer", "success"]
    assert [spans.by_context(span.parent) for span in attempts] == ["send default"] * 3
    assert [span.status.is_ok or span.status.is_unset for span in attempts] == [False, True, True]
    assert [facts(span).get("error.type", "") for span in attempts] == ["OSError", "", ""]
    assert "secret" not in repr([(span.attributes, span.events, span.status) for span in spans.all()])


async def test_compensation_hangs_under_the_attempt_that_died(make_app: MakeApp) -> None:
    spans = Spans()

    @work(name="refund")
    async def refund(failure: Failure) -> None: ...

    @work(name="charge", on_dead=refund)
    async def charge() -> None:
        raise Abort("no money")

    async with make_app(charge, refund, telemetry=spans.telemetry) as app:
        await app.enqueue(charge()).group(PATIENCE, partial=True)
    died = spans.one("process charge")
    assert facts(died)["treadle.outcome"] == "dead:aborted"
    assert not died.status.is_ok
    assert spans.shape(spans.one("process refund"))[2:] == ("process charge", [])


async def test_many_items_have_a_span_each_up_to_a_number(make_app: MakeApp) -> None:
    spans = Spans(create_spans=2)
    async with make_app(value, telemetry=spans.telemetry) as app:
        two = await app.enqueue_many([value(1), value(2)], queue="two")
        three = await app.enqueue_many([value(1), value(2), value(3)], queue="three")
        for handle in (*two, *three):
            await handle.result(PATIENCE)
    assert spans.shape(spans.one("send two")) == ("send two", "CLIENT", None, [])
    assert facts(spans.one("send two"))["messaging.batch.message_count"] == 2
    assert [spans.shape(span) for span in spans.all("create two")] == [
        ("create two", "PRODUCER", "send two", [])
    ] * 2
    assert spans.all("create three") == []
    linked = sorted(str(spans.shape(span)[3]) for span in spans.all("process value"))
    assert linked == ["['create two']"] * 2 + ["['send three']"] * 3


async def test_a_batch_begins_a_trace_with_a_link_to_each_item(make_app: MakeApp) -> None:
    spans = Spans()

    @work.batch(name="embed", size=20, max_wait=30)
    async def embed(n: list[int]) -> list[Any]:
        return [ValueError("odd") if each == 7 else each for each in n]

    async with make_app(embed, telemetry=spans.telemetry) as app:
        handles = await app.enqueue_many([embed(n) for n in range(20)], retry=AT_ONCE)
        (span,) = await spans.until("process embed")
    assert spans.shape(span) == ("process embed", "CONSUMER", None, ["create default"] * 20)
    assert sorted(linked_ids(span.links)) == sorted(handle.id for handle in handles)
    assert facts(span)["messaging.batch.message_count"] == 20
    assert facts(span)["treadle.outcome"] == "mixed"
    assert facts(span)["error.type"] == "ValueError"


async def test_an_occurrence_is_the_root_of_a_trace(make_app: MakeApp) -> None:
    spans, seen = Spans(), Seen()

    async with make_app(value, telemetry=spans.telemetry, on_event=seen) as app:
        with spans.tracer.start_as_current_span("setup"):
            app.schedule("often", every=0.05, run=lambda: value(1))
        await seen.until(Queued)
        process = (await spans.until("process value"))[0]
    created = spans.all("create often")[0]
    assert spans.shape(created) == ("create often", "PRODUCER", None, [])
    assert spans.shape(process) == ("process value", "CONSUMER", "create often", [])
    assert facts(created)["treadle.schedule"] == "often"


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_an_occurrence_that_another_process_fired_has_no_span(make_app: MakeApp) -> None:
    spans, seen, runs = Spans(), Seen(), list[int]()

    async def run() -> Work[Any, Any]:
        runs.append(1)
        if len(runs) == 1:
            (stored,) = await app.backend.schedules()
            fire = Fire(name="often", at=stored.next_at or 0.0, next_at=(stored.next_at or 0.0) + 0.05)
            assert await app.backend.fire(fire) == ()
        return value(1)

    async with make_app(value, telemetry=spans.telemetry, on_event=seen) as app:
        app.schedule("often", every=0.05, run=run)
        await spans.until("process value")
    queued = {event.id for event in seen.of(Queued)}
    assert {facts(span)["messaging.message.id"] for span in spans.all("create often")} == queued


async def test_a_lost_lease_is_no_error(make_app: MakeApp) -> None:
    spans, barrier = Spans(), Barrier()

    @work(name="held")
    async def held() -> None:
        await barrier.wait()

    async with make_app(held, telemetry=spans.telemetry) as app:
        handle = await app.enqueue(held())
        await barrier.reached()
        await app.cancel(handle)
        (span,) = await spans.until("process held")
    assert facts(span)["treadle.outcome"] == "lost"
    assert span.status.is_unset


async def test_a_timeout_and_a_shutdown(make_app: MakeApp) -> None:
    spans, barrier = Spans(), Barrier()

    @work(name="held")
    async def held() -> None:
        await barrier.wait()

    async with make_app(held, telemetry=spans.telemetry) as app:
        await failure(app.enqueue(held(), timeout=0.01, retry=AT_ONCE).result(PATIENCE))
        assert [facts(span)["treadle.outcome"] for span in await spans.until("process held", 3)] == [
            "retry",
            "retry",
            "dead:exhausted",
        ]
        barrier.started.clear()
        await app.enqueue(held())
        await barrier.reached()
        await app.stop(drain=0)
    assert facts(spans.all("process held")[-1])["treadle.outcome"] == "release"
    assert spans.all("process held")[-1].status.is_unset


async def test_handlers_and_middlewares_run_inside_the_span(make_app: MakeApp) -> None:
    spans = Spans()

    def current() -> str:
        return trace.format_span_id(trace.get_current_span().get_span_context().span_id)

    @work(name="loop")
    async def on_loop() -> str:
        return current()

    @work(name="thread")
    def in_thread() -> str:
        return current()

    around: list[str] = []

    async def middleware(ctx: Context, call_next: Callable[[], Any]) -> Any:
        around.append(current())
        return await call_next()

    async with make_app(on_loop, in_thread, middleware=[middleware], telemetry=spans.telemetry) as app:
        inside = [await app.enqueue(each()).result(PATIENCE) for each in (on_loop, in_thread)]
    own = [trace.format_span_id(spans.one(f"process {name}").context.span_id) for name in ("loop", "thread")]
    assert inside == own == around
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_spans_do_not_leak_from_one_attempt_to_the_next(make_app: MakeApp) -> None:
    spans = Spans()

    @work(name="own")
    async def own(ctx: Context) -> bool:
        span = trace.get_current_span()
        with spans.tracer.start_as_current_span("inner"):
            return isinstance(span, ReadableSpan) and facts(span)["messaging.message.id"] == ctx.id

    async with make_app(own, telemetry=spans.telemetry) as app:
        handles = await app.enqueue_many([own() for _ in range(60)])
        assert [await handle.result(PATIENCE) for handle in handles] == [True] * 60
    assert {spans.by_context(span.parent) for span in spans.all("inner")} == {"process own"}


async def test_log_records_name_the_span(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    spans = Spans()

    @work(name="logs", log_context=lambda given: {"n": given["n"]})
    async def logs(ctx: Context, n: int) -> None:
        ctx.log.warning("hello")

    async with make_app(logs, telemetry=spans.telemetry) as app:
        with caplog.at_level(logging.WARNING, "treadle"):
            await app.enqueue(logs(1)).result(PATIENCE)
    (record,) = [each for each in caplog.records if each.getMessage() == "hello"]
    own = spans.one("process logs").context
    assert vars(record)["trace_id"] == trace.format_trace_id(own.trace_id)
    assert vars(record)["span_id"] == trace.format_span_id(own.span_id)
    assert vars(record)["n"] == 1


async def test_lines_about_failures_name_the_span(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    spans = Spans()

    @work(name="dies")
    async def dies() -> None:
        raise Abort("dead")

    app = make_app(dies, telemetry=spans.telemetry)
    with caplog.at_level(logging.WARNING, "treadle"):
        async with app:
            handle = await app.enqueue(dies())  # not awaited: the attempt has a trace of its own
            await failure(handle.result(PATIENCE))
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    own = spans.one("process dies").context
    assert vars(record)["trace_id"] == trace.format_trace_id(own.trace_id)
    assert vars(record)["span_id"] == trace.format_span_id(own.span_id)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_lease_that_was_lost_before_the_settlement_names_the_span(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    spans = Spans()

    @work(name="slow")
    async def slow(ctx: Context) -> None:
        if ctx.attempt == 1:
            await app.backend.remove_worker(app.worker.id)  # as if its heartbeats had not arrived

    app = make_app(slow, telemetry=spans.telemetry)
    with caplog.at_level(logging.WARNING, "treadle"):
        async with app:
            await (await app.enqueue(slow())).result(PATIENCE)
    (record,) = [each for each in caplog.records if "lost its lease" in each.getMessage()]
    own = spans.all("process slow")[0].context
    assert vars(record)["trace_id"] == trace.format_trace_id(own.trace_id)
    assert vars(record)["span_id"] == trace.format_span_id(own.span_id)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_an_attempt_whose_transaction_fails_has_not_succeeded(
    make_faulty: MakeApp, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    spans = Spans()

    @work(name="writes", retry=AT_ONCE)
    async def writes(ctx: Context) -> int:
        async with ctx.transaction():
            return ctx.attempt

    faults.fail("commit", times=1)
    with caplog.at_level(logging.WARNING, "treadle"):
        async with make_faulty(writes, telemetry=spans.telemetry) as app:
            assert await app.enqueue(writes()).result(PATIENCE) == 2
    first, second = await spans.until("process writes", 2)
    assert [facts(span)["treadle.outcome"] for span in (first, second)] == ["retry", "success"]
    assert not first.status.is_ok
    assert facts(first)["error.type"] == "StoreUnavailable"
    (record,) = [each for each in caplog.records if "tried again" in each.getMessage()]
    assert vars(record)["span_id"] == trace.format_span_id(first.context.span_id)


@pytest.mark.usefixtures("processes")
async def test_a_handler_in_a_process_sees_the_context(caplog: pytest.LogCaptureFixture) -> None:
    spans = Spans()
    async with Treadle(work=[trace_in_process], processes=1, telemetry=spans.telemetry) as app:
        with caplog.at_level(logging.WARNING, "treadle"):
            seen = await app.enqueue(trace_in_process()).result(PATIENCE)
    own = spans.one("process trace.in_process").context
    assert seen == [own.trace_id, own.span_id]
    (record,) = [each for each in caplog.records if each.getMessage() == "from a process"]
    assert vars(record)["span_id"] == trace.format_span_id(own.span_id)


async def test_a_client_and_a_worker_of_two_apps_share_a_trace(store: Callable[[], Backend]) -> None:
    """As two processes do: what connects them is in the store."""
    sending, running = Spans(), Spans()
    client = Client(store(), work=[value], telemetry=sending.telemetry)
    runner = Client(store(), work=[value], telemetry=running.telemetry, poll_interval=0.05)
    async with client, runner, Worker(runner):
        await client.enqueue(value(1)).result(PATIENCE)
        (process,) = await running.until("process value")
    send = sending.one("send default")
    assert process.parent is not None
    assert (process.parent.trace_id, process.parent.span_id) == (send.context.trace_id, send.context.span_id)


async def test_a_worker_without_telemetry_hands_the_trace_on(store: Callable[[], Backend]) -> None:
    spans = Spans()
    client = Client(store(), work=[fan], telemetry=spans.telemetry)
    plain = Client(store(), work=[fan], poll_interval=0.05)
    async with client, plain, Worker(plain, types=[fan]):
        handle = await client.enqueue(fan(1))
        await handle.result(PATIENCE)
        (state, *_) = [each for each in await items(client) if each.type == "value"]
    stored, own = trace_of(state.options), spans.one("send default").context
    assert stored is not None
    assert stored["traceparent"].split("-")[2] == trace.format_span_id(own.span_id)


async def items(client: Client) -> list[Any]:
    return list((await client.list()).items)


async def test_without_a_recording_span_nothing_is_stored(make_app: MakeApp) -> None:
    app = make_app(value, telemetry=OpenTelemetry())  # there is no SDK behind it
    handle = await app.enqueue(value(1))
    assert (await handle.state()).options == b""


async def test_a_refused_submit_is_an_error(make_app: MakeApp) -> None:
    spans = Spans()
    app = make_app(value, telemetry=spans.telemetry)
    await app.enqueue(value(1), id="one")
    with pytest.raises(Exception, match="one"):
        await app.enqueue(value(1), id="one")
    assert [span.status.is_unset for span in spans.all()] == [True, False]
    assert facts(spans.all()[1])["error.type"] == "DuplicateIdError"


async def test_baggage_is_carried_if_asked_for() -> None:
    for wanted in (True, False):
        spans, seen = Spans(baggage=wanted), list[object]()

        @work(name="bag")
        async def bag(seen: list[object] = seen) -> object:
            return baggage.get_baggage("user")

        async with Treadle(work=[bag], telemetry=spans.telemetry, tenant="acme") as app:
            token = context.attach(baggage.set_baggage("user", "ada"))
            try:
                awaited = app.enqueue(bag()).result(PATIENCE)
                assert await awaited == ("ada" if wanted else None)
            finally:
                context.detach(token)


def test_a_trace_is_small() -> None:
    spans = Spans()
    with spans.tracer.start_as_current_span("x"):
        large = baggage.set_baggage("user", "x" * 2000)
        packed = pack(large, child=True, baggage=True)
    assert packed is not None
    assert set(packed) == {"traceparent", "child"}
    assert sum(len(name) + len(text) for name, text in packed.items()) < MOST_BYTES


async def test_the_tenant_is_opt_in() -> None:
    for wanted in (True, False):
        spans = Spans(tenant=wanted)
        async with Treadle(work=[value], telemetry=spans.telemetry, tenant="acme") as app:
            await app.enqueue(value(1), lane="gold").result(PATIENCE)
        for span in spans.all():
            assert facts(span).get("treadle.tenant") == ("acme" if wanted else None)
            assert facts(span)["treadle.lane"] == "gold"


async def test_headers_of_users_are_no_trace(make_app: MakeApp) -> None:
    spans = Spans()
    forged = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "child": "1"}
    app = make_app(value)
    await app.enqueue(value(1), headers=forged)
    async with make_app(value, telemetry=spans.telemetry):
        (span,) = await spans.until("process value")
    assert spans.shape(span) == ("process value", "CONSUMER", None, [])


async def test_internals_are_opt_in(make_app: MakeApp) -> None:
    spans = Spans(internals=True)
    async with make_app(value, telemetry=spans.telemetry) as app:
        await app.enqueue(value(1)).result(PATIENCE)
    assert spans.shape(spans.all("submit")[0]) == ("submit", "CLIENT", None, ["send default"])
    assert spans.shape(spans.all("claim")[0]) == ("claim", "CLIENT", None, [])
    assert spans.shape(spans.one("settle")) == ("settle", "CLIENT", None, ["process value"])
    assert facts(spans.one("settle"))["messaging.batch.message_count"] == 1


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://ada:***@db.example:5433/shop", {"server.address": "db.example", "server.port": 5433}),
        ("postgresql://db.example/shop", {"server.address": "db.example"}),
        ("postgresql://one:1,two:2/shop", {}),
        ("postgresql:///shop?host=/run/postgresql", {}),
        ("host=db.example password=***", {}),
        ("sqlite:///work.db", {}),
        ("MemoryBackend", {}),
        ("postgresql://[::1/x", {}),
    ],
)
def test_the_server_is_read_from_the_address(address: str, expected: dict[str, Any]) -> None:
    assert server_of(address) == expected


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="'auto', 'parent' or 'link'"):
        OpenTelemetry(link="child")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="whole number"):
        OpenTelemetry(create_spans=-1)
    with pytest.raises(InputError, match="OpenTelemetry"):
        Treadle(telemetry=OpenTelemetry)  # type: ignore[arg-type]
