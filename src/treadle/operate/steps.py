"""Steps from outside: what an item has recorded, signals to it, its progress and its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from treadle.backend import check_capable
from treadle.base.ids import check_name, id_of
from treadle.codec import Codec, check_size
from treadle.engine.core import Core
from treadle.engine.registry import Registry
from treadle.engine.timers import first_of
from treadle.errors import AlreadyEnded, InputError, MailboxFull, NotFound
from treadle.handler.steps import StoredFailure
from treadle.item import (
    JOIN_TYPE,
    MOST_UNREAD,
    TERMINAL,
    AuditNote,
    Chunk,
    ItemState,
    Recorded,
    Signal,
    Signalled,
    StepRecord,
    Wake,
)
from treadle.options import HasId
from treadle.records import AttemptLog, Progress, StepState
from treadle.store.audit_note import about, log_change, noted_about
from treadle.store.rules.steps import children_ended, is_over

POLL: Final = 1.0
"""Seconds between two looks at a stream of which no wake-up tells."""

_progress: Final = msgspec.json.Decoder(Progress)
_log: Final = msgspec.json.Decoder(AttemptLog)
_failure: Final = msgspec.json.Decoder(StoredFailure)


class StepVerbs:
    """What a client reads of the steps of items, and sends to them."""

    _core: Core
    _tenant: str | None
    _note: AuditNote | None

    def _begin_change(self, what: str) -> Coroutine[Any, Any, None]:
        raise NotImplementedError

    async def steps(self, id: str | HasId) -> list[StepState]:
        """Return what an item has recorded and what it waits for, in order. `NotFound`."""
        id = id_of(id)
        core = self._core
        found = await read_recorded(core, id, self._tenant)
        (state,) = await core.backend.get([id], tenant=self._tenant)
        await core.store_clock.refresh()
        type, now = "" if state is None else state.type, core.store_clock.now()
        return [step_state(step, _readable(step, core.registry, type), now) for step in found.kept]

    async def logs(self, id: str | HasId) -> list[AttemptLog]:
        """Return what the last attempts of an item have logged, in order, without those that logged nothing.
        Of one that runs: what it has logged until the last heartbeat. `NotFound`."""
        id, core = id_of(id), self._core
        check_capable(core.backend, "steps")
        await core.connect()
        found = await core.backend.logs(id, tenant=self._tenant)
        if not found and await core.backend.get([id], tenant=self._tenant) == [None]:
            raise NotFound(id)
        return [_log.decode(each) for each in found]

    async def signal(
        self, id: str | HasId, name: str, value: Any = None, *, key: str | None = None, tx: Any = None
    ) -> bool:
        """Send a signal to an open item, for `ctx.signal`. It is durable when this returns, and never lost:
        it waits in the mailbox of the item until a wait takes it.

        key: False, and nothing is sent, if a signal of this name with this key was sent to the item before.
        tx: your connection, as for `enqueue`: the signal is sent if your transaction commits. Raises
        `NotFound`, `AlreadyEnded` or `MailboxFull`.
        """
        wanted = id_of(id)
        check_name(name, field="name")
        if key is not None:
            check_name(key, field="key")
        core, settings = self._core, self._core.settings
        if tx is None:
            await self._begin_change("signal")
        else:
            core.check_unopened(tx)
            await core.connect()
        check_capable(core.backend, "steps")
        data = settings.codec.encode(value)
        check_size(data, settings.max_payload, "the value of the signal", name)
        signal = Signal(id=wanted, name=name, value=data, key=key)
        note = noted_about(
            self._note, about({"signal": name} if key is None else {"signal": name, "key": key})
        )
        (answer,) = await core.backend.signal([signal], tenant=self._tenant, tx=tx, note=note)
        _check(answer, wanted)
        if answer.woken is not None and tx is None:
            core.wakeups.ready([answer.woken])
        sent = answer.verb == "stored"
        log_change(self._note, "signal", [wanted], int(sent), self._tenant)
        return sent


async def read_recorded(core: Core, id: str, tenant: str | None) -> Recorded:
    """What an item has recorded. `NotFound`."""
    check_capable(core.backend, "steps")
    await core.connect()
    (found,) = await core.backend.steps([id], tenant=tenant)
    if found is None:
        raise NotFound(id)
    return found


def _readable(step: StepRecord, registry: Registry, type: str) -> Any:
    """The value of a step. None if it cannot be read."""
    try:
        return read_step(step, registry, type)
    except Exception:  # noqa: BLE001  a codec of the user may raise anything
        return None


def step_state(step: StepRecord, value: Any, now: float) -> StepState:
    """A step for people. value: as it was read."""
    return StepState(
        name=step.name,
        kind=step.kind,
        at=step.at,
        took=step.took,
        value=value,
        error=_error(step),
        attempt=step.attempt,
        signal=step.signal if step.kind == "signal" else None,
        until=step.until,
        over=is_over(step, now),
    )


def read_step(step: StepRecord, registry: Registry, type: str) -> Any:
    """The value of a step of an item of this type. `DecodeError`."""
    if step.value is None or step.kind == "failure":
        return None
    return codec_for(step, registry, type).decode(step.value)


def codec_for(step: StepRecord, registry: Registry, type: str) -> Codec:
    """How the value of a step is stored. A signal comes from a client, which need not know the type."""
    return registry.codec if step.kind == "signal" else registry.codec_of(type)


def _error(step: StepRecord) -> str | None:
    """The failure that a step has recorded."""
    if step.kind != "failure":
        return None
    try:
        failure = _failure.decode(step.value or b"")
    except msgspec.DecodeError as error:
        return f"its failure cannot be read: {error}"
    return f"{failure.type}: {failure.message}" if failure.message else failure.type


async def end_joined_waits(core: Core, cancelled: Sequence[ItemState]) -> None:
    """Some of these items waited for the children of a suspended item, and would have told it: tell it now.
    It then finds the children as they are."""
    for join in cancelled:
        if join.type == JOIN_TYPE and join.parent is not None:
            (answer,) = await core.backend.signal([children_ended(join)], tenant=join.tenant)
            if answer.woken is not None:
                core.wakeups.ready([answer.woken])


def _check(answer: Signalled, id: str) -> None:
    match answer.verb:
        case "not_found":
            raise NotFound(id)
        case "ended":
            raise AlreadyEnded(id, answer.status)
        case "full":
            raise MailboxFull(id, MOST_UNREAD)
        case "stored" | "existing":
            pass


async def read_progress(core: Core, id: str, tenant: str | None) -> Progress | None:
    """How far an item is, as it said last."""
    return progress_of(await read_recorded(core, id, tenant))


def progress_of(recorded: Recorded) -> Progress | None:
    """How far an item is, of what it has recorded."""
    return None if recorded.progress is None else _progress.decode(recorded.progress)


async def read_stream(core: Core, id: str, tenant: str | None, since: int) -> AsyncGenerator[Chunk]:
    """The chunks of an item after the number `since`, and those that come, until the item has ended."""
    if type(since) is not int or since < 0:
        raise InputError.of("since", since, "must be the number of a chunk, or 0")
    check_capable(core.backend, "steps")
    await core.connect()
    backend = core.backend
    with stream_news(core, id) as news:
        while True:
            news.clear()
            # Before the chunks: once the item has ended, all are there.
            (state,) = await backend.get([id], tenant=tenant)
            if state is None:
                raise NotFound(id)
            chunks = await backend.stream(id, since=since, tenant=tenant)
            codec = core.registry.codec_of(state.type)
            for chunk in chunks:
                since = chunk.number
                yield Chunk(chunk.number, codec.decode(chunk.value), chunk.at)
            if state.status in TERMINAL and not chunks:
                return
            if not chunks:
                await first_of(news, core.settings.clock, POLL)


@contextmanager
def stream_news(core: Core, id: str) -> Generator[asyncio.Event]:
    """An event that is set when an item has new chunks or new progress, or has ended. Where nothing is
    published it is not set: look now and then."""
    news = asyncio.Event()

    def receive(wake: Wake) -> None:
        if wake.everything or any(ref[1] == id for ref in (*wake.streams, *wake.items)):
            news.set()

    stop = core.wakeups.listen(receive, claims=False)
    try:
        yield news
    finally:
        stop()
