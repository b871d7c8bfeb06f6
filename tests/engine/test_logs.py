"""What handlers log is kept with their attempts."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
import pytest

from tests.engine import process_context_handlers as handlers
from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, MakeApp
from treadle import Context, Retry, Secret, Treadle, work
from treadle.errors import InputError, NotFound
from treadle.logs.kept_lines import KeptLines
from treadle.records import AttemptLog

log = logging.getLogger("shop.mail")


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def texts(logs: Sequence[AttemptLog]) -> list[list[str]]:
    return [[line.text for line in each.lines] for each in logs]


@pytest.mark.every_store
async def test_each_attempt_keeps_its_lines(make_app: MakeApp) -> None:
    @work(retry=AT_ONCE)
    async def mail(ctx: Context, to: str) -> None:
        ctx.log.info("to %s", to)
        if ctx.attempt < 2:
            try:
                raise OSError("no route")
            except OSError:
                log.exception("not sent")
            raise ValueError

    app = make_app(mail)
    async with app:
        handle = await app.enqueue(mail("ann"))
        await handle.result(PATIENCE)
        first, second = await app.logs(handle)
    assert (first.attempt, second.attempt) == (1, 2)
    sent, failed = first.lines
    assert (sent.level, sent.logger, sent.text) == ("INFO", "treadle", "to ann")
    assert (failed.level, failed.logger) == ("ERROR", "shop.mail")
    assert failed.text.startswith("not sent\nTraceback")
    assert failed.text.endswith("OSError: no route")
    assert texts([second]) == [["to ann"]]


async def test_items_that_run_at_once_have_their_own_lines(make_app: MakeApp) -> None:
    """Also those of threads, and of tasks that a handler starts."""

    @work
    async def on_loop(n: int) -> None:
        async def inner() -> None:
            log.info("inner %s", n)

        for _ in range(3):
            log.info("outer %s", n)
            await asyncio.create_task(inner())

    @work
    def in_thread(n: int) -> None:
        log.info("thread %s", n)

    app = make_app(on_loop, in_thread)
    async with app:
        handles = [await app.enqueue(on_loop(n)) for n in range(5)]
        pooled = [await app.enqueue(in_thread(n)) for n in range(5)]
        for handle in (*handles, *pooled):
            await handle.result(PATIENCE)
        log.info("of nobody")
        for n, handle in enumerate(handles):
            assert texts(await app.logs(handle.id)) == [[f"outer {n}", f"inner {n}"] * 3]
        for n, handle in enumerate(pooled):
            assert texts(await app.logs(handle.id)) == [[f"thread {n}"]]


@pytest.mark.usefixtures("processes")
async def test_a_process_sends_its_lines(make_app: MakeApp) -> None:
    app = make_app(handlers.logs, handlers.logs_with_context)
    async with app:
        plain = await app.enqueue(handlers.logs(1))
        with_context = await app.enqueue(handlers.logs_with_context(2))
        await plain.result(PATIENCE)
        await with_context.result(PATIENCE)
        assert texts(await app.logs(plain.id)) == [["of 1"]]
        ((own, other),) = texts(await app.logs(with_context.id))
    assert (own, other.partition("\n")[0]) == ("ctx.log of 2", "of 2")
    assert other.endswith("ZeroDivisionError: division by zero")


async def test_a_type_or_an_app_keeps_none(make_app: MakeApp) -> None:
    @work(logs=False)
    async def silent() -> None:
        log.info("silent")

    @work(logs=True)
    async def kept() -> None:
        log.info("kept")

    @work
    async def plain() -> None:
        log.info("plain")

    async def run(app: Treadle) -> list[Any]:
        async with app:
            handles = [await app.enqueue(each()) for each in (silent, kept, plain)]
            for handle in handles:
                await handle.result(PATIENCE)
            return [texts(await app.logs(handle.id)) for handle in handles]

    assert await run(make_app(silent, kept, plain)) == [[], [["kept"]], [["plain"]]]
    assert await run(make_app(silent, kept, plain, logs=False)) == [[], [["kept"]], []]


async def test_secrets_are_masked(make_app: MakeApp) -> None:
    """Those of the arguments, passwords in URLs, and what stands behind a name that tells so."""

    @work
    async def mail(to: str, password: str, pin: Annotated[str, Secret], more: dict[str, Any]) -> None:
        log.info("%s with %s and pin %s, %s", to, password, pin, more)
        log.info("at postgres://ann:hunter3@db/x?q=1 with iban=DE75 and Authorization: Bearer abc.def ok")
        log.info("%r and %r", {"api_key": "xyz-1", "n": 5}, "hunter22")

    app = make_app(mail, mask=["iban"])
    async with app:
        handle = await app.enqueue(mail("ann", "hunter22", "0815-4711", {"token": "tttt-1", "size": 3}))
        await handle.result(PATIENCE)
        (lines,) = texts(await app.logs(handle.id))
    assert lines == [
        "ann with *** and pin ***, {'token': ***, 'size': 3}",
        "at postgres://ann:***@db/x?q=1 with iban=*** and Authorization: *** ok",
        "{'api_key': ***, 'n': 5} and '***'",
    ]


async def test_the_last_lines_are_kept(make_app: MakeApp) -> None:
    """100, or 16 kB. One that is long loses its middle."""

    @work
    async def chatty(size: int, count: int) -> None:
        for n in range(count):
            log.info("%s%s", "x" * size, n)

    app = make_app(chatty)
    async with app:
        many, large, huge = [
            await app.enqueue(chatty(*each)) for each in ((1, 150), (1000, 50), (9_000_000, 1))
        ]
        for handle in (many, large, huge):
            await handle.result(PATIENCE)
        (short,) = await app.logs(many.id)
        (long,) = await app.logs(large.id)
        (cut,) = await app.logs(huge.id)
        stored = [await app.backend.logs(handle.id) for handle in (many, large, huge)]
    assert (len(short.lines), short.left_out, short.lines[-1].text) == (100, 50, "x149")
    assert 10 < len(long.lines) < 16
    assert len(long.lines) + long.left_out == 50
    assert cut.lines[0].text.endswith("xx0")
    assert " [...] " in cut.lines[0].text
    assert max(len(each) for (each,) in stored) <= 17 * 1024


@pytest.mark.every_store
async def test_a_running_item_has_what_it_logged_until_the_last_heartbeat(make_app: MakeApp) -> None:
    barrier = Barrier()

    @work
    async def slow() -> None:
        log.info("begun")
        await barrier.wait()
        log.info("ended")

    app = make_app(slow, lease=1.0, heartbeat=0.05)
    async with app:
        handle = await app.enqueue(slow())
        await barrier.reached()
        async with asyncio.timeout(PATIENCE):
            while not (found := await app.logs(handle.id)):  # noqa: ASYNC110  the store does not tell
                await asyncio.sleep(0.01)
        assert texts(found) == [["begun"]]
        barrier.go.set()
        await handle.result(PATIENCE)
        assert texts(await app.logs(handle.id)) == [["begun", "ended"]]


async def test_items_of_a_batch_share_its_lines(make_app: MakeApp) -> None:
    @work.batch(size=3, max_wait=0.05)
    async def many(ns: list[int]) -> list[int]:
        log.info("%s of them", len(ns))
        return ns

    app = make_app(many)
    async with app:
        handles = await app.enqueue_many([many(n) for n in range(3)])
        for handle in handles:
            await handle.result(PATIENCE)
        for handle in handles:
            assert texts(await app.logs(handle.id)) == [["3 of them"]]


async def test_what_comes_after_the_end_is_not_kept(make_app: MakeApp) -> None:
    late = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def straggler() -> None:
        await late.wait()
        log.info("late")

    @work
    async def starts() -> None:
        log.info("in time")
        tasks.append(asyncio.create_task(straggler()))

    app = make_app(starts)
    async with app:
        handle = await app.enqueue(starts())
        await handle.result(PATIENCE)
        late.set()
        await tasks[0]
        assert texts(await app.logs(handle.id)) == [["in time"]]


async def test_an_item_that_dies_and_one_that_logs_nothing(make_app: MakeApp) -> None:
    @work(retry=Retry(attempts=1))
    async def dies() -> None:
        log.warning("broken")
        raise ValueError

    @work
    async def silent() -> None: ...

    app = make_app(dies, silent)
    async with app:
        dead, quiet = await app.enqueue(dies()), await app.enqueue(silent())
        await quiet.result(PATIENCE)
        with pytest.raises(Exception, match="dies"):
            await dead.result(PATIENCE)
        assert texts(await app.logs(dead.id)) == [["broken"]]
        assert await app.logs(quiet.id) == []
        with pytest.raises(NotFound):
            await app.logs("none")
        with pytest.raises(InputError, match="must be one id, handle or state, not several"):
            await app.logs([dead])  # type: ignore[arg-type]
        with pytest.raises(NotFound):
            await app.tenant("other").logs(dead.id)
        assert await app.tenant("default").logs(dead.id) == await app.logs(dead.id)


async def test_a_program_without_a_log_still_sees_warnings(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`logging` writes them to the standard error as long as there is no handler. Ours does not count."""
    monkeypatch.setattr(logging.root, "handlers", [])
    written: list[str] = []
    last = logging.lastResort
    assert last is not None
    monkeypatch.setattr(last, "emit", lambda record: written.append(record.getMessage()))

    @work
    async def warns() -> None:
        log.info("no")
        log.warning("yes")

    app = make_app(warns)
    async with app:
        await app.enqueue(warns()).result(PATIENCE)
        log.warning("outside")
        assert len(logging.root.handlers) == 1
    assert logging.root.handlers == []
    assert written == ["yes", "outside"]


def test_a_loop_that_ends_without_a_stop_keeps_no_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.run` again and again: the next worker that ends removes it."""
    monkeypatch.setattr(logging.root, "handlers", [])

    @work
    async def runs() -> None: ...

    async def use(*, left_behind: bool) -> None:
        app = Treadle(work=[runs])
        await app.start()
        await app.enqueue(runs()).result(PATIENCE)
        assert len(logging.root.handlers) == 1
        if not left_behind:
            await app.close()

    asyncio.run(use(left_behind=True))
    asyncio.run(use(left_behind=False))
    assert logging.root.handlers == []


def test_threads_may_add_lines() -> None:
    lines = KeptLines(str)
    record = logging.LogRecord("a", logging.INFO, "", 0, "x" * 100 + "\udc80", (), None)

    def add() -> None:
        for _ in range(500):
            lines.add(record)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines.encoded(1)) <= 17 * 1024
    assert b'"left_out":19' in lines.encoded(1)


def test_a_record_whose_arguments_do_not_fit() -> None:
    lines = KeptLines(str)
    lines.add(logging.LogRecord("a", logging.INFO, "", 0, "broken %d", ("no number",), None))
    assert b"broken %d [its arguments do not fit]" in lines.encoded(1)


def record_of(text: str, **fields: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text, "levelname": "INFO", "name": "shop"} | fields)


def kept(*records: logging.LogRecord, mask: Callable[[str], str] = str) -> list[str]:
    lines = KeptLines(mask)
    for record in records:
        lines.add(record)
    return [line.text for line in msgspec.json.decode(lines.encoded(1), type=AttemptLog).lines]


def test_a_line_that_is_long_only_when_it_is_stored() -> None:
    """Control characters take six bytes each. Such a line does not drive out all others, nor itself."""
    first, last = kept(record_of("first"), record_of("\0" * 5000))
    assert first == "first"
    assert set(last) == set("\0 [.]")


@pytest.mark.parametrize("before", [988, 989, 995, 999, 1000])
def test_a_secret_at_the_cut_of_a_long_line(before: int) -> None:
    def mask(text: str) -> str:
        return text.replace("S3CRET-VALUE", "***")

    both_cuts = "x" * before + "S3CRET-VALUE" + "x" * 5000 + "S3CRET-VALUE" + "x" * (3988 - before)
    [line] = kept(record_of(both_cuts), mask=mask)
    assert set(line) <= set("x* [.]")
    assert len(line) < 4010


def test_records_with_odd_names() -> None:
    odd: Any
    for odd in (None, "\ud800", "n" * 100_000, 7):
        assert kept(record_of("said", name=odd), record_of("too", levelname=odd)) == ["said", "too"]
