"""Enqueue: build the items of Works, submit them, and announce those that were stored."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import force_setattr, replace

from treadle.base.callables import runs_here
from treadle.define.work import Work
from treadle.engine.core import Core
from treadle.engine.open_transaction import CURRENT, OpenTransaction, current_transaction
from treadle.errors import DuplicateIdError
from treadle.item import AuditNote, Item, Lease, Rejected, Submitted
from treadle.store.audit_note import check_recording, log_change
from treadle.store.rules.submission import may_change, rejection_error
from treadle.submit_middleware import NewItem, options_of, submit_through

from .build_children import with_traces
from .build_item import LeaseTo

_existing = attrgetter("existing")
_lease = attrgetter("lease")
_queued_at = attrgetter("queued_at")


def submit(
    core: Core,
    tenant: str,
    works: Sequence[Work[Any, Any]],
    options: dict[str, Any],
    *,
    awaited: bool = False,
    note: AuditNote | None = None,
    change: Callable[[Item], Item] | None = None,
) -> Awaitable[tuple[Submitted, ...]]:
    """Submit works in one atomic step. `core` is connected, `options` are checked. awaited: the caller waits
    for the end of the items. note: who submits them, for the audit. change: changes each item that was
    built."""
    if note is not None:
        check_recording(core.backend)
    tx = options.get("tx")
    if tx is not None:
        options = {name: value for name, value in options.items() if name != "tx"}
    if core.submits_plainly:
        where = _place(core, tx, note)
        builder, lease_to = core.item_builder, where.lease_to
        if len(works) == 1:
            item = builder.item(works[0], options, tenant=tenant, lease_to=lease_to)
            items: tuple[Item, ...] = (item,)
            alike = False
        else:
            items, alike = builder.items(works, options, tenant=tenant, lease_to=lease_to)
        if change is not None or core.by_root:
            items, alike = _final(core, works, items, options, change), alike and change is None
        answers = _store(core, items, where, alike)
    else:
        answers = _submit_through(core, tenant, works, options, tx, awaited, note, change)
    return answers if note is None else _logged(answers, tenant, works, note)


async def _logged(
    submitted: Awaitable[tuple[Submitted, ...]], tenant: str, works: Sequence[Work[Any, Any]], note: AuditNote
) -> tuple[Submitted, ...]:
    answers = await submitted
    stored = [answer.id for answer in answers if not answer.existing]
    log_change(note, "enqueue", [work.id for work in works], len(stored), tenant)
    return answers


class SubmitPlace(msgspec.Struct, frozen=True, gc=False):
    """Where items are stored: in a transaction of the caller, in that of a handler, or by themselves. In the
    last case a worker may start them at once. And with which note, and what is changed about them."""

    tx: Any
    open_transaction: OpenTransaction | None
    lease_to: LeaseTo | None
    note: AuditNote | None


def _place(core: Core, tx: Any, note: AuditNote | None) -> SubmitPlace:
    open_transaction = None if CURRENT.get() is None else current_transaction(core.backend)
    if open_transaction is not None and open_transaction.is_connection(tx):
        tx = None
    runtime = core.runtimes[0] if core.runtimes and tx is None and open_transaction is None else None
    return SubmitPlace(tx, open_transaction, None if runtime is None else runtime.offers, note)


async def _submit_through(
    core: Core,
    tenant: str,
    works: Sequence[Work[Any, Any]],
    options: dict[str, Any],
    tx: Any,
    awaited: bool,
    note: AuditNote | None,
    change: Callable[[Item], Item] | None,
) -> tuple[Submitted, ...]:
    """As `submit`, through the submit middlewares and the telemetry."""
    new = [NewItem(work, tenant, options) for work in works]
    answers: tuple[Submitted, ...] = ()

    async def store() -> None:
        nonlocal answers
        where = _place(core, tx, note)
        changed = [options_of(each) for each in new] if core.submit_middleware else [options] * len(works)
        items = tuple(
            core.item_builder.item(work, each, tenant=tenant, lease_to=where.lease_to)
            for work, each in zip(works, changed, strict=True)
        )
        if change is not None or core.by_root:
            items = _final(core, works, items, options, change)
        answers = await _store_traced(core, items, where, awaited)

    await submit_through(core.submit_middleware, new, store)
    return answers


def _final(
    core: Core,
    works: Sequence[Work[Any, Any]],
    items: tuple[Item, ...],
    options: dict[str, Any],
    change: Callable[[Item], Item] | None,
) -> tuple[Item, ...]:
    """The items as they are stored: changed, and by root with ids that say where they are."""
    if change is not None:
        items = tuple(map(change, items))
    if core.by_root:
        from .place_roots import RootPlacing  # few programs need it

        placing = RootPlacing(core.registry, core.worker_doer)
        items = placing.roots(works, items, options.get("place"), chosen=options.get("id") is not None)
    return items


async def _store_traced(
    core: Core, items: tuple[Item, ...], where: SubmitPlace, awaited: bool
) -> tuple[Submitted, ...]:
    span = None if core.telemetry is None else core.telemetry.submission(items, awaited=awaited)
    if span is None:
        return await _store(core, items, where)
    with span:
        return await _store(core, with_traces(items, span.traces(len(items))), where)


def _store(
    core: Core, items: tuple[Item, ...], where: SubmitPlace, alike: bool = False
) -> Awaitable[tuple[Submitted, ...]]:
    if len(items) > 1:
        _check_ids(items)
        core.item_builder.check_total(items, f"enqueue_many of {len(items)} works", alike=alike)
    if where.tx is not None:
        return _submit_within(core, items, where)
    if where.open_transaction is not None:
        return _submit_in(where.open_transaction, items, where.note)
    sent = core.settings.clock.monotonic()
    stored = functools.partial(_submitted, core, items, sent)
    return core.submitter.submit(
        items, stored, sent, where.note, alike=alike, may_lease=where.lease_to is not None
    )


def named(
    work: Work[Any, Any], options: dict[str, Any], *, keep: bool = False
) -> tuple[Work[Any, Any], dict[str, Any]]:
    """Give a Work the id in the options, if there is one. The caller's Work has it too, so that `after=` can
    name it. Returns the Work to submit, and the other options. keep: the id as well."""
    if options.get("id") is None:
        return work, options
    id = options["id"]
    force_setattr(work, "id", id)
    return replace(work), {name: value for name, value in options.items() if keep or name != "id"}


async def _submit_within(core: Core, items: tuple[Item, ...], where: SubmitPlace) -> tuple[Submitted, ...]:
    answers = await core.submitter.submit_within(items, where.tx, where.note)
    stored = [item for item, answer in zip(items, answers, strict=True) if not answer.existing]
    if stored or any(map(may_change, items, answers)):
        from treadle.store.user_transaction import call_on_commit  # few programs need it

        call_on_commit(where.tx, functools.partial(_committed, core, items, stored, answers))
    return answers


def _committed(
    core: Core, items: tuple[Item, ...], stored: list[Item], answers: tuple[Submitted, ...], certain: bool
) -> None:
    """The transaction has committed. In the thread that committed it, which may be another one."""
    loop = core.loop
    if loop is None or loop.is_closed():
        return
    queued_at = max(answer.queued_at for answer in answers)

    def announce() -> None:
        core.announcer.queued(stored, queued_at)
        core.wakeups.ready((item.type, item.queue) for item in items)

    async def announce_stored() -> None:
        """A savepoint may have been rolled back: only the store knows what is there."""
        tenant = stored[0].tenant if stored else None
        states = await core.backend.get([item.id for item in stored], tenant=tenant)
        stored[:] = [item for item, state in zip(stored, states, strict=True) if state is not None]
        announce()

    def on_loop() -> None:
        if certain:
            announce()
        else:
            core.tasks.start(announce_stored(), "announce")

    if runs_here(loop):
        on_loop()
    else:
        loop.call_soon_threadsafe(on_loop)


async def _submit_in(
    transaction: OpenTransaction, items: tuple[Item, ...], note: AuditNote | None
) -> tuple[Submitted, ...]:
    answer = await transaction.submit(items, note)
    if isinstance(answer, Rejected):
        raise rejection_error(answer)
    return answer


def _check_ids(items: tuple[Item, ...]) -> None:
    if len({item.id for item in items}) == len(items):
        return
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise DuplicateIdError(item.id)
        seen.add(item.id)


def _submitted(core: Core, items: tuple[Item, ...], sent: float, answers: tuple[Submitted, ...]) -> bool:
    """Announce the stored items and start those leased to this process. Whether there are others to claim."""
    if not any(map(_existing, answers)) and not any(map(_lease, answers)):
        core.announcer.queued(items, max(map(_queued_at, answers)))
        return True
    stored: list[Item] = []
    leases: list[Lease] = []
    at, changes = 0.0, False
    for item, answer in zip(items, answers, strict=True):
        if not answer.existing:
            stored.append(item)
        elif may_change(item, answer):
            changes = True
        if answer.lease is not None:
            leases.append(answer.lease)
        if answer.queued_at > at:
            at = answer.queued_at
    core.announcer.queued(stored, at)
    if leases and (runtime := core.local()) is not None:
        runtime.take(tuple(leases), sent)
    return changes or len(leases) < len(stored)
