"""The checks of operator verbs, claimed keys, schedules and reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from tests.simulation.reference import ReferenceEffects, must, refs_of
from tests.simulation.work_checks import WorkChecks
from treadle.backends.memory.read import group_state
from treadle.item import Changed, Contribution, Ended, Fire, ItemUpdate, Order, Schedule


class OperatorChecks(WorkChecks):
    # -- operating ---------------------------------------------------------------------------------------

    def cancel(self, now: float, ids: Sequence[str], tenant: str | None, changed: Changed) -> None:
        named = [expected for id in ids if (expected := self.reference.find(tenant, id)) is not None]
        ending = [expected for expected in self.reference.descendants(named) if not expected.ended]
        must(
            sorted(refs_of(changed.items)) == sorted(expected.ref for expected in ending), f"cancelled {ids}"
        )
        effects = ReferenceEffects()
        self.cover("a running item was cancelled") if any(expected.token for expected in ending) else None
        if any(self.reference.members_closed_by(expected) for expected in named):
            self.cover("a closing item was cancelled")
        for expected in ending:
            self.note(f"cancelled {expected}")
            self.reference.end(expected, "cancelled", now)
        for expected in ending:
            self.reference.count_end(expected, now, effects)
        self._check_effects(effects, changed.effects)

    def complete(
        self, now: float, id: str, result: bytes | None, tenant: str | None, changed: Changed
    ) -> None:
        expected = self.reference.find(tenant, id)
        must(
            expected is not None and refs_of(changed.items) == [expected.ref],
            f"completed {refs_of(changed.items)}",
        )
        assert expected is not None
        self.cover("an item was completed")
        self.cover("a running item was completed") if expected.token else None
        self.note(f"completed {expected}")
        effects = ReferenceEffects()
        expected.result = result
        group = self._store.store.find_group(*expected.group.ref)
        assert group is not None
        self.reference.contribute(expected, Contribution(), group_state(group).version)
        self.reference.end(expected, "success", now)
        self.reference.count_end(expected, now, effects)
        self._check_effects(effects, changed.effects)

    def requeue(
        self,
        now: float,
        ids: Any,
        tenant: str | None,
        changed: Changed,
        alone: bool = False,
        cancelled: bool = False,
        from_step: str | None = None,
    ) -> None:
        named = dict.fromkeys(found for id in ids if (found := self.reference.find(tenant, id)) is not None)
        statuses = ("dead", "cancelled") if cancelled else ("dead",)
        asked = [expected for expected in named if expected.status in statuses]
        if from_step is not None:
            asked = [expected for expected in asked if expected.recorded.has(from_step)]
            self.cover("requeued from a step") if asked else None
        opened = self.reference.repaired(asked, alone=alone)
        wanted, found = [expected.ref for expected in opened], refs_of(changed.items)
        must(sorted(found) == sorted(wanted), f"requeued {found}, not {wanted}")
        first = [ref for ref in wanted if self.reference.items[ref] in named]
        must(found[: len(first)] == first, f"requeued {found}, but asked for {first}")
        for expected in opened:
            self.note(f"requeued {expected}")
            self.cover("requeued" if expected in named else "a dependent came back")
            self.cover("a cancelled item was requeued") if expected.status == "cancelled" else None
            self.cover("an ended group opened again") if not expected.group.open else None
            self.cover("a closing item came back") if expected.item.closes_group else None
        if len(first) < len(asked):
            self.cover("a requeued item stayed dead")
        self.reference.requeue(opened, asked, now, alone=alone, from_step=from_step)

    def trigger(self, now: float, ids: Sequence[str], tenant: str | None, changed: Changed) -> None:
        wanted = {expected.ref for id in ids if (expected := self.reference.find(tenant, id)) is not None}
        must(set(refs_of(changed.items)) == wanted, f"triggered {refs_of(changed.items)}, not {wanted}")
        for ref in wanted:
            expected = self.reference.items[ref]
            expected.due_at = now
            expected.ready_at = now
            if expected.recorded.suspended:
                must(expected.recorded.sleeps(), f"{expected} was triggered, and does not sleep")
                expected.recorded.wake()
                self.cover("a sleep was ended by trigger")
            self.cover("triggered")

    def update(
        self, now: float, ids: Sequence[str], changes: ItemUpdate, tenant: str | None, changed: Changed
    ) -> None:
        wanted = {expected.ref for id in ids if (expected := self.reference.find(tenant, id)) is not None}
        must(set(refs_of(changed.items)) == wanted, f"updated {refs_of(changed.items)}, not {wanted}")
        for ref in wanted:
            expected = self.reference.items[ref]
            must(expected.unstarted, f"{expected} was updated")
            given = {name: getattr(changes, name) for name in ("priority", "lane", "queue")}
            expected.item = replace(
                expected.item, **{name: value for name, value in given.items() if value is not UNSET}
            )
            due = expected.due_at if changes.run_at is UNSET else changes.run_at
            deadline = expected.deadline if changes.deadline is UNSET else changes.deadline
            self.reference.change(expected, due, deadline)
            self.cover("updated")

    def order(self, now: float, order: Order, given: bool) -> None:
        if given:
            self.reference.orders[order.subject] = order
        else:
            self.reference.orders.pop(order.subject, None)
        self.handlers.resumed(order.queue, now)
        self.cover(f"{'queue' if order.queue else 'type' if order.type else 'tenant'} paused")

    def prune(self, now: float, removed: int) -> None:
        if not removed:
            return
        self.cover("pruned")
        gone = [
            expected for ref, expected in self.reference.items.items() if self._store.store.find(*ref) is None
        ]
        must(len(gone) == removed, f"{removed} pruned, {len(gone)} are gone")
        for expected in gone:
            keep = expected.item.keep_dead if expected.status == "dead" else expected.item.keep
            ended_at = expected.group.all_ended_at
            over = expected.ended and ended_at is not None and keep is not None and now >= ended_at + keep
            must(over, f"{expected} was pruned too early")
            waiting = self.reference.dependents_of(expected)
            must(not waiting, f"{expected} was pruned although {waiting} wait for it")
            self.reference.remove(expected)

    def delete(self, now: float, changed: Changed) -> None:
        for state in changed.items:
            expected = self.reference.items[state.tenant, state.id]
            must(self._store.store.find(*expected.ref) is None, f"{expected} was deleted, and is there")
            self.reference.remove(expected)

    def take_permits(self, now: float, requests: Sequence[Any], replies: Sequence[Any]) -> None:
        self.handlers.take_permits(requests, replies)

    # -- coordinating ------------------------------------------------------------------------------------

    def claim_key(self, now: float, key: str, owner: str, ttl: float, tenant: str, ours: bool) -> None:
        known = self._owners.get((tenant, key))
        held = known is not None and known[0] != owner and now < known[1]
        must(ours != held, f"key {key} of {tenant} given to {owner}: {ours}, but its owner was {known}")
        if ours and (known is None or known[0] != owner or now >= known[1]):
            self._owners[tenant, key] = (owner, now + ttl)
        self.cover("a key was claimed" if ours else "a key was refused")

    def put_schedule(self, now: float, schedule: Schedule, stored: Schedule) -> None:
        if schedule.name not in self._schedules and schedule.next_at is not None:
            self._schedules[schedule.name] = stored.next_at

    def drop_schedule(self, now: float, name: str) -> None:
        self._schedules.pop(name, None)

    def fire(self, now: float, fire: Fire, answer: Any) -> None:
        due = fire.name in self._schedules and self._schedules[fire.name] == fire.at
        must((answer is not None) == due, f"{fire.name} at {fire.at}: {answer}, due: {due}")
        if answer is None:
            self.cover("an occurrence had already fired")
            return
        self._schedules[fire.name] = fire.next_at
        if not fire.items:
            return  # it is moved on
        must((fire.name, fire.at) not in self._fired, f"{fire.name} fired twice at {fire.at}")
        self._fired.add((fire.name, fire.at))
        self.note(f"fired {fire.name} at {fire.at:.1f}")
        self.cover("fired")
        self._submitted(now, fire.items, answer)

    # -- reading -----------------------------------------------------------------------------------------

    def get(self, now: float, ids: Sequence[str], tenant: str | None, states: Sequence[Any]) -> None:
        for id, state in zip(ids, states, strict=True):
            expected = self.reference.find(tenant, id)
            must((state is None) == (expected is None), f"{id} of {tenant}: {state}")
            if state is not None and expected is not None:
                must((state.tenant, state.id) == expected.ref, f"{id} of {tenant}: {state.tenant}")

    def ended(self, now: float, ended: Ended) -> None:
        for ref in ended.items:
            must(self.reference.items[ref].ended, f"{ref} is said to have ended")
        for ref in ended.groups:
            must(not self.reference.groups[ref].open, f"group {ref} is said to have ended")
