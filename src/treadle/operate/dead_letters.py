"""Dead letters: the methods of a client for its dead items, `app.dead`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from treadle.base.wording import did_you_mean, plural
from treadle.bulk_action import PORTION
from treadle.define.option_checks import check_count
from treadle.engine.open_transaction import refuse_in_transaction
from treadle.engine.run.unsatisfied import named_causes
from treadle.item import UNSATISFIABLE, AuditNote, ItemState, Page, Status
from treadle.item_facts import DeadMark
from treadle.store.audit_note import noted_about
from treadle.store.reads import get_refs

from .changes import Change, Deletion, PagedSource, PortionChanger, PortionOutcome, names_bulk_actions
from .filters import words_text
from .observer import begin_read, in_store
from .operator import Ids, Operator, core_of, note_of, tenant_of

FILTERS: Final = tuple(inspect.signature(Operator.list).parameters)[2:]
"""The arguments of `app.list` without the status."""


class FoldedMark(NamedTuple):
    """A mark, with those that only follow from it."""

    mark: DeadMark
    waited: tuple[DeadMark, ...] = ()
    """The newest of their items waited for one of its items."""

    @property
    def waited_text(self) -> str:
        """`+3 types`. Empty: none."""
        count = len({each.type for each in self.waited})
        return f"+{plural(count, 'type')}" if count else ""


def folded(marks: Sequence[DeadMark], causes: Mapping[str, str]) -> list[FoldedMark]:
    """The marks in their order, with those that only follow from another as parts of that, if it is among
    them. causes: see `DeadLetters.causes`."""
    shown = {each.mark for each in marks if each.mark not in causes}
    return [
        FoldedMark(mark, tuple(each for each in marks if causes.get(each.mark) == mark.mark))
        for mark in marks
        if causes.get(mark.mark) not in shown
    ]


class DeadLetters:
    """The dead items: `app.dead`."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    async def list(self, /, **where: Any) -> Page:
        """Return dead items, newest first, with their failed attempts. Takes the arguments of `app.list`,
        except the status."""
        _check_names(where, "list")
        where.setdefault("history", True)
        return await self._operator.list("dead", **where)

    async def marks(
        self, *, count: int = 100, cap: int = 10_000, store: str | None = None
    ) -> Sequence[DeadMark]:
        """Return the marks of dead items: what they died of, and how many died alike. At most `count`, those
        with the newest deaths first. Each counts up to `cap` items. With `store`, those of this one of
        several."""
        check_count(count, "count")
        check_count(cap, "cap")
        core = core_of(self._operator)
        await begin_read(core)
        with in_store(core, store):
            return await core.backend.marks(tenant=tenant_of(self._operator), count=count, cap=cap)

    async def causes(self, marks: Sequence[DeadMark]) -> dict[str, str]:
        """Of these marks, those that only follow from another: each with the mark of the item because of
        which its newest item could not run."""
        waited = {(each.tenant, each.sample): each.mark for each in marks if each.error_type == UNSATISFIABLE}
        if not waited:
            return {}
        backend = core_of(self._operator).backend
        causes = await named_causes(backend, (await get_refs(backend, list(waited))).values())
        return {waited[ref]: cause.mark for ref, cause in causes.items() if cause.mark}

    async def requeue(
        self, /, ids: Ids | None = None, *, alone: bool = False, cancelled: bool = False, **where: Any
    ) -> int:
        """As `app.requeue`, for the named items, or for all that a filter (as for `list`) finds. Each item is
        requeued once: one that dies again meanwhile stays dead. Returns how many items are open again."""
        _check_names(where, "requeue")
        refuse_in_transaction(core_of(self._operator).backend, "dead.requeue()")
        if ids is not None:
            return await self._operator.requeue(ids, alone=alone, cancelled=cancelled)

        async def change(operator: Operator, items: Sequence[ItemState]) -> PortionOutcome:
            # Oldest first, so that they become ready in the order of their submission.
            return PortionOutcome(await operator.requeue(items[::-1], alone=alone, cancelled=cancelled))

        return await self._change(where, ("dead", "cancelled") if cancelled else ("dead",), change)

    async def delete(self, /, ids: Ids | None = None, **where: Any) -> int:
        """Remove dead items with their groups, and with the groups around these: the items named, or all that
        a filter finds. Returns how many items were removed."""
        _check_names(where, "delete")
        refuse_in_transaction(core_of(self._operator).backend, "dead.delete()")
        if ids is None:
            return await self._change(where, ("dead",), _delete)
        changer = PortionChanger(self._client_of(note_of(self._operator)), _delete)
        named = await self._operator.get(ids)
        await changer.change([item for item in named if item is not None and item.status == "dead"])
        return changer.changed

    async def _change(self, where: dict[str, Any], statuses: tuple[Status, ...], change: Change) -> int:
        """Change the items that a filter finds, newest first, at most `limit`."""
        limit, cursor = where.pop("limit", None), where.pop("cursor", None)
        note = noted_about(note_of(self._operator), words_text({"status": ",".join(statuses), **where}))
        changer = PortionChanger(self._client_of(note), change)
        source = PagedSource(
            partial(self._operator.list, statuses, **where), bulk=names_bulk_actions(where), limit=limit
        )
        while True:
            portion = await source.take(PORTION, cursor)
            await changer.change(portion.items)
            if portion.cursor is None:
                return changer.changed
            cursor = portion.cursor

    def _client_of(self, note: AuditNote | None) -> Callable[[str], Operator]:
        """Makes clients of one tenant each: two tenants may use the same id for different items."""
        core = core_of(self._operator)
        return lambda tenant: Operator(core, tenant, note)


async def _delete(operator: Operator, items: Sequence[ItemState]) -> PortionOutcome:
    """All of the groups, or none: what is refused is raised."""
    chosen = await Deletion(open=True).choose(operator, items)
    return PortionOutcome(await operator.delete(sorted(chosen.groups)) if chosen.groups else 0)


def _check_names(where: Iterable[str], verb: str) -> None:
    for name in where:
        if name not in FILTERS:
            hint = did_you_mean(name, FILTERS, f"it takes {', '.join(FILTERS)}")
            raise TypeError(f"dead.{verb} has no option {name!r}: {hint}")
