"""Bulk portion: run one item of a bulk action. It changes a portion of the items and queues the next one.

A portion that is run again, because its process died, finds what it has not changed yet. What the portion had
changed before is then missing in the counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from treadle.bulk_action import (
    BULK_QUEUE,
    BULK_RETRY,
    BULK_TYPE,
    KEPT,
    MOST_EXAMPLES,
    OPERATORS,
    PORTION,
    ActionVerb,
    BulkInput,
    BulkItem,
    BulkOrder,
    BulkProgress,
    BulkRefusal,
    encode_bulk,
    read_bulk_input,
)
from treadle.codec import unreadable
from treadle.engine.core import Core
from treadle.engine.run.decide import Decision, PendingSettlement, RunAgain, Succeed, raised
from treadle.engine.wait.wait_result import encode_group_value
from treadle.errors import DecodeError
from treadle.handler.result_plan import NOTHING, PlannedContribution
from treadle.item import AuditNote, Item, ItemState, Lease, Status

from .filters import OPEN_STATUSES, STATUSES
from .operator import Operator
from .portions import (
    Deletion,
    PortionChanger,
    PortionOutcome,
    Refusal,
    Requeue,
    WantedItem,
    cancel_items,
    read_canary,
    read_named,
    refuse_status,
    trigger_items,
)

REACH: Final = 50_000
"""About so many items are looked at for one portion, if few match."""
FIRST_LOOK: Final = 0.1
LONGEST_LOOK: Final = 15.0
"""Seconds between two looks at the canary: they get longer."""
LONGEST_MESSAGE: Final = 300
STOP_TTL: Final = 86_400.0

Change = Callable[[Operator, Sequence[ItemState]], Awaitable[PortionOutcome]]


class VerbRules(msgspec.Struct, frozen=True):
    """What a verb of bulk actions can be used for."""

    usual: tuple[Status, ...]
    """The statuses of the items that it changes, unless the filter names others."""
    allowed: tuple[Status, ...]
    """The statuses that a filter may name."""
    advice: str
    canary: bool
    """Whether its items run afterwards, so that a canary says something."""


VERBS: Final[dict[ActionVerb, VerbRules]] = {
    "requeue": VerbRules(
        ("dead",), ("dead", "cancelled"), "only dead or cancelled items can be requeued", True
    ),
    "cancel": VerbRules(OPEN_STATUSES, OPEN_STATUSES, "only open items can be cancelled", False),
    "delete": VerbRules((), STATUSES, "", False),
    "trigger": VerbRules(("scheduled",), ("scheduled",), "only scheduled items can be triggered", True),
}


def stop_key(portion: str) -> str:
    """The key that decides whether another portion follows: that of its first claimer."""
    return f"treadle:bulk:{portion}"


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
    portion = BulkPortion(core, lease, order)
    if progress.phase == "canary":
        judged = await portion.judge(progress)
        if isinstance(judged, RunAgain):
            return PendingSettlement(lease, judged)
        progress = judged
    if progress.phase == "change":
        progress = await portion.change(progress)
    delay = 0.0
    if progress.phase == "canary":
        delay = FIRST_LOOK
    elif order.rate is not None:
        took = core.settings.clock.monotonic() - began
        delay = max(0.0, (progress.matched - given.progress.matched) / order.rate - took)
    children: tuple[Item, ...] = ()
    if progress.phase in ("change", "canary"):
        key = stop_key(lease.id)
        if await core.backend.claim_key(key, "next", STOP_TTL, tenant=lease.tenant):
            children = (next_portion(core, lease.tenant, BulkInput(progress), delay=delay),)
            progress = replace(progress, next=children[0].id)
        else:
            progress = replace(progress, phase="stopped")
    return _settlement(lease, progress, children)


def _settlement(lease: Lease, progress: BulkProgress, children: tuple[Item, ...]) -> PendingSettlement:
    """The progress becomes the value of the group, and the result of the item."""
    value = encode_group_value(BULK_TYPE, encode_bulk(progress), is_result=True)
    contributions = (PlannedContribution(None, encoded=value),)
    return PendingSettlement(lease, Succeed(NOTHING), value, children, contributions)


def next_portion(core: Core, tenant: str, input: BulkInput, *, delay: float = 0.0) -> Item:
    """An item of a bulk action."""
    return Item(
        core.settings.generate_id(),
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
    """One portion. Its tenant says whose items it may change."""

    def __init__(self, core: Core, lease: Lease, order: BulkOrder) -> None:
        self._core = core
        self._order = order
        self._attempt = lease.attempt
        self._bulk = lease.group_id
        self._tenant = None if lease.tenant == OPERATORS else lease.tenant
        self._rules = VERBS[order.verb]

    # -- the canary ------------------------------------------------------------------------------------

    async def judge(self, progress: BulkProgress) -> BulkProgress | RunAgain:
        """Look how the first items ended. RunAgain: look again later."""
        tried = [(each.tenant or "", each.id) for each in progress.tried]
        end = await read_canary(self._core.backend, tried)
        if end.is_good:
            phase = "change" if progress.cursor is not None else "done"
            return replace(progress, phase=phase, judged=True)
        if not end.failed and await self._core.backend.now() < progress.judge_by:
            return RunAgain("defer", min(FIRST_LOOK * 1.5 ** min(self._attempt, 50), LONGEST_LOOK))
        guilty = tuple(BulkItem(each.id, each.tenant) for each in (*end.failed, *end.open))
        return replace(progress, phase="held_back", held_back_by=guilty)

    # -- changing --------------------------------------------------------------------------------------

    async def change(self, progress: BulkProgress) -> BulkProgress:
        """Change the next items."""
        order = self._order
        waits_for_canary = order.canary and not progress.judged
        count = PORTION if order.rate is None else max(1, min(PORTION, math.ceil(order.rate)))
        if waits_for_canary:
            count = order.canary - len(progress.tried)
        items, missing, cursor = await self._take(count, progress.cursor)
        changer = PortionChanger(self._client_of, self._change(), self._refusal)
        tried, refused = await changer.change(items, missing)
        progress = _added(progress, changer, refused, cursor)
        if not waits_for_canary:
            return progress if cursor is not None else replace(progress, phase="done")
        progress = replace(
            progress, tried=(*progress.tried, *(BulkItem(each.id, each.tenant) for each in tried))
        )
        if cursor is not None and len(progress.tried) < order.canary:
            return progress
        if not progress.tried:
            return replace(progress, phase="done")
        judge_by = await self._core.backend.now() + order.canary_wait
        return replace(progress, phase="canary", judge_by=judge_by)

    async def _take(
        self, count: int, cursor: str | None
    ) -> tuple[list[ItemState], list[Refusal], str | None]:
        """The next items, those that were named and do not exist, and where to go on. Items of bulk actions
        are left out."""
        backend, order = self._core.backend, self._order
        missing: list[Refusal] = []
        if order.where is None:
            first = int(cursor or 0)
            named = order.items[first : first + count]
            wanted = [WantedItem(each.id, self._tenant or each.tenant) for each in named]
            items, missing = await read_named(backend, wanted)
            last = first + len(named)
            cursor = str(last) if last < len(order.items) else None
        else:
            where = order.where if self._tenant is None else replace(order.where, tenant=self._tenant)
            reach = REACH if "watching" in backend.capabilities else None
            page = await backend.list(where, limit=count, cursor=cursor, oldest_first=True, reach=reach)
            items, cursor = list(page.items), page.cursor
        return [item for item in items if item.type != BULK_TYPE], missing, cursor

    def _client_of(self, tenant: str) -> Operator:
        order, note = self._order, None
        if order.actor:
            note = AuditNote(
                actor=order.actor,
                reason=order.reason,
                address=order.address,
                bulk=self._bulk,
                about=order.about if self._tenant is None else "",  # so that each tenant can read it
            )
        return Operator(self._core, tenant, note)

    def _refusal(self, item: ItemState) -> Refusal | None:
        statuses = self._statuses()
        return refuse_status(item, statuses, self._rules.advice)

    def _statuses(self) -> tuple[Status, ...]:
        where = self._order.where
        return where.status if where is not None and where.status else self._rules.usual

    def _change(self) -> Change:
        match self._order.verb:
            case "requeue":
                return Requeue(alone=False, cancelled="cancelled" in self._statuses()).change
            case "cancel":
                return cancel_items
            case "trigger":
                return trigger_items
            case "delete":
                advice = "cancel them first, or delete with open=True"
                return Deletion(open=self._order.open, advice=advice).change


def _added(
    progress: BulkProgress, changer: PortionChanger, refused: Sequence[Refusal], cursor: str | None
) -> BulkProgress:
    """The progress, with what a portion did."""
    room = MOST_EXAMPLES - len(progress.refused)
    examples = [
        BulkRefusal(each.id, each.tenant, type(each.error).__name__, each.message[:LONGEST_MESSAGE])
        for each in refused[:room]
    ]
    return replace(
        progress,
        matched=progress.matched + changer.matched,
        changed=progress.changed + changer.changed,
        skipped=dict(Counter(progress.skipped) + changer.skipped),
        refused=(*progress.refused, *examples),
        cursor=cursor,
    )
