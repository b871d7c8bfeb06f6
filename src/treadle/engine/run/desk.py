"""Desk: where attempts hand over what they decided, and what happens once it is in the store.

Before the commit: encode the result, build the children, queue the settlement. After it: free the lease,
count, announce, answer whoever waits here, wake whoever waits elsewhere. Nothing is announced before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from treadle.codec import check_size
from treadle.engine.core import Core
from treadle.engine.tasks import finish
from treadle.engine.wait import announce
from treadle.engine.wait import wait_result as values
from treadle.errors import LeaseLost as StaleLease
from treadle.errors import PayloadError
from treadle.events import Dead, Deferred, Expired, Failed, LeaseLost, Started, Succeeded, from_lease
from treadle.item import Effects, EndedGroup, GroupState, Item, ItemState, Lease, Loss, Outcome, Ref, Wake

from .after_commit import LostAnswers
from .decide import Decision, Die, RunAgain, Succeed, failure_of, undecodable
from .held import HeldLease
from .settle import GiveBack, PendingSettlement, Settler


class Undone(Exception):
    """Rolls a handler's transaction back: its attempt did not succeed."""


class Desk:
    """One per worker. It holds every lease that the worker has."""

    def __init__(self, core: Core, on_free: Callable[[], None]) -> None:
        settings = core.settings
        self._core = core
        self._clock = settings.clock
        self._on_free = on_free
        self.held: dict[int, HeldLease] = {}
        """By token: every attempt that is not yet settled for good."""
        self.refs: dict[Ref, int] = {}
        """The same by tenant and id."""
        self._judged: set[int] = set()
        """Tokens that are being settled without an attempt."""
        self.taken = 0
        """How many leases there have been."""
        self.settler = Settler(
            core.backend, self, core.tasks, sleep=settings.clock.sleep, draw=settings.random.random
        )
        self._afterwards = LostAnswers(core, self._conclude)
        self.fail: Callable[[HeldLease, BaseException], Decision] | None = None

    # -- before the commit -----------------------------------------------------------------------------

    def take(self, active: HeldLease) -> None:
        lease = active.lease
        self.taken += 1
        self.held[lease.token] = active
        self.refs[lease.tenant, lease.id] = lease.token
        active.bound.metrics.claimed()

    def knows(self, token: int) -> bool:
        return token in self.held or token in self._judged

    def tokens(self) -> list[int]:
        """Every token that this worker knows of."""
        return [*self.held, *self._judged]

    def _drop(self, lease: Lease) -> HeldLease | None:
        self._judged.discard(lease.token)
        active = self.held.pop(lease.token, None)
        if active is not None:
            for bell in active.bells:
                bell.cancel()
            ref = (lease.tenant, lease.id)
            if self.refs.get(ref) == lease.token:
                del self.refs[ref]
        if not self.held:
            # Tables that were large once keep their size until they are cleared.
            self.held.clear()
            self.refs.clear()
        return active

    def begun(self, active: HeldLease) -> None:
        lease, at = active.lease, active.store_time(active.started)
        active.bound.metrics.began(at - lease.due_at)
        if self._core.hooks.listening(lease.type):
            self._core.hooks.emit(from_lease(Started, lease, at))

    def decided(self, active: HeldLease, decision: Decision | GiveBack) -> None:
        self.settler.add(self._entry(active, decision))

    async def decided_within(self, active: HeldLease, decision: Decision | GiveBack) -> None:
        """Settle inside the handler's own transaction. If the attempt did not succeed, or that cannot be,
        the transaction is undone and the attempt settles as failed, by itself."""
        held, active.transaction = active.transaction, None
        entry = self._entry(active, decision)
        if not isinstance(entry.decision, Succeed):
            await held.undo(Undone())
            self.settler.add(entry)
            return
        try:
            await finish(held.settle(entry))
        except StaleLease as error:
            self.lost(active, cast("Loss", error.reason))
        except Exception as error:  # noqa: BLE001  the commit failed: so did the attempt
            failed = self.failed(active.lease, error)
            self.settler.add(PendingSettlement(active.lease, failed, started=active.started, otherwise=entry))

    def lost(self, active: HeldLease, why: Loss) -> None:
        """The item is somebody else's: forget it."""
        if self._drop(active.lease) is None:
            return
        active.over = True
        active.bound.metrics.lost(active.started > 0)
        if self._core.hooks.listening(active.lease.type):
            self._core.hooks.emit(from_lease(LeaseLost, active.lease, self._now(active), reason=why))
        self._on_free()

    def refuse(self, lease: Lease, decision: Decision | GiveBack) -> None:
        """A claimed item that does not come as far as an attempt."""
        self.settle(PendingSettlement(lease, decision))

    def settle(self, entry: PendingSettlement) -> None:
        """What is settled without an attempt."""
        self.taken += 1
        self._judged.add(entry.lease.token)
        self.settler.add(entry)

    def classifier_failed(self, error: Exception) -> None:
        self._core.hooks.report(error, "hook", "a hook of the user's failed")

    def _entry(self, active: HeldLease, decision: Decision | GiveBack) -> PendingSettlement:
        entry = PendingSettlement(active.lease, decision, started=active.started)
        if isinstance(decision, Succeed):
            try:
                self._prepare(active, decision, entry)
            except PayloadError as error:
                entry.decision = undecodable(error)
            except Exception as error:  # noqa: BLE001  `options(input)` of a child is the user's code
                entry.decision = Die("bad_result", failure_of(error), error)
        return entry

    def _prepare(self, active: HeldLease, decision: Succeed, entry: PendingSettlement) -> None:
        plan = decision.plan
        settings = self._core.settings
        if plan.value is not None or plan.contributions:
            entry.result = active.bound.type.encode_result(plan.value, settings.codec)
            check_size(entry.result, settings.max_payload, "the result of", active.lease.type)
        if not active.stored.compensates:
            entry.contributions = plan.contributions
        if plan.children:
            item = self._core.itemizer.item
            lease = active.lease
            entry.children = tuple(
                item(child.work, child.options, tenant=lease.tenant, parent=lease) for child in plan.children
            )

    # -- what the settler asks -------------------------------------------------------------------------

    def compensate(self, lease: Lease, died: Die) -> tuple[Item, ...]:
        try:
            return self._core.itemizer.compensation(lease, died.reason, str(died.failure))
        except Exception as error:  # noqa: BLE001  the item must still die
            self.report(error, f"could not make the compensation of {lease.id}")
            return ()

    def failed(self, lease: Lease, error: Exception) -> Decision:
        active = self.held.get(lease.token)
        if active is None or self.fail is None:
            return Die("bad_result", failure_of(error), error)
        return undecodable(error) if isinstance(error, PayloadError) else self.fail(active, error)

    def read_value(self, lease: Lease, value: bytes | None) -> Any:
        return values.decode_group_value(self._core.registry, lease.type, value)

    def write_value(self, value: Any) -> bytes:
        settings = self._core.settings
        data = settings.codec.encode(value)
        check_size(data, settings.max_payload, "a group's value")
        return data

    def report(self, error: BaseException, message: str) -> None:
        self._core.hooks.report(error, "settle", message)

    # -- after the commit ------------------------------------------------------------------------------

    def settled(self, entries: Sequence[PendingSettlement], effects: Effects) -> None:
        unsure = [entry for entry in entries if entry.outcome is not None and entry.outcome.again]
        if unsure:
            self._afterwards.ask(unsure)
            entries = [entry for entry in entries if entry not in unsure or entry.otherwise is None]
        self._conclude(entries, effects)
        if unsure:
            self._core.wakeups.ready()  # what it released is not known

    def _conclude(self, entries: Sequence[PendingSettlement], effects: Effects) -> None:
        """Everything that follows from what is in the store."""
        core = self._core
        items: list[Ref] = []
        woken = effects.doomed > 0 or bool(effects.released)
        now = (self._clock.monotonic(), self._clock.now())
        for entry in entries:
            try:
                woken = self._end(entry, items, now) or woken
            except Exception as error:  # noqa: BLE001  it is settled; its neighbours are to be told as well
                self.report(error, f"could not announce the outcome of {entry.lease.id}")
        announce.effects(core, effects)
        groups = [(closed.tenant, closed.id) for closed in effects.closed]
        if core.waiters.groups.futures:
            for closed, ref in zip(effects.closed, groups, strict=True):
                self._answer_group(closed, ref)
        if core.unhandled is not None:
            for closed in effects.closed:
                core.unhandled.ended(closed)
        core.wakeups.ended(items, groups)
        if woken:
            core.wakeups.ready()
        self._on_free()

    def _end(self, entry: PendingSettlement, items: list[Ref], now: tuple[float, float]) -> bool:
        """One attempt is over. Whether there may be something to claim now."""
        lease, outcome, core = entry.lease, entry.outcome, self._core
        active = self._drop(lease)
        if outcome is not None and outcome.verb == "stale":
            self._stale(entry, active, outcome)
            return False
        self._count(entry, active, now)
        if core.hooks.listening(lease.type):
            self._announce(entry, active)
        ended = isinstance(entry.decision, Succeed | Die)
        if ended:
            ref = (lease.tenant, lease.id)
            items.append(ref)
            if ref in core.waiters.items.futures:
                self._answer(entry, ref)
        if entry.children:
            existing = None if outcome is None else outcome.existing
            announce.queued(core, entry.children, existing, lease)
        return bool(entry.children) or not ended

    def _stale(self, entry: PendingSettlement, active: HeldLease | None, outcome: Outcome) -> None:
        if active is None:
            return
        active.bound.metrics.lost(active.started > 0)
        if self._core.hooks.listening(entry.lease.type):
            at = self._now(active)
            self._core.hooks.emit(from_lease(LeaseLost, entry.lease, at, reason=outcome.loss or "taken"))

    def _count(self, entry: PendingSettlement, active: HeldLease | None, now: tuple[float, float]) -> None:
        """`now` is the time by both clocks: looked at once for a whole batch."""
        metrics = active.bound.metrics if active is not None else self._core.metrics.of(entry.lease.type)
        lease, held = entry.lease, active is not None
        ran = now[0] - entry.started if entry.started else None
        total = lease.claimed_at - lease.queued_at + (ran or 0.0)
        match entry.decision:
            case Succeed():
                metrics.succeeded_in(ran, total, lease.attempt, held=held, at=now[1])
            case Die(reason=reason):
                metrics.died(ran, total, lease.attempt, expired=reason == "expired", held=held)
            case RunAgain(kind=kind):
                metrics.again(kind, ran, held=held)
            case GiveBack():
                metrics.released(entry.started > 0, held=held)

    def _announce(self, entry: PendingSettlement, active: HeldLease | None) -> None:
        lease, emit = entry.lease, self._core.hooks.emit
        at = self._now(active) if active is not None else lease.claimed_at
        match entry.decision:
            case Succeed(plan=plan):
                emit(from_lease(Succeeded, lease, at, result=plan.value))
            case RunAgain(kind="retry", error=error):
                emit(from_lease(Failed, lease, at, error=error or _unknown(), will_retry=True))
            case RunAgain(delay=delay, run_at=run_at):
                emit(from_lease(Deferred, lease, at, run_at=at + delay if run_at is None else run_at))
            case Die(reason=reason, error=error):
                if reason == "expired":
                    emit(from_lease(Expired, lease, at, deadline=lease.deadline or at))
                elif error is not None:
                    emit(from_lease(Failed, lease, at, error=error, will_retry=False))
                emit(from_lease(Dead, lease, at, reason=reason, error=error))
            case GiveBack():
                pass

    def _answer(self, entry: PendingSettlement, ref: Ref) -> None:
        """Answer whoever waits for this item in this process, without asking the store."""
        lease = entry.lease
        state = ItemState(
            id=lease.id, type=lease.type, status="success", tenant=lease.tenant, group_id=lease.group_id
        )
        state.attempt, state.result = lease.attempt, entry.result
        if isinstance(entry.decision, Die):
            failure = entry.decision.failure
            state.status, state.reason = "dead", entry.decision.reason
            state.error, state.error_type = str(failure), failure.type
        self._core.waiters.answer_item(ref, state)

    def _answer_group(self, closed: EndedGroup, ref: Ref) -> None:
        """The same for a group that ended with a value; one that did not may have failed: look."""
        if ref not in self._core.waiters.groups.futures:
            return
        if closed.value is None:
            self._core.waiters.receive(Wake(groups=(ref,)))
            return
        group = GroupState(id=closed.id, tenant=closed.tenant, type=closed.type, open=0)
        group.value, group.contributed = closed.value, True
        self._core.waiters.answer_group(ref, group)

    def _now(self, active: HeldLease) -> float:
        return active.store_time(self._clock.monotonic())


def _unknown() -> Exception:
    return RuntimeError("the error of this attempt is not known here")
