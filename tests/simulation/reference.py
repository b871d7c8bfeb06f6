"""The reference: what the store must contain, computed from its calls and answers.

It follows the contract (`treadle.backend`), not a backend, and shares no code with one. It knows the exact
effect of each call. The checks compare the store with it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from tests.simulation.reference_steps import ReferenceSteps
from treadle.item import GROUP_MARK, GROUP_TYPE, Contribution, Item, Order, Ref, Status
from treadle.store.rules.settlement import LONE_VERSION

TERMINAL = ("success", "dead", "cancelled")
LONGEST_LOSS_DELAY = 30.0


class Violation(AssertionError):
    """An invariant does not hold."""


def must(truth: object, what: str) -> None:
    if not truth:
        raise Violation(what)


class ReferenceGroup:
    """What a group must be."""

    def __init__(self, ref: Ref, type: str) -> None:
        self.ref = ref
        self.type = type
        self.open = 0
        self.version = 0
        self.value: bytes | None = None
        self.final = False
        self.times_ended = 0
        self.ended_at: float | None = None
        self.failed = 0
        self.cancelled = 0
        self.outer: ReferenceGroup | None = None
        self.stored = 0
        """How many members are stored, and whether the item that closes it is."""

    @property
    def status(self) -> Status:
        """How it has ended, for what waits for it."""
        return "dead" if self.failed or self.cancelled else "success"

    @property
    def all_ended_at(self) -> float | None:
        """When it and all groups around it had ended."""
        ends = [group.ended_at for group in self.with_outer()]
        return None if None in ends else max(end for end in ends if end is not None)

    def with_outer(self) -> Iterator[ReferenceGroup]:
        group: ReferenceGroup | None = self
        while group is not None:
            yield group
            group = group.outer


class ReferenceItem:
    """What an item must be."""

    def __init__(self, item: Item, group: ReferenceGroup, number: int, now: float) -> None:
        self.item = item
        self.ref: Ref = (item.tenant, item.id)
        self.group = group
        self.number = number
        self.queued_at = now
        self.due_at = item.run_at if item.run_at is not None else now + item.delay
        self.deadline = (
            item.deadline
            if item.deadline is not None
            else None
            if item.expires_in is None
            else now + item.expires_in
        )
        self.watched = self.deadline is not None
        """Its deadline is in the future."""
        self.overdue = False
        self.status: str = "waiting"
        """`waiting` means scheduled or ready. Which of the two depends on when a claim last ran."""
        self.doom: str | None = None
        self.attempt = 0
        self.failures = 0
        self.losses = 0
        self.begun = True
        """Whether the store counts its current attempt as begun."""
        self.begun_at = 0.0
        self.started_token = 0
        """The token of the last lease whose handler has really begun."""
        self.place = 0
        """Its place in line when it was leased last."""
        self.ready_at: float | None = now if not self.item.delay and self.item.run_at is None else None
        """Since when it could start, as far as that is known exactly. A loss makes it unknown."""
        self.changed_by: list[str] = []
        """The ids of new items with its key that changed it."""
        self.ended_at: float | None = None
        self.token = 0
        self.worker: str | None = None
        self.settled: list[int] = []
        self.after: tuple[str, ...] = ()
        """The names of items and groups that it waits for, waited for, or would wait for again."""
        self.reason: str | None = None
        self.failed_group = False
        self.unreleased = False
        """It has ended, and its condition was not met."""
        self.pending: dict[str, int] = {}
        self.met = self.open = 0
        self.children: list[ReferenceItem] = []
        self.leases = 0
        self.starts = 0
        self.ends = 0
        self.released = 0
        self.result: bytes | None = None
        self.recorded = ReferenceSteps()
        self.woken = False
        """A signal of a user has made it ready."""

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL

    @property
    def unstarted(self) -> bool:
        """Whether it can still be changed."""
        return not (self.ended or self.token or self.attempt or self.doom or self.recorded.steps)

    @property
    def tolerant(self) -> bool:
        return self.item.counting == "done" or self.item.need < len(self.after)

    def __repr__(self) -> str:
        return f"{self.ref[0]}/{self.ref[1]} ({self.item.type}, {self.status})"


class ReferenceEffects:
    """The effects that a step must have."""

    def __init__(self) -> None:
        self.released: list[Ref] = []
        self.ended_groups: list[tuple[Ref, bytes | None]] = []
        self.doomed = 0


class ReferenceStore:
    """drawn_due: the due time in the store of an item that was lost. Its delay has a random part."""

    def __init__(self, drawn_due: Callable[[Ref], float]) -> None:
        self._drawn_due = drawn_due
        self.items: dict[Ref, ReferenceItem] = {}
        self.removed: set[Ref] = set()
        """Items that were stored and are removed."""
        self.groups: dict[Ref, ReferenceGroup] = {}
        self.by_id: dict[str, list[ReferenceItem]] = defaultdict(list)
        self.waiters: dict[Ref, dict[ReferenceItem, None]] = defaultdict(dict)
        self.keys: dict[tuple[str, str, str], ReferenceItem] = {}
        self.watched: dict[ReferenceItem, None] = {}
        self.workers: dict[str, float] = {}
        """When the lease of each worker ends."""
        self.held: dict[str, dict[int, ReferenceItem]] = defaultdict(dict)
        self.orders: dict[str, Order] = {}
        self._lanes: dict[tuple[str, str, str], tuple[ReferenceItem, int]] = {}
        """Strict lanes: the item that was handed out last, and how often it had ended before."""
        self._versions: dict[tuple[Ref, int], bytes | None] = {}
        """The values that versions stand for, also of groups that are gone."""
        self.last_token = 0
        self._number = 0

    def find(self, tenant: str | None, id: str) -> ReferenceItem | None:
        if tenant is not None:
            return self.items.get((tenant, id))
        return next(iter(self.by_id.get(id, ())), None)

    def open_items(self) -> Iterator[ReferenceItem]:
        return (expected for expected in self.items.values() if not expected.ended)

    # -- submitting ----------------------------------------------------------------------------------------

    def find_by_key(self, item: Item, taken: dict[tuple[str, str, str], Ref], now: float) -> Ref | None:
        """The existing item that is returned for the key of this one. None if this one is stored."""
        if item.key is None:
            return None
        key = (item.tenant, item.type, item.key)
        if key in taken:
            return taken[key]
        earlier = self.keys.get(key)
        if earlier is not None:
            scope = item.key_scope
            answers = (
                earlier.group.open > 0
                if scope == "open"
                else scope == "any" or now - earlier.queued_at <= float(scope)
            )
            if answers:
                return earlier.ref
        taken[key] = (item.tenant, item.id)
        return None

    def add(
        self, item: Item, after: Iterable[str], group: ReferenceGroup | None, now: float
    ) -> ReferenceItem:
        ref = (item.tenant, item.id)
        must(ref not in self.items, f"{ref} was stored twice")
        if group is None:
            group = self.groups[ref] = ReferenceGroup(ref, item.type)
        group.stored += 1
        self._number += 1
        expected = ReferenceItem(item, group, self._number, now)
        self.items[ref] = expected
        self.by_id[item.id].append(expected)
        group.open += 1
        group.ended_at = None
        if item.key is not None:
            self.keys[item.tenant, item.type, item.key] = expected
        if item.parent is not None and (parent := self.items.get((item.tenant, item.parent))) is not None:
            parent.children.append(expected)
        if expected.watched:
            self.watched[expected] = None
        self.block(expected, tuple(after))
        return expected

    def block(self, expected: ReferenceItem, after: tuple[str, ...]) -> None:
        if not after:
            return
        expected.after = after
        expected.pending = {}
        expected.met = expected.open = 0
        for name in after:
            status = self.status_of(expected, name)
            if status is None:
                expected.pending[name] = expected.pending.get(name, 0) + 1
                expected.open += 1
                self.waiters[expected.ref[0], name][expected] = None
            elif expected.item.counting == "done" or status == "success":
                expected.met += 1
        if expected.met >= expected.item.need:
            return
        expected.status = "blocked"
        if expected.met + expected.open < expected.item.need:
            self.doom(expected, "unsatisfiable")

    # -- strict lanes ----------------------------------------------------------------------------------

    def lane_holder(self, item: Item) -> ReferenceItem | None:
        """The item that holds the strict lane of this one, if it was handed out and has not ended since."""
        holder, ends = self._lanes.get((item.type, item.tenant, item.lane), (None, 0))
        held = holder is not None and self.items.get(holder.ref) is holder and holder.ends == ends
        return holder if held else None

    def hold_lane(self, expected: ReferenceItem) -> None:
        item = expected.item
        self._lanes[item.type, item.tenant, item.lane] = expected, expected.ends

    # -- changing --------------------------------------------------------------------------------------

    def take_over(self, expected: ReferenceItem, new: Item, now: float) -> bool:
        """An item with the key of `expected` was submitted. Whether that changes `expected`."""
        repeated = new.id == expected.ref[1] or new.id in expected.changed_by[-20:]
        if new.key_policy not in ("replace", "debounce") or repeated or not expected.unstarted:
            return False
        expected.changed_by.append(new.id)
        taken = ("input", "options", "attempts", "priority", "lane", "queue", "keep", "keep_dead")
        expected.item = replace(expected.item, **{name: getattr(new, name) for name in taken})
        if new.run_at is not None:
            due = new.run_at
        elif new.key_policy == "replace":
            due = expected.queued_at + new.delay
        else:
            due = min(now + new.delay, expected.queued_at + (new.debounce_max or math.inf))
        expires = None if new.expires_in is None else now + new.expires_in
        self.change(expected, due, new.deadline if new.deadline is not None else expires)
        return True

    def change(self, expected: ReferenceItem, due_at: float, deadline: float | None) -> None:
        expected.due_at, expected.deadline = due_at, deadline
        # It has not started, and may be in another lane now.
        self._lanes = {lane: held for lane, held in self._lanes.items() if held[0] is not expected}
        expected.ready_at = None
        self._unwatch(expected)
        if deadline is not None:
            expected.watched = True
            self.watched[expected] = None

    def nest(self, closing: Item, outer: ReferenceGroup) -> ReferenceGroup:
        """The group that an item closes. It has no members yet."""
        ref = (closing.tenant, closing.id)
        group = self.groups[ref] = ReferenceGroup(ref, closing.type)
        group.outer = outer
        group.stored = 1
        return group

    def status_of(self, expected: ReferenceItem, name: str, opened: Container[Ref] = ()) -> str | None:
        """How a prerequisite of an item has ended. None: it is open, or will be once `opened` are."""
        ref = (expected.ref[0], name)
        found: ReferenceItem | ReferenceGroup | None = self.items.get(ref)
        if name.startswith(GROUP_MARK):
            found = self.groups.get((expected.ref[0], name[1:]))
        if ref in opened:
            return None
        if found is None:  # removed, or not submitted yet
            return "success" if expected.ended_at is not None and not expected.unreleased else None
        if found.ended_at is None:
            return None
        if isinstance(found, ReferenceGroup):
            return found.status
        return found.status

    # -- ending ----------------------------------------------------------------------------------------

    def end(self, expected: ReferenceItem, status: Status, now: float) -> None:
        must(not expected.ended, f"{expected} ended twice")
        self.drop_lease(expected)
        expected.unreleased = expected.status == "blocked"
        expected.status = status
        expected.ended_at = now
        expected.ends += 1
        expected.doom = None
        expected.overdue = False
        expected.recorded.suspended = False
        self._unwatch(expected)
        for id in expected.pending:
            self.waiters[expected.ref[0], id].pop(expected, None)

    def count_end(self, expected: ReferenceItem, now: float, effects: ReferenceEffects) -> None:
        self._count(expected.ref, expected.status, now, effects)
        group = expected.group
        if expected.status == "dead":
            silent = not expected.item.contributes and expected.item.type != GROUP_TYPE
            expected.failed_group = not silent and not any(one.tolerant for one in self.naming(*expected.ref))
            group.failed += expected.failed_group
        group.cancelled += expected.status == "cancelled"
        group.open -= 1
        must(group.open >= 0, f"group {group.ref} is below zero")
        if not group.open:
            group.times_ended += 1
            group.ended_at = now
            effects.ended_groups.append((group.ref, group.value))
            name = (group.ref[0], GROUP_MARK + group.ref[1])
            self._count(name, group.status, now, effects)

    def naming(self, tenant: str, *names: str) -> list[ReferenceItem]:
        """The stored items, open or ended, that name one of these in `after`."""
        return [
            one
            for one in self.items.values()
            if one.after and one.ref[0] == tenant and any(name in one.after for name in names)
        ]

    def _count(self, ref: Ref, status: str, now: float, effects: ReferenceEffects) -> None:
        """Count the end of an item or a group for what waits for it."""
        for waiter in list(self.waiters.get(ref, ())):
            named = waiter.pending.pop(ref[1], 0)
            self.waiters[ref].pop(waiter, None)
            waiter.open -= named
            if waiter.item.counting == "done" or status == "success":
                waiter.met += named
            if waiter.status == "blocked" and waiter.doom is None:
                self._release_or_doom(waiter, now, effects)

    def _release_or_doom(self, waiter: ReferenceItem, now: float, effects: ReferenceEffects) -> None:
        need = waiter.item.need
        if waiter.met >= need:
            waiter.status = "waiting"
            waiter.ready_at = None if waiter.ready_at is None else now
            waiter.released += 1
            effects.released.append(waiter.ref)
        elif waiter.met + waiter.open < need:
            effects.doomed += 1
            self.doom(waiter, "unsatisfiable")

    def contribute(self, expected: ReferenceItem, contribution: Contribution, version: int) -> None:
        """version: the one that the store has made."""
        group = expected.group
        if group.final or not expected.item.contributes:
            return
        group.value = expected.result if contribution.value is None else contribution.value
        group.final = contribution.final
        group.version = version
        must(version, f"group {group.ref} has a value and no version")
        if version != LONE_VERSION:
            value = self._versions.setdefault((group.ref, version), group.value)
            must(value == group.value, f"version {version} of group {group.ref} stands for two values")

    # -- leases ----------------------------------------------------------------------------------------

    def lease(self, expected: ReferenceItem, token: int, worker: str) -> None:
        must(token > self.last_token, f"token {token} is not new")
        self.last_token = token
        must(not expected.token, f"{expected} is still leased to {expected.worker}, and now also to {worker}")
        must(not expected.ended, f"{expected} has ended and was leased")
        expected.token, expected.worker = token, worker
        expected.leases += 1
        self.held[worker][token] = expected

    def drop_lease(self, expected: ReferenceItem) -> None:
        if expected.token and expected.worker is not None:
            self.held[expected.worker].pop(expected.token, None)
        expected.token, expected.worker = 0, None

    def remove_worker(self, worker: str, now: float) -> int:
        self.workers.pop(worker, None)
        freed = list(self.held.pop(worker, {}).values())
        for expected in freed:
            self._free(expected, now)
        return len(freed)

    def _free(self, expected: ReferenceItem, now: float) -> None:
        expected.token, expected.worker = 0, None
        if expected.doom is not None:
            return
        expected.losses += expected.begun
        expected.status = "waiting"
        expected.ready_at = None
        if expected.begun and expected.losses > 1:
            self._delay_after_loss(expected, now)
        if expected.overdue:
            self.doom(expected, "expired")

    def _delay_after_loss(self, expected: ReferenceItem, now: float) -> None:
        """The delay doubles with each loss. Up to half of it is random: items lost together spread."""
        longest = min(2.0 ** (expected.losses - 2), LONGEST_LOSS_DELAY)
        due = self._drawn_due(expected.ref)
        must(
            now + longest / 2 <= due + 1e-6 and due <= now + longest + 1e-6,
            f"{expected} was lost {expected.losses} times in a row: waits {due - now:g} s, not {longest:g}",
        )
        expected.due_at = due

    def doom(self, expected: ReferenceItem, why: str) -> None:
        self._unwatch(expected)
        expected.doom = why

    def expire(self, now: float) -> None:
        """Apply the deadlines that have passed."""
        for expected in [expected for expected in self.watched if (expected.deadline or 0.0) <= now]:
            self._unwatch(expected)
            if expected.token:
                expected.overdue = True
            elif expected.doom is None:
                self.doom(expected, "expired")

    def _unwatch(self, expected: ReferenceItem) -> None:
        expected.watched = False
        self.watched.pop(expected, None)

    # -- removing -----------------------------------------------------------------------------------------

    def was_stored(self, ref: Ref) -> bool:
        """Whether it was ever stored. It may be pruned before its submitter gets the answer."""
        return ref in self.items or ref in self.removed

    def dependents_of(self, expected: ReferenceItem) -> list[ReferenceItem]:
        """The items that wait or waited for it or its group and are open, or could not run because of it."""
        tenant, id = expected.ref
        naming = self.naming(tenant, id, GROUP_MARK + expected.group.ref[1])
        return [one for one in naming if not one.ended or one.reason == "unsatisfiable"]

    def remove(self, expected: ReferenceItem) -> None:
        del self.items[expected.ref]
        closed = self.groups.get(expected.ref) if expected.item.closes_group else None
        for group in (expected.group, closed):
            if group is not None:
                group.stored -= 1
                if not group.stored and self.groups.get(group.ref) is group:
                    del self.groups[group.ref]
        self.removed.add(expected.ref)
        self.by_id[expected.ref[1]].remove(expected)
        key = (expected.item.tenant, expected.item.type, expected.item.key or "")
        if self.keys.get(key) is expected:
            del self.keys[key]

    def members_closed_by(self, expected: ReferenceItem) -> list[ReferenceItem]:
        closed = self.groups.get(expected.ref) if expected.item.closes_group else None
        return [] if closed is None else [one for one in self.items.values() if one.group is closed]

    def descendants(self, named: Iterable[ReferenceItem]) -> list[ReferenceItem]:
        seen: dict[ReferenceItem, None] = dict.fromkeys(named)
        stack = list(seen)
        while stack:
            expected = stack.pop()
            for child in (*expected.children, *self.members_closed_by(expected)):
                if child not in seen:
                    seen[child] = None
                    stack.append(child)
        return list(seen)


def refs_of(answer: Any) -> list[Ref]:
    return [(state.tenant, state.id) for state in answer]
