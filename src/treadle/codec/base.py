"""What a codec is, and how much it may write."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from treadle.errors import PayloadTooLarge

MAX_PAYLOAD = 1_048_576


@runtime_checkable
class Codec(Protocol):
    """Values to bytes and back. One's own may encrypt, compress, or speak another format.

    It is given JSON-native values where a type is declared (a dataclass arrives as a dict), and
    values as they are where none is. `encode` raises `EncodeError`, `decode` raises `DecodeError`.
    """

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


def check_size(data: bytes, limit: int | None, what: str, name: str | None = None) -> bytes:
    """`data`, unless it is over the limit; None is no limit. `what`, of this name, is named in the error."""
    if limit is not None and len(data) > limit:
        raise PayloadTooLarge(what if name is None else f"{what} {name!r}", len(data), limit)
    return data
