"""Telemetry that raises, or hands out what cannot be used, changes nothing but the traces."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Errors, Seen
from tests.engine.traced_handlers import apart, raise_around
from treadle import Abort, Context, Failure, Result, Treadle, work
from treadle.base.headers import trace_of
from treadle.errors import DuplicateIdError
from treadle.events import Succeeded


@work(name="value")
async def value(n: int) -> int:
    return n


@work(name="total")
async def total(ctx: Context) -> int:
    ctx.log.info("adding")
    return sum(await ctx.results(ctx.dependencies))


@work(name="fan", retry=AT_ONCE)
async def fan(ctx: Context, n: int) -> Result[Any, int]:
    if ctx.attempt == 1:
        raise OSError("try again")
    return ctx.queue([value(i) for i in range(n)]).next(total())


@work.batch(name="embed", size=2, max_wait=0.01)
async def embed(n: list[int]) -> list[int]:
    return n


@work(name="refund")
async def refund(failure: Failure) -> None: ...


@work(name="charge", on_dead=refund)
async def charge() -> None:
    raise Abort("no money")


@work(name="occurrence")
async def occurrence() -> None: ...


class OddSpan:
    """The span of an `Odd` tracer."""

    def __init__(self, odd: Callable[[str], Any], items: Sequence[Any]) -> None:
        self._odd = odd
        self._items = items

    @property
    def traces(self) -> Any:
        return self._odd("traces") or [None] * len(self._items)

    @property
    def trace(self) -> Any:
        return self._odd("trace")

    @property
    def recording(self) -> Any:
        return self._odd("recording") or True

    @property
    def log_fields(self) -> Any:
        return self._odd("log_fields") or {}

    def link(self, dependencies: object, count: int) -> None:
        self._odd("link")

    def decided(self, outcome: str, error_type: str | None) -> None:
        self._odd("decided")

    def __enter__(self) -> Any:
        self._odd("__enter__")

    def __exit__(self, *error: object) -> Any:
        return self._odd("__exit__")


class Odd:
    """A tracer that does something wrong at some of its methods. It notes which of them were used."""

    def __init__(self, wrong: Callable[[], Any], *names: str) -> None:
        self._wrong = wrong
        self._names = names
        self.used: set[str] = set()

    def _odd(self, name: str) -> Any:
        if not self._names or name in self._names:
            self.used.add(name)
            return self._wrong()
        return None

    @property
    def internals(self) -> Any:
        return True if "internals" not in self._names else self._odd("internals")

    def use_store(self, address: str) -> None:
        self._odd("use_store")

    def submission(self, items: Sequence[Any], *, awaited: bool, schedule: str | None = None) -> Any:
        return self._odd("submission") or OddSpan(self._odd, items)

    def attempt(self, attempts: Sequence[Any], *, batch: bool) -> Any:
        return self._odd("attempt") or OddSpan(self._odd, attempts)

    def carried(self) -> Any:
        return self._odd("carried")

    def call(self, verb: str, traces: object, count: int) -> Any:
        return self._odd("call") or OddSpan(self._odd, ())


class Broken(BaseException):
    """Not an Exception: a tracer may raise anything."""


def broken() -> Any:
    raise Broken


async def use_everything(app: Treadle, seen: Seen) -> None:
    """Every path on which the engine speaks to a tracer, except processes."""
    assert await app.enqueue(fan(3)).group(PATIENCE) == 3
    assert await (await app.enqueue(value(1), id="one")).result(PATIENCE) == 1
    with pytest.raises(DuplicateIdError):  # an error passes through the spans as it is
        await app.enqueue(value(1), id="one")
    many = await app.enqueue_many([embed(1), embed(2)])
    assert [await each.result(PATIENCE) for each in many] == [1, 2]
    await app.enqueue(charge()).group(PATIENCE, partial=True)
    app.schedule("often", every=0.05, run=occurrence)
    count = 0
    while not {"refund", "occurrence"} <= {each.type for each in seen.of(Succeeded)}:
        await seen.until(Succeeded, count=(count := count + 1))


TYPES = (fan, value, total, embed, charge, refund, occurrence)
METHODS = (
    *("internals", "use_store", "submission", "traces", "__enter__", "__exit__", "attempt", "trace"),
    *("recording", "log_fields", "link", "decided", "call"),
)


@pytest.mark.parametrize("names", [(), *((name,) for name in METHODS)])
async def test_a_tracer_that_raises_changes_nothing(
    names: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    odd, errors, seen = Odd(broken, *names), Errors(), Seen()
    with caplog.at_level(logging.WARNING, "treadle"):
        async with Treadle(work=TYPES, telemetry=odd, on_error=errors, on_event=seen) as app:
            await use_everything(app, seen)
    assert odd.used == set(names or ("use_store", "submission", "attempt", "call"))
    assert {(type(error), phase) for error, phase in errors.seen} == {(Broken, "hook")}
    lines = [each.getMessage() for each in caplog.records if "telemetry" in each.getMessage()]
    assert [line.partition(":")[0] for line in sorted(lines)] == [
        f"the telemetry failed in {name}" for name in sorted(odd.used)
    ]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("traces", [{"a": "1"}] * 100),
        ("traces", [{"n": 1}]),
        ("traces", 7),
        ("trace", {"a": "\ud800"}),
        ("trace", {"a": "x" * 1000}),
        ("trace", "text"),
        ("log_fields", {"message": "x", "args": "y"}),
        ("log_fields", 7),
        ("submission", 7),
        ("attempt", 7),
        ("call", 7),
        ("__exit__", True),
    ],
)
async def test_what_a_tracer_hands_out_is_checked(name: str, wrong: Any) -> None:
    odd, seen = Odd(lambda: wrong, name), Seen()
    async with Treadle(work=TYPES, telemetry=odd, on_event=seen) as app:
        await use_everything(app, seen)
        states = (await app.list()).items
    assert odd.used == {name}
    assert not any(trace_of(state.options) for state in states)


@pytest.mark.usefixtures("processes")
async def test_a_handler_in_a_process_runs_whatever_is_carried() -> None:
    values: list[Any] = [7, (contextlib.closing, {}), (raise_around, {"enter": "1"}), (raise_around, {})]
    values.append((lambda: None, {}))  # it cannot be pickled
    odd = Odd(values.pop, "carried")
    async with Treadle(work=[apart], processes=1, telemetry=odd) as app:
        while values:
            assert await app.enqueue(apart(3)).result(PATIENCE) == 3
        assert await app.enqueue(apart(3)).result(PATIENCE) == 3  # nothing to pop: `carried` raises


def test_items_of_transactions_are_stored(tmp_path: Path) -> None:
    @work(name="outer")
    async def outer(ctx: Context) -> int:
        async with ctx.transaction():
            await app.enqueue(value(2), id="two")
        return 1

    app = Treadle(f"sqlite:///{tmp_path / 'work.db'}", work=[value, outer], telemetry=Odd(broken))
    with app.sync, contextlib.closing(sqlite3.connect(tmp_path / "work.db")) as connection:
        assert app.sync.enqueue(outer()).result(PATIENCE) == 1
        connection.execute("BEGIN IMMEDIATE")
        app.sync.enqueue(value(1), id="one", tx=connection)
        connection.commit()
        assert [app.sync.handle(id).result(PATIENCE) for id in ("one", "two")] == [1, 2]
