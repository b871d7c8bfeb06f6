"""Steps of an attempt: calls whose values are recorded, waits that suspend it, progress and streams.

A step is looked up by its name in what the item has recorded, which is read once, before the handler begins.
What is not there is called and recorded. A wait that is not over suspends the attempt: it raises `Suspend` as
soon as no step of the attempt runs. The attempt is then settled with all that it waits for.

    StepServices   of a worker: makes the `RunSteps` of its attempts
    RunSteps       of an attempt: what its Context asks for, by
      StepCalls      the functions of steps (step_calls)
      StepWaits      sleeps, signals and children
      StepBook       what is known of the steps, and what is written about them (step_records)
      StepOutput     progress and the stream (step_records)
    StepRecorder   of a worker: writes and reads for the books of many attempts in one call (step_records)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NoReturn, cast

from msgspec.structs import replace

from treadle.backend import check_capable
from treadle.base.ids import slot_of
from treadle.base.timing import SystemClock, finite
from treadle.codec import Shape, check_size
from treadle.define.work import Work
from treadle.engine.core import Core, new_id
from treadle.engine.store_retry import retry_unavailable
from treadle.engine.wait.read_results import ResultReader
from treadle.errors import DecodeError, NotFound, StepError, WorkFailed
from treadle.handler.steps import Suspend
from treadle.item import Recorded, StepRecord
from treadle.records import Progress
from treadle.store.rules.steps import children_signal, join_of

from .decide import Await, Die, WaitingFor, cut_text, failure_of, unstorable
from .held import HeldLease
from .step_calls import StepCalls
from .step_records import StepBook, StepRecorder

SHORT: Final = 5.0
"""A sleep of no more seconds stays in its worker, unless a test moves the clock."""


class RunSteps:
    """The steps of one attempt. See `AttemptSteps` in treadle.handler.steps."""

    def __init__(
        self, core: Core, held: HeldLease, recorder: StepRecorder, reader: ResultReader, recorded: Recorded
    ) -> None:
        self._core = core
        self._held = held
        self._book = StepBook(core, held, recorder, recorded)
        self._calls = calls = StepCalls(core, held, self._book)
        self._waits = StepWaits(core, held, self._book, calls, reader)
        self.key = self._book.key
        self.flush = self._book.output.flush
        self.call, self.call_in_transaction = calls.call, calls.call_in_transaction
        self.call_from_thread = calls.call_from_thread
        self.sleep, self.signal, self.run = self._waits.sleep, self._waits.signal, self._waits.run

    def decide(self, error: BaseException | None) -> Await | Die | None:
        """What the steps make of the end of the attempt. None: it ends as without them."""
        waits, book = self._waits, self._book
        if waits.ended_attempt and error is None:
            caught = StepError(
                f"{self._held.lease.type!r} has caught the end of an attempt that waits, and returned: catch "
                "Exception instead of BaseException around ctx.sleep, ctx.signal and ctx.run"
            )
            return Die("bad_result", failure_of(caught), caught)
        if book.unstorable is not None and error is book.unstorable:
            return unstorable(book.unstorable)
        if error is None or not waits.open or not _is_suspend(error):
            return None
        return Await(tuple(waits.open.values()), tuple(book.passed.values()))

    async def end(self) -> None:
        """The handler has ended. Steps that still run, in tasks that it has left behind, are cancelled: the
        next attempt calls them again. What is being recorded is waited for."""
        book, running = self._book, self._calls.running
        book.has_ended = True
        for task in running:
            task.cancel()
        while left := {*running, *book.writing}:
            await asyncio.wait(left)
            for answer in [each for each in book.writing if each.done()]:
                book.written(answer)

    async def progress(self, done: float, total: float | None, message: str | None) -> None:
        self._book.check_running()
        whole = None if total is None else finite(total, field="total")
        text = None if message is None else cut_text(str(message))
        await self._book.output.progress(Progress(finite(done, field="done"), whole, text))

    async def emit(self, chunk: Any) -> None:
        self._book.check_running()
        data = self._held.bound.codec.encode(chunk)
        check_size(data, self._core.settings.max_payload, "a chunk of", self._held.lease.type)
        await self._book.output.emit(data)


class StepServices:
    """The steps of the attempts of a worker."""

    def __init__(self, core: Core, reader: ResultReader) -> None:
        self._core = core
        self._reader = reader
        self._recorder = StepRecorder(core)

    def of(self, held: HeldLease, what: str) -> RunSteps:
        """The steps of an attempt whose item has recorded none before. what: the method of its context that
        asks."""
        if held.batch is not None:
            raise StepError(f"ctx.{what} is not for a batch: its items end one by one")
        check_capable(self._core.backend, "steps")
        return self._made(held, Recorded())

    async def read(self, held: HeldLease) -> RunSteps:
        """The steps of an attempt whose item has recorded some."""
        return self._made(held, await self._recorder.read(held.lease))

    def _made(self, held: HeldLease, recorded: Recorded) -> RunSteps:
        return RunSteps(self._core, held, self._recorder, self._reader, recorded)


class StepWaits:
    """The waits of one attempt. One that is not over ends the attempt."""

    def __init__(
        self, core: Core, held: HeldLease, book: StepBook, calls: StepCalls, reader: ResultReader
    ) -> None:
        self._core = core
        self._held = held
        self._book = book
        self._calls = calls
        self._reader = reader
        self._clock = core.settings.clock
        self._short = SHORT if isinstance(self._clock, SystemClock) else 0.0
        self.open: dict[str, WaitingFor] = {}
        """By the names of their steps: those that are not over."""
        self.ended_attempt = False

    async def sleep(self, name: str, delay: float | None, until: float | None) -> None:
        found = self._book.open(name)
        if found is None:
            end = until if delay is None else self._book.now() + delay
            assert end is not None
            if end <= self._book.now():
                return
            wait = StepRecord(name=name, kind="sleep", delay=delay, until=until, over=False)
            if end - self._book.now() > self._short:
                await self._suspend(WaitingFor(wait))
            with self._calls.at_work():
                await self._book.record(wait)
            found = replace(wait, delay=None, until=end)
        self._book.check_kind(found, "sleep")
        if found.over or found.until is None:
            return
        if found.until > self._held.lease.claimed_at:
            left = found.until - self._book.now()
            if left > self._short:
                await self._suspend(WaitingFor(found))
            await self._sleep_here(found, max(left, 0.0))
        self._book.end_wait(found)

    async def _sleep_here(self, found: StepRecord, left: float) -> None:
        """Meanwhile a wait of another task may suspend the attempt: then the item waits for both."""
        self.open[found.name] = WaitingFor(found)
        try:
            await self._clock.sleep(left)
        finally:
            if not self.ended_attempt:
                del self.open[found.name]

    async def signal(self, name: str, type: Any, timeout: float | None, step: str) -> Any:
        found = self._book.open(step)
        if found is None:
            wait = StepRecord(name=step, kind="signal", signal=name, delay=timeout, over=False)
            await self._suspend(WaitingFor(wait))
        self._book.check_kind(found, "signal")
        if found.over:
            return None if found.value is None else self._read_signal(found, type)
        if found.until is None or found.until > self._held.lease.claimed_at:
            await self._suspend(WaitingFor(found))
        self._book.end_wait(found)
        return None

    def _read_signal(self, found: StepRecord, type: Any) -> Any:
        try:
            # By the codec of the app: who sent it need not know the type of the item.
            return Shape.for_type(type).decode(found.value or b"", self._core.settings.codec)
        except DecodeError as error:
            self._book.refuse(error, found.name)

    async def run(self, name: str, works: tuple[Work[Any, Any], ...]) -> Any:
        found = self._book.open(name)
        if not works:
            return []
        if found is None:
            wait = StepRecord(name=name, kind="children", signal=self._new_join(), over=False)
            await self._suspend(WaitingFor(wait, works))
        self._book.check_kind(found, "children")
        if not found.over:
            await self._suspend(WaitingFor(found))
        return await self._results(found)

    async def _results(self, found: StepRecord) -> list[Any]:
        """The values of the children. The item that has waited for them names them: for one with a key, an
        earlier item may have answered. One that was requeued since is waited for again, unless an operator
        has cancelled that item."""
        lease, backend = self._held.lease, self._core.backend
        join = join_of(found.signal)
        requeued: tuple[str, ...] = ()

        async def read() -> list[Any]:
            nonlocal requeued
            (state,) = await backend.get([join], tenant=lease.tenant)
            if state is None:
                raise NotFound(join)
            requeued = tuple(state.after) if state.status == "success" else ()
            return await self._reader.results(backend, lease.tenant, state.after, return_exceptions=False)

        try:
            with self._calls.at_work():
                return await retry_unavailable(read, self._core.settings)
        except WorkFailed as error:
            if error.reason != "open" or not requeued:
                raise
        wait = replace(found, signal=self._new_join(), value=None, over=False)
        return await self._suspend(WaitingFor(wait, children=requeued))

    def _new_join(self) -> str:
        """The name of the signal of a new item that waits for children."""
        return children_signal(new_id(self._core, slot_of(self._held.lease.group_id)))

    async def _suspend(self, wait: WaitingFor) -> NoReturn:
        """End the attempt as soon as none of its steps runs."""
        name = wait.step.name
        self.open[name] = wait
        try:
            await self._calls.until_idle()
        except asyncio.CancelledError:
            del self.open[name]
            raise
        self.ended_attempt = True
        raise Suspend


def _is_suspend(error: BaseException) -> bool:
    """Whether an attempt has ended because it waits. Tasks in a group end together: the others of it are
    cancelled."""
    if isinstance(error, BaseExceptionGroup):
        inside = cast("Sequence[BaseException]", error.exceptions)  # pyright: ignore[reportUnknownMemberType]
        return all(_is_suspend(each) for each in inside)
    return isinstance(error, Suspend)
