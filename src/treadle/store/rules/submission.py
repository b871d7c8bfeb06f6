"""Submission: dependencies, keys, duplicate ids and cycles."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from treadle.errors import (
    CycleError,
    DuplicateIdError,
    DuplicateKeyError,
    NotFound,
    StoreUnavailable,
    TreadleError,
)
from treadle.item import GROUP_MARK, Counting, Item, Ref, Rejected, Status, Submitted

N = TypeVar("N")

# --------------------------------------------------------------------------------------------------- the plan


KeyRef: TypeAlias = tuple[str, str, str]
"""A tenant, a type and an idempotency key."""


class KeyHolder(NamedTuple):
    """The stored item that holds a key."""

    id: str
    group_open: bool
    queued_at: float
    unstarted: bool = False
    """It may take over what a new item has: no attempt counts as begun, it has no lease and is not doomed."""
    changed_by: tuple[str, ...] = ()
    """The ids of the last new items that it took something over from."""
    group_id: str | None = None
    """None: its own id."""


KEPT_CHANGES = 20
"""How many ids `KeyHolder.changed_by` has at most."""


class SubmitPlan(Struct, eq=False):
    """What a submission comes to: which items are stored, and which item answers for each."""

    new: dict[Ref, Item] = {}
    """To be stored, with `after` as keys have resolved it."""
    answers: list[tuple[Ref, bool]] = []
    """For each submitted item, in order: the item that answers for it, and whether that is an earlier
    one (a stored one, or one of `new`)."""
    existing: dict[str, str] = {}
    """The ids that are not stored, and the ids that answer for them."""
    keys: dict[KeyRef, Ref] = {}
    """The keys that new items are to hold."""
    changes: dict[Ref, Item] = {}
    """What stored items, and items of `new` once they are stored, take over. Their keys answer for these."""


def plan_submission(
    items: Iterable[Item],
    now: float,
    holder: Callable[[KeyRef], KeyHolder | None],
    exists: Callable[[Ref], bool],
    tenant: str | None = None,
) -> SubmitPlan | Rejected:
    """Resolve keys, refuse duplicate ids and ids that must exist and do not, and rename: an item that waits
    for one that is not stored waits for the one that answers instead. `dependency_cycle` is the last check.
    `exists` is asked about items and, with `GROUP_MARK`, about groups. `tenant`: the items' true tenant, if
    it is not the one they name.
    """
    plan = SubmitPlan()
    renamed: dict[Ref, str] = {}
    """By the names of items and groups."""
    duplicates: dict[str, None] = {}
    refused: dict[str, str] = {}
    for item in items:
        owner = tenant or item.tenant
        ref = (owner, item.id)
        key = None if item.key is None else (owner, item.type, item.key)
        found = None if key is None else _answering(plan, item, key, now, holder)
        if found is not None:
            earlier = (owner, found.id)
            renamed[ref] = plan.existing[item.id] = found.id
            renamed[owner, GROUP_MARK + item.id] = GROUP_MARK + (found.group_id or found.id)
            plan.answers.append((earlier, True))
            if item.key_policy == "error":
                refused[found.id] = item.key or ""
            elif item.key_policy != "existing" and takes_over(found, item.id):
                _plan_change(plan, earlier, item)
            elif item.id in found.changed_by:
                plan.changes.pop(earlier, None)  # older ones of the same call, which is repeated
            continue
        if ref in plan.new or exists(ref):
            duplicates[item.id] = None
        plan.new[ref] = item
        plan.answers.append((ref, False))
    if refused:
        return Rejected("duplicate_key", tuple(refused), tuple(refused.values()))
    if duplicates:
        return Rejected("duplicate_id", tuple(duplicates))
    missing = [
        id for ref, item in plan.new.items() if item.must_exist for id in _missing(plan, ref[0], item, exists)
    ]
    if missing:
        return Rejected("not_found", tuple(missing))
    if renamed:
        for ref, item in plan.new.items():
            after = tuple(renamed.get((ref[0], id), id) for id in item.after)
            if after != item.after:
                plan.new[ref] = replace(item, after=after)
    for ref, item in plan.new.items():
        if item.closes_group and len(item.after) > 1:
            plan.new[ref] = _without_members(plan, ref[0], item)
    return plan


def _without_members(plan: SubmitPlan, owner: str, closing: Item) -> Item:
    """An item that closes a nested group waits for new members by the group, not by their names."""
    after = tuple(
        name
        for name in closing.after
        if (member := plan.new.get((owner, name))) is None or member.group_id != closing.id
    )
    return replace(closing, after=after, need=closing.need - len(closing.after) + len(after))


def _missing(plan: SubmitPlan, owner: str, item: Item, exists: Callable[[Ref], bool]) -> Iterable[str]:
    """The names of items and groups that were submitted before and do not exist now."""
    return (
        name
        for name in item.must_exist
        if (owner, name.removeprefix(GROUP_MARK)) not in plan.new and not exists((owner, name))
    )


def _answering(
    plan: SubmitPlan, item: Item, key: KeyRef, now: float, holder: Callable[[KeyRef], KeyHolder | None]
) -> KeyHolder | None:
    """The earlier item that answers for this one by its key. None: this one is to hold the key."""
    if key in plan.keys:
        return KeyHolder(plan.keys[key][1], True, now, unstarted=True)
    found = holder(key)
    if found is not None and key_answers(
        item.key_scope, group_open=found.group_open, age=now - found.queued_at
    ):
        return found
    plan.keys[key] = (key[0], item.id)
    return None


def takes_over(holder: KeyHolder, new: str) -> bool:
    """Whether the holder of a key takes over what a new item has, by the id of that. A submit that is
    repeated because its answer was lost changes nothing."""
    return holder.unstarted and new != holder.id and new not in holder.changed_by


def may_change(item: Item, answer: Submitted) -> bool:
    """Whether an earlier item may have changed, by the answer for a new one with its key."""
    return answer.existing and item.key_policy in ("replace", "debounce")


def changers(before: tuple[str, ...], new: str) -> tuple[str, ...]:
    """`KeyHolder.changed_by` after one more change."""
    return (*before[1 - KEPT_CHANGES :], new)


def _plan_change(plan: SubmitPlan, earlier: Ref, item: Item) -> None:
    plan.changes.pop(earlier, None)  # in the order of the last changes
    plan.changes[earlier] = item
    first = plan.new.get(earlier)
    if first is not None:
        plan.new[earlier] = replace(first, lease_to=None)


def changed_item(item: Item, new: Item) -> Item:
    """An item that has taken over what `new` has."""
    return replace(
        item,
        input=new.input,
        options=new.options,
        attempts=new.attempts,
        priority=new.priority,
        lane=new.lane,
        queue=new.queue,
        keep=new.keep,
        keep_dead=new.keep_dead,
    )


def key_answers(scope: Literal["open", "any"] | float, *, group_open: bool, age: float) -> bool:
    """Whether an earlier item that holds the key answers for a new one. `age`: seconds since it was
    submitted."""
    if scope == "open":
        return group_open
    return scope == "any" or age <= scope


def as_child(item: Item, tenant: str, parent: str) -> Item:
    """A child belongs to the tenant of the item that queued it, and has it as parent unless it names one."""
    parent = parent if item.parent is None else item.parent
    if item.tenant == tenant and item.parent == parent:
        return item
    return replace(item, tenant=tenant, parent=parent)


# ----------------------------------------------------------------------------------------------- dependencies


class Waits(Protocol):
    """What waits for others: an Item, or what is known of one."""

    @property
    def after(self) -> tuple[str, ...]: ...
    @property
    def need(self) -> int: ...
    @property
    def counting(self) -> Counting: ...


def counts(counting: Counting, ended: Status) -> bool:
    """Whether a prerequisite that ended this way counts as met."""
    return counting == "done" or ended == "success"


def is_tolerant(counting: Counting, need: int, after: Sequence[str]) -> bool:
    """Whether an item may run although one of `after` dies: any end counts for it, or it needs fewer than it
    names."""
    return counting == "done" or need < len(after)


def dependency_state(need: int, met: int, open: int) -> Literal["released", "doomed", "waiting"]:
    """`released`: enough prerequisites are met. `doomed`: too few are open to meet the need."""
    if met >= need:
        return "released"
    return "doomed" if met + open < need else "waiting"


class Dependencies(Struct, eq=False):
    """What an item waits for: how many prerequisites are met, how many are open, and which.

    Keys can make two names mean one item. It then stands twice in `after`, and counts twice.
    """

    need: int
    met: int = 0
    open: int = 0
    pending: dict[str, int] = {}
    """The open prerequisites, and how often each is named. Those that do not exist yet are open."""

    @property
    def state(self) -> Literal["released", "doomed", "waiting"]:
        return dependency_state(self.need, self.met, self.open)

    def count(self, id: str, counting: Counting, ended: Status) -> bool:
        """Count the end of a prerequisite, once. False: it was counted before."""
        times = self.pending.pop(id, 0)
        self.open -= times
        if times and counts(counting, ended):
            self.met += times
        return times > 0

    def reopen(self, id: str, times: int) -> bool:
        """A prerequisite that ended without counting is open again. False: it was open."""
        if id in self.pending:
            return False
        self.pending[id] = times
        self.open += times
        return True


def count_dependencies(item: Waits, ended: Callable[[str], Status | None]) -> Dependencies:
    """The dependencies of an item if it is stored now. `ended`: the status of a prerequisite that has ended,
    by its id; None if it is open or does not exist."""
    found = Dependencies(item.need)
    for id in item.after:
        status = ended(id)
        if status is None:
            found.pending[id] = found.pending.get(id, 0) + 1
            found.open += 1
        elif counts(item.counting, status):
            found.met += 1
    return found


def dependency_cycle(
    new: Mapping[Ref, Item],
    ended: Callable[[Ref], Status | None],
    is_awaited: Callable[[Ref], bool],
    waits_for: Callable[[Ref], Iterable[Ref]],
    group_id: str | None = None,
) -> tuple[str, ...] | None:
    """The ids of items that would wait for each other if `new` were stored; None if there are none. A group
    waits for its members. `group_id`: the stored group that the new items join; None: each is a root.

    The lookups are about stored items and groups: how one `ended`, whether one waits for a new item or for
    the group that it joins, and what a blocked one waits for. Every cycle goes through a new item. It leads
    through stored items only if a new item waits for one, and one of them waits for a new item.
    """
    blocked = {ref: item for ref, item in new.items() if item.after}
    if not blocked:
        return None
    joined: dict[Ref, list[Ref]] = {}
    for ref, item in blocked.items():
        joined.setdefault((ref[0], GROUP_MARK + joined_group(item, group_id)), []).append(ref)
    among_new, leads_out, names_joined = _named_by(new, blocked, joined, group_id)
    through_stored = leads_out and (names_joined or any(map(is_awaited, (*blocked, *joined))))
    if not through_stored and not among_new:
        return None

    def next_refs(ref: Ref) -> Iterable[Ref]:
        if ref not in blocked:
            stored = waits_for(ref) if through_stored else ()
            return (*joined[ref], *stored) if ref in joined else stored
        tenant = ref[0]
        found = count_dependencies(blocked[ref], lambda name: ended((tenant, name)))
        return [(tenant, id) for id in found.pending] if found.state == "waiting" else ()

    cycle = find_cycle(blocked, next_refs)
    return None if cycle is None else tuple(id for _, id in cycle if not id.startswith(GROUP_MARK))


def joined_group(item: Item, group_id: str | None) -> str:
    """The id of the group that a new item joins. `group_id`: that of the settled item; None for a root."""
    return item.group_id or group_id or item.id


def _named_by(
    new: Mapping[Ref, Item], blocked: Mapping[Ref, Item], joined: Container[Ref], group_id: str | None
) -> tuple[bool, bool, bool]:
    """Whether blocked items wait for each other or for groups that they join; whether they wait for anything
    that is not new; and whether that is a group that they join."""
    among_new = leads_out = names_joined = False
    for (tenant, _), item in blocked.items():
        for name in item.after:
            ref = (tenant, name)
            if ref in blocked or ref in joined:
                among_new = True
            if ref in new:
                continue
            closing = new.get((tenant, name[1:])) if name.startswith(GROUP_MARK) else None
            if closing is None or not (group_id is None or closing.closes_group):
                leads_out = True
                names_joined = names_joined or ref in joined
    return among_new, leads_out, names_joined


def find_cycle(starts: Iterable[N], waits_for: Callable[[N], Iterable[N]]) -> tuple[N, ...] | None:
    """Nodes of which each waits for the next, and the last for the first. None: no such nodes can be reached
    from `starts`."""
    cleared: set[N] = set()
    for start in starts:
        if start not in cleared:
            found = _cycle_from(start, waits_for, cleared)
            if found is not None:
                return found
    return None


def _cycle_from(start: N, waits_for: Callable[[N], Iterable[N]], cleared: set[N]) -> tuple[N, ...] | None:
    # Depth first, with an explicit stack: chains may be longer than Python can recurse.
    path: dict[N, None] = {start: None}
    stack = [iter(waits_for(start))]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            cleared.add(path.popitem()[0])
        elif node in path:
            nodes = list(path)
            return tuple(nodes[nodes.index(node) :])
        elif node not in cleared:
            path[node] = None
            stack.append(iter(waits_for(node)))
    return None


# ------------------------------------------------------------------------------------------------- rejections


def rejection_error(rejected: Rejected) -> TreadleError:
    """The exception for a caller whose submission was rejected."""
    if rejected.why == "not_found":
        name = rejected.ids[0]
        return NotFound(name.removeprefix(GROUP_MARK), "group" if name.startswith(GROUP_MARK) else "item")
    if rejected.why == "locked":
        return StoreUnavailable(
            "not submitted: a transaction that was left open has its key, its id or an id in its after="
        )
    if rejected.why == "cycle":
        return CycleError([name.removeprefix(GROUP_MARK) for name in rejected.ids])
    if rejected.why == "duplicate_key":
        return DuplicateKeyError(rejected.ids[0], rejected.keys[0])
    return DuplicateIdError(rejected.ids[0])
