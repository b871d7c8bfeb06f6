"""Submit: new items on their way to the store, many callers in one write."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from treadle.backend import Backend
from treadle.engine.store_retry import CALLER_RETRY
from treadle.engine.tasks import Combiner, Tasks
from treadle.errors import CycleError, DuplicateIdError, StoreUnavailable
from treadle.item import Filter, Item, Rejected, Submission, Submitted

Answer: TypeAlias = tuple[Submitted, ...]


class Request(msgspec.Struct, eq=False):
    submission: Submission
    answer: asyncio.Future[Answer]
    stored: Callable[[Answer], bool]
    context: contextvars.Context
    """The caller's: `stored` is called in it."""
    leases: bool
    """Whether items of it are to be stored already leased."""


class Submitter:
    def __init__(
        self,
        backend: Backend,
        tasks: Tasks,
        *,
        sleep: Callable[[float], Awaitable[None]],
        draw: Callable[[], float],
        ready: Callable[[], None],
        adrift: Callable[[], None],
    ) -> None:
        """ready: called when something was stored that can be claimed, once for what was stored together.
        adrift: called when an item may have been leased to a worker of this process that was not told."""
        self._backend = backend
        self._sleep = sleep
        self._draw = draw
        self._ready = ready
        self._adrift = adrift
        self.leasing = 0
        """Requests under way whose items are to be stored already leased."""
        # In bites: the first are claimed while the rest is being written. (A thousand at once, awaited, run
        # by another process: 6,200 a second in one bite, 7,000 in four.)
        self._combiner: Combiner[Request] = Combiner(self._write, tasks, name="submit", limit=250)

    def submit(self, items: tuple[Item, ...], stored: Callable[[Answer], bool]) -> asyncio.Future[Answer]:
        """Store these items together. A caller that is cancelled stops waiting; the write goes on, and
        `stored` is called once it is done; it says whether there is something to claim."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        leases = _leases(items)
        self.leasing += leases
        self._combiner.add(Request(Submission(items), answer, stored, contextvars.copy_context(), leases))
        return answer

    async def submit_within(self, items: tuple[Item, ...], tx: object) -> Answer:
        """Store these items as a part of the caller's own transaction."""
        (answer,) = await self._backend.submit([Submission(items)], tx=tx)
        return accepted(answer)

    async def flush(self) -> None:
        await self._combiner.flush()

    async def _write(self, requests: list[Request]) -> None:
        try:
            answers = await self._patiently([request.submission for request in requests])
        except Exception as error:  # noqa: BLE001  it is handed to the callers
            await self._refuse(requests, error)
        except BaseException as error:
            for request in requests:
                self._fail(request, StoreUnavailable(f"not submitted, or perhaps it was: {error}"))
            raise
        else:
            self._tell(requests, answers)

    def _tell(self, requests: list[Request], answers: list[Answer | Rejected]) -> None:
        """Here and not by the callers, who may have been cancelled. Whoever is to run it comes first."""
        ready = False
        for request, answer in zip(requests, answers, strict=True):
            if not isinstance(answer, Rejected):
                self.leasing -= request.leases
                ready = request.context.run(request.stored, answer) or ready
        if ready:
            self._ready()
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Rejected):
                self._fail(request, rejection(answer))
            elif not request.answer.done():
                request.answer.set_result(answer)

    def _fail(self, request: Request, error: Exception) -> None:
        self.leasing -= request.leases
        if not request.answer.done():
            request.answer.set_exception(error)
            request.answer.exception()  # a caller that was cancelled does not ask for it

    async def _patiently(self, submissions: list[Submission]) -> list[Answer | Rejected]:
        tries = 0
        try:
            while True:
                try:
                    answers = list(await self._backend.submit(submissions))
                    return await self._recognized(submissions, answers) if tries else answers
                except StoreUnavailable:
                    tries += 1
                    if CALLER_RETRY.exhausted(tries):
                        raise
                    await self._sleep(CALLER_RETRY.delay(tries, self._draw))
        finally:
            if tries and any(item.lease_to for submission in submissions for item in submission.items):
                self._adrift()

    # -- after an answer was lost ----------------------------------------------------------------------

    async def _recognized(
        self, submissions: list[Submission], answers: list[Answer | Rejected]
    ) -> list[Answer | Rejected]:
        """The answers to a repeated call: what its first try has stored is its own, and no duplicate."""
        return [
            await self._own(submission.items, answer)
            for submission, answer in zip(submissions, answers, strict=True)
        ]

    async def _own(self, items: tuple[Item, ...], answer: Answer | Rejected) -> Answer | Rejected:
        if isinstance(answer, Rejected):
            found = await self._stored(items) if answer.why == "duplicate_id" else None
            return answer if found is None else found
        return tuple(
            replace(submitted, existing=submitted.existing and submitted.id != item.id)
            for item, submitted in zip(items, answer, strict=True)
        )

    async def _stored(self, items: tuple[Item, ...]) -> Answer | None:
        """What became of items that are in the store; None if one of them is not, or is another's."""
        found = [await self._find(item) for item in items]
        return None if None in found else tuple(answer for answer in found if answer is not None)

    async def _find(self, item: Item) -> Submitted | None:
        (state,) = await self._backend.get([item.id], tenant=item.tenant)
        if state is None and item.key is not None:
            # An earlier one had answered for it.
            where = Filter(tenant=item.tenant, type=item.type, key=item.key)
            state = next(iter((await self._backend.list(where, limit=1)).items), None)
        elif state is None or (state.type, state.input) != (item.type, item.input):
            return None
        if state is None:
            return None
        return Submitted(state.id, state.id != item.id, state.status, None, state.group_id)

    async def _refuse(self, requests: list[Request], error: Exception) -> None:
        """If it is one of them that the store will not have, the others must not suffer for it."""
        if len(requests) == 1 or isinstance(error, StoreUnavailable):
            for request in requests:
                self._fail(request, error)
            return
        for request in requests:
            await self._write([request])


def accepted(answer: Answer | Rejected) -> Answer:
    if isinstance(answer, Rejected):
        raise rejection(answer)
    return answer


def rejection(rejected: Rejected) -> Exception:
    if rejected.why == "cycle":
        return CycleError(rejected.ids)
    return DuplicateIdError(rejected.ids[0])


def _leases(items: tuple[Item, ...]) -> bool:
    for item in items:  # noqa: SIM110  with any() this takes three times as long
        if item.lease_to is not None:
            return True
    return False
