"""Portions: change many items with one verb, as many at a time as one step can, and tell those that were not.

Used by `app.bulk` and by the command line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from treadle.backend import Backend
from treadle.base.wording import listed, plural
from treadle.engine.read_refs import by_tenant, get_refs, outermost_groups
from treadle.engine.run.unsatisfied import read_roots
from treadle.errors import AlreadyEnded, ConflictError, NotFound, TreadleError
from treadle.item import OPEN, TERMINAL, GroupState, ItemState, Ref, Status

from .operator import Operator, core_of, tenant_of

MEANWHILE: Final = "changed by others meanwhile"
MOST_NAMED: Final = 3
"""The most causes that are named one by one."""

C = TypeVar("C", bound=Operator)


class Refusal(NamedTuple):
    """An item that was not changed, and why."""

    id: str
    tenant: str | None
    error: TreadleError

    @property
    def message(self) -> str:
        """The error as it is said of this item. What its verb did not do to others is left out."""
        return getattr(self.error, "alone", "") or str(self.error)


class PortionOutcome(NamedTuple):
    """What became of a portion."""

    changed: int
    refused: Sequence[Refusal] = ()


class WantedItem(NamedTuple):
    """An item that was named. Without a tenant: the first one that has the id."""

    id: str
    tenant: str | None


async def read_named(backend: Backend, wanted: Sequence[WantedItem]) -> tuple[list[ItemState], list[Refusal]]:
    """The items that were named, in their order, and those that do not exist."""
    found: dict[WantedItem, ItemState | None] = {}
    for tenant in dict.fromkeys(each.tenant for each in wanted):
        own = [each for each in wanted if each.tenant == tenant]
        found.update(zip(own, await backend.get([each.id for each in own], tenant=tenant), strict=True))
    missing = [Refusal(each.id, each.tenant, NotFound(each.id)) for each in wanted if found[each] is None]
    return [state for each in wanted if (state := found[each]) is not None], missing


class StatusConflict(ConflictError):
    """The item is in a status in which this cannot be done."""

    def __init__(self, item: ItemState, advice: str) -> None:
        super().__init__(f"item {item.id!r} is {item.status}: {advice}")


def refuse_status(item: ItemState, statuses: tuple[Status, ...], advice: str) -> Refusal | None:
    """Why an item cannot be changed, as far as its status says. No statuses: any will do."""
    if not statuses or item.status in statuses:
        return None
    return Refusal(item.id, item.tenant, StatusConflict(item, advice))


class PortionChanger:
    """Changes portions of items, and counts.

    client_of: gives a client of one tenant.
    change: called with items of one tenant, and a client of that tenant.
    refusal: says why an item cannot be changed at all.
    """

    def __init__(
        self,
        client_of: Callable[[str], C],
        change: Callable[[C, Sequence[ItemState]], Awaitable[PortionOutcome]],
        refusal: Callable[[ItemState], Refusal | None],
    ) -> None:
        async def change_of(tenant: str, items: Sequence[ItemState]) -> PortionOutcome:
            return await change(client_of(tenant), items)

        self._change = change_of
        self._refusal = refusal
        self.matched = 0
        self.changed = 0
        self.skipped: Counter[str] = Counter()
        self.unknown = 0
        """Items that the store was told to change, and gave no answer for."""

    async def change(
        self, items: Sequence[ItemState], missing: Sequence[Refusal] = ()
    ) -> tuple[list[ItemState], list[Refusal]]:
        """Change a portion. missing: items that were named, and do not exist. Returns those that were not
        refused, and the refusals."""
        self.matched += len(items) + len(missing)
        refusals = [(item, self._refusal(item)) for item in items]
        able = by_tenant(item for item, refusal in refusals if refusal is None)
        refused = [*missing, *(refusal for _, refusal in refusals if refusal is not None)]
        for tenant, own in able.items():
            self.unknown = len(own)
            outcome = await self._change(tenant, own)
            self.unknown = 0
            self.changed += outcome.changed
            refused += outcome.refused
            if (left := len(own) - outcome.changed - len(outcome.refused)) > 0:
                self.skipped[MEANWHILE] += left
        self.skipped.update(type(each.error).__name__ for each in refused)
        names = {(each.tenant, each.id) for each in refused}
        return [item for own in able.values() for item in own if (item.tenant, item.id) not in names], refused


async def all_or_none(
    items: Sequence[ItemState], call: Callable[[list[str]], Awaitable[int]]
) -> PortionOutcome:
    """Change items with a verb that changes all of them or none. What is refused is left out of the next try:
    one item, if the error names it. Otherwise halves are tried."""
    left: list[ItemState] = list(items)
    refused: list[Refusal] = []
    while left:
        try:
            return PortionOutcome(await call([item.id for item in left]), refused)
        except (ConflictError, NotFound) as error:
            named = left if len(left) == 1 else [item for item in left if item.id == getattr(error, "id", "")]
            refused += (Refusal(item.id, item.tenant, error) for item in named)
        if not named:
            middle = len(left) // 2
            halves = [await all_or_none(half, call) for half in (left[:middle], left[middle:])]
            changed, others = sum(each.changed for each in halves), [each.refused for each in halves]
            return PortionOutcome(changed, [*refused, *others[0], *others[1]])
        left = [item for item in left if item not in named]
    return PortionOutcome(0, refused)


# ------------------------------------------------------------------------------------------------ verbs


async def cancel_items(client: Operator, items: Sequence[ItemState]) -> PortionOutcome:
    """Cancel items, and what they have queued: also what those have queued that have ended."""
    open = [item.id for item in items if item.status in OPEN]
    changed = await client.cancel(open) if open else 0
    refused: list[Refusal] = []
    for item in items:
        if item.status in TERMINAL:
            below = await client.cancel(item.id)
            changed += below
            if not below:
                refused.append(Refusal(item.id, item.tenant, AlreadyEnded(item.id, item.status)))
    return PortionOutcome(changed, refused)


async def trigger_items(client: Operator, items: Sequence[ItemState]) -> PortionOutcome:
    """Run scheduled items now."""

    async def call(ids: list[str]) -> int:
        await client.trigger(ids)
        return len(ids)

    return await all_or_none(items, call)


class PrerequisiteFailed(ConflictError):
    """An item stays as it is: what it waits for has failed, because of `roots`."""

    def __init__(self, item: ItemState, roots: Sequence[ItemState]) -> None:
        text = f"item {item.id!r} stays {item.status}: what it waits for can no longer happen"
        named = listed([f"{root.id} ({root.type})" for root in roots], MOST_NAMED)
        super().__init__(f"{text}. Requeue {named} first" if roots else text)


class Requeue:
    """Opens items, and remembers what must be opened before those that stay as they are."""

    def __init__(self, *, alone: bool, cancelled: bool) -> None:
        self._alone = alone
        self._cancelled = cancelled
        self.roots: dict[Ref, ItemState] = {}

    async def change(self, client: Operator, items: Sequence[ItemState]) -> PortionOutcome:
        changed = await client.requeue(items, alone=self._alone, cancelled=self._cancelled)
        # What is open again may be others that wait for them, so how many these are says nothing.
        waits = {item.id: item for item in items if item.after}
        found = await client.get(list(waits)) if waits else ()
        stay = [now for now in found if now is not None and now.ended_at == waits[now.id].ended_at]
        return PortionOutcome(changed, self.refuse(stay, await read_roots(core_of(client).backend, stay)))

    def refuse(self, items: Sequence[ItemState], roots: dict[Ref, list[ItemState]]) -> list[Refusal]:
        refused: list[Refusal] = []
        for item in items:
            causes = roots.get((item.tenant, item.id), [])
            self.roots.update({(cause.tenant, cause.id): cause for cause in causes})
            refused.append(Refusal(item.id, item.tenant, PrerequisiteFailed(item, causes)))
        return refused


class GroupStillOpen(ConflictError):
    """The group has open members."""

    def __init__(self, group: GroupState, advice: str) -> None:
        members = plural(group.open, "open item")
        super().__init__(f"the group {group.id!r} has {members}: {advice}")


class GroupChoice:
    """The groups that items belong to, the outermost ones, and the items that cannot be deleted."""

    def __init__(self) -> None:
        self.groups: dict[str, tuple[GroupState, list[ItemState]]] = {}
        """By the id of the group: with the items that are in it or in groups inside it."""
        self.refused: list[Refusal] = []


class Deletion:
    """Removes the groups of items.

    open: groups that are still open too. advice: what is said of these otherwise.
    """

    def __init__(self, *, open: bool, advice: str, cascade: bool = False) -> None:
        self._cascade = cascade
        self._open = open
        self._advice = advice

    async def choose(self, client: Operator, items: Sequence[ItemState]) -> GroupChoice:
        """The groups to delete."""
        chosen = GroupChoice()
        by_group: dict[str, list[ItemState]] = {}
        for item in items:
            by_group.setdefault(item.group_id, []).append(item)
        backend, tenant = core_of(client).backend, tenant_of(client)
        around = await outermost_groups(backend, by_group, tenant=tenant)
        for id, members in by_group.items():
            group = around.get(id)
            if group is None:
                chosen.refused += (Refusal(each.id, each.tenant, NotFound(each.id)) for each in members)
            elif group.open and not self._open:
                still_open = GroupStillOpen(group, self._advice)
                chosen.refused += (Refusal(each.id, each.tenant, still_open) for each in members)
            else:
                chosen.groups.setdefault(group.id, (group, []))[1].extend(members)
        return chosen

    async def change(self, client: Operator, items: Sequence[ItemState]) -> PortionOutcome:
        chosen = await self.choose(client, items)
        if not chosen.groups:
            return PortionOutcome(0, chosen.refused)
        by_first = {members[0].id: (id, members) for id, (_, members) in chosen.groups.items()}

        async def call(given: list[str]) -> int:
            return await client.delete([by_first[each][0] for each in given], cascade=self._cascade)

        outcome = await all_or_none([members[0] for _, members in by_first.values()], call)
        # A group stays with all items that were asked for.
        refused = [each._replace(id=item.id) for each in outcome.refused for item in by_first[each.id][1]]
        return PortionOutcome(outcome.changed, [*chosen.refused, *refused])


# ----------------------------------------------------------------------------------------------- canary


class CanaryEnd(NamedTuple):
    """How the first items ended."""

    succeeded: list[ItemState]
    failed: list[ItemState]
    """Dead or cancelled. Items that do not exist any more are left out."""
    open: list[ItemState]

    @property
    def is_good(self) -> bool:
        return not self.failed and not self.open


async def read_canary(backend: Backend, refs: Iterable[Ref]) -> CanaryEnd:
    """How these items stand."""
    states = list((await get_refs(backend, refs)).values())
    return CanaryEnd(
        [state for state in states if state.status == "success"],
        [state for state in states if state.status in ("dead", "cancelled")],
        [state for state in states if state.status not in TERMINAL],
    )
