"""Bulk portion: run one item of a bulk action. It changes a portion of the items and queues the next one.

A portion that is run again, because its process died, finds what it has not changed yet. What the portion had
changed before is then missing in the counts.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from treadle.base.ids import slot_of
from treadle.bulk_action import (
    BULK_QUEUE,
    BULK_RETRY,
    BULK_TYPE,
    KEPT,
    OPERATORS,
    BulkInput,
    BulkOrder,
    BulkProgress,
    encode_bulk,
    read_bulk_input,
)
from treadle.codec import unreadable
from treadle.engine.core import Core, new_id
from treadle.engine.run.decide import Decision, PendingSettlement, RunAgain, Succeed, raised
from treadle.engine.wait.wait_result import encode_group_value
from treadle.errors import DecodeError
from treadle.handler.result_plan import NOTHING, PlannedContribution
from treadle.item import AuditNote, Item, ItemState, Lease
from treadle.store.audit_note import about

from .changes import (
    VERBS,
    ItemChanges,
    NamedSource,
    PortionChanger,
    Refusal,
    Source,
    WantedItem,
    after_canary,
    change_of,
    filter_source,
    refuse_verb,
)
from .operator import Operator

FIRST_LOOK: Final = 0.1
LONGEST_LOOK: Final = 15.0
"""Seconds between two looks at the canary: they get longer."""
STOP_TTL: Final = 86_400.0


def stop_key(portion: str) -> str:
    """The key that decides whether another portion follows: that of its first claimer."""
    return f"treadle:bulk:{portion}"


def order_text(order: BulkOrder) -> str:
    """What was asked for, for the audit: which items, and for an update what it changes."""
    return f"{about(order.changes)} for {order.about}" if order.changes else order.about


async def run_portion(core: Core, lease: Lease) -> PendingSettlement:
    """Run a portion. The settlement has the progress and the next portion. `DecodeError` if its input cannot
    be read: it may be that of a later release."""
    began = core.settings.clock.monotonic()
    try:
        pending = await _run(core, lease, began)
    except DecodeError:
        raise
    except Exception as error:  # noqa: BLE001  the item must be settled
        pending = PendingSettlement(lease, await _failed(core, lease, error))
    pending.held_since = began
    return pending


async def _failed(core: Core, lease: Lease, error: Exception) -> Decision:
    return raised(lease, error, lambda _: None, BULK_RETRY, lease.claimed_at, core.settings.random.random)


async def _run(core: Core, lease: Lease, began: float) -> PendingSettlement:
    given = _read_input(lease.input)
    order = given.order or await _read_order(core, lease)
    progress = given.progress
    changes = BulkPortion(core, lease, order).changes()
    if progress.phase == "canary":
        end = await changes.read_canary(progress)
        if end.open and not end.failed and await core.backend.now() < progress.judge_by:
            again = min(FIRST_LOOK * 1.5 ** min(lease.attempt, 50), LONGEST_LOOK)
            return PendingSettlement(lease, RunAgain("defer", again))
        progress = after_canary(progress, end)
    if progress.phase == "change":
        progress = await changes.change(progress)
    delay = FIRST_LOOK
    if progress.phase != "canary":
        delay = changes.pause(given.progress, progress, core.settings.clock.monotonic() - began)
    children: tuple[Item, ...] = ()
    if progress.phase in ("change", "canary"):
        key = stop_key(lease.id)
        if await core.backend.claim_key(key, "next", STOP_TTL, tenant=lease.tenant):
            children = (
                next_portion(
                    core,
                    lease.tenant,
                    BulkInput(progress),
                    delay=delay,
                    id=new_id(core, slot_of(lease.group_id)),
                ),
            )
            progress = replace(progress, next=children[0].id)
        else:
            progress = replace(progress, phase="stopped")
    return _settlement(lease, progress, children)


def _settlement(lease: Lease, progress: BulkProgress, children: tuple[Item, ...]) -> PendingSettlement:
    """The progress becomes the value of the group, and the result of the item."""
    value = encode_group_value(BULK_TYPE, encode_bulk(progress), is_result=True)
    contributions = (PlannedContribution(None, encoded=value),)
    return PendingSettlement(lease, Succeed(NOTHING), value, children, contributions)


def next_portion(
    core: Core, tenant: str, input: BulkInput, *, delay: float = 0.0, id: str | None = None
) -> Item:
    """An item of a bulk action."""
    return Item(
        id or core.settings.generate_id(),
        BULK_TYPE,
        encode_bulk(input),
        tenant,
        BULK_QUEUE,
        attempts=BULK_RETRY.attempts,
        delay=delay,
        keep=KEPT,
        keep_dead=KEPT,
    )


def _read_input(data: bytes) -> BulkInput:
    try:
        return read_bulk_input(data)
    except msgspec.MsgspecError as error:
        raise unreadable(error) from error


async def _read_order(core: Core, lease: Lease) -> BulkOrder:
    (root,) = await core.backend.get([lease.group_id], tenant=lease.tenant)
    order = None if root is None or root.type != BULK_TYPE else _read_input(root.input).order
    if order is None:
        raise DecodeError(f"the item {lease.group_id} does not say what to do")
    return order


class BulkPortion:
    """What one portion changes. Its tenant says whose items these may be."""

    def __init__(self, core: Core, lease: Lease, order: BulkOrder) -> None:
        self._core = core
        self._order = order
        self._bulk = lease.group_id
        self._tenant = None if lease.tenant == OPERATORS else lease.tenant
        where = order.where
        self._statuses = where.status if where is not None and where.status else VERBS[order.verb].usual

    def changes(self) -> ItemChanges:
        order = self._order
        change = change_of(
            order.verb,
            cancelled="cancelled" in self._statuses,
            open=order.open,
            advice="cancel them first, or delete with open=True",
            changes=order.changes,
        )
        return ItemChanges(
            self._core.backend,
            self._source(),
            PortionChanger(self._client_of, change, self._refusal),
            rate=order.rate,
            canary=order.canary,
            canary_wait=order.canary_wait,
        )

    def _source(self) -> Source:
        """The items that were named, or found. Items of bulk actions are left out."""
        backend, order = self._core.backend, self._order
        if order.where is None:
            wanted = [WantedItem(each.id, self._tenant or each.tenant) for each in order.items]
            return NamedSource(backend, wanted, bulk=False)
        where = order.where if self._tenant is None else replace(order.where, tenant=self._tenant)
        return filter_source(backend, where, bulk=False)

    def _client_of(self, tenant: str) -> Operator:
        order, note = self._order, None
        if order.actor:
            note = AuditNote(
                actor=order.actor,
                reason=order.reason,
                address=order.address,
                bulk=self._bulk,
                about=order_text(order) if self._tenant is None else "",  # so that each tenant can read it
            )
        return Operator(self._core, tenant, note)

    def _refusal(self, item: ItemState) -> Refusal | None:
        return refuse_verb(self._order.verb, item, self._statuses)
