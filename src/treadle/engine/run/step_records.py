"""Step records: what attempts record about their steps, and what they say on their way, written together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Final, NamedTuple, NoReturn

import msgspec
from msgspec.structs import replace

from treadle.backend import Placed, placed
from treadle.engine.core import Core
from treadle.engine.store_retry import retry_unavailable
from treadle.engine.tasks import Combiner, combined, finish
from treadle.engine.wait.read_results import CombinedReads
from treadle.errors import LeaseLost, PayloadError, StepError, StoreUnavailable, TooManySteps
from treadle.item import DEFAULT_TENANT, Lease, Loss, Record, Recorded, Ref, StepRecord
from treadle.records import Progress
from treadle.store.rules.steps import unreadable_step

from .held import HeldLease
from .settle import BACKOFF

MAX_STEPS: Final = 1000
"""Steps that one item may record."""
MAX_BYTES: Final = 32 * 1024 * 1024
"""Bytes of all recorded values of one item."""
MAX_CHUNKS: Final = 100_000
"""Chunks of one stream."""
FLUSH: Final = 0.1
"""Seconds after which progress and chunks are written."""
MOST_BUFFERED: Final = 1000
"""Chunks that wait to be written. A handler that is quicker waits for the store."""
INSIDE: ContextVar[str | None] = ContextVar("treadle_step", default=None)
"""The name of the step whose function runs."""

_write_json: Final = msgspec.json.Encoder().encode


class RecordRequest(msgspec.Struct, eq=False):
    record: Record
    answer: asyncio.Future[Loss | None]


def _place(several: Placed, request: RecordRequest) -> int:
    return several.place_of_token(request.record.lease.token)


class StepRecorder:
    """Writes and reads what items record, for many attempts in one call."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._combiner = combined(
            lambda: Combiner[RecordRequest](self._write, core.tasks, name="record", on_cancel=self._leave),
            placed(core.backend),
            _place,
        )
        self._unanswered: set[asyncio.Future[Loss | None]] = set()
        self._reads: CombinedReads[Recorded | None] = CombinedReads(
            self._read, core.tasks, placed(core.backend)
        )

    async def read(self, lease: Lease) -> Recorded:
        """What the item of a lease has recorded."""
        (found,) = await self._reads.get([lease.id], tenant=lease.tenant)
        return found or Recorded()

    async def _read(self, ids: Sequence[str], tenant: str) -> Sequence[Recorded | None]:
        core = self._core
        return await retry_unavailable(lambda: core.backend.steps(ids, tenant=tenant), core.settings)

    def record(self, record: Record) -> asyncio.Future[Loss | None]:
        """Write it. The answer is why the lease is lost, if it is."""
        answer: asyncio.Future[Loss | None] = asyncio.get_running_loop().create_future()
        self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)
        self._combiner.add(RecordRequest(record, answer))
        return answer

    def _leave(self) -> None:
        """The worker has stopped before the store has answered."""
        for answer in [*self._unanswered]:
            answer.cancel()

    async def _write(self, batch: list[RecordRequest]) -> None:
        core, tries = self._core, 0
        while batch := [request for request in batch if not request.answer.done()]:
            try:
                answers = await finish(core.backend.record([request.record for request in batch]))
            except StoreUnavailable as error:
                tries += 1
                core.hooks.report(error, "settle", f"could not record {len(batch)} step(s)")
                await core.settings.clock.sleep(BACKOFF.delay(tries, core.settings.random.random))
                continue
            except Exception as error:  # noqa: BLE001  the handlers get it
                await self._write_apart(batch, error)
                return
            for request, loss in zip(batch, answers, strict=True):
                if not request.answer.done():
                    request.answer.set_result(loss)
            return

    async def _write_apart(self, batch: list[RecordRequest], error: Exception) -> None:
        """One of them may be the cause: write each by itself."""
        if len(batch) > 1:
            for request in batch:
                await self._write([request])
        elif not batch[0].answer.done():
            batch[0].answer.set_exception(error)


class Said(NamedTuple):
    """What an attempt has said and not written yet."""

    progress: bytes | None = None
    chunks: tuple[bytes, ...] = ()
    first: int = 0

    def record(self, lease: Lease, steps: tuple[StepRecord, ...] = ()) -> Record:
        return Record(
            lease=lease, steps=steps, progress=self.progress, chunks=self.chunks, first_chunk=self.first
        )


SILENCE: Final = Said()


class StepBook:
    """What one attempt knows of the steps of its item, and what it writes about them."""

    def __init__(self, core: Core, held: HeldLease, recorder: StepRecorder, recorded: Recorded) -> None:
        self._core = core
        self._held = held
        self._recorder = recorder
        self.known = {step.name: step for step in recorded.steps}
        """By name: what the item has recorded."""
        self._count = len(self.known)
        """Steps that are recorded, or were begun in this attempt."""
        self._bytes = sum(len(step.value or b"") for step in recorded.steps)
        self._used: set[str] = set()
        self.writing: dict[asyncio.Future[Loss | None], tuple[StepRecord, ...]] = {}
        """Steps that are being recorded."""
        self.has_branches = False
        """Another task than that of the handler has steps."""
        self.has_ended = False
        """The handler has ended: nothing more is recorded."""
        self.passed: dict[str, StepRecord] = {}
        """Waits that are over by the clock. That is recorded with the next write."""
        self.unstorable: PayloadError | None = None
        """A value that could not be recorded, or read."""
        self.output = StepOutput(self, core, recorded.chunks if held.lease.has_steps else None)

    @property
    def ref(self) -> Ref:
        return self._held.lease.tenant, self._held.lease.id

    def open(self, name: str) -> StepRecord | None:
        """Begin the step of this name. Returns what is recorded of it."""
        self.check_running()
        outer = INSIDE.get()
        if outer is not None:
            raise StepError(f"the step {name!r} is inside the step {outer!r}: a step has no steps of its own")
        if name in self._used:
            raise StepError(
                f"the name {name!r} is used twice in one attempt: put what differs into it, as in "
                f'f"{name}:{{n}}"'
            )
        self._used.add(name)
        self.has_branches = self.has_branches or asyncio.current_task() is not self._held.task
        found = self.known.get(name)
        if found is not None and found.kind != "forgotten":
            return found
        self._check_room(name)
        self._count += found is None
        return None

    def check_running(self) -> None:
        held = self._held
        if held.over or self.has_ended:
            raise LeaseLost(held.lease.id, held.stop or "completed")

    def _check_room(self, name: str) -> None:
        if self._count >= MAX_STEPS:
            raise TooManySteps(self._held.lease.type, f"has {MAX_STEPS} steps, and {name!r} is one more")
        self._check_bytes()

    def _check_bytes(self) -> None:
        if self._bytes > MAX_BYTES:
            raise TooManySteps(
                self._held.lease.type, f"has recorded {self._bytes} bytes, the limit is {MAX_BYTES}"
            )

    def check_kind(self, found: StepRecord, kind: str) -> None:
        if found.kind != kind:
            raise StepError(
                f"the step {found.name!r} is recorded as a {found.kind}, and is a {kind} now: give it a new "
                "name"
            )

    async def record(self, step: StepRecord) -> None:
        """Write a step. It is there when this returns. `LeaseLost` if another worker has the item."""
        self.check_running()
        if self.output.has_news:
            async with self.output.taken() as said:
                await self._write(self.record_of(step, said))
        else:
            await self._write(self.record_of(step))

    def record_of(self, step: StepRecord, said: Said = SILENCE) -> Record:
        self._check_bytes()
        self._bytes += len(step.value or b"")
        passed = [each for name, each in self.passed.items() if name != step.name]
        return said.record(self._held.lease, (*passed, step))

    async def _write(self, record: Record) -> None:
        """Write it, also if the task that waits for it is cancelled: the end of the attempt waits for it."""
        answer = self._recorder.record(record)
        self.writing[answer] = record.steps
        loss = await asyncio.shield(answer)
        self.written(answer)
        if loss is not None:
            self.lose(loss)

    def written(self, answer: asyncio.Future[Loss | None]) -> None:
        """The store has answered."""
        steps = self.writing.pop(answer, ())
        if steps and not answer.cancelled() and answer.exception() is None and answer.result() is None:
            self.note(steps)

    def note(self, steps: Sequence[StepRecord]) -> None:
        """A step is in the store, with waits that are over before it."""
        *passed, step = steps
        for each in passed:
            self.passed.pop(each.name, None)
        before = self.known.get(step.name)
        self.known[step.name] = step if before is None else replace(step, times=before.times)
        self._held.progressed = True
        self._held.bound.metrics.steps += 1

    async def record_output(self, said: Said) -> None:
        await self._write(said.record(self._held.lease))

    async def count_chunks(self) -> int:
        """How many chunks the stream of the item has in the store."""
        return (await self._recorder.read(self._held.lease)).chunks

    def lose(self, loss: Loss) -> NoReturn:
        held = self._held
        held.stop = held.stop or loss
        raise LeaseLost(held.lease.id, loss)

    def end_wait(self, found: StepRecord) -> None:
        """A wait is over by the clock."""
        passed = replace(found, over=True)
        self.known[found.name] = self.passed[found.name] = passed

    def now(self) -> float:
        return self._held.store_time(self._core.settings.clock.monotonic())

    def refuse(self, error: PayloadError, name: str) -> NoReturn:
        error.args = (unreadable_step(name, error),)
        self.unstorable = error
        raise error

    def key(self, name: str) -> str:
        found, lease = self.known.get(name), self._held.lease
        parts = [lease.id, name] if lease.tenant == DEFAULT_TENANT else [lease.tenant, lease.id, name]
        if found is not None and found.times:
            parts += ["", str(found.times)]
        # So that no two steps have the same key.
        return ":".join(part.replace("%", "%25").replace(":", "%3A") for part in parts)


class StepOutput:
    """What an attempt says on its way: its progress and its stream. It is written a moment after it was said,
    with all that was said meanwhile, or with the next step: a step that is recorded has said all."""

    def __init__(self, book: StepBook, core: Core, written: int | None) -> None:
        self._book = book
        self._core = core
        self._progress: bytes | None = None
        self._chunks: list[bytes] = []
        self._written = written
        """How many chunks the stream has in the store. None: not read yet."""
        self._writer: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._transactions = 0
        """How many transactions of its steps are open. A write beside them could wait for their ends."""

    @property
    def has_news(self) -> bool:
        """Whether something is not written yet."""
        return self._progress is not None or bool(self._chunks)

    async def progress(self, progress: Progress) -> None:
        self._progress = _write_json(progress)
        self._write_soon()

    async def emit(self, data: bytes) -> None:
        if (self._written or 0) + len(self._chunks) >= MAX_CHUNKS:
            raise StepError(f"the stream of this item has {MAX_CHUNKS} chunks: emit larger ones, or fewer")
        self._chunks.append(data)
        self._write_soon()
        if len(self._chunks) >= MOST_BUFFERED and not self._transactions:
            await self.flush()

    async def flush(self) -> None:
        """Write what was said so far."""
        async with self.taken() as said:
            if said != SILENCE:
                await self._book.record_output(said)

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[Said]:
        """What was said so far. The block writes it, or raises: then it is not written."""
        async with self._lock:
            said = await self._said()
            yield said
            if said.progress is self._progress:
                self._progress = None
            if said.chunks:
                del self._chunks[: len(said.chunks)]
                self._written = (self._written or 0) + len(said.chunks)
        if said != SILENCE:
            self._core.wakeups.emitted(self._book.ref)

    @asynccontextmanager
    async def beside_transaction(self) -> AsyncGenerator[Callable[[], Awaitable[Said]]]:
        """While a transaction is open nothing is written beside it. Gives a function, to be called before the
        commit: what was said so far, which the transaction writes. That is nothing while another write goes
        on, since that one may wait for the transaction."""
        async with AsyncExitStack() as stack:

            async def take() -> Said:
                if self._lock.locked():
                    return SILENCE
                return await stack.enter_async_context(self.taken())

            self._transactions += 1
            try:
                yield take
            finally:
                self._transactions -= 1
                if self.has_news:
                    self._write_soon()

    async def _said(self) -> Said:
        if self._chunks and self._written is None:
            self._written = await self._book.count_chunks()
        if not self._chunks:
            return Said(self._progress)
        return Said(self._progress, tuple(self._chunks), (self._written or 0) + 1)

    def _write_soon(self) -> None:
        if self._writer is None or self._writer.done():
            self._writer = self._core.tasks.start(self._write(), "record")

    async def _write(self) -> None:
        await self._core.settings.clock.sleep(FLUSH)
        if self._transactions:
            return
        with suppress(LeaseLost):  # the handler learns it from its next step, or from its interrupt
            await self.flush()
