"""Gate: what becomes of a `dependency`. Its works are stored with it, as the items that they will be."""

from __future__ import annotations

import msgspec

from treadle.dependency import GATE
from treadle.errors import DecodeError
from treadle.item import Item, Lease
from treadle.plan import NOTHING

from .decide import Succeed
from .settle import Entry

_decoder = msgspec.json.Decoder(tuple[Item, ...])


def is_gate(type: str) -> bool:
    return type == GATE.name


def opened(lease: Lease) -> Entry:
    """The settlement of a gate that has been met. `DecodeError` if its works cannot be read."""
    try:
        items = _decoder.decode(lease.input)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DecodeError(str(error)) from error
    return Entry(lease, Succeed(NOTHING), children=tuple(_inheriting(item, lease) for item in items))


def _inheriting(item: Item, lease: Lease) -> Item:
    return msgspec.structs.replace(
        item,
        workflow=item.workflow or lease.workflow,
        workflow_type=item.workflow_type or lease.workflow_type,
    )
