"""The bytes of leases: what a claim answers."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from struct import Struct as Bytes
from typing import Final

from treadle.item import Lease

from .item_bytes import HIGHEST_PRIORITY, NO_EXTRA, ItemExtra, decode_body, read_extra, read_kind

_PLACE: Final = Bytes(">H")
_FIRST_LEASE: Final = Bytes(">B4s6xdI8x")


def read_plain_leases(
    numbers: bytes,
    items: Sequence[bytes],
    kinds: Mapping[bytes, bytes],
    token: int,
    now: float,
    buffered: Container[str],
    labels: Sequence[ItemExtra] | None = None,
) -> list[Lease]:
    """The leases of rows that were never claimed before, as `claim.lua` answers them.

    numbers: six bytes of each. token: that of the first. labels: the extra of each; None if none has one.
    """
    names = {k: read_kind(row) for k, row in kinds.items()}
    leases: list[Lease] = []
    at = 0
    extra = NO_EXTRA
    for place, item in enumerate(items):
        flags, k, queued_at, priority = _FIRST_LEASE.unpack_from(item)
        kind = names[k]
        id_at = 40 if flags & 2 else 32
        body_at = id_at + item[id_at - 1]
        id = item[id_at:body_at].decode()
        body = decode_body(item[body_at:])
        type = kind.type
        if labels is not None:
            extra = labels[place]
        # In the order of the fields: by keyword this would take four times as long.
        leases.append(
            Lease(
                id,
                kind.tenant,
                token,
                type,
                body.input,
                1,
                extra.g or id,
                kind.queue,
                kind.lane,
                HIGHEST_PRIORITY - priority,
                body.attempts,
                extra.p,
                extra.w,
                extra.wt,
                extra.a,
                body.options,
                queued_at,
                queued_at,
                now,
                None,
                None,
                int.from_bytes(numbers[at : at + 6], "big"),
                0,
                0,
                type not in buffered,
                queued_at,
            )
        )
        at += 6
        token += 1 << 24
    return leases


def read_labels(extras: Sequence[bytes], count: int) -> list[ItemExtra]:
    """The extras of so many leases: see `HandOut.extras` in hand_out.lua."""
    labels = [NO_EXTRA] * count
    for extra, places in zip(extras[::2], extras[1::2], strict=True):
        found = read_extra(extra)
        for (place,) in _PLACE.iter_unpack(places):
            labels[place - 1] = found
    return labels
