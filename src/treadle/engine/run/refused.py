"""Refused settlements: is the outcome the cause, or the store?

No list of a store's troubles is complete. So an error alone proves nothing: an outcome is the cause if the
store refuses it, and accepts the end of the same item without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.backend import Backend
from treadle.errors import StoreFull, StoreUnavailable
from treadle.item import Settlement


class Undone(Exception):
    """Rolls back a settlement that was only tried."""


async def is_cause(error: Exception, backend: Backend, without: Sequence[Settlement]) -> bool:
    """Whether the store, which just refused a settlement with `error`, accepts it as it is in `without`.

    That is tried in a transaction that is rolled back. A store without transactions is believed: it raises
    `StoreUnavailable` if the cause is not in the request.
    """
    if isinstance(error, StoreUnavailable | StoreFull):
        return False
    if "transactions" not in backend.capabilities:
        return True
    try:
        async with backend.transaction() as transaction:
            await transaction.settle(without)
            raise Undone
    except Undone:
        return True
    except Exception:  # noqa: BLE001  the store is at fault
        return False
