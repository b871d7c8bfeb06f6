"""Operate: cancel, complete, trigger, hold, delete, requeue, update and prune."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import UNSET, Struct, msgpack

from treadle.errors import AlreadyEnded, NotFound, NotHoldable, NotTriggerable, NotUpdatable, ReferencedError
from treadle.item import AuditNote, Changed, Filter, ItemUpdate, Status
from treadle.store.rules.listing import narrowed_filter

from .item_bytes import LETTERS, STATUSES, Argument, item_states, pack_priority
from .link import RedisLink, RedisVerbs
from .lists import pack_filter
from .read import portions
from .record_bytes import pack_note
from .scripts import RedisScript
from .settlement_bytes import joined_effects, read_effects
from .stage import RedisStages

PORTION: Final = 300
"""Items that a script of prune looks at."""
CANCEL_PORTION: Final = 60
"""Items that a script cancels, if they are apart from others."""
MOST_RECORDS: Final = 1000
"""Old records of each kind that a prune removes."""

_CANCEL: Final = RedisScript("cancel")
_COMPLETE: Final = RedisScript("complete")
_TRIGGER: Final = RedisScript("trigger")
_HOLD: Final = RedisScript("hold")
_DELETE: Final = RedisScript("delete")
_PRUNE: Final = RedisScript("prune")
_PRUNE_RECORDS: Final = RedisScript("prune_records")


def tenant_argument(tenant: str | None) -> str:
    """A tenant as `Trees.tenant` in trees.lua reads it."""
    return "" if tenant is None else f"t{tenant}"


class RedisOperate(RedisStages):
    async def cancel(
        self,
        ids: Sequence[str],
        *,
        tenant: str | None = None,
        only_open: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        packed = pack_note(note, "cancel", ids, tenant)
        named = (int(only_open),)
        change = RedisPortionedChange(_CANCEL, packed, tenant_argument(tenant), named, CANCEL_PORTION)
        answers = await change.run(self._link, ids)
        items = [state for before, *_ in answers for state in item_states(before)]
        return Changed(tuple(items), joined_effects(read_effects(effects) for *_, effects in answers))

    async def complete(
        self, id: str, result: bytes | None, *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        packed = pack_note(note, "complete", [id], tenant)
        value = b"" if result is None else b"r" + result
        answer = await self._link.run(_COMPLETE, [packed, tenant_argument(tenant), value, os.urandom(3), id])
        if not answer:
            raise NotFound(id)
        if len(answer) == 1:
            raise AlreadyEnded(id, STATUSES[answer[0]])
        return Changed(item_states(answer[0]), read_effects(answer[1]))

    async def trigger(
        self, ids: Sequence[str], *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        named: list[str] = list(dict.fromkeys(ids))
        packed = pack_note(note, "trigger", ids, tenant)
        answer = await self._link.run(_TRIGGER, [packed, tenant_argument(tenant), *named])
        return _changed(answer, named, NotTriggerable)

    async def hold(
        self,
        ids: Sequence[str],
        held: bool = True,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        named = list(dict.fromkeys(ids))
        packed = pack_note(note, "hold" if held else "unhold", ids, tenant)
        answer = await self._link.run(_HOLD, [packed, tenant_argument(tenant), int(held), *named])
        return _changed(answer, named, NotHoldable)

    async def delete(
        self,
        group_ids: Sequence[str],
        *,
        tenant: str | None = None,
        cascade: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        packed = pack_note(note, "delete", group_ids, tenant)
        args: list[Argument] = [packed, tenant_argument(tenant), int(cascade), *group_ids]
        answer = await self._link.run(_DELETE, args)
        if len(answer) > 1:
            raise ReferencedError([(id.decode(), waiter.decode()) for id, waiter in answer[1]])
        return Changed(item_states(answer[0]))

    async def prune(self, limit: int = 1000) -> int:
        removed, more, stages = 0, True, True
        while more and removed < limit:
            found, more, stages = await self._link.run(_PRUNE, [limit - removed, PORTION])
            removed += found
        if stages:
            await self._drop_abandoned_stages()
        await self._link.run(_PRUNE_RECORDS, [max(0, min(limit, MOST_RECORDS))])
        return removed


LOOK_PORTION: Final = 300
"""Items that one script looks at to see whether they are apart."""

_ARE_APART: Final = RedisScript("are_apart")


class RedisPortionedChange(Struct, frozen=True):
    """An operator changes many items with one call.

    If each of them is apart (alone in its group, waiting for none and with none waiting for it), they are
    changed in portions: no script holds the server for long. Otherwise all are changed in one step.

    The scripts get a note for the audit, the number of the entry that an earlier portion has stored (empty:
    none), and 1 if only items that are apart are to be changed. They answer the items as they were, the
    places of the names that are left, and the number of the entry. Names are left if other items have begun
    to wait for them since the call began: these are changed in one step, at the end.

    script: what changes items. arguments: those after the first three, before the names of the items.
    size: of a portion. tenant: as scripts get it.
    """

    script: RedisScript
    note: bytes
    tenant: str
    arguments: Sequence[Argument]
    size: int

    async def run(
        self, link: RedisLink, names: Sequence[Argument], *, are_numbers: bool = False
    ) -> list[Sequence[Any]]:
        """The answers of the script. `names`: ids, or the numbers of rows."""
        if len(names) <= self.size or not await self._are_apart(link, names, are_numbers):
            return [await self._change(link, names)]
        answers: list[Sequence[Any]] = []
        left: list[Argument] = []
        entry = b""
        for some in portions(names, self.size):
            answer = await self._change(link, some, entry, only_apart=True)
            answers.append(answer)
            left += [some[place - 1] for place in answer[1]]
            entry = answer[2]
        if left:
            answers.append(await self._change(link, left, entry))
        return answers

    async def _are_apart(self, link: RedisLink, names: Sequence[Argument], are_numbers: bool) -> bool:
        for some in portions(names, LOOK_PORTION):
            if not await link.run(_ARE_APART, [self.tenant, int(are_numbers), *some]):
                return False
        return True

    async def _change(
        self, link: RedisLink, names: Sequence[Argument], entry: bytes = b"", *, only_apart: bool = False
    ) -> Sequence[Any]:
        args = [self.note, entry, int(only_apart), self.tenant, *self.arguments, *names]
        answer: Sequence[Any] = await link.run(self.script, args)
        return answer


REQUEUE_PORTION: Final = 40
"""Items that a script requeues, if they are apart from others."""
REACH: Final = 500
"""Ended items that a script looks at."""

_REQUEUE: Final = RedisScript("requeue")
_FIND_ENDED: Final = RedisScript("find_ended")


class RedisRequeue(RedisVerbs):
    async def requeue(
        self,
        where: Sequence[str] | Filter,
        *,
        tenant: str | None = None,
        limit: int = 1000,
        redrives: int | None = None,
        backoff: float = 0.0,
        alone: bool = False,
        cancelled: bool = False,
        from_step: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        statuses: tuple[Status, ...] = ("dead", "cancelled") if cancelled else ("dead",)
        letters = b"".join(LETTERS[status] for status in statuses)
        most: Argument = b"" if redrives is None else redrives
        names: Sequence[Argument]
        found_by = b""
        if isinstance(where, Filter):
            narrowed = narrowed_filter(where, tenant, statuses)
            names = [] if narrowed is None else await self._find_ended(narrowed, most, limit)
            found_by = pack_filter(narrowed or where)
        else:
            names = where
        packed = pack_note(note, "requeue", where, tenant)
        args: list[Argument] = [most, backoff, int(alone), letters, from_step or b"", found_by]
        change = RedisPortionedChange(_REQUEUE, packed, tenant_argument(tenant), args, REQUEUE_PORTION)
        answers = await change.run(self._link, names, are_numbers=bool(found_by))
        return Changed(tuple(state for before, *_ in answers for state in item_states(before)))

    async def _find_ended(self, where: Filter, redrives: Argument, limit: int) -> list[bytes]:
        """The numbers of the oldest items that a filter finds. They may have changed when they are requeued,
        and are looked at again then."""
        letters = b"".join(LETTERS[status] for status in where.status)
        found: list[bytes] = []
        after: bytes | None = b""
        while after is not None and len(found) < limit:
            args = [pack_filter(where), letters, redrives, after, limit - len(found), REACH]
            numbers, last = await self._link.run(_FIND_ENDED, args, on="read")
            found += numbers
            after = last or None
        return found


_UPDATE: Final = RedisScript("update")

_encode: Final = msgpack.Encoder().encode


class RedisUpdates(RedisVerbs):
    async def update(
        self,
        ids: Sequence[str],
        changes: ItemUpdate,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        named = list(dict.fromkeys(ids))
        packed = pack_note(note, "update", ids, tenant)
        answer = await self._link.run(
            _UPDATE, [packed, tenant_argument(tenant), pack_update(changes), *named]
        )
        return _changed(answer, named, NotUpdatable)


def _changed(
    answer: list[Any], named: list[str], refused: Callable[..., NotTriggerable | NotHoldable | NotUpdatable]
) -> Changed:
    """What a script has changed, or else why it has changed nothing: the place of an item, its status, and
    what else there is to say of it."""
    if len(answer) == 1:
        return Changed(item_states(answer[0]))
    place: int = answer[0]
    status: bytes = answer[1]
    if not status:
        raise NotFound(named[place - 1])
    raise refused(named[place - 1], STATUSES[status], *map(bool, answer[2:]))


def pack_update(changes: ItemUpdate) -> bytes:
    """What update.lua gets. What stays as it is, is left out."""
    values: dict[str, object] = {}
    if changes.run_at is not UNSET:
        values["at"] = float(changes.run_at)
    if changes.priority is not UNSET:
        # Scripts cannot read the binary type of msgpack.
        values["p"] = [*pack_priority(changes.priority)]
    if changes.lane is not UNSET:
        values["l"] = changes.lane
    if changes.queue is not UNSET:
        values["q"] = changes.queue
    if changes.deadline is not UNSET:
        values["d"] = False if changes.deadline is None else float(changes.deadline)
    return _encode(values)
