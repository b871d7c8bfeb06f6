"""Submit: store new items, those of many callers in one write."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from treadle.backend import Backend, Placed, answers_at_once, begins_at_once, placed
from treadle.base.headers import trace_of
from treadle.engine.guarded_telemetry import StoreCalls
from treadle.engine.settings import Settings
from treadle.engine.store_retry import (
    CALLER_RETRY,
    CALLER_SECONDS,
    LOCKED_PAUSE,
    LOCKED_SECONDS,
)
from treadle.engine.tasks import Combiner, Tasks, combined
from treadle.engine.wait.wakeups import Line, WakeUps
from treadle.errors import StoreUnavailable
from treadle.handler.telemetry import Trace
from treadle.item import AuditNote, Filter, Item, Rejected, Submission, Submitted
from treadle.metrics import ProcessMetrics
from treadle.store.rules.submission import rejection_error

Answer: TypeAlias = tuple[Submitted, ...]

_line: Final[Callable[[Item], Line]] = attrgetter("type", "queue")


class SubmitRequest(msgspec.Struct, eq=False):
    """The items of one caller, which awaits the answer."""

    submission: Submission
    stored: Callable[[Answer], bool]
    context: contextvars.Context
    """The caller's context: `stored` is called in it."""
    leases: bool
    """Whether some of its items are to be stored with a lease."""
    began: float
    """When it was asked for, by the monotonic clock."""
    answer: asyncio.Future[Answer]


class Submitter:
    """on_lost: called when an answer was lost, and items may be leased to a worker of this process."""

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        tasks: Tasks,
        wakeups: WakeUps,
        on_lost: Callable[[], None],
        store_calls: StoreCalls,
        metrics: ProcessMetrics,
    ) -> None:
        self._backend = backend
        self._settings = settings
        self._wakeups = wakeups
        self._on_lost = on_lost
        self._store_calls = store_calls
        self._metrics = metrics
        self._unavailable: tuple[float, StoreUnavailable] | None = None
        """When the last write failed, and why."""
        self.leasing = 0
        """Requests under way whose items are to be stored with a lease."""

        # In portions: the first are claimed while the rest is being written. (A thousand at once, awaited,
        # run by another process: 6,200 a second in one portion, 7,000 in four.)
        def make() -> Combiner[SubmitRequest]:
            return Combiner(
                self._write_new,
                tasks,
                name="submit",
                limit=250,
                at_once=answers_at_once(backend, "submit"),
                may_begin=begins_at_once(backend, "submit"),
            )

        def make_locked() -> Combiner[SubmitRequest]:
            return Combiner(
                self._write, tasks, name="submit", pause=lambda: settings.clock.sleep(LOCKED_PAUSE)
            )

        several = placed(backend)
        self._combiner = combined(make, several, _place)
        self._locked = combined(make_locked, several, _place)

    async def flush(self) -> None:
        """Return when nothing is left to write, except what waits for another transaction."""
        await self._combiner.flush()

    def submit(
        self,
        items: tuple[Item, ...],
        stored: Callable[[Answer], bool],
        began: float,
        note: AuditNote | None = None,
        *,
        alike: bool = False,
        may_lease: bool = True,
    ) -> asyncio.Future[Answer]:
        """Store these items together. Then `stored` is called, and returns whether there is something to
        claim. The write goes on if the caller is cancelled. began: the time, by the monotonic clock.
        alike: see `Submission`. may_lease: whether some of the items may be stored with a lease.
        """
        leases = may_lease and _has_lease(items[:1] if alike else items)
        self.leasing += leases
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        submission = Submission(items, False, note, alike)
        self._combiner.add(
            SubmitRequest(submission, stored, contextvars.copy_context(), leases, began, answer)
        )
        return answer

    async def submit_within(
        self, items: tuple[Item, ...], tx: object, note: AuditNote | None = None
    ) -> Answer:
        """Store these items as a part of the caller's transaction."""
        (answer,) = await self._backend.submit([Submission(items, note=note)], tx=tx)
        if isinstance(answer, Rejected):
            raise rejection_error(answer)
        return answer

    def _write_new(self, requests: list[SubmitRequest]) -> Awaitable[None]:
        """Write them, except those that have waited long for a write that failed: each would wait that long
        again, one after the other."""
        if self._unavailable is not None:
            (failed_at, error), self._unavailable = self._unavailable, None
            late = [request for request in requests if failed_at - request.began > CALLER_SECONDS]
            for request in late:
                self._fail(request, StoreUnavailable(f"not submitted: {error}"))
            requests = [request for request in requests if request not in late]
        return self._write(requests)

    async def _write(self, requests: list[SubmitRequest]) -> None:
        if not requests:
            return
        try:
            answers = await self.submit_repeatedly([request.submission for request in requests])
        except Exception as error:  # noqa: BLE001  the callers get it
            await self._fail_or_split(requests, error)
        except BaseException as error:
            unknown = f"submit outcome unknown ({error}): retry with the same ids, or check with get()"
            for request in requests:
                self._fail(request, StoreUnavailable(unknown))
            raise
        else:
            self._answer(requests, answers)

    def _answer(self, requests: list[SubmitRequest], answers: Sequence[Answer | Rejected]) -> None:
        """Call `stored` of each request, then answer the callers. Here, because a caller may be cancelled."""
        ready: set[Line] = set()
        for request, answer in zip(requests, answers, strict=True):
            if not isinstance(answer, Rejected):
                self.leasing -= request.leases
                if request.context.run(request.stored, answer):
                    submission = request.submission
                    ready.update(map(_line, submission.items[:1] if submission.alike else submission.items))
        self._wakeups.ready(ready)
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Rejected) and answer.why == "locked":
                self._wait_for_lock(request)
            elif isinstance(answer, Rejected):
                self._fail(request, rejection_error(answer))
            elif not request.answer.done():  # else the caller was cancelled
                request.answer.set_result(answer)

    def _wait_for_lock(self, request: SubmitRequest) -> None:
        """Try it again later, apart from the others."""
        if self._settings.clock.monotonic() - request.began < LOCKED_SECONDS - LOCKED_PAUSE:
            self._locked.add(request)
        else:
            self._fail(request, rejection_error(Rejected("locked", ())))

    def _fail(self, request: SubmitRequest, error: Exception) -> None:
        self.leasing -= request.leases
        if not request.answer.done():
            request.answer.set_exception(error)

    async def submit_repeatedly(self, submissions: list[Submission]) -> Sequence[Answer | Rejected]:
        """Submit, repeated while the store is unavailable."""
        tries, monotonic = 0, self._settings.clock.monotonic
        began = sent = monotonic()
        try:
            while True:
                try:
                    if self._store_calls.are_traced:
                        answers = await self._submit_traced(submissions)
                    else:
                        answers = await self._backend.submit(submissions)
                    count = len(submissions[0].items)
                    if len(submissions) > 1:
                        count = sum([len(each.items) for each in submissions])
                    self._metrics.called("submit", monotonic() - sent, count)
                    if not tries:
                        return answers
                    pairs = zip(submissions, answers, strict=True)
                    return [await self.recognize_own(each.items, answer) for each, answer in pairs]
                except StoreUnavailable:
                    tries += 1
                    if CALLER_RETRY.exhausted(tries) or monotonic() - began > CALLER_SECONDS:
                        raise
                    delay = CALLER_RETRY.delay(tries, self._settings.random.random)
                    await self._settings.clock.sleep(delay)
                    sent = monotonic()
        finally:
            if tries and any(item.lease_to for submission in submissions for item in submission.items):
                self._on_lost()

    async def _submit_traced(self, submissions: list[Submission]) -> Sequence[Answer | Rejected]:
        with self._store_calls.traced("submit", lambda: _traces(submissions), len(submissions)):
            return await self._backend.submit(submissions)

    # -- after an answer was lost ----------------------------------------------------------------------

    async def recognize_own(self, items: tuple[Item, ...], answer: Answer | Rejected) -> Answer | Rejected:
        """Correct the answer to a repeated call: items that its first try has stored are no duplicates."""
        if isinstance(answer, Rejected):
            repeated = answer.why in ("duplicate_id", "duplicate_key")
            found = await self._find_all(items) if repeated else None
            return answer if found is None else found
        return tuple(
            replace(submitted, existing=submitted.existing and submitted.id != item.id)
            for item, submitted in zip(items, answer, strict=True)
        )

    async def _find_all(self, items: tuple[Item, ...]) -> Answer | None:
        """The answer for items that are in the store. None if one is not there, or is another item."""
        found = [await self._find(item) for item in items]
        return None if None in found else tuple(answer for answer in found if answer is not None)

    async def _find(self, item: Item) -> Submitted | None:
        (state,) = await self._backend.get([item.id], tenant=item.tenant)
        if state is None and item.key_policy == "error":
            return None
        if state is None and item.key is not None and "listing" in self._backend.capabilities:
            # An earlier item with the same key may stand for it.
            where = Filter(tenant=item.tenant, type=item.type, key=item.key)
            state = next(iter((await self._backend.list(where, limit=1)).items), None)
        elif state is None or (state.type, state.input) != (item.type, item.input):
            return None
        if state is None:
            return None
        return Submitted(state.id, state.id != item.id, state.status, None, state.group_id, state.queued_at)

    async def _fail_or_split(self, requests: list[SubmitRequest], error: Exception) -> None:
        """Write the requests one by one: the store may have refused only one of them."""
        if len(requests) == 1 or isinstance(error, StoreUnavailable):
            if isinstance(error, StoreUnavailable):
                self._unavailable = self._settings.clock.monotonic(), error
            for request in requests:
                self._fail(request, error)
            return
        for request in requests:
            await self._write([request])


def _place(several: Placed, request: SubmitRequest) -> int | None:
    first = request.submission.items[0]
    return several.place_of(first.tenant, first.id)


def _traces(submissions: list[Submission]) -> Iterator[Trace | None]:
    return (trace_of(item.options) for submission in submissions for item in submission.items)


def _has_lease(items: tuple[Item, ...]) -> bool:
    for item in items:  # noqa: SIM110  with any() this takes three times as long
        if item.lease_to is not None:
            return True
    return False
