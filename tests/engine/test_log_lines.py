"""What the engine logs about attempts: failures, deaths, lost leases, types that no worker has."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from opentelemetry import trace

from tests.engine.kit import PATIENCE, Barrier, Errors, MakeApp, Seen, failure, until
from tests.engine.traces import Spans
from treadle import Context, Retry, work
from treadle.engine.upkeep.prune import UnservedTypes
from treadle.events import Failed, LeaseLost
from treadle.operate.operator import core_of
from treadle.testing import Faults

memory_only = pytest.mark.parametrize("store", ["memory"], indirect=True)  # the store is not involved
TWICE = Retry(attempts=2, base=0.02, jitter=0)


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "treadle")
    return caplog


def of_level(logs: pytest.LogCaptureFixture, level: int) -> list[logging.LogRecord]:
    return [record for record in logs.records if record.name == "treadle" and record.levelno == level]


def fields(record: logging.LogRecord) -> dict[str, Any]:
    names = ("id", "type", "attempt", "tenant", "workflow")
    return {name: getattr(record, name) for name in names}


def _no_arguments() -> None: ...


@work(name="fails", retry=TWICE)
async def fails(text: str) -> None:
    raise ConnectionError(text)


async def test_a_failure_is_one_warning_and_a_death_one_error_with_the_traceback(
    make_app: MakeApp, logs: pytest.LogCaptureFixture
) -> None:
    async with make_app(fails) as app:
        handle = await app.enqueue(fails("550 no such user"), workflow="w")
        await failure(handle.result(PATIENCE))
    (warning,) = of_level(logs, logging.WARNING)
    assert warning.getMessage() == (
        f"fails {handle.id} failed (attempt 1 of 2), tried again at once: ConnectionError: 550 no such user"
    )
    assert warning.exc_info is None
    assert fields(warning) == {
        "id": handle.id,
        "type": "fails",
        "attempt": 1,
        "tenant": "default",
        "workflow": "w",
    }
    (error,) = of_level(logs, logging.ERROR)
    assert error.getMessage() == (
        f"fails {handle.id} is dead after attempt 2 of 2, exhausted: ConnectionError: 550 no such user"
    )
    assert fields(error)["attempt"] == 2
    assert error.reason == "exhausted"  # type: ignore[attr-defined]
    assert error.exc_info is not None
    assert error.exc_text is not None
    first, second, *_ = error.exc_text.splitlines()
    assert first == "Traceback (most recent call last):"
    assert "test_log_lines.py" in second  # it begins with the user's code


@memory_only
async def test_lines_about_an_attempt_have_the_fields_of_log_context(
    make_app: MakeApp, logs: pytest.LogCaptureFixture
) -> None:
    taken = ("id", "type", "tenant", "attempt", "workflow", "reason", "trace_id", "span_id", "args")

    @work(name="ship", retry=TWICE, log_context=lambda given: given | dict.fromkeys(taken, "mine"))
    async def ship(order: int) -> None:
        raise LookupError

    def hostile(_: object) -> dict[str, object]:
        raise KeyboardInterrupt

    @work(name="hostile", retry=TWICE, log_context=hostile)
    async def also_hostile(ctx: Context) -> None:
        ctx.log.warning("begins")
        raise LookupError

    async with make_app(ship, also_hostile) as app:
        handle = await app.enqueue(ship(7))
        await failure(handle.result(PATIENCE))
        for record in map(vars, logs.records):
            assert (record["order"], record["id"], record["type"]) == (7, handle.id, "ship")
            assert (record["tenant"], record.get("trace_id")) == ("default", None)
            assert {record[f"input_{name}"] for name in taken} == {"mine"}
        logs.clear()
        await failure(app.enqueue(also_hostile()).result(PATIENCE))
    failed, *_, dead = logs.records
    assert failed.levelname == "WARNING"
    assert failed.getMessage().startswith("log_context of hostile failed, its fields are missing")
    assert logs.text.count("log_context of hostile failed") == 1
    assert dead.reason == "exhausted"  # type: ignore[attr-defined]


@memory_only
async def test_log_failures_turns_them_off(make_app: MakeApp, logs: pytest.LogCaptureFixture) -> None:
    async with make_app(fails, log_failures=False) as app:
        await failure(app.enqueue(fails("no")).result(PATIENCE))
    assert not logs.records


@memory_only
async def test_no_error_breaks_a_line_or_fills_the_log(
    make_app: MakeApp, logs: pytest.LogCaptureFixture
) -> None:
    async with make_app(fails) as app:
        hostile = "two\nlines\r\x1b[2J\u202e" + "x" * 900_000
        await failure(app.enqueue(fails(hostile)).result(PATIENCE))
    for record in logs.records:
        assert record.getMessage().isprintable()
        assert len(record.getMessage()) < 1000
    assert not {"\x1b", "\r", "\u202e"} & set(logs.text)
    assert len(logs.text) < 20_000


@memory_only
async def test_nothing_is_logged_before_it_is_stored(
    make_faulty: MakeApp, faults: Faults, logs: pytest.LogCaptureFixture
) -> None:
    fault = faults.fail("settle", times=2)
    async with make_faulty(fails) as app:
        handle = await app.enqueue(fails("no"))
        await fault.reached()
        assert "failed (attempt" not in logs.text
        await failure(handle.result(PATIENCE))
    assert logs.text.count("failed (attempt 1 of 2)") == 1


@memory_only
async def test_a_settlement_that_is_refused_is_no_failure(
    make_app: MakeApp, logs: pytest.LogCaptureFixture
) -> None:
    """The item was cancelled while it ran: what became of the attempt is not logged as an outcome."""
    barrier, seen = Barrier(), Seen()

    @work(name="holds", retry=TWICE)
    async def holds() -> None:
        await barrier.wait()

    async with make_app(holds, on_event=seen) as app:
        handle = await app.enqueue(holds())
        await barrier.reached()
        await handle.cancel()
        await seen.until(LeaseLost)
    assert not of_level(logs, logging.WARNING)
    assert f"holds {handle.id} was cancelled while it ran here" in logs.text


@memory_only
async def test_lost_leases_are_a_line_and_a_summary(
    make_app: MakeApp, logs: pytest.LogCaptureFixture
) -> None:
    barrier, seen = Barrier(), Seen()

    @work(name="holds")
    async def holds(ctx: Context) -> None:
        if ctx.attempt == 1:
            await barrier.wait()

    async with make_app(holds, on_event=seen) as app:
        handles = await app.enqueue_many([holds() for _ in range(15)])
        await until(lambda: barrier.count == 15)
        await app.backend.remove_worker(app.worker.id)  # as if its heartbeats had not arrived
        await seen.until(LeaseLost, count=15)
        assert logs.text.count("lost its lease (attempt 1)") == 1
        await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
    (summary,) = [text for text in logs.messages if "more items lost their leases" in text]
    assert summary.startswith("14 more items")
    assert summary.endswith("and 4 more")


@memory_only
async def test_an_outage_is_two_lines_and_on_error_hears_each(
    make_faulty: MakeApp, faults: Faults, logs: pytest.LogCaptureFixture
) -> None:
    @work(name="echo")
    async def echo(n: int) -> int:
        return n

    errors = Errors()
    async with make_faulty(echo, on_error=errors) as app:
        fault = faults.fail("claim", times=5)
        assert await app.enqueue(echo(1)).result(PATIENCE) == 1
    assert fault.hits == 5
    assert len(errors.of("claim")) == 5
    away, back = of_level(logs, logging.WARNING)
    assert "is unavailable, trying again" in away.getMessage()
    assert "is available again" in back.getMessage()
    assert not any(record.exc_info for record in logs.records)


async def test_a_type_that_no_worker_has_is_named_once(
    make_app: MakeApp, logs: pytest.LogCaptureFixture
) -> None:
    old = work.declare("old.name", _no_arguments)
    async with make_app(fails) as app:
        await app.enqueue_many([old(), old()])
        unserved = UnservedTypes(core_of(app))
        async with asyncio.timeout(PATIENCE):
            while not await unserved.run_once():  # noqa: ASYNC110  until a claim has set them aside
                await asyncio.sleep(0.01)
        for _ in range(3):
            await unserved.run_once()
    (warning,) = of_level(logs, logging.WARNING)
    assert warning.getMessage().startswith("no live worker has the type old")
    assert "2 ready items wait." in warning.getMessage()


@memory_only
async def test_a_retry_says_when(make_app: MakeApp, logs: pytest.LogCaptureFixture) -> None:
    seen = Seen()

    @work(name="later", retry=Retry(base=100, max=300, jitter=0))
    async def later() -> None:
        raise ValueError

    async with make_app(later, on_event=seen) as app:
        await app.enqueue(later())
        await seen.until(Failed)
    assert "failed (attempt 1 of 3), tried again in 1 min 40 s: ValueError" in logs.text


@memory_only
async def test_records_have_the_id_of_the_trace_within_which_an_item_was_submitted(
    make_app: MakeApp, logs: pytest.LogCaptureFixture
) -> None:
    spans = Spans()

    @work(name="traced", retry=Retry(attempts=1))
    async def traced(ctx: Context) -> None:
        ctx.log.warning("begun")
        raise ValueError

    async with make_app(traced, telemetry=spans.telemetry) as app:
        with spans.tracer.start_as_current_span("request"):
            await failure(app.enqueue(traced()).result(PATIENCE))
    async with make_app(traced) as app:  # a header of this name is the user's own
        headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        await failure(app.enqueue(traced(), headers=headers).result(PATIENCE))
    own = trace.format_trace_id(spans.one("request").context.trace_id)
    assert [getattr(record, "trace_id", None) for record in logs.records] == [own, own, None, None]
