"""The checks of submit, claim, heartbeat and settle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from tests.simulation.handler_checks import HandlerChecks
from tests.simulation.program import ON_FULL, STRICT
from tests.simulation.reference import (
    ReferenceEffects,
    ReferenceItem,
    Violation,
    must,
)
from tests.simulation.reference_repair import ReferenceRepair
from tests.simulation.step_checks import StepChecks
from treadle.backends.memory import MemoryBackend
from treadle.item import (
    Claim,
    Demand,
    Heartbeat,
    HeartbeatReply,
    Item,
    Lease,
    Outcome,
    Rejected,
    Settled,
    Settlement,
    Submission,
    Submitted,
)

DELEGATING = ("counting", "fan", "parent", "crawl")
"""Types that never succeed without children."""
MAX_LOSSES = {"crash": 5}
DEFAULT_MAX_LOSSES = 20


class WorkChecks:
    """The state of all checks, and the checks of each verb that moves work."""

    def __init__(self, store: MemoryBackend, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self.reference = ReferenceRepair(self._drawn_due)
        self.handlers = HandlerChecks(self.reference, self._store_now, self.cover)
        self.recorded = StepChecks(self.reference, self.cover)
        self.steps = 0
        self.calls: Counter[str] = Counter()
        self.coverage: Counter[str] = Counter()
        self.timeline: list[str] = []
        self.stopping_workers: set[str] = set()
        """Workers that stop while timing is strict. They must give back all their leases."""
        self._schedules: dict[str, float | None] = {}
        self._fired: set[tuple[str, float]] = set()
        self._owners: dict[tuple[str, str], tuple[str, float]] = {}
        self._done: Counter[tuple[str, str]] = Counter()
        self.reused: set[Any] = set()
        """The items and groups whose ids earlier ones had."""
        self.early = 1e-6
        """Seconds by which an item may be claimed too early: it may be of a store whose clock is ahead."""
        self.violation: Violation | None = None
        """The first violation. It is kept here because the engine survives every error of its store."""

    @property
    def strict_timing(self) -> bool:
        """No pauses, no clock jumps, a store that answers: no excuse for anything that is late."""
        return self.handlers.strict_timing

    def _drawn_due(self, ref: Any) -> float:
        row = self._store.store.find(*ref)
        must(row is not None, f"{ref} was lost, and is gone from the store")
        return row.due_at  # type: ignore[union-attr]

    def _store_now(self) -> float:
        return self._store.store.now()

    def cover(self, what: str) -> None:
        """Count that something happened. `coverage` lists what must happen."""
        self.coverage[what] += 1

    def note(self, what: str) -> None:
        self.timeline.append(f"{self._clock():10.4f}  {what}")

    # -- submitting --------------------------------------------------------------------------------------

    def submit(self, now: float, submissions: Sequence[Submission], answers: Sequence[Any]) -> None:
        for submission, answer in zip(submissions, answers, strict=True):
            self._submitted(now, submission.items, answer)

    def _submitted(self, now: float, items: Sequence[Item], answer: Any) -> None:
        if isinstance(answer, Rejected):
            self._check_refused(now, items, answer)
            return
        holders = self._find_by_keys(items, now)
        renamed = {item.id: holder[1] for item, holder in holders if holder is not None}
        for (item, holder), submitted in zip(holders, answer, strict=True):
            must(
                submitted.existing == (holder is not None),
                f"{item.id} by key: {submitted}, expected {holder}",
            )
            if holder is not None:
                must(submitted.id == holder[1], f"{item.id}: {submitted.id} returned, expected {holder}")
                self.cover("an existing item was returned for a key")
            else:
                self.reference.add(item, (renamed.get(id, id) for id in item.after), None, now)
        self._apply_changes(holders, now)
        for submitted in answer:
            self._check_leased_at_submit(submitted, items)

    def _apply_changes(self, holders: list[tuple[Item, Any]], now: float) -> None:
        """Items that have the keys of new ones take over what these have."""
        for item, holder in holders:
            if holder is not None and self.reference.take_over(self.reference.items[holder], item, now):
                self.cover(f"changed by its key: {item.key_policy}")
                self.note(f"{item.id} changed {self.reference.items[holder]}")

    def _find_by_keys(self, items: Sequence[Item], now: float) -> list[tuple[Item, Any]]:
        taken: dict[Any, Any] = {}
        return [(item, self.reference.find_by_key(item, taken, now)) for item in items]

    def _check_refused(self, now: float, items: Sequence[Item], rejected: Rejected) -> None:
        self.cover(f"submission refused: {rejected.why}")
        if rejected.why == "duplicate_id":
            known = all(
                (item.tenant, item.id) in self.reference.items for item in items if item.id in rejected.ids
            )
            must(known or len({item.id for item in items}) < len(items), f"{rejected} is no duplicate")
        if rejected.why == "duplicate_key":
            holders = [
                holder for item, holder in self._find_by_keys(items, now) if item.key_policy == "error"
            ]
            found = {holder[1] for holder in holders if holder is not None}
            must(set(rejected.ids) == found, f"{rejected}, but {found} have the keys")

    def _check_leased_at_submit(self, submitted: Submitted, items: Sequence[Item]) -> None:
        lease = submitted.lease
        if lease is None:
            return
        self.cover("skipped the queue")
        must(lease.type not in STRICT, f"{lease.id} skipped the queue, and its type has strict lanes")
        wanted = next(item.lease_to for item in items if item.id == lease.id)
        must(wanted in self.reference.workers, f"{lease.id} is leased to {wanted}, an unknown worker")
        expected = self.reference.items[lease.tenant, lease.id]
        must(not self._is_paused(expected.item, type=False), f"{expected} skipped a queue that is paused")
        self._check_lease(lease, wanted or "")

    # -- claiming ----------------------------------------------------------------------------------------

    def claim(self, now: float, demand: Demand, claim: Claim) -> None:
        reference = self.reference
        for worker in [worker for worker, until in reference.workers.items() if until <= now]:
            self.handlers.removed(worker)
            if reference.remove_worker(worker, now):
                self.cover("a worker lease lapsed")
        must(claim.alive == (demand.worker in reference.workers), f"{demand.worker} alive: {claim.alive}")
        if not claim.alive:
            must(not claim.leases, "a dead worker got leases")
            self.cover("a claim by a removed worker")
            return
        if claim.orders is not None:
            must(not claim.leases, "a claim got leases that knows other orders")
            self.cover("a claim learned of other orders")
            return
        reference.expire(now)
        run = Counter[str]()
        for lease in claim.leases:
            self._check_eligible(lease, demand, now)
            self._check_strict_lane(lease, demand)
            self._check_lease(lease, demand.worker, demand.buffered)
            run[lease.type] += lease.verdict is None
        must(run.total() <= demand.limit, f"{run.total()} of {demand.limit}")
        if demand.types is not None:
            must(all(count <= demand.types.get(type, 0) for type, count in run.items()), f"no room for {run}")
        self._check_fairness(demand, claim)

    def _check_eligible(self, lease: Lease, demand: Demand, now: float) -> None:
        must(demand.tenants is None or lease.tenant in demand.tenants, f"{lease.id} is of another tenant")
        must(demand.queues is None or lease.queue in demand.queues, f"{lease.id} is of another queue")
        expected = self.reference.items.get((lease.tenant, lease.id))
        must(expected is not None, f"{lease.id} does not exist and was claimed")
        assert expected is not None
        must(lease.verdict == expected.doom, f"{expected}: verdict {lease.verdict}, not {expected.doom}")
        if lease.verdict is None:
            must(expected.status == "waiting", f"{expected} was claimed before it was released")
            must(
                expected.due_at <= now + self.early,
                f"{expected} was claimed {expected.due_at - now:g} s before it is due",
            )
            must(not self._is_paused(expected.item), f"{expected} was claimed, and is paused")

    def _check_strict_lane(self, lease: Lease, demand: Demand) -> None:
        """What is handed out of a strict lane holds it until it has ended (I21)."""
        if lease.verdict is not None or lease.type not in demand.strict:
            return
        expected = self.reference.items[lease.tenant, lease.id]
        holder = self.reference.lane_holder(expected.item)
        must(holder in (None, expected), f"{expected} was claimed, and {holder} holds its lane")
        self.cover("an item was handed out again that holds its lane") if holder is not None else None
        self.reference.hold_lane(expected)

    def _is_paused(self, item: Item, *, type: bool = True) -> bool:
        """type: also by a pause of its type, which workers obey."""
        orders = self.reference.orders.values()
        return any(
            each.holds(item.queue, item.type, item.tenant) for each in orders if type or each.type is None
        )

    def _check_lease(self, lease: Lease, worker: str, buffered: frozenset[str] = frozenset()) -> None:
        expected = self.reference.items[lease.tenant, lease.id]
        self.note(f"claimed {expected} attempt {lease.attempt} token {lease.token} {lease.verdict or ''}")
        self.reference.lease(expected, lease.token, worker)
        self.handlers.leased(expected, lease, worker)
        self.recorded.leased(expected, lease.has_steps, lease.resumes)
        if lease.verdict is None:
            expected.begun = not expected.losses and lease.type not in buffered
            expected.begun_at = self._store_now()
            expected.attempt += expected.begun
            self.cover("second attempt") if expected.attempt > 1 else None
        else:
            self.cover(f"verdict {lease.verdict}")
        number = expected.attempt + (lease.verdict is None and not expected.begun)
        must(lease.attempt == number, f"{expected}: attempt {lease.attempt}, not {number}")
        must(lease.input == expected.item.input, f"{expected} has the input {lease.input!r}")
        must(lease.group_id == expected.group.ref[1], f"{expected} is in group {lease.group_id}")
        self._check_counters(expected, lease)
        row = self._store.store.find(*expected.ref)
        expected.place = 0 if row is None else row.place
        if expected.losses > 1:
            self.cover("lease lost twice")

    def _check_counters(self, expected: ReferenceItem, lease: Lease) -> None:
        budget = expected.item.attempts
        spent = budget is not None and expected.failures >= budget
        must(lease.verdict or not spent, f"{expected}: {expected.failures} failures of {budget}")
        found = (lease.failures, lease.losses, lease.begun)
        wanted = (expected.failures, expected.losses, expected.begun or lease.verdict is not None)
        must(found == wanted, f"{expected}: failures, losses, begun are {found}, not {wanted}")

    def begin(self, now: float, leases: Sequence[Lease], lost: Mapping[int, Any]) -> None:
        """Attempts that waited in their worker begin now, except those of stale tokens."""
        for lease in leases:
            expected = self.reference.items.get((lease.tenant, lease.id))
            owned = expected is not None and expected.token == lease.token
            kept = owned or (expected is not None and lease.token in expected.settled)
            must((lease.token in lost) != kept, f"begin of {expected}: {lease.token} kept: {kept}; {lost}")
            if expected is not None and owned and not expected.begun:
                expected.begun, expected.begun_at = True, now
                expected.attempt += 1
                self.cover("an attempt began after its claim")

    def _check_fairness(self, demand: Demand, claim: Claim) -> None:
        """Within a queue no tenant gets two items more than another tenant that still has ready items."""
        leases = [lease for lease in claim.leases if lease.verdict is None]
        if len(leases) < 3 or self._store.store.parked or demand.avoid:
            return
        given = Counter((lease.queue, lease.tenant) for lease in leases)
        room = Counter(demand.types or {})
        room.subtract(lease.type for lease in leases)
        for expected in self.reference.open_items():
            item = expected.item
            row = self._store.store.find(*expected.ref)
            if row is None or row.status != "ready" or row.verdict or (demand.types and room[item.type] <= 0):
                continue
            if item.tenant not in (demand.tenants or (item.tenant,)) or self._is_paused(item):
                continue
            most = max((n for (queue, _), n in given.items() if queue == item.queue), default=0)
            self.cover("a tenant had more items than one claim returned")
            must(given[item.queue, item.tenant] >= most - 1, f"{expected} was not served: {given}")

    # -- workers -----------------------------------------------------------------------------------------

    def beat(self, now: float, beat: Heartbeat, reply: HeartbeatReply) -> None:
        reference = self.reference
        must(reply.fresh == (beat.worker not in reference.workers), f"{beat.worker} fresh: {reply.fresh}")
        reference.workers[beat.worker] = now + beat.lease
        for lease in beat.held:
            expected = reference.items.get((lease.tenant, lease.id))
            kept = expected is not None and (expected.token == lease.token or lease.token in expected.settled)
            must((lease.token in reply.lost) != kept, f"{expected}: {lease.token} kept: {kept}; {reply.lost}")
            if not kept:
                self.cover(f"a heartbeat reported a loss: {reply.lost[lease.token]}")

    def remove_worker(self, now: float, worker: str, freed: int) -> None:
        held = len(self.reference.held.get(worker, {}))
        if worker in self.stopping_workers and not self.handlers.killed(worker):
            # The item of a thread that ran at the end of the drain is settled when the thread has ended.
            kept = list(self.reference.held.get(worker, {}).values())
            must(not kept, f"{worker} stopped and neither gave back nor settled {kept}")
        must(freed == held, f"{freed} freed of {held}")
        self.handlers.removed(worker)
        self.reference.remove_worker(worker, now)

    def unknown_leases(self, now: float, worker: str, known: Sequence[int], leases: Sequence[Lease]) -> None:
        held = self.reference.held.get(worker, {})
        must({lease.token for lease in leases} == held.keys() - set(known), f"unknown_leases of {worker}")
        if leases:
            self.cover("unknown leases found")

    # -- settling ----------------------------------------------------------------------------------------

    def settle(self, now: float, settlements: Sequence[Settlement], answer: Settled) -> None:
        effects = ReferenceEffects()
        refused: set[Any] = set()
        for settlement, outcome in zip(settlements, answer.outcomes, strict=True):
            self._check_settlement(now, settlement, outcome, effects, refused)
        self._check_effects(effects, answer.effects)

    def _check_settlement(
        self,
        now: float,
        settlement: Settlement,
        outcome: Outcome,
        effects: ReferenceEffects,
        refused: set[Any],
    ) -> None:
        lease = settlement.lease
        expected = self.reference.items.get((lease.tenant, lease.id))
        self.note(
            f"settle  {lease.id} token {lease.token} {settlement.kind} {settlement.reason or ''} -> "
            f"{outcome.verb}{' again' if outcome.again else ''}"
        )
        if expected is None or expected.token != lease.token:
            again = expected is not None and lease.token in expected.settled
            wanted = ("applied", True) if again else ("stale", False)
            must(
                (outcome.verb, outcome.again) == wanted,
                f"{expected}: {outcome}, by a token that is no longer valid",
            )
            self.cover("settled again" if again else f"stale settle refused: {outcome.loss}")
        else:
            must(
                outcome.verb != "stale" and not outcome.again, f"{expected} refused its own token: {outcome}"
            )
            if outcome.verb == "applied":
                self._check_fold(expected, settlement, refused)
                self._apply(now, expected, settlement, outcome, effects)
                return
            self._check_not_applied(expected, settlement, outcome, refused)
        contribution = settlement.contribution
        if contribution is not None and contribution.version is not None:
            refused.add(expected.group.ref if expected is not None else (lease.tenant, lease.group_id))

    def _check_fold(self, expected: ReferenceItem, settlement: Settlement, refused: set[Any]) -> None:
        contribution = settlement.contribution if expected.item.contributes else None
        if contribution is not None and contribution.version is not None:
            right = contribution.version == expected.group.version and expected.group.ref not in refused
            must(
                right,
                f"{expected} folded from {contribution.version}; the group is at {expected.group.version}",
            )

    def _check_not_applied(
        self, expected: ReferenceItem, settlement: Settlement, outcome: Outcome, refused: set[Any]
    ) -> None:
        contribution = settlement.contribution
        self.cover(f"settlement {outcome.verb}")
        if outcome.verb == "moved":
            must(contribution is not None and contribution.version is not None, f"{expected} moved")
            assert contribution is not None
            moved = contribution.version != expected.group.version or expected.group.ref in refused
            must(moved, f"{expected} was refused as moved from {contribution.version}, the current version")
            must(
                (outcome.version, outcome.value) == (expected.group.version, expected.group.value),
                f"{expected}: moved to {outcome.version}, expected {expected.group.version}",
            )

    def _apply(
        self,
        now: float,
        expected: ReferenceItem,
        settlement: Settlement,
        outcome: Outcome,
        effects: ReferenceEffects,
    ) -> None:
        expected.settled.append(settlement.lease.token)
        self.handlers.settled(expected, settlement)
        if settlement.kind in ("retry", "defer", "release"):
            self._apply_return(now, expected, settlement)
            return
        if settlement.kind == "suspend":
            children = self._find_by_keys([_child(item, expected) for item in settlement.children], now)
            self._apply_children(now, expected, children, outcome)
            self.recorded.suspend(now, expected, settlement, outcome)
            return
        if settlement.kind == "success":
            must(expected.doom is None, f"{expected} succeeded, but is {expected.doom}")
            left_out = expected.item.type in DELEGATING and not settlement.children
            must(not left_out, f"{expected} succeeded without its children")
            self._check_deadline(now, expected)
            expected.result = settlement.result
            if settlement.contribution is not None:
                self.reference.contribute(expected, settlement.contribution, outcome.version)
        if settlement.kind == "dead":
            self._check_death(now, expected, settlement)
            expected.reason = settlement.reason
            self.cover(f"dead {settlement.reason}")
            self.cover("dead in a group of several") if expected.group.ref != expected.ref else None
            undone = [(child.type, child.contributes) for child in settlement.children]
            compensated = expected.item.type == "risky" and _attempts_begun(expected, settlement)
            wanted = self.recorded.undone(expected, settlement)
            must(
                undone == ([*wanted, ("undo", False)] if compensated else wanted),
                f"{expected} died with these children: {undone}",
            )
        if settlement.kind == "cancelled":
            must(expected.item.type in ON_FULL, f"{expected} was cancelled by its worker")
            must(not expected.begun, f"{expected} was dropped, and has begun")
            self.cover("an item was dropped, or replaced before it began")
        children = self._find_by_keys([_child(item, expected) for item in settlement.children], now)
        self.reference.end(expected, settlement.kind, now)
        self._apply_children(now, expected, children, outcome)
        self.reference.count_end(expected, now, effects)
        self._apply_changes(children, now)

    def _check_death(self, now: float, expected: ReferenceItem, settlement: Settlement) -> None:
        """An item dies of failures or of losses only when that budget is spent."""
        if settlement.reason == "expired" and settlement.lease.verdict is None:
            self._check_deadline(now, expected)
        expected.failures += expected.doom is None and expected.begun
        budget = expected.item.attempts
        if settlement.reason == "exhausted":
            must(expected.failures == budget, f"{expected} is exhausted: {expected.failures} of {budget}")
        if settlement.reason == "lease_lost":
            most = MAX_LOSSES.get(expected.item.type, DEFAULT_MAX_LOSSES)
            must(expected.losses >= most, f"{expected} died of {expected.losses} losses of {most}")

    def _check_deadline(self, now: float, expected: ReferenceItem) -> None:
        """An item that a worker has at its deadline, running or not, ends there."""
        late = expected.deadline is not None and now > expected.deadline + 5.0
        must(
            not (late and self.strict_timing),
            f"{expected} ended {now - (expected.deadline or 0):g} s after its deadline",
        )

    def _apply_children(
        self, now: float, expected: ReferenceItem, children: list[Any], outcome: Outcome
    ) -> None:
        renamed = {item.id: holder[1] for item, holder in children if holder is not None}
        must((outcome.existing or {}) == renamed, f"{expected}: existing {outcome.existing}, not {renamed}")
        groups = self._nested_groups(now, expected, [item for item, holder in children if holder is None])
        stored = [item for item, holder in children if holder is None]
        for item in stored:  # a nested group is open before the items that wait for it are stored
            group = groups.get(item.group_id or "", expected.group)
            self.reference.add(item, (), group, now)
        for item in stored:
            added = self.reference.items[item.tenant, item.id]
            after = tuple(renamed.get(id, id) for id in item.after)
            if item.closes_group:  # it waits for members by their group
                inside = {one.id for one in stored if one.group_id == item.id}
                self.cover("a closing item named members") if inside.intersection(after) else None
                after = tuple(id for id in after if id not in inside)
                added.item = replace(item, need=item.need - len(item.after) + len(after))
            self.reference.block(added, after)

    def _nested_groups(self, now: float, expected: ReferenceItem, items: list[Item]) -> dict[str, Any]:
        """The groups that children close, by the ids of these children."""
        groups: dict[str, Any] = {}
        for item in items:
            if item.closes_group:
                self.cover("a group was nested")
                groups[item.id] = self.reference.nest(item, expected.group)
        for item in items:
            if item.id in groups:
                groups[item.id].outer = groups.get(item.group_id or "", expected.group)
                if not any(one.group_id == item.id for one in items):
                    self.cover("a nested group without members")
                    groups[item.id].ended_at = now
        return groups

    def _apply_return(self, now: float, expected: ReferenceItem, settlement: Settlement) -> None:
        self.reference.drop_lease(expected)
        self.cover(settlement.kind)
        failed = settlement.failure is not None
        must(failed == (settlement.kind == "retry"), f"{expected}: {settlement.kind}, failed: {failed}")
        if expected.doom is not None:
            return
        if settlement.kind != "retry":
            expected.attempt -= expected.begun
        expected.failures += settlement.kind == "retry"
        expected.losses = expected.losses if settlement.kind == "release" else 0
        expected.status = "waiting"
        expected.ready_at = None
        if settlement.kind != "release" or settlement.delay or settlement.run_at is not None:
            expected.due_at = now + settlement.delay if settlement.run_at is None else settlement.run_at
        if expected.overdue:
            self.reference.doom(expected, "expired")

    def _check_effects(self, expected: ReferenceEffects, effects: Any) -> None:
        released = [(one.tenant, one.id) for one in effects.released]
        must(sorted(released) == sorted(expected.released), f"released {released}, not {expected.released}")
        ended = [((one.tenant, one.id), one.value) for one in effects.ended_groups]
        must(_sorted(ended) == _sorted(expected.ended_groups), f"ended {ended}, not {expected.ended_groups}")
        must(effects.doomed == expected.doomed, f"{effects.doomed} doomed, not {expected.doomed}")
        for name in ("released", "ended_groups", "doomed"):
            if getattr(expected, name):
                self.cover(name)


def _attempts_begun(expected: ReferenceItem, settlement: Settlement) -> int:
    """How many attempts of an item that dies began. A worker knows that of its own lease. For leases before
    it, the store's count is all that there is."""
    unknown = settlement.lease.verdict is not None or settlement.reason == "lease_lost"
    began = unknown or expected.started_token == settlement.lease.token
    return expected.attempt - (expected.begun and not began)


def _child(item: Item, expected: ReferenceItem) -> Item:
    return replace(item, tenant=expected.ref[0], parent=item.parent or expected.ref[1])


def _sorted(ended: Any) -> Any:
    return sorted(ended, key=lambda one: one[0])
