"""What must be true: after every step of the store, and at the end.

Each verb's answer is held against the shadow, which knows what it must be:

| I1 | a settlement is applied iff its token is that of the latest claim and was not freed |
| I2 I3 | tokens are new; the attempt is counted, once per claim, and stays within the budget |
| I4 I5 | nothing is leased while somebody holds it; nothing is freed before its worker's lease is over |
| I8 | an item ends once per opening; what a settlement brings is all there, or none of it |
| I9 | a group ends when its last open member does, once per opening, with the value contributed last |
| I10 | a dependent is released once, when its condition first holds, and doomed when it no longer can |
| I11 | what is bound to a tenant shows and changes nothing of another's |
| I12 I13 | the store's own tables agree with a recount (its audit), and with the shadow |
| I14 | each occurrence of a schedule fires once | I17 | tenants take turns | I19 | no lease runs twice |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.shadow import Following, Shadow, Thing, Violation, must, shown
from treadle.backends.memory import MemoryBackend
from treadle.backends.memory.audit import audit
from treadle.events import Dead, GroupDone, Started, Succeeded
from treadle.item import (
    Changed,
    Claim,
    Demand,
    Ended,
    Fire,
    Heartbeat,
    HeartbeatReply,
    Item,
    Lease,
    Outcome,
    Rejected,
    Schedule,
    Settled,
    Settlement,
    Submission,
    Submitted,
)

AUDIT_EVERY = 60
COMPARE_EVERY = 20
DELEGATING = ("counting", "fan", "parent")
"""Types that never succeed without children."""

__all__ = ["Violation", "Watch"]


class Watch:
    def __init__(self, store: MemoryBackend, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self.shadow = Shadow()
        self.steps = 0
        self.calls: Counter[str] = Counter()
        self.coverage: Counter[str] = Counter()
        self.timeline: list[str] = []
        self.orderly = True
        """Nothing happens that would excuse what is late: no pauses, no clocks that jump, a store that
        answers."""
        self.leaving: set[str] = set()
        """Workers that stop by themselves while all is orderly: whatever they held they give back."""
        self._schedules: dict[str, float | None] = {}
        self._fired: set[tuple[str, float]] = set()
        self._owners: dict[tuple[str, str], tuple[str, float]] = {}
        self._done: Counter[tuple[str, str]] = Counter()
        self.broken: Violation | None = None
        """The first violation. The engine survives whatever its store raises; the simulation must not."""

    def sometimes(self, what: str) -> None:
        """Something interesting happened. Whatever is worth simulating must happen now and then."""
        self.coverage[what] += 1

    def note(self, what: str) -> None:
        self.timeline.append(f"{self._clock():10.4f}  {what}")

    # -- after every step ------------------------------------------------------------------------------

    def stepped(self, verb: str, now: float, *args: Any) -> None:
        self.steps += 1
        self.calls[verb] += 1
        self.guarded(getattr(self, verb), now, *args)
        if self.steps % COMPARE_EVERY == 0:
            self.guarded(self.compare)
        if self.steps % AUDIT_EVERY == 0:
            self.guarded(self.audit)

    def guarded(self, check: Callable[..., None], *args: Any) -> None:
        if self.broken is not None:
            return
        try:
            check(*args)
        except Violation as violation:
            self.broken = violation
        except Exception as error:  # noqa: BLE001  a store that is wrong may confuse the shadow too
            self.broken = Violation(f"{check.__name__}: {type(error).__name__}: {error}")
        if self.broken is not None:
            self.note(f"VIOLATION: {self.broken}")

    def announced(self, event: Any) -> None:
        self.guarded(self.event, event)

    def audit(self) -> None:
        problems = audit(self._store)
        must(not problems, "; ".join(problems[:5]))

    def compare(self) -> None:
        """The store holds what the shadow does, and nothing else."""
        rows = [row for row in self._store.store.log if not row.gone]
        must(len(rows) == len(self.shadow.things), f"{len(rows)} items, not {len(self.shadow.things)}")
        for row in rows:
            thing = self.shadow.things.get(row.ref)
            must(thing is not None, f"{row.ref} is in the store, and should not be")
            assert thing is not None
            status = "waiting" if row.status in ("scheduled", "ready") else row.status
            wanted = "running" if thing.token and not thing.doom else thing.status
            must(
                (status, row.attempt, row.token, row.verdict)
                == (wanted, thing.attempt, thing.token, thing.doom),
                f"{thing}: {row.status}, attempt {row.attempt}, token {row.token}, {row.verdict}; must be "
                f"{wanted}, {thing.attempt}, {thing.token}, {thing.doom}",
            )

    # -- submitting ------------------------------------------------------------------------------------

    def submit(self, now: float, submissions: Sequence[Submission], answers: Sequence[Any]) -> None:
        for submission, answer in zip(submissions, answers, strict=True):
            self._submitted(now, submission.items, answer)

    def _submitted(self, now: float, items: Sequence[Item], answer: Any) -> None:
        if isinstance(answer, Rejected):
            self._refused(items, answer)
            return
        holders = self._holders(items, now)
        renamed = {item.id: holder[1] for item, holder in holders if holder is not None}
        for (item, holder), submitted in zip(holders, answer, strict=True):
            must(submitted.existing == (holder is not None), f"{item.id} by key: {submitted}, not {holder}")
            if holder is not None:
                must(submitted.id == holder[1], f"{item.id}: {submitted.id} answered, not {holder}")
                self.sometimes("a key was answered by an earlier item")
            else:
                self.shadow.admit(item, (renamed.get(id, id) for id in item.after), None, now)
        for submitted in answer:
            self._leased_at_once(submitted, items)

    def _holders(self, items: Sequence[Item], now: float) -> list[tuple[Item, Any]]:
        taken: dict[Any, Any] = {}
        return [(item, self.shadow.holder(item, taken, now)) for item in items]

    def _refused(self, items: Sequence[Item], rejected: Rejected) -> None:
        self.sometimes(f"submission refused: {rejected.why}")
        if rejected.why == "duplicate_id":
            known = all(
                (item.tenant, item.id) in self.shadow.things for item in items if item.id in rejected.ids
            )
            must(known or len({item.id for item in items}) < len(items), f"{rejected} is no duplicate")

    def _leased_at_once(self, submitted: Submitted, items: Sequence[Item]) -> None:
        lease = submitted.lease
        if lease is None:
            return
        self.sometimes("skipped the queue")
        wanted = next(item.lease_to for item in items if item.id == lease.id)
        must(wanted in self.shadow.workers, f"{lease.id} is leased to {wanted}, who is not known")
        self._lease(lease, wanted or "")

    # -- claiming --------------------------------------------------------------------------------------

    def claim(self, now: float, demand: Demand, claim: Claim) -> None:
        shadow = self.shadow
        for worker in [worker for worker, until in shadow.workers.items() if until <= now]:
            if shadow.remove_worker(worker, now):
                self.sometimes("lease over")
        must(claim.alive == (demand.worker in shadow.workers), f"{demand.worker} alive: {claim.alive}")
        if not claim.alive:
            must(not claim.leases, "a dead worker was given something")
            self.sometimes("claim by a worker that was buried")
            return
        shadow.expire(now)
        run = Counter[str]()
        for lease in claim.leases:
            self._eligible(lease, demand, now)
            self._lease(lease, demand.worker)
            run[lease.type] += lease.verdict is None
        must(run.total() <= demand.limit, f"{run.total()} of {demand.limit}")
        if demand.types is not None:
            must(all(count <= demand.types.get(type, 0) for type, count in run.items()), f"no room for {run}")
        self._fair(demand, claim)

    def _eligible(self, lease: Lease, demand: Demand, now: float) -> None:
        must(demand.tenants is None or lease.tenant in demand.tenants, f"{lease.id} is of another tenant")
        must(demand.queues is None or lease.queue in demand.queues, f"{lease.id} is of another queue")
        thing = self.shadow.things.get((lease.tenant, lease.id))
        must(thing is not None, f"{lease.id} does not exist, and was claimed")
        assert thing is not None
        must(lease.verdict == thing.doom, f"{thing}: verdict {lease.verdict}, not {thing.doom}")
        if lease.verdict is None:
            must(thing.status == "waiting", f"{thing} was claimed before it was released")
            must(thing.due_at <= now + 1e-6, f"{thing} was claimed {thing.due_at - now:g} s before it is due")
            must(not self._is_paused(thing.item), f"{thing} was claimed from a queue that is paused")

    def _is_paused(self, item: Item) -> bool:
        return bool({(item.queue, None), (item.queue, item.tenant)} & self.shadow.paused)

    def _lease(self, lease: Lease, worker: str) -> None:
        thing = self.shadow.things[lease.tenant, lease.id]
        self.note(f"claimed {thing} attempt {lease.attempt} token {lease.token} {lease.verdict or ''}")
        self.shadow.lease(thing, lease.token, worker)
        if lease.verdict is None:
            thing.attempt += 1
            self.sometimes("second attempt") if thing.attempt > 1 else None
        else:
            self.sometimes(f"verdict {lease.verdict}")
        must(lease.attempt == thing.attempt, f"{thing}: attempt {lease.attempt}, not {thing.attempt}")
        must(lease.group_id == thing.team.ref[1], f"{thing} is in group {lease.group_id}")
        budget = thing.item.attempts
        must(budget is None or thing.attempt <= budget, f"{thing}: attempt {thing.attempt} of {budget}")
        if thing.losses > 1:
            self.sometimes("lease lost twice")

    def _fair(self, demand: Demand, claim: Claim) -> None:
        """Within a queue no tenant gets two more than another that still has something to be run."""
        leases = [lease for lease in claim.leases if lease.verdict is None]
        if len(leases) < 3 or self._store.store.parked or demand.avoid:
            return
        given = Counter((lease.queue, lease.tenant) for lease in leases)
        room = Counter(demand.types or {})
        room.subtract(lease.type for lease in leases)
        for thing in self.shadow.open_ones():
            item = thing.item
            row = self._store.store.find(*thing.ref)
            if row is None or row.status != "ready" or row.verdict or (demand.types and room[item.type] <= 0):
                continue
            if item.tenant not in (demand.tenants or (item.tenant,)) or self._is_paused(item):
                continue
            most = max((n for (queue, _), n in given.items() if queue == item.queue), default=0)
            self.sometimes("a tenant had more than one claim could take")
            must(given[item.queue, item.tenant] >= most - 1, f"{thing} was passed over: {given}")

    def beat(self, now: float, beat: Heartbeat, pulse: HeartbeatReply) -> None:
        shadow = self.shadow
        must(pulse.fresh == (beat.worker not in shadow.workers), f"{beat.worker} fresh: {pulse.fresh}")
        shadow.workers[beat.worker] = now + beat.lease
        for lease in beat.held:
            thing = shadow.things.get((lease.tenant, lease.id))
            kept = thing is not None and (thing.token == lease.token or lease.token in thing.settled)
            must((lease.token in pulse.lost) != kept, f"{thing}: {lease.token} kept: {kept}; {pulse.lost}")
            if not kept:
                self.sometimes(f"a beat told of a loss: {pulse.lost[lease.token]}")

    def remove_worker(self, now: float, worker: str, freed: int) -> None:
        held = len(self.shadow.held.get(worker, {}))
        if held and worker in self.leaving:
            raise Violation(f"{worker} stopped, and did not give back {self.shadow.held[worker]}")
        must(freed == held, f"{freed} freed of {held}")
        self.shadow.remove_worker(worker, now)

    def unknown_leases(self, now: float, worker: str, known: Sequence[int], leases: Sequence[Lease]) -> None:
        held = self.shadow.held.get(worker, {})
        must({lease.token for lease in leases} == held.keys() - set(known), f"unknown_leases of {worker}")
        if leases:
            self.sometimes("orphan found")

    # -- settling --------------------------------------------------------------------------------------

    def settle(self, now: float, settlements: Sequence[Settlement], answer: Settled) -> None:
        following = Following()
        refused: set[Any] = set()
        for settlement, outcome in zip(settlements, answer.outcomes, strict=True):
            self._settle_one(now, settlement, outcome, following, refused)
        self._followed(following, answer.effects)

    def _settle_one(
        self, now: float, settlement: Settlement, outcome: Outcome, following: Following, refused: set[Any]
    ) -> None:
        lease = settlement.lease
        thing = self.shadow.things.get((lease.tenant, lease.id))
        self.note(
            f"settle  {lease.id} token {lease.token} {settlement.kind} {settlement.reason or ''} -> "
            f"{outcome.verb}{' again' if outcome.again else ''}"
        )
        if thing is None or thing.token != lease.token:
            again = thing is not None and lease.token in thing.settled
            wanted = ("applied", True) if again else ("stale", False)
            must((outcome.verb, outcome.again) == wanted, f"{thing}: {outcome}, by a token that is over")
            self.sometimes("settled again" if again else f"stale settle refused: {outcome.loss}")
        else:
            must(outcome.verb != "stale" and not outcome.again, f"{thing} refused its own token: {outcome}")
            if outcome.verb == "applied":
                self._fold(thing, settlement, refused)
                self._apply(now, thing, settlement, outcome, following)
                return
            self._not_applied(thing, settlement, outcome, refused)
        contribution = settlement.contribution
        if contribution is not None and contribution.version is not None:
            refused.add(thing.team.ref if thing is not None else (lease.tenant, lease.group_id))

    def _fold(self, thing: Thing, settlement: Settlement, refused: set[Any]) -> None:
        contribution = settlement.contribution
        if contribution is not None and contribution.version is not None:
            right = contribution.version == thing.team.version and thing.team.ref not in refused
            must(right, f"{thing} folded from {contribution.version}; the group is at {thing.team.version}")

    def _not_applied(self, thing: Thing, settlement: Settlement, outcome: Outcome, refused: set[Any]) -> None:
        contribution = settlement.contribution
        self.sometimes(f"settlement {outcome.verb}")
        if outcome.verb == "moved":
            must(contribution is not None and contribution.version is not None, f"{thing} moved")
            assert contribution is not None
            moved = contribution.version != thing.team.version or thing.team.ref in refused
            must(moved, f"{thing} was moved from {contribution.version}, where the group is")
            must((outcome.version, outcome.value) == (thing.team.version, thing.team.value), "moved to where")

    def _apply(
        self, now: float, thing: Thing, settlement: Settlement, outcome: Outcome, following: Following
    ) -> None:
        thing.settled.append(settlement.lease.token)
        if settlement.kind in ("retry", "defer", "release"):
            self._returned(now, thing, settlement)
            return
        if settlement.kind == "success":
            must(thing.doom is None, f"{thing} succeeded, but is {thing.doom}")
            left_out = thing.item.type in DELEGATING and not settlement.children
            must(not left_out, f"{thing} succeeded without what it queued")
            self._in_time(now, thing)
            thing.result = settlement.result
            if settlement.contribution is not None:
                self.shadow.contribute(thing, settlement.contribution)
        if settlement.kind == "dead":
            self.sometimes(f"dead {settlement.reason}")
            self.sometimes("dead in a group of several") if thing.team.ref != thing.ref else None
            undone = [child.type for child in settlement.children]
            must(
                undone == (["undo"] if thing.item.type == "risky" else []), f"{thing} died without: {undone}"
            )
        children = self._holders([_child(item, thing) for item in settlement.children], now)
        self.shadow.end(thing, settlement.kind, now)
        self._children(now, thing, children, outcome)
        self.shadow.tell(thing, now, following)

    def _in_time(self, now: float, thing: Thing) -> None:
        """Whatever still runs at its deadline is stopped there."""
        late = thing.deadline is not None and now > thing.deadline + 5.0
        must(not (late and self.orderly), f"{thing} succeeded {now - (thing.deadline or 0):g} s too late")

    def _children(self, now: float, thing: Thing, children: list[Any], outcome: Outcome) -> None:
        renamed = {item.id: holder[1] for item, holder in children if holder is not None}
        must((outcome.existing or {}) == renamed, f"{thing}: existing {outcome.existing}, not {renamed}")
        for item, holder in children:
            if holder is None:
                self.shadow.admit(item, (renamed.get(id, id) for id in item.after), thing.team, now)

    def _returned(self, now: float, thing: Thing, settlement: Settlement) -> None:
        self.shadow.drop_lease(thing)
        self.sometimes(settlement.kind)
        failed = settlement.failure is not None
        must(failed == (settlement.kind == "retry"), f"{thing}: {settlement.kind}, failed: {failed}")
        if thing.doom is not None:
            return
        if settlement.kind != "retry":
            thing.attempt -= 1
        thing.losses = 0
        thing.status = "waiting"
        if settlement.kind != "release" or settlement.delay or settlement.run_at is not None:
            thing.due_at = now + settlement.delay if settlement.run_at is None else settlement.run_at
        if thing.overdue:
            self.shadow.doom(thing, "expired")

    def _followed(self, following: Following, effects: Any) -> None:
        released = [(one.tenant, one.id) for one in effects.released]
        must(sorted(released) == sorted(following.released), f"released {released}, not {following.released}")
        closed = [((one.tenant, one.id), one.value) for one in effects.closed]
        must(_sorted(closed) == _sorted(following.closed), f"closed {closed}, not {following.closed}")
        must(effects.doomed == following.doomed, f"{effects.doomed} doomed, not {following.doomed}")
        for name in ("released", "closed", "doomed"):
            if getattr(following, name):
                self.sometimes(name)

    # -- operating -------------------------------------------------------------------------------------

    def cancel(self, now: float, ids: Sequence[str], tenant: str | None, changed: Changed) -> None:
        named = [thing for id in ids if (thing := self.shadow.find(tenant, id)) is not None]
        ending = [thing for thing in self.shadow.descendants(named) if not thing.ended]
        must(sorted(shown(changed.items)) == sorted(thing.ref for thing in ending), f"cancelled {ids}")
        following = Following()
        self.sometimes("cancel of what runs") if any(thing.token for thing in ending) else None
        for thing in ending:
            self.note(f"cancelled {thing}")
            self.shadow.end(thing, "cancelled", now)
        for thing in ending:
            self.shadow.tell(thing, now, following)
        self._followed(following, changed.effects)

    def complete(
        self, now: float, id: str, result: bytes | None, tenant: str | None, changed: Changed
    ) -> None:
        from treadle.item import Contribution

        thing = self.shadow.find(tenant, id)
        must(thing is not None and shown(changed.items) == [thing.ref], f"completed {shown(changed.items)}")
        assert thing is not None
        self.sometimes("completed by hand")
        self.sometimes("complete of what runs") if thing.token else None
        self.note(f"completed {thing}")
        following = Following()
        thing.result = result
        self.shadow.contribute(thing, Contribution())
        self.shadow.end(thing, "success", now)
        self.shadow.tell(thing, now, following)
        self._followed(following, changed.effects)

    def requeue(self, now: float, ids: Any, tenant: str | None, changed: Changed) -> None:
        named = {thing.ref for id in ids if (thing := self.shadow.find(tenant, id)) is not None}
        dead = {ref for ref in named if self.shadow.things[ref].status == "dead"}
        must(set(shown(changed.items)) == dead, f"requeued {shown(changed.items)}, not {dead}")
        for ref in dead:
            self.note(f"requeued {self.shadow.things[ref]}")
            self.sometimes("requeued")
            self.sometimes("a group opened again") if not self.shadow.things[ref].team.open else None
            self.shadow.revive(self.shadow.things[ref], now)

    def trigger(self, now: float, ids: Sequence[str], tenant: str | None, changed: Changed) -> None:
        wanted = {thing.ref for id in ids if (thing := self.shadow.find(tenant, id)) is not None}
        must(set(shown(changed.items)) == wanted, f"triggered {shown(changed.items)}, not {wanted}")
        for ref in wanted:
            self.shadow.things[ref].due_at = now
            self.sometimes("triggered")

    def pause(self, now: float, queue: str, paused: bool, tenant: str | None) -> None:
        (self.shadow.paused.add if paused else self.shadow.paused.discard)((queue, tenant))
        self.sometimes("queue paused")

    def prune(self, now: float, removed: int) -> None:
        if not removed:
            return
        self.sometimes("pruned")
        gone = [thing for ref, thing in self.shadow.things.items() if self._store.store.find(*ref) is None]
        must(len(gone) == removed, f"{removed} pruned, {len(gone)} are gone")
        for thing in gone:
            keep = thing.item.keep_dead if thing.status == "dead" else thing.item.keep
            ended_at = thing.team.ended_at
            over = thing.ended and ended_at is not None and keep is not None and now >= ended_at + keep
            must(over, f"{thing} was pruned too early")
            waiting = self.shadow.naming(thing)
            must(not waiting, f"{thing} was pruned, and {waiting} wait for it")
            self.shadow.forget(thing)

    # -- coordinating ----------------------------------------------------------------------------------

    def claim_key(self, now: float, key: str, owner: str, ttl: float, tenant: str, ours: bool) -> None:
        known = self._owners.get((tenant, key))
        held = known is not None and known[0] != owner and now < known[1]
        must(ours != held, f"key {key} of {tenant} given to {owner}: {ours}, but {known} had it")
        if ours and (known is None or known[0] != owner or now >= known[1]):
            self._owners[tenant, key] = (owner, now + ttl)
        self.sometimes("a key was claimed" if ours else "a key was refused")

    def put_schedule(self, now: float, schedule: Schedule, stored: Schedule) -> None:
        if schedule.name not in self._schedules and schedule.next_at is not None:
            self._schedules[schedule.name] = stored.next_at

    def drop_schedule(self, now: float, name: str) -> None:
        self._schedules.pop(name, None)

    def fire(self, now: float, fire: Fire, answer: Any) -> None:
        due = fire.name in self._schedules and self._schedules[fire.name] == fire.at
        must((answer is not None) == due, f"{fire.name} at {fire.at}: {answer}, due: {due}")
        if answer is None:
            self.sometimes("an occurrence was fired already")
            return
        must((fire.name, fire.at) not in self._fired, f"{fire.name} fired twice at {fire.at}")
        self._fired.add((fire.name, fire.at))
        self._schedules[fire.name] = fire.next_at
        self.note(f"fired {fire.name} at {fire.at:.1f}")
        self.sometimes("fired")
        self._submitted(now, fire.items, answer)

    # -- reading ---------------------------------------------------------------------------------------

    def get(self, now: float, ids: Sequence[str], tenant: str | None, states: Sequence[Any]) -> None:
        for id, state in zip(ids, states, strict=True):
            thing = self.shadow.find(tenant, id)
            must((state is None) == (thing is None), f"{id} of {tenant}: {state}")
            if state is not None and thing is not None:
                must((state.tenant, state.id) == thing.ref, f"{id} of {tenant}: {state.tenant}")

    def ended(self, now: float, ended: Ended) -> None:
        for ref in ended.items:
            must(self.shadow.things[ref].ended, f"{ref} is said to have ended")
        for ref in ended.groups:
            must(not self.shadow.teams[ref].open, f"group {ref} is said to have ended")

    # -- what is announced -----------------------------------------------------------------------------

    def event(self, event: Any) -> None:
        """Nothing is announced before it is so."""
        thing = self.shadow.things.get((getattr(event, "tenant", ""), getattr(event, "id", "")))
        if thing is None:
            return
        if isinstance(event, Started):
            thing.starts += 1
            must(thing.starts <= thing.leases, f"{thing} was started more often than leased")
        elif isinstance(event, Succeeded | Dead):
            must(thing.ends, f"{type(event).__name__} of {thing}, which has not ended")
        elif isinstance(event, GroupDone):
            self._done[thing.ref] += 1
            must(
                self._done[thing.ref] <= thing.team.closings, f"GroupDone of {thing} too often, or too early"
            )


def _child(item: Item, thing: Thing) -> Item:
    from msgspec.structs import replace

    return replace(item, tenant=thing.ref[0], parent=item.parent or thing.ref[1])


def _sorted(closed: Any) -> Any:
    return sorted(closed, key=lambda one: one[0])
