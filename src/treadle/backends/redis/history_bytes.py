"""The bytes of the history of an item. `lua/lib/rows.lua` has the formats."""

from __future__ import annotations

from struct import Struct as Bytes
from typing import Final

from msgspec import msgpack

from treadle.item import Attempt, ErrorInfo
from treadle.store.rules.settlement import failed_attempt, lost_attempt

_LOST: Final = Bytes(">Id")
_FAILED: Final = Bytes(">IdB")

_encode: Final = msgpack.Encoder().encode
_decode: Final = msgpack.Decoder(tuple[bytes, bytes, bytes]).decode


def pack_failure(failure: ErrorInfo) -> bytes:
    """The failure of an attempt, as scripts put it into the history. Its texts may hold lone surrogates."""
    texts = failure.type, failure.message, failure.traceback
    return _encode([text.encode("utf-8", "surrogatepass") for text in texts])


def _read_failure(data: bytes) -> ErrorInfo:
    return ErrorInfo(*(text.decode("utf-8", "surrogatepass") for text in _decode(data)))


def read_history(past: bytes) -> tuple[Attempt, ...]:
    """All attempts of a history, the oldest first."""
    found: list[Attempt] = []
    at = 0
    while at < len(past):
        end = at + 4 + int.from_bytes(past[at : at + 4], "big")
        entry = past[at + 4 : end]
        found.append(_lost(entry) if entry[:1] == b"L" else _failed(entry))
        at = end
    return tuple(found)


def _lost(entry: bytes) -> Attempt:
    attempt, instant = _LOST.unpack_from(entry, 1)
    return lost_attempt(attempt, instant, entry[1 + _LOST.size :].decode())


def _failed(entry: bytes) -> Attempt:
    attempt, instant, length = _FAILED.unpack_from(entry, 1)
    worker_at = 1 + _FAILED.size
    failure_at = worker_at + length
    worker = entry[worker_at:failure_at].decode()
    return failed_attempt(_read_failure(entry[failure_at:]), attempt, instant, worker)
