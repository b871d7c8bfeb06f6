"""Enqueue: build the items of Works, submit them, and announce those that were stored."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Sequence
from typing import Any

from msgspec.structs import force_setattr, replace

from treadle.engine.core import Core
from treadle.engine.open_transaction import OpenTransaction, current_transaction
from treadle.errors import DuplicateIdError
from treadle.item import Item, Rejected, Submitted
from treadle.rules.submission import may_change, rejection_error
from treadle.work import Work


def submit(
    core: Core, tenant: str, works: Sequence[Work[Any, Any]], options: dict[str, Any]
) -> Awaitable[tuple[Submitted, ...]]:
    """Submit works in one atomic step. `core` is connected, `options` are checked."""
    tx = options.get("tx")
    if tx is not None:
        options = {name: value for name, value in options.items() if name != "tx"}
    open_transaction = current_transaction(core.backend)
    if open_transaction is not None and open_transaction.is_connection(tx):
        tx = None
    runtime = core.local() if tx is None and open_transaction is None else None
    item, lease_to = core.item_builder.item, None if runtime is None else runtime.offers
    items = tuple([item(work, options, tenant=tenant, lease_to=lease_to) for work in works])
    if len(items) > 1:
        _check_ids(items)
        core.item_builder.check_total(items, f"enqueue_many of {len(items)} works")
    if tx is not None:
        return core.submitter.submit_within(items, tx)
    if open_transaction is not None:
        return _submit_in(open_transaction, items)
    sent = core.settings.clock.monotonic()
    return core.submitter.submit(items, functools.partial(_submitted, core, items, sent), sent)


def named(work: Work[Any, Any], options: dict[str, Any]) -> tuple[Work[Any, Any], dict[str, Any]]:
    """Give a Work the id in the options, if there is one. The caller's Work has it too, so that `after=` can
    name it. Returns the Work to submit, and the other options."""
    if options.get("id") is None:
        return work, options
    id = options["id"]
    force_setattr(work, "id", id)
    return replace(work), {name: value for name, value in options.items() if name != "id"}


async def _submit_in(transaction: OpenTransaction, items: tuple[Item, ...]) -> tuple[Submitted, ...]:
    answer = await transaction.submit(items)
    if isinstance(answer, Rejected):
        raise rejection_error(answer)
    return answer


def _check_ids(items: tuple[Item, ...]) -> None:
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise DuplicateIdError(item.id)
        seen.add(item.id)


def _submitted(core: Core, items: tuple[Item, ...], sent: float, answers: tuple[Submitted, ...]) -> bool:
    """Announce the stored items and start those leased to this process. Whether there are others to claim."""
    stored = [item for item, answer in zip(items, answers, strict=True) if not answer.existing]
    core.announcer.queued(stored)
    leases = [answer.lease for answer in answers if answer.lease is not None]
    if leases and (runtime := core.local()) is not None:
        runtime.take(tuple(leases), sent)
    return len(leases) < len(stored) or any(map(may_change, items, answers))
