"""Bulk: `app.bulk` changes many items by a filter, portion by portion, in the store's own time.

    action = await app.bulk.start("requeue", type="mail.send", rate=50, canary=5)
    (await app.bulk.state(action.id)).changed

It goes on when the process that started it has ended. Any worker of the fleet runs the portions, or a
`BulkRunner` in a process without workers.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Any, Final, get_args

import msgspec
from msgspec.structs import replace
from typing_extensions import Unpack

from treadle.base.ids import check_id, id_of
from treadle.base.timing import Duration, finite, seconds
from treadle.base.wording import did_you_mean, plural
from treadle.bulk_action import (
    BULK_QUEUE,
    BULK_TYPE,
    BULK_WORKFLOW,
    MOST_IDS,
    OPERATORS,
    PORTION,
    ActionVerb,
    BulkInput,
    BulkItem,
    BulkOrder,
    BulkState,
)
from treadle.engine.core import Core
from treadle.engine.open_transaction import refuse_in_transaction
from treadle.errors import ConflictError, InputError, NotFound, UnsupportedError
from treadle.item import OPEN, Filter, ItemState, Rejected, Submission
from treadle.options import HasId, UpdateOptions, check_update
from treadle.store.audit_note import check_recording, log_change
from treadle.store.reads import group_refs
from treadle.store.rules.listing import LARGEST_PAGE
from treadle.store.rules.submission import rejection_error

from .bulk_portion import STOP_TTL, next_portion, order_text, stop_key
from .bulk_states import open_portions, read_canaries, read_states, state_of
from .changes import VERBS, ItemCount, filter_source
from .filters import FilterOptions, filter_text, item_filter
from .observer import check_store
from .operator import Operator, core_of, note_of, tenant_of
from .why import why_item

CANARY_WAIT: Final = 300.0
LEAST_RATE: Final = 1 / 3600
"""Items per second. With fewer, the next portion might never be due."""
START_WITHIN: Final = 86_400.0
"""Seconds in which the first portion must run. After that the action fails, and changes nothing: a worker
that starts much later must not carry it out."""
STOP_ATTEMPTS: Final = 100
STOP_WAIT: Final = 0.05
"""Seconds that `stop` waits for a portion that runs, up to `STOP_ATTEMPTS` times."""


class Bulk:
    """The bulk actions of a client: `app.bulk`."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    @property
    def _core(self) -> Core:
        return core_of(self._operator)

    @property
    def _tenant(self) -> str | None:
        return tenant_of(self._operator)

    async def start(
        self,
        verb: ActionVerb,
        *,
        ids: Iterable[str | HasId] | None = None,
        everything: bool = False,
        open: bool = False,
        changes: UpdateOptions | None = None,
        rate: float | None = None,
        canary: int = 0,
        canary_wait: Duration = CANARY_WAIT,
        **where: Unpack[FilterOptions],
    ) -> BulkState:
        """Change items in the background: those that a filter (as for `list`) finds, oldest first, or those
        named. It is durable when this returns, and goes on when this process ends.

        What matches is fixed at the start: items that are submitted later are left out. Items that cannot be
        changed are skipped and counted. `ConflictError` if the actor has another bulk action that has not
        ended. One that no process begins within a day fails, and changes nothing.

        verb: `requeue` (dead items, and cancelled ones with `status=`), `cancel` (open items), `trigger`
            (scheduled items), `hold` (ready and scheduled items), `unhold` (held items), `update` (items that
            have not started) or `delete` (items in any status, with their whole groups).
        ids: ids or items, up to 10,000, instead of a filter.
        everything: needed if there is no filter: all items that the verb can change.
        open: for `delete`: also groups that are still open. A filter that names an open status says so too.
        changes: for `update`: what `Client.update` changes, as `{"queue": "slow", "priority": -5}`.
        rate: the most items per second.
        canary: how many to change first. It goes on only if all of them succeed within `canary_wait` seconds.
        """
        self._check(verb, rate, canary, open=open)
        checked = _checked_changes(verb, changes)
        wait = seconds(canary_wait, field="canary_wait")
        refuse_in_transaction(self._core.backend, "bulk.start()")
        named = None if ids is None else _named(ids, where, everything)
        given = item_filter(self._tenant, **where)
        check_store(self._core, given.store)
        if named is None:
            self._check_filter(verb, given, where, everything)
        note = note_of(self._operator)
        if note is not None:
            check_recording(self._core.backend)
        await self._operator.connect()
        order = BulkOrder(
            verb=verb,
            about=filter_text(given, everything) if named is None else plural(len(named), "named item"),
            items=named or (),
            open=open or not OPEN.isdisjoint(given.status),
            changes=checked,
            total=len(named or ()),
            rate=rate,
            canary=canary,
            canary_wait=wait,
            actor="" if note is None else note.actor,
            reason="" if note is None else note.reason,
            address="" if note is None else note.address,
        )
        if named is None:
            now = await self._core.backend.now()
            fixed = replace(
                given,
                status=given.status or VERBS[verb].usual,
                held=given.held or verb == "unhold",
                until=now if given.until is None else min(given.until, now),
            )
            counted = ItemCount()
            await counted.read(filter_source(self._core.backend, fixed, bulk=False))
            order = replace(order, where=fixed, total=counted.count, more=counted.more)
        return await self._submit(order)

    async def state(self, id: str) -> BulkState | None:
        """Return a bulk action as it is now. None for an unknown id."""
        check_id(id)
        await self._operator.connect()
        (root,) = await self._core.backend.get([id], tenant=self._tenant)
        if root is None or root.type != BULK_TYPE or root.workflow != BULK_WORKFLOW:
            return None
        groups = await group_refs(self._core.backend, [(root.tenant, root.id)])
        portion = (await open_portions(self._core.backend, groups)).get((root.tenant, root.id))
        tried = (await read_canaries(self._core.backend, groups)).get((root.tenant, root.id), ())
        state = state_of(root, groups.get((root.tenant, root.id)), portion, tried)
        return replace(state, waits=await _why(self._core, portion))

    async def list(self, limit: int = 50) -> list[BulkState]:
        """Return the newest bulk actions, newest first."""
        _check_whole(limit, "limit", 1, LARGEST_PAGE)
        await self._operator.connect()
        backend = self._core.backend
        where = Filter(tenant=self._tenant, workflow=BULK_WORKFLOW, type=BULK_TYPE)
        return await read_states(backend, (await backend.list(where, limit=limit)).items)

    async def stop(self, id: str) -> BulkState:
        """End a bulk action: what it has changed stays changed, the rest stays as it is. A portion that runs
        ends first. `NotFound` for an unknown id. Nothing happens to one that has ended."""
        refuse_in_transaction(self._core.backend, "bulk.stop()")
        state = await self.state(id)
        if state is None:
            raise NotFound(id, "bulk action")
        tenant = OPERATORS if state.tenant is None else state.tenant
        backend = self._core.backend
        for _ in range(STOP_ATTEMPTS):
            groups = await group_refs(backend, [(tenant, id)])
            if not any(group.open for group in groups.values()):
                break
            portion = (await open_portions(backend, groups)).get((tenant, id))
            if portion is None:
                continue  # it has ended meanwhile
            # The key decides whether another portion follows the one that runs.
            await backend.claim_key(stop_key(portion.id), "stop", STOP_TTL, tenant=tenant)
            if portion.status != "running":
                break
            await asyncio.sleep(STOP_WAIT)
        if state.ended_at is None:
            note = note_of(self._operator)
            note = None if note is None else replace(note, verb="bulk stop", about=state.where)
            # With the root, everything that it queued ends: its open portions.
            await Operator(self._core, tenant, note).cancel(id)
        after = await self.state(id)
        return state if after is None else after

    # -- checks and submission -------------------------------------------------------------------------

    def _check(self, verb: object, rate: object, canary: object, *, open: bool) -> None:
        backend = self._core.backend
        for capability in ("listing", "operating"):
            if capability not in backend.capabilities:
                raise UnsupportedError(capability, type(backend).__name__, "bulk actions")
        if verb not in VERBS:
            known = get_args(ActionVerb)
            hint = (
                did_you_mean(verb, known, f"it is one of {', '.join(known)}") if isinstance(verb, str) else ""
            )
            raise InputError.of("verb", verb, f"does not exist: {hint or ', '.join(known)}")
        if rate is not None and not finite(rate, field="rate") >= LEAST_RATE:
            raise InputError.of("rate", rate, "must be at least one item per hour, in items per second")
        _check_whole(canary, "canary", 0, PORTION)
        if open and verb != "delete":
            raise InputError.of("open", open, f"is for delete, not for {verb}")
        if canary and not VERBS[verb].canary:
            raise InputError.of("canary", canary, f"is for verbs after which items run, not for {verb}")

    def _check_filter(self, verb: ActionVerb, given: Filter, where: FilterOptions, everything: bool) -> None:
        if replace(given, tenant=where.get("tenant")) == Filter() and not everything:
            raise InputError(
                f"bulk.start({verb!r}) without a filter would change all items: name a filter, ids=[...], or "
                "everything=True"
            )
        rules = VERBS[verb]
        if wrong := [each for each in given.status if each not in rules.allowed]:
            raise InputError.of("status", wrong[0], f"cannot be given here: {rules.advice}")

    async def _submit(self, order: BulkOrder) -> BulkState:
        core, tenant = self._core, OPERATORS if self._tenant is None else self._tenant
        item = next_portion(core, tenant, BulkInput(order=order))
        item = replace(item, workflow=BULK_WORKFLOW, expires_in=START_WITHIN)
        if order.actor:
            item = replace(item, key=f"actor:{hashlib.blake2s(order.actor.encode()).hexdigest()}")
        note = note_of(self._operator)
        if note is not None:
            note = replace(note, verb=f"bulk {order.verb}", about=order_text(order))
        (answer,) = await core.submitter.submit_repeatedly([Submission((item,), note=note)])
        if isinstance(answer, Rejected):
            raise rejection_error(answer)
        if answer[0].existing:
            raise ConflictError(
                f"{order.actor} has another bulk action that has not ended, {answer[0].id}: wait for it, or "
                f"stop it with app.bulk.stop({answer[0].id!r})"
            )
        log_change(note, "", [item.id], 1, self._tenant)
        core.announcer.queued([item], answer[0].queued_at)
        core.wakeups.ready([(BULK_TYPE, BULK_QUEUE)])
        state = await self.state(item.id)
        assert state is not None  # it was stored, and is kept for days
        return state


def _checked_changes(verb: ActionVerb, changes: UpdateOptions | None) -> dict[str, Any]:
    """What an update changes, in plain form."""
    if verb != "update":
        if changes is not None:
            raise InputError.of("changes", changes, f"is for update, not for {verb}")
        return {}
    checked = check_update({} if changes is None else changes)
    found = {name: getattr(checked, name) for name in checked.__struct_fields__}
    return {name: value for name, value in found.items() if value is not msgspec.UNSET}


def _named(ids: Iterable[str | HasId], where: FilterOptions, everything: bool) -> tuple[BulkItem, ...]:
    """The items that are named, each once."""
    if where or everything:
        raise InputError(
            "ids exclude filters: give ids=[...], or say which items by a filter", parameters=("ids",)
        )
    given: list[Any] = [ids] if isinstance(ids, str) or hasattr(ids, "id") else list(ids)
    items = [BulkItem(id_of(each), getattr(each, "tenant", None)) for each in given]
    named = tuple({(each.tenant, each.id): each for each in items}.values())
    if not named:
        raise InputError.of("ids", ids, "must name at least one item")
    if len(named) > MOST_IDS:
        raise InputError(
            f"ids names {len(named):,} items, and may name {MOST_IDS:,}: use a filter, or several actions",
            parameters=("ids",),
        )
    return named


def _check_whole(value: object, field: str, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError.of(field, value, f"must be a whole number from {low} to {high:,}")


# ---------------------------------------------------------------------------------------------- reading

_NOT_BINDING: Final = ("next", "turn", "running", "due_at", "overdue", "deadline")
"""Reasons of a portion that will run by itself."""


async def _why(core: Core, portion: ItemState | None) -> str:
    """Why the next portion does not run."""
    if portion is None or portion.status == "running" or "watching" not in core.backend.capabilities:
        return ""
    why = await why_item(core, portion.id, portion.tenant)
    binding = [reason for reason in why.reasons if reason.kind not in _NOT_BINDING]
    return binding[0].text if binding else ""
