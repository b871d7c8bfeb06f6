"""Changes: change many items with one verb, portion by portion, and tell those that were not changed.

Commands, `app.dead`, bulk actions and the dashboard do it in this one way. A source hands out the items, a
`PortionChanger` changes them and counts, and `ItemChanges` goes from step to step: a canary first, at a rate.
`BulkProgress` is all that must be kept between two steps, so they may be those of different processes.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from treadle.backend import Backend
from treadle.base.wording import listed, plural
from treadle.bulk_action import (
    BULK_TYPE,
    MOST_EXAMPLES,
    PORTION,
    ActionVerb,
    BulkItem,
    BulkProgress,
    BulkRefusal,
)
from treadle.engine.run.unsatisfied import read_roots
from treadle.errors import AlreadyEnded, ConflictError, InputError, NotFound, NotUpdatable, TreadleError
from treadle.item import OPEN, TELL_TYPE, TERMINAL, Filter, GroupState, ItemState, Page, Ref, Status
from treadle.store.reads import by_tenant, get_refs, outermost_groups
from treadle.store.rules.listing import LARGEST_PAGE

from .filters import OPEN_STATUSES, STATUSES
from .operator import Operator, core_of, tenant_of

MEANWHILE: Final = "changed by others meanwhile"
MOST_NAMED: Final = 3
"""The most causes that are named one by one."""
REACH: Final = 50_000
"""Items that are looked at for one portion, about, if few match."""
COUNT_CAP: Final = 10_000
"""The most items that are counted before a change."""
LONGEST_MESSAGE: Final = 300
"""Characters of an error that are kept for an item that was not changed."""

C = TypeVar("C", bound=Operator)
Change = Callable[[Operator, Sequence[ItemState]], Awaitable["PortionOutcome"]]


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


# ----------------------------------------------------------------------------------------------- sources


class WantedItem(NamedTuple):
    """An item that was named. Without a tenant: the first one that has the id."""

    id: str
    tenant: str | None


class Portion(NamedTuple):
    """The next items of a source."""

    items: list[ItemState]
    missing: list[Refusal]
    """Those that were named, and do not exist."""
    cursor: str | None
    """Where the next portion begins. None: there is none."""
    is_short: bool = False
    """The store has looked at `REACH` items, and found no more among them."""


class Source(Protocol):
    """Hands out the items to change, portion by portion, each once."""

    async def take(self, count: int, cursor: str | None) -> Portion:
        """Up to `count` items after a cursor. None: the first ones."""
        ...


class NamedSource:
    """Items that were named."""

    def __init__(self, backend: Backend, wanted: Sequence[WantedItem], *, bulk: bool = True) -> None:
        self._backend = backend
        self._wanted = wanted
        self._bulk = bulk

    async def take(self, count: int, cursor: str | None) -> Portion:
        first = int(cursor or 0)
        named = self._wanted[first : first + count]
        items, missing = await read_named(self._backend, named)
        last = first + len(named)
        return Portion(_chosen(items, self._bulk), missing, str(last) if last < len(self._wanted) else None)


class PagedSource:
    """Items that a list finds, each once: also if an item is changed, and then is again as it was.

    list_page: takes `limit` and `cursor`. limit: the most items in all.
    bulk: also items of bulk actions, and messages about problems: see `names_bulk_actions`.
    """

    def __init__(
        self,
        list_page: Callable[..., Awaitable[Page]],
        *,
        bulk: bool,
        limit: int | None = None,
    ) -> None:
        self._list_page = list_page
        self._left = limit
        self._bulk = bulk

    async def take(self, count: int, cursor: str | None) -> Portion:
        if self._left is not None:
            count = min(count, self._left)
            if count <= 0:
                return Portion([], [], None)
        page = await self._list_page(limit=count, cursor=cursor)
        cursor, items = page.cursor, _chosen(page.items, self._bulk)
        if self._left is not None:
            self._left -= len(items)
            cursor = cursor if self._left > 0 else None
        return Portion(items, [], cursor, page.reached_at is not None)


def filter_source(
    backend: Backend, where: Filter, *, bulk: bool, limit: int | None = None, reach: int = REACH
) -> PagedSource:
    """Items that a filter finds, oldest first."""
    bound = reach if "watching" in backend.capabilities else None
    return PagedSource(partial(backend.list, where, oldest_first=True, reach=bound), limit=limit, bulk=bulk)


def names_bulk_actions(where: Mapping[str, object]) -> bool:
    """Whether items of bulk actions that a filter finds are meant. One by status and time finds them by
    accident."""
    return any(where.get(name) for name in ("type", "queue", "workflow", "group_id", "mark"))


def _chosen(items: Iterable[ItemState], bulk: bool) -> list[ItemState]:
    return [item for item in items if bulk or item.type not in (BULK_TYPE, TELL_TYPE)]


async def read_named(backend: Backend, wanted: Sequence[WantedItem]) -> tuple[list[ItemState], list[Refusal]]:
    """The items that were named, in their order, and those that do not exist."""
    found: dict[WantedItem, ItemState | None] = {}
    for tenant in dict.fromkeys(each.tenant for each in wanted):
        own = [each for each in wanted if each.tenant == tenant]
        found.update(zip(own, await backend.get([each.id for each in own], tenant=tenant), strict=True))
    missing = [Refusal(each.id, each.tenant, NotFound(each.id)) for each in wanted if found[each] is None]
    return [state for each in wanted if (state := found[each]) is not None], missing


class ItemCount:
    """How many items a source has, up to a bound. It may be read while it counts."""

    def __init__(self, examples: int = 0) -> None:
        self.count = 0
        self.more = True
        """There are more, or there may be."""
        self.examples: list[ItemState] = []
        self._most_examples = examples

    async def read(
        self,
        source: Source,
        *,
        page: int = LARGEST_PAGE,
        seconds: float = math.inf,
        bounded: bool = True,
        look: Callable[[list[ItemState]], Awaitable[None]] | None = None,
    ) -> None:
        """Count. bounded: end with a page that is short because of `REACH`. look: called with the items."""
        cursor: str | None = None
        end = time.monotonic() + seconds
        while self.more and self.count < COUNT_CAP and time.monotonic() < end:
            portion = await source.take(page, cursor)
            items = portion.items[: COUNT_CAP - self.count]
            if look is not None:
                await look(items)
            self.examples += items[: self._most_examples - len(self.examples)]
            self.count, cursor = self.count + len(items), portion.cursor
            self.more = cursor is not None or len(items) < len(portion.items)
            if bounded and portion.is_short:
                return


# ---------------------------------------------------------------------------------------------- portions


class StatusConflict(ConflictError):
    """The item is in a status in which this cannot be done."""

    def __init__(self, item: ItemState, advice: str) -> None:
        super().__init__(f"item {item.id!r} is {item.status}: {advice}")


def refuse_status(item: ItemState, statuses: tuple[Status, ...], advice: str) -> Refusal | None:
    """Why an item cannot be changed, as far as its status says. No statuses: any will do."""
    if not statuses or item.status in statuses:
        return None
    return Refusal(item.id, item.tenant, StatusConflict(item, advice))


def allowed(item: object) -> None:
    """Nothing speaks against the change of an item."""


class PortionChanger:
    """Changes portions of items, and counts.

    client_of: gives a client of one tenant.
    change: called with items of one tenant, and a client of that tenant.
    refusal: says why an item cannot be changed at all.
    tell: called for each item that was not changed.
    """

    def __init__(
        self,
        client_of: Callable[[str], C],
        change: Callable[[C, Sequence[ItemState]], Awaitable[PortionOutcome]],
        refusal: Callable[[ItemState], Refusal | None] = allowed,
        tell: Callable[[Refusal], None] = allowed,
    ) -> None:
        async def change_of(tenant: str, items: Sequence[ItemState]) -> PortionOutcome:
            return await change(client_of(tenant), items)

        self._change = change_of
        self._refusal = refusal
        self._tell = tell
        self.matched = 0
        self.changed = 0
        self.skipped: Counter[str] = Counter()
        self.unknown = 0
        """Items that the store was told to change, and gave no answer for."""

    def count_from(self, progress: BulkProgress) -> None:
        """Go on with what earlier portions counted."""
        self.matched, self.changed = progress.matched, progress.changed
        self.skipped = Counter(progress.skipped)

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
            try:
                outcome = await self._change(tenant, own)
            except InputError:  # the store was not told
                self.unknown = 0
                raise
            self.unknown = 0
            self.changed += outcome.changed
            refused += outcome.refused
            if (left := len(own) - outcome.changed - len(outcome.refused)) > 0:
                self.skipped[MEANWHILE] += left
        self.skipped.update(type(each.error).__name__ for each in refused)
        for each in refused:
            self._tell(each)
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


class VerbRules(msgspec.Struct, frozen=True):
    """What a verb of bulk actions can be used for."""

    usual: tuple[Status, ...]
    """The statuses of the items that it changes, unless the filter names others."""
    allowed: tuple[Status, ...]
    """The statuses that a filter may name."""
    advice: str
    canary: bool
    """Whether its items run afterwards, so that a canary says something."""


_DUE: Final = ("scheduled", "ready")
_WAITING: Final = ("blocked", *_DUE)

VERBS: Final[dict[ActionVerb, VerbRules]] = {
    "requeue": VerbRules(
        ("dead",), ("dead", "cancelled"), "only dead or cancelled items can be requeued", True
    ),
    "cancel": VerbRules(OPEN_STATUSES, OPEN_STATUSES, "only open items can be cancelled", False),
    "delete": VerbRules((), STATUSES, "", False),
    "trigger": VerbRules(("scheduled",), ("scheduled",), "only scheduled items can be triggered", True),
    "hold": VerbRules(_DUE, _DUE, "only ready and scheduled items can be held", False),
    "unhold": VerbRules(("scheduled",), ("scheduled",), "only held items can be let go", True),
    "update": VerbRules(_WAITING, _WAITING, "only items that have not started can be updated", True),
}


def refuse_verb(verb: ActionVerb, item: ItemState, statuses: tuple[Status, ...]) -> Refusal | None:
    """Why an item cannot be changed with a verb, as far as it is known before. statuses: those that were
    asked for."""
    refusal = refuse_status(item, statuses, VERBS[verb].advice)
    if refusal is None and verb == "update" and item.attempt:
        return Refusal(item.id, item.tenant, NotUpdatable(item.id, item.status))
    if refusal is None and verb in ("hold", "unhold") and item.held == (verb == "hold"):
        advice = "it is held already" if item.held else "it is not held"
        return Refusal(item.id, item.tenant, StatusConflict(item, advice))
    return refusal


def change_of(
    verb: ActionVerb,
    *,
    cancelled: bool = True,
    open: bool = False,
    advice: str = "",
    changes: Mapping[str, Any] | None = None,
) -> Change:
    """The function that changes items with a verb.

    cancelled: requeue cancelled items too. open: delete groups that are still open too. advice: what is said
    of these otherwise. changes: what an update changes.
    """
    match verb:
        case "requeue":
            return Requeue(alone=False, cancelled=cancelled).change
        case "cancel":
            return cancel_items
        case "trigger":
            return trigger_items
        case "hold":
            return lambda client, items: all_or_none(items, client.hold)
        case "unhold":
            return lambda client, items: all_or_none(items, client.unhold)
        case "delete":
            return Deletion(open=open, advice=advice).change
        case "update":
            given = changes or {}
            return lambda client, items: all_or_none(items, lambda ids: client.update(ids, **given))


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


class NoSuchStep(ConflictError):
    """An item stays as it is: it has not recorded the step that it should be requeued from."""

    def __init__(self, item: ItemState, step: str) -> None:
        super().__init__(f"item {item.id!r} has no step {step!r}: `treadle show` has its steps")


class Requeue:
    """Opens items, and remembers what must be opened before those that stay as they are.

    from_step: forget this step of each, and those recorded after it. Items without it stay as they are.
    """

    def __init__(self, *, alone: bool, cancelled: bool, from_step: str | None = None) -> None:
        self._alone = alone
        self._cancelled = cancelled
        self._from_step = from_step
        self.roots: dict[Ref, ItemState] = {}

    async def change(self, client: Operator, items: Sequence[ItemState]) -> PortionOutcome:
        lacking = await self._lacking(core_of(client).backend, items)
        if lacking:
            ids = {each.id for each in lacking}
            outcome = await self._open(client, [item for item in items if item.id not in ids])
            return PortionOutcome(outcome.changed, [*outcome.refused, *lacking])
        return await self._open(client, items)

    async def _lacking(self, backend: Backend, items: Sequence[ItemState]) -> list[Refusal]:
        """Those of these items that do not have the step."""
        name = self._from_step
        if name is None:
            return []
        refused: list[Refusal] = []
        for item in items:  # one at a time: an item may have recorded very much
            (found,) = await backend.steps([item.id], tenant=item.tenant) if item.has_steps else (None,)
            if found is None or not any(step.name == name for step in found.kept):
                refused.append(Refusal(item.id, item.tenant, NoSuchStep(item, name)))
        return refused

    async def _open(self, client: Operator, items: Sequence[ItemState]) -> PortionOutcome:
        if not items:
            return PortionOutcome(0)
        changed = await client.requeue(
            items, alone=self._alone, cancelled=self._cancelled, from_step=self._from_step
        )
        # What is open again may be others that wait for them, so how many these are says nothing.
        waits = {item.id: item for item in items if item.after}
        found = await client.get(list(waits)) if waits else ()
        stay = [now for now in found if now is not None and now.ended_at == waits[now.id].ended_at]
        return PortionOutcome(changed, self.refuse(stay, await read_roots(core_of(client).backend, stay)))

    async def stay(
        self, backend: Backend, items: Sequence[ItemState], opened: Set[Ref]
    ) -> tuple[list[ItemState], list[Refusal]]:
        """Those of these items that would stay as they are, if besides them only `opened` were open again,
        and why. Items come oldest first, so their causes come before them."""
        waits = [item for item in items if item.reason == "unsatisfiable"]
        roots = await read_roots(backend, waits)
        own = {(item.tenant, item.id) for item in items if item.reason != "unsatisfiable"}
        stay = [
            item
            for item in waits
            if not {(root.tenant, root.id) for root in roots[item.tenant, item.id]} <= opened | own
        ]
        lacking = await self._lacking(backend, items)
        without = {(each.tenant, each.id) for each in lacking}
        refused = [*self.refuse(stay, roots), *lacking]
        return [*stay, *(item for item in items if (item.tenant, item.id) in without)], refused

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

    def __init__(self, *, open: bool, advice: str = "", cascade: bool = False) -> None:
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


# ------------------------------------------------------------------------------------------------- steps


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


class ItemChanges:
    """Changes what a source hands out, step by step.

    rate: items per second. canary: how many are changed first, and judged before the others follow.
    """

    def __init__(
        self,
        backend: Backend,
        source: Source,
        changer: PortionChanger,
        *,
        rate: float | None = None,
        canary: int = 0,
        canary_wait: float = 0.0,
    ) -> None:
        self._backend = backend
        self._source = source
        self._changer = changer
        self._rate = rate
        self._canary = canary
        self._canary_wait = canary_wait
        self.portion = PORTION if rate is None else max(1, min(PORTION, math.ceil(rate)))
        """The most items of one step."""

    async def change(self, progress: BulkProgress) -> BulkProgress:
        """Change the next items. The phase says what follows: `change`, `canary` or `done`."""
        tries = bool(self._canary) and not progress.judged
        count = self._canary - len(progress.tried) if tries else self.portion
        portion = await self._source.take(count, progress.cursor)
        self._changer.count_from(progress)
        tried, refused = await self._changer.change(portion.items, portion.missing)
        progress = _added(progress, self._changer, refused, portion.cursor)
        if tries:
            return await self._with_tried(progress, tried)
        return progress if portion.cursor is not None else replace(progress, phase="done")

    async def _with_tried(self, progress: BulkProgress, tried: Sequence[ItemState]) -> BulkProgress:
        """The canary is complete, or there are no more items for it."""
        named = (*progress.tried, *(BulkItem(each.id, each.tenant) for each in tried))
        progress = replace(progress, tried=named)
        if progress.cursor is not None and len(named) < self._canary:
            return progress
        if not named:
            return replace(progress, phase="done")
        judge_by = await self._backend.now() + self._canary_wait
        return replace(progress, phase="canary", judge_by=judge_by)

    def pause(self, before: BulkProgress, after: BulkProgress, took: float) -> float:
        """Seconds to wait after a step that took some, so that the rate is kept."""
        if self._rate is None:
            return 0.0
        return max(0.0, (after.matched - before.matched) / self._rate - took)

    async def read_canary(self, progress: BulkProgress) -> CanaryEnd:
        """How the first items stand."""
        return await read_canary(self._backend, [(each.tenant or "", each.id) for each in progress.tried])


def after_canary(progress: BulkProgress, end: CanaryEnd) -> BulkProgress:
    """Go on if all have succeeded. Otherwise the others are held back."""
    if end.is_good:
        phase = "change" if progress.cursor is not None else "done"
        return replace(progress, phase=phase, judged=True)
    guilty = tuple(BulkItem(each.id, each.tenant) for each in (*end.failed, *end.open))
    return replace(progress, phase="held_back", held_back_by=guilty)


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
        matched=changer.matched,
        changed=changer.changed,
        skipped=dict(changer.skipped),
        refused=(*progress.refused, *examples),
        cursor=cursor,
    )
