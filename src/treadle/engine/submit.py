"""Submit: new items on their way to the store, many callers in one write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from treadle.backend import Backend
from treadle.errors import BackendError, CycleError, DuplicateIdError, StoreUnavailable
from treadle.item import Item, Rejected, Submission, Submitted
from treadle.retry import Retry

from .combine import Combiner
from .tasks import Tasks

PATIENCE = Retry(attempts=6, base=0.05, factor=2.0, max=2.0, jitter=0.5)
"""A caller is waiting: after about three seconds without a store it is told."""

Answer: TypeAlias = tuple[Submitted, ...]


class Request(NamedTuple):
    submission: Submission
    answer: asyncio.Future[Answer]


class Submitter:
    def __init__(
        self,
        backend: Backend,
        tasks: Tasks,
        *,
        sleep: Callable[[float], Awaitable[None]],
        draw: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._sleep = sleep
        self._draw = draw
        self._combiner: Combiner[Request] = Combiner(self._write, tasks, name="submit", limit=1000)

    async def submit(self, items: tuple[Item, ...]) -> Answer:
        """Store these items together. A caller that is cancelled stops waiting; the write goes on."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._combiner.add(Request(Submission(items), answer))
        return await answer

    async def submit_within(self, items: tuple[Item, ...], tx: object) -> Answer:
        """Store these items as a part of the caller's own transaction."""
        (answer,) = await self._backend.submit([Submission(items)], tx=tx)
        return accepted(answer)

    async def flush(self) -> None:
        await self._combiner.flush()

    async def _write(self, requests: list[Request]) -> None:
        try:
            answers = await self._patiently([request.submission for request in requests])
        except BackendError as error:
            await self._refuse(requests, error)
            return
        except BaseException as error:
            for request in requests:
                _fail(request, error)
            raise
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Rejected):
                _fail(request, rejection(answer))
            elif not request.answer.done():
                request.answer.set_result(answer)

    async def _patiently(self, submissions: list[Submission]) -> list[Answer | Rejected]:
        tries = 0
        while True:
            try:
                return list(await self._backend.submit(submissions))
            except StoreUnavailable:
                tries += 1
                if PATIENCE.exhausted(tries):
                    raise
                await self._sleep(PATIENCE.delay(tries, self._draw))

    async def _refuse(self, requests: list[Request], error: BackendError) -> None:
        """If it is one of them that the store will not have, the others must not suffer for it."""
        if len(requests) == 1 or isinstance(error, StoreUnavailable):
            for request in requests:
                _fail(request, error)
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


def _fail(request: Request, error: BaseException) -> None:
    if not request.answer.done():
        request.answer.set_exception(error if isinstance(error, Exception) else StoreUnavailable(str(error)))
