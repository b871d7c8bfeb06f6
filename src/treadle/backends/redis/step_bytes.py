"""The bytes of steps, records and signals.

`lua/lib/step_bytes.lua` and `mailboxes.lua` have the formats of what is stored; `record.lua` and `signal.lua`
read what is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct as Bytes
from typing import Any, Final, Literal

from treadle.item import STEP_KINDS, Chunk, Record, Recorded, Signal, Signalled, StepRecord

from .item_bytes import STATUSES, Argument

_KIND_NUMBERS: Final = {kind: number for number, kind in enumerate(STEP_KINDS)}
_KIND: Final = 7
_OVER, _HAS_VALUE, _HAS_UNDO, _IS_DELAY, _HAS_UNTIL = (1 << bit for bit in range(3, 8))

_SENT: Final = Bytes(">BddH")
_STORED: Final = Bytes(">6xIdIBddH")
_RECORD: Final = Bytes(">HIQBIII")
_LENGTH: Final = Bytes(">I")
_SIGNAL: Final = Bytes(">6sH")
_INSTANT: Final = Bytes(">d")

VERBS: Final[dict[bytes, Literal["stored", "existing", "not_found", "ended", "full"]]] = {
    b"s": "stored",
    b"x": "existing",
    b"n": "not_found",
    b"e": "ended",
    b"f": "full",
}
"""By the letters of lua/signal.lua."""


# ---------------------------------------------------------------------------------------------------- sending


def step_arguments(steps: Iterable[StepRecord]) -> list[Argument]:
    """The name and the bytes of each."""
    return [part for step in steps for part in (step.name, pack_step(step))]


def pack_step(step: StepRecord) -> bytes:
    flags, time = _KIND_NUMBERS[step.kind] | (_OVER if step.over else 0), 0.0
    if step.delay is not None:
        flags, time = flags | _IS_DELAY, step.delay
    elif step.until is not None:
        flags, time = flags | _HAS_UNTIL, step.until
    undo = b""
    if step.undo is not None:
        flags, undo = flags | _HAS_UNDO, _LENGTH.pack(len(step.undo)) + step.undo
    if step.value is not None:
        flags |= _HAS_VALUE
    signal = step.signal.encode()
    return b"".join((_SENT.pack(flags, time, step.took, len(signal)), signal, undo, step.value or b""))


def record_arguments(record: Record) -> list[Argument]:
    lease, progress, log = record.lease, record.progress, record.log
    head = _RECORD.pack(
        lease.ref >> 32,
        lease.ref & 0xFFFFFFFF,
        lease.token,
        (progress is not None) + 2 * (log is not None),
        len(record.steps),
        len(record.chunks),
        record.first_chunk,
    )
    return [
        head,
        *step_arguments(record.steps),
        *(() if progress is None else (progress,)),
        *(() if log is None else (log,)),
        *record.chunks,
    ]


def signal_arguments(signals: Sequence[Signal]) -> list[Argument]:
    """How many, their ids, and what is sent to each."""
    sent = [part for one in signals for part in (one.name, _given(one.value), _given(one.key))]
    return [len(signals), *(one.id for one in signals), *sent]


def _given(value: bytes | str | None) -> bytes:
    """Empty for None, else one byte more."""
    if value is None:
        return b""
    return b"+" + (value.encode() if isinstance(value, str) else value)


# ---------------------------------------------------------------------------------------------------- reading


def read_recorded(answer: Sequence[Any]) -> Recorded:
    """What an item has recorded, as lua/steps.lua answers it."""
    mailbox, progress, chunks, names, steps = answer
    return Recorded(
        steps=tuple(map(read_step, names, steps)),
        mailbox=Counter(_signal_names(mailbox or b"")),
        progress=progress[_INSTANT.size :] if progress else None,
        progress_at=_INSTANT.unpack_from(progress)[0] if progress else None,
        chunks=int.from_bytes(chunks, "big"),
    )


def _signal_names(mailbox: bytes) -> Iterator[str]:
    """The names of the signals in a mailbox: see lua/lib/mailboxes.lua."""
    at = _LENGTH.size
    while at < len(mailbox):
        begins = at + _SIGNAL.size
        at = begins + _SIGNAL.unpack_from(mailbox, at)[1]
        yield mailbox[begins:at].decode()


def read_step(name: bytes, data: bytes) -> StepRecord:
    times, at, attempt, flags, time, took, length = _STORED.unpack_from(data)
    signal_ends = _STORED.size + length
    value_at, undo = signal_ends, None
    if flags & _HAS_UNDO:
        value_at += _LENGTH.size + int.from_bytes(data[signal_ends : signal_ends + _LENGTH.size], "big")
        undo = data[signal_ends + _LENGTH.size : value_at]
    return StepRecord(
        name=name.decode(),
        kind=STEP_KINDS[int(flags) & _KIND],
        value=data[value_at:] if flags & _HAS_VALUE else None,
        took=took,
        undo=undo,
        signal=data[_STORED.size : signal_ends].decode(),
        over=bool(flags & _OVER),
        until=time if flags & _HAS_UNTIL else None,
        at=at,
        attempt=attempt,
        times=times,
    )


def read_chunk(number: int, data: bytes) -> Chunk:
    return Chunk(number, data[_INSTANT.size :], _INSTANT.unpack_from(data)[0])


def read_signalled(answer: bytes | Sequence[bytes]) -> Signalled:
    """The answer to one signal, as lua/signal.lua gives it."""
    if isinstance(answer, bytes):
        status = STATUSES.get(answer[1:], "ready")
        return Signalled(VERBS[answer[:1]], status)
    code, type, queue = answer
    return Signalled(VERBS[code[:1]], STATUSES[code[1:]], (type.decode(), queue.decode()))
