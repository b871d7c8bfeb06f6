"""Workers over several stores: heartbeats, and what is asked of a worker.

A worker is registered in every store. Where it holds nothing, its lease is `LONG` times as long, and
heartbeats are as seldom. A heartbeat goes to all stores at once, and waits for those that answer soon. What
others answer later is in the reply to the next one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from msgspec.structs import replace

from treadle.backend import HeartbeatConnection
from treadle.base.timing import Clock
from treadle.errors import BackendError, StoreUnavailable
from treadle.item import AuditNote, Heartbeat, HeartbeatReply, Lease, Loss, WorkerState
from treadle.logs.lines import WARNING, log_line

from .claim import PATIENCE, Background
from .member import Member, inner, number_of
from .merge import workers_of
from .places import TenantPlaces, within_patience
from .read import Answers
from .view import Views, WorkerView

T = TypeVar("T")

REMOVING: Final = 1.0
"""Seconds that the removal of a worker waits for a store when others have answered."""


class ManyWorkers:
    """idle_leases: how many times as long the lease of a worker is where it holds nothing."""

    def __init__(
        self,
        places: TenantPlaces,
        views: Views,
        answers: Answers,
        background: Background,
        clock: Clock,
        idle_leases: int,
    ) -> None:
        self._places = places
        self._views = views
        self._answers = answers
        self._background = background
        self._monotonic = clock.monotonic
        self._idle_leases = idle_leases

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        view = self._views.of(beat.worker)
        if beat.registers:
            _remember(view, beat)
        held: defaultdict[int, list[Lease]] = defaultdict(list)
        adopted = self._views.adopted
        for lease in beat.held:
            held[adopted.place_of(lease).number].append(adopted.inner(lease))
        answered = await self._send(view, beat, held)
        late, view.replies = view.replies, {}
        merged = self._merged(view, beat, {**answered, **late})
        return await self._without_moved(beat, merged) if merged.lost else merged

    async def _without_moved(self, beat: Heartbeat, reply: HeartbeatReply) -> HeartbeatReply:
        """A reply without leases that are not lost: their items have moved, or may have."""
        adopted, lost = self._views.adopted, dict(reply.lost)
        for lease in beat.held:
            if lost.get(lease.token) == "not_found":
                try:
                    is_lost = await adopted.moved(lease, adopted.place_of(lease)) is None
                except StoreUnavailable:
                    is_lost = False  # the next heartbeat looks again
                if not is_lost:
                    del lost[lease.token]
        self._views.held.difference_update(lost)
        return replace(reply, lost=lost)

    async def _send(
        self, view: WorkerView, beat: Heartbeat, held: Mapping[int, Sequence[Lease]]
    ) -> dict[int, HeartbeatReply]:
        """Send it to the stores, and wait for those that answer soon. Their replies."""
        tasks: dict[asyncio.Task[HeartbeatReply], int] = {}
        for member in self._places.members:
            known = held.get(member.number, ())
            if (under_way := view.beating.get(member.number)) is not None:
                tasks[under_way] = member.number
            elif not member.is_away and self._must_beat(view, member, beat, known):
                tokens = {inner(lease.token) for lease in beat.held}
                started = self._start(view, member, self._for(view, member, beat, known), tokens)
                tasks[started] = member.number
        if not tasks:
            raise self._places.home.refusal()
        done, waiting = await asyncio.wait(tasks, timeout=PATIENCE)
        while waiting and not any(_answer(task) for task in done):
            more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        ended = [task for task in tasks if task in done]
        answers = {tasks[task]: answer for task in ended if (answer := _answer(task)) is not None}
        if not answers:
            raise next(error for task in ended if (error := task.exception()) is not None)
        return answers

    def _start(
        self, view: WorkerView, member: Member, beat: Heartbeat, held: Collection[int]
    ) -> asyncio.Task[HeartbeatReply]:
        """held: the inner tokens of all that the worker holds, also in other stores."""
        sent = self._monotonic()

        async def call() -> HeartbeatReply:
            return self._outer(view, member, await member.call("beat", beat), held)

        def ended(task: asyncio.Task[HeartbeatReply]) -> None:
            view.beating.pop(member.number, None)
            if (answer := _answer(task)) is not None:
                view.answered[member.number] = sent
                view.replies[member.number] = answer

        task = view.beating[member.number] = asyncio.ensure_future(call())
        task.add_done_callback(ended)
        return task

    def _outer(
        self, view: WorkerView, member: Member, reply: HeartbeatReply, held: Collection[int]
    ) -> HeartbeatReply:
        """A reply with tokens as they are known outside."""
        view.permits[member.number] = reply.permits
        if reply.fresh and view.last_beat is not None and view.last_beat.info is not None:
            self.beat_again(view, member)  # it was removed there, and what it said with it
        adopted = self._views.adopted
        unknown = reply.unknown
        if unknown:  # not one that has moved here while it runs
            unknown = [member.outer(token) for token in unknown if token not in held]
        if unknown:
            view.long.discard(member.number)  # the next heartbeat says whether it still is
        lost = {adopted.outer(member, token): why for token, why in reply.lost.items()}
        return replace(reply, lost=lost, unknown=unknown)

    def _must_beat(self, view: WorkerView, member: Member, beat: Heartbeat, held: Sequence[Lease]) -> bool:
        if not self._is_idle(view, member, beat, held) or beat.info is not None:
            return True
        answered = view.answered.get(member.number)
        return (
            answered is None
            or member.number not in view.long
            or self._monotonic() - answered > beat.lease * self._idle_leases * 0.4
        )

    def _is_idle(self, view: WorkerView, member: Member, beat: Heartbeat, held: Sequence[Lease]) -> bool:
        """Whether a long lease is enough there."""
        return (
            beat.registers
            and self._idle_leases > 1
            and member is not self._places.home
            and not held
            and member.number not in view.unsure
            and member.number not in view.asking
            and not view.permits.get(member.number)
            and not any(number_of(token) == member.number for token in self._views.held)
        )

    def _for(self, view: WorkerView, member: Member, beat: Heartbeat, held: Sequence[Lease]) -> Heartbeat:
        view.long.discard(member.number)
        if not self._is_idle(view, member, beat, held):
            return replace(beat, held=held)
        view.long.add(member.number)
        return replace(beat, held=held, lease=beat.lease * self._idle_leases)

    def _merged(
        self, view: WorkerView, beat: Heartbeat, replies: Mapping[int, HeartbeatReply]
    ) -> HeartbeatReply:
        lost: dict[int, Loss] = {}
        unknown: list[int] | None = []
        for reply in replies.values():
            lost.update(reply.lost)
            unknown = None if unknown is None or reply.unknown is None else [*unknown, *reply.unknown]
        return HeartbeatReply(
            fresh=bool(replies) and all(reply.fresh for reply in replies.values()),
            lost=lost,
            drain=any(reply.drain for reply in replies.values()),
            new_store=any(reply.new_store for reply in replies.values()),
            unknown=unknown,
            permits=sum(view.permits.values()),
            silent=self._silent(view, beat),
        )

    def _silent(self, view: WorkerView, beat: Heartbeat) -> Sequence[int]:
        """The tokens of stores that have not answered for a whole lease."""
        now = self._monotonic()
        silent = {number for number, at in view.answered.items() if now - at > beat.lease}
        silent -= view.long
        place_of = self._views.adopted.place_of
        return [lease.token for lease in beat.held if place_of(lease).number in silent] if silent else ()

    def beat_again(self, view: WorkerView, member: Member) -> None:
        """A store does not know the worker, or only for a long lease in which it held nothing."""
        if view.last_beat is not None:
            view.long.discard(member.number)
            view.hot.add(member.number)
            self._background.start(member.call("beat", view.last_beat))

    async def remove_worker(self, worker: str) -> int:
        """A store that does not answer frees the worker's items when its lease lapses there. It is named, and
        the others do not wait for it."""
        view = self._views.forget(worker)
        if view is not None:
            for task in (*view.asking.values(), *view.beating.values()):
                task.cancel()
        tasks: dict[asyncio.Task[int], Member] = {
            asyncio.ensure_future(member.call("remove_worker", worker)): member
            for member in self._places.members
        }
        done = await within_patience(tasks, others=REMOVING)
        errors = [error for task in done if (error := task.exception()) is not None]
        for error in errors:
            if not isinstance(error, StoreUnavailable) or len(errors) == len(tasks):
                raise error
        removed = {task: task.result() for task in done if task.exception() is None}
        if silent := [repr(member.name) for task, member in tasks.items() if task not in removed]:
            said = (
                f"the {_stores(silent)} not answer: what worker {worker} holds there is free when its lease"
            )
            log_line(WARNING, f"{said} lapses")
        return sum(removed.values())

    async def drain_worker(self, worker: str, *, note: AuditNote | None = None) -> bool:
        """Asked for in all stores that answer: one of them tells it. The entry is at home."""
        found: bool = await self._places.home.call("drain_worker", worker, note=note)
        others = [member for member in self._places.members if member is not self._places.home]
        answers = await asyncio.gather(
            *(member.call("drain_worker", worker) for member in others), return_exceptions=True
        )
        return found or any(answer is True for answer in answers)

    async def workers(self) -> Sequence[WorkerState]:
        return workers_of(await self._answers.of_all("workers"))


def _answer(task: asyncio.Task[HeartbeatReply]) -> HeartbeatReply | None:
    """The reply. None: it failed, or was cancelled since the worker was removed."""
    return None if task.cancelled() or task.exception() is not None else task.result()


def _stores(names: Sequence[str]) -> str:
    return f"store {names[0]} does" if len(names) == 1 else f"stores {', '.join(names)} do"


def _remember(view: WorkerView, beat: Heartbeat) -> None:
    """Keep what the worker has said, for a store that does not know it."""
    before = view.last_beat
    if before is not None:
        types = before.types if beat.types is None else beat.types
        beat = replace(beat, types=types, info=before.info if beat.info is None else beat.info)
    view.last_beat = replace(beat, held=())


class ManyHeartbeat:
    """Beats in every store, from another thread. One that does not answer does not stop the others: it is
    connected to again with the next heartbeat."""

    def __init__(self, connects: Sequence[Callable[[], HeartbeatConnection]]) -> None:
        self._connects = connects
        self._open: dict[int, HeartbeatConnection] = {}

    async def open(self) -> None:
        """Each is opened with its first heartbeat."""

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        calls = (self._beat(number, beat) for number in range(len(self._connects)))
        return _first_answer(await asyncio.gather(*calls, return_exceptions=True))

    async def _beat(self, number: int, beat: Heartbeat) -> HeartbeatReply:
        connection = self._open.pop(number, None)
        try:
            async with asyncio.timeout(max(PATIENCE, beat.lease / 10)):
                if connection is None:
                    connection = self._connects[number]()
                    await connection.open()
                reply = await connection.beat(beat)
        except BaseException:
            if connection is not None:
                await _close(connection)
            raise
        self._open[number] = connection
        return reply

    async def close(self) -> None:
        await asyncio.gather(*map(_close, self._open.values()))
        self._open.clear()


async def _close(connection: HeartbeatConnection) -> None:
    with suppress(BackendError, TimeoutError):
        async with asyncio.timeout(PATIENCE):
            await connection.close()


def _first_answer(answers: Sequence[T | BaseException]) -> T:
    """The first answer. The first error if there is none."""
    for answer in answers:
        if not isinstance(answer, BaseException):
            return answer
    raise next(answer for answer in answers if isinstance(answer, BaseException))
