"""Failure: what a compensation is told of the item that died."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .item import Reason


class Failure(Struct, frozen=True):
    """The item that died: given to the handler of a work type that was named as `on_dead=`.

    @work
    async def refund(failure: Failure) -> None: ...

    @work(on_dead=refund)
    async def charge(order: str) -> None: ...
    """

    id: str
    type: str
    input: dict[str, Any]
    """Its arguments by name, as plain JSON values; empty if they could not be read."""
    error: str
    """The last error, as `type: message`."""
    reason: Reason
