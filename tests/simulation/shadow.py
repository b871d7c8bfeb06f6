"""A shadow of the store, kept from what it was asked and answered: items, gates, groups, keys, leases.

It is written from the contract (`treadle.backend`), not from a backend, and shares no code with one. It knows
exactly what each step must have brought about; `watch` compares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from treadle.item import Contribution, Item, Ref, Status

TERMINAL = ("success", "dead", "cancelled")


class Violation(AssertionError):
    """Something that must never happen did."""


def must(truth: object, what: str) -> None:
    if not truth:
        raise Violation(what)


class Team:
    """A group."""

    def __init__(self, ref: Ref, type: str) -> None:
        self.ref = ref
        self.type = type
        self.open = 0
        self.version = 0
        self.value: bytes | None = None
        self.final = False
        self.closings = 0
        self.ended_at: float | None = None


class Thing:
    """An item."""

    def __init__(self, item: Item, team: Team, number: int, now: float) -> None:
        self.item = item
        self.ref: Ref = (item.tenant, item.id)
        self.team = team
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
        """Its deadline has still to come."""
        self.overdue = False
        self.status: str = "waiting"
        """`waiting` is both scheduled and ready: which of the two depends on when somebody looked."""
        self.doom: str | None = None
        self.attempt = 0
        self.losses = 0
        self.token = 0
        self.worker: str | None = None
        self.settled: list[int] = []
        self.after: tuple[str, ...] = ()
        """Whom it names, until it ends: they stay for as long."""
        self.pending: dict[str, int] = {}
        self.met = self.open = 0
        self.kids: list[Thing] = []
        self.leases = 0
        self.starts = 0
        self.ends = 0
        self.released = 0
        self.result: bytes | None = None

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL

    def __repr__(self) -> str:
        return f"{self.ref[0]}/{self.ref[1]} ({self.item.type}, {self.status})"


class Following:
    """What a step must have set in motion."""

    def __init__(self) -> None:
        self.released: list[Ref] = []
        self.closed: list[tuple[Ref, bytes | None]] = []
        self.doomed = 0


class Shadow:
    def __init__(self) -> None:
        self.things: dict[Ref, Thing] = {}
        self.forgotten: set[Ref] = set()
        """What was stored once, and is gone."""
        self.teams: dict[Ref, Team] = {}
        self.by_id: dict[str, list[Thing]] = defaultdict(list)
        self.waiters: dict[Ref, dict[Thing, None]] = defaultdict(dict)
        self.keys: dict[tuple[str, str, str], Thing] = {}
        self.watched: dict[Thing, None] = {}
        self.workers: dict[str, float] = {}
        """Until when each is alive."""
        self.held: dict[str, dict[int, Thing]] = defaultdict(dict)
        self.paused: set[tuple[str, str | None]] = set()
        self.last_token = 0
        self._number = 0

    def find(self, tenant: str | None, id: str) -> Thing | None:
        if tenant is not None:
            return self.things.get((tenant, id))
        return next(iter(self.by_id.get(id, ())), None)

    def open_ones(self) -> Iterator[Thing]:
        return (thing for thing in self.things.values() if not thing.ended)

    # -- coming ----------------------------------------------------------------------------------------

    def holder(self, item: Item, taken: dict[tuple[str, str, str], Ref], now: float) -> Ref | None:
        """Who answers for an item by its key; None: the item itself."""
        if item.key is None:
            return None
        key = (item.tenant, item.type, item.key)
        if key in taken:
            return taken[key]
        earlier = self.keys.get(key)
        if earlier is not None:
            scope = item.key_scope
            answers = (
                earlier.team.open > 0
                if scope == "open"
                else scope == "any" or now - earlier.queued_at <= float(scope)
            )
            if answers:
                return earlier.ref
        taken[key] = (item.tenant, item.id)
        return None

    def admit(self, item: Item, after: Iterable[str], team: Team | None, now: float) -> Thing:
        ref = (item.tenant, item.id)
        must(ref not in self.things, f"{ref} was stored twice")
        if team is None:
            team = self.teams[ref] = Team(ref, item.type)
        self._number += 1
        thing = Thing(item, team, self._number, now)
        self.things[ref] = thing
        self.by_id[item.id].append(thing)
        team.open += 1
        team.ended_at = None
        if item.key is not None:
            self.keys[item.tenant, item.type, item.key] = thing
        if item.parent is not None and (parent := self.things.get((item.tenant, item.parent))) is not None:
            parent.kids.append(thing)
        if thing.watched:
            self.watched[thing] = None
        self._close_gate(thing, tuple(after))
        return thing

    def _close_gate(self, thing: Thing, after: tuple[str, ...]) -> None:
        if not after:
            return
        thing.after = after
        for id in after:
            other = self.things.get((thing.ref[0], id))
            if other is None or not other.ended:
                thing.pending[id] = thing.pending.get(id, 0) + 1
                thing.open += 1
                self.waiters[thing.ref[0], id][thing] = None
            elif thing.item.counting == "done" or other.status == "success":
                thing.met += 1
        if thing.met >= thing.item.need:
            return
        thing.status = "blocked"
        if thing.met + thing.open < thing.item.need:
            self.doom(thing, "unsatisfiable")

    # -- ending ----------------------------------------------------------------------------------------

    def end(self, thing: Thing, status: Status, now: float) -> None:
        must(not thing.ended, f"{thing} ended twice")
        self.drop_lease(thing)
        thing.status = status
        thing.ends += 1
        thing.doom = None
        thing.overdue = False
        thing.after = ()
        self._unwatch(thing)
        for id in thing.pending:
            self.waiters[thing.ref[0], id].pop(thing, None)

    def tell(self, thing: Thing, now: float, following: Following) -> None:
        for waiter in list(self.waiters.get(thing.ref, ())):
            named = waiter.pending.pop(thing.ref[1], 0)
            self.waiters[thing.ref].pop(waiter, None)
            waiter.open -= named
            if waiter.item.counting == "done" or thing.status == "success":
                waiter.met += named
            if waiter.status == "blocked" and waiter.doom is None:
                self._decide(waiter, following)
        team = thing.team
        team.open -= 1
        must(team.open >= 0, f"group {team.ref} is below zero")
        if not team.open:
            team.closings += 1
            team.ended_at = now
            following.closed.append((team.ref, team.value))

    def _decide(self, waiter: Thing, following: Following) -> None:
        need = waiter.item.need
        if waiter.met >= need:
            waiter.status = "waiting"
            waiter.released += 1
            following.released.append(waiter.ref)
        elif waiter.met + waiter.open < need:
            following.doomed += 1
            self.doom(waiter, "unsatisfiable")

    def contribute(self, thing: Thing, contribution: Contribution) -> None:
        team = thing.team
        if team.final:
            return
        team.version += 1
        team.value = thing.result if contribution.value is None else contribution.value
        team.final = contribution.final

    def revive(self, thing: Thing, due_at: float) -> None:
        must(thing.status == "dead", f"{thing} was requeued")
        thing.status = "waiting"
        thing.attempt = thing.losses = 0
        thing.doom = thing.deadline = None
        thing.pending = {}
        thing.due_at = due_at
        thing.team.open += 1
        thing.team.ended_at = None

    # -- leases ----------------------------------------------------------------------------------------

    def lease(self, thing: Thing, token: int, worker: str) -> None:
        must(token > self.last_token, f"token {token} is not new")
        self.last_token = token
        must(not thing.token, f"{thing} is leased to {thing.worker} still, and now to {worker}")
        must(not thing.ended, f"{thing} has ended, and was leased")
        thing.token, thing.worker = token, worker
        thing.leases += 1
        self.held[worker][token] = thing

    def drop_lease(self, thing: Thing) -> None:
        if thing.token and thing.worker is not None:
            self.held[thing.worker].pop(thing.token, None)
        thing.token, thing.worker = 0, None

    def remove_worker(self, worker: str, now: float) -> int:
        self.workers.pop(worker, None)
        freed = list(self.held.pop(worker, {}).values())
        for thing in freed:
            self._free(thing, now)
        return len(freed)

    def _free(self, thing: Thing, now: float) -> None:
        thing.token, thing.worker = 0, None
        if thing.doom is not None:
            return
        thing.losses += 1
        thing.status = "waiting"
        if thing.item.attempts is not None and thing.attempt >= thing.item.attempts:
            self.doom(thing, "lease_lost")
            return
        if thing.losses > 1:
            thing.due_at = now + min(2.0 ** (thing.losses - 2), 60.0)
        if thing.overdue:
            self.doom(thing, "expired")

    def doom(self, thing: Thing, why: str) -> None:
        self._unwatch(thing)
        thing.doom = why

    def expire(self, now: float) -> None:
        """Deadlines that have come."""
        for thing in [thing for thing in self.watched if (thing.deadline or 0.0) <= now]:
            self._unwatch(thing)
            if thing.token:
                thing.overdue = True
            elif thing.doom is None:
                self.doom(thing, "expired")

    def _unwatch(self, thing: Thing) -> None:
        thing.watched = False
        self.watched.pop(thing, None)

    # -- going -----------------------------------------------------------------------------------------

    def knew(self, ref: Ref) -> bool:
        """Whether it was ever stored. It may have come to its end, and to the end of its `keep`, before
        whoever submitted it is told."""
        return ref in self.things or ref in self.forgotten

    def naming(self, thing: Thing) -> list[Thing]:
        """The open ones that wait for it, or did."""
        tenant, id = thing.ref
        return [one for one in self.things.values() if id in one.after and one.ref[0] == tenant]

    def forget(self, thing: Thing) -> None:
        del self.things[thing.ref]
        self.forgotten.add(thing.ref)
        self.by_id[thing.ref[1]].remove(thing)
        key = (thing.item.tenant, thing.item.type, thing.item.key or "")
        if self.keys.get(key) is thing:
            del self.keys[key]

    def descendants(self, named: Iterable[Thing]) -> list[Thing]:
        seen: dict[Thing, None] = dict.fromkeys(named)
        stack = list(seen)
        while stack:
            for kid in stack.pop().kids:
                if kid not in seen:
                    seen[kid] = None
                    stack.append(kid)
        return list(seen)


def shown(answer: Any) -> list[Ref]:
    return [(state.tenant, state.id) for state in answer]
