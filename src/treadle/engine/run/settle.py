"""Settle: decisions become settlements, and settlements are written in batches.

An attempt's task hands its decision over and ends: no task waits for a settlement. A settlement is repeated
until the store answers, for as long as this process lives. Its token makes that safe: repeated, it changes
nothing, and it is refused if another worker owns the item by then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, cast

from treadle.backend import Transaction
from treadle.codec import check_size
from treadle.engine.combine import Combiner
from treadle.engine.core import Core
from treadle.engine.store_retry import LOCKED_PAUSE, LOCKED_TRIES
from treadle.engine.tasks import finish
from treadle.engine.wait.wait_result import decode_group_value, encode_group_value
from treadle.errors import BackendError, LeaseLost, PayloadError, StoreFull, StoreUnavailable
from treadle.item import (
    Contribution,
    Effects,
    EndedGroup,
    ErrorInfo,
    Item,
    Lease,
    Loss,
    Outcome,
    Ref,
    Settled,
    Settlement,
)
from treadle.result_plan import fold, needs_old
from treadle.retry import Retry

from .decide import Decision, Die, FailureDecider, GiveBack, RunAgain, Succeed, failure_of, undecodable
from .held import HeldLease, HeldLeases
from .pending import PendingSettlement
from .refused import is_cause

OWN_RESULT = Contribution()
settlement = functools.partial(Settlement, wait=False)  # the others of a batch must not wait for one
BACKOFF = Retry(attempts=None, base=0.05, factor=2.0, max=5.0, jitter=0.5)
SPLIT_AFTER = 8
"""After so many failures in a row a batch is split: one of its settlements may be the cause."""
PROOFS = 3
"""So often in a row the store must refuse an outcome, and accept the item's end without it, until the outcome
is replaced."""
UNSTORABLE = Die("undecodable", ErrorInfo("StoreError", "the store cannot hold its outcome"))

Folds: TypeAlias = dict[Ref, tuple[int, bytes | None]]
"""Version and value of groups, to fold from."""
REMEMBERED = 1000
"""How many groups `Folds` remembers. A group may end in another process, which removes no entry here."""


class CommitListener(Protocol):
    """What happens after a commit, or when a lease is lost: see after_commit.py. Neither method raises."""

    def settled(self, batch: Sequence[PendingSettlement], effects: Effects) -> None: ...

    def lost(self, held: HeldLease, why: Loss) -> None: ...


class Settler:
    """One per worker. `add` queues a settlement, `waiting` are those that are not being written yet."""

    def __init__(
        self, core: Core, held: HeldLeases, builder: SettlementBuilder, listener: CommitListener
    ) -> None:
        self.core = core
        self.builder = builder
        self._held = held
        self._listener = listener
        self._sleep = core.settings.clock.sleep
        self._draw = core.settings.random.random
        self._combiner: Combiner[PendingSettlement] = Combiner(self._write, core.tasks, name="settle")
        self._locked: Combiner[PendingSettlement] = Combiner(
            self._write, core.tasks, name="settle", pause=lambda: self._sleep(LOCKED_PAUSE)
        )
        self.add: Callable[[PendingSettlement], None] = self._combiner.add
        self.waiting = self._combiner.waiting

    async def flush(self) -> None:
        """Return when everything added so far has been written."""
        await self._combiner.flush()
        await self._locked.flush()

    # -- what attempts hand over -----------------------------------------------------------------------

    def decided(self, held: HeldLease, decision: Decision) -> None:
        """Settle an attempt."""
        self.add(self.builder.prepare(held, decision))

    async def decided_within(self, held: HeldLease, decision: Decision) -> None:
        """Settle an attempt inside the handler's own transaction. If the attempt or the commit failed, the
        transaction is rolled back and the attempt is settled as failed, outside of it."""
        transaction, held.transaction = held.transaction, None
        pending = self.builder.prepare(held, decision)
        if not isinstance(pending.decision, Succeed):
            await transaction.roll_back(AttemptFailed())
            self.add(pending)
            return
        try:
            await finish(transaction.settle(pending))
        except LeaseLost as error:
            self._listener.lost(held, cast("Loss", error.reason))
        except Exception as error:  # noqa: BLE001  the commit failed, so the attempt failed
            failed = self.builder.failure(held.lease, error)
            self.add(PendingSettlement(held.lease, failed, started=held.started, otherwise=pending))

    def settle_unrun(self, pending: PendingSettlement) -> None:
        """Settle a claimed item without an attempt."""
        self._held.take_unrun(pending.lease)
        self.add(pending)

    # -- settling one item -----------------------------------------------------------------------------

    async def within(self, transaction: Transaction, pending: PendingSettlement) -> Settled:
        """Settle as a part of the handler's own transaction. After the commit, `committed` must be called. A
        stale token raises `LeaseLost`, so that everything is rolled back."""
        while True:
            answer = await transaction.settle(self.builder.build([pending]))
            outcome = answer.outcomes[0]
            if outcome.verb == "stale":
                raise LeaseLost(pending.lease.id, outcome.loss or "taken")
            if not self.builder.revise(pending, outcome):
                return answer

    async def at_once(self, pending: PendingSettlement) -> Outcome:
        """Settle and wait for the answer. Raises what the store raises."""
        locked = 0
        while locked < LOCKED_TRIES:
            again = await self.settle_batch([pending])
            if isinstance(again, Exception):
                raise again
            if pending.outcome is not None:
                return pending.outcome
            if pending.locked:
                locked += 1
                await self._sleep(LOCKED_PAUSE)
        raise StoreUnavailable("not settled: a transaction that was left open waits for this item")

    # -- writing ---------------------------------------------------------------------------------------

    async def _write(self, batch: list[PendingSettlement]) -> None:
        again = await self.settle_batch(batch)
        if not isinstance(again, Exception):
            self._add_again(again)
        elif len(batch) > 1:
            half = len(batch) // 2
            await self._write(batch[:half])
            await self._write(batch[half:])
        else:
            # In a task, so that the other settlements do not wait for this one.
            self.core.tasks.start(self._insist(batch[0], again), "settle")

    def _add_again(self, batch: list[PendingSettlement]) -> None:
        for pending in batch:
            (self._locked if pending.locked else self._combiner).add(pending)

    async def settle_batch(self, batch: list[PendingSettlement]) -> list[PendingSettlement] | Exception:
        """Settle a batch, repeated while the store is unavailable. Returns the settlements that must be
        written once more, or the error with which the store refused, or kept failing. Public: mutants
        replace it."""
        settlements = self.builder.build(batch)
        tries = 0
        while True:
            try:
                return await finish(self.commit(batch, settlements))
            except Exception as error:  # noqa: BLE001  reported, and handed to the caller
                tries += 1
                self.core.hooks.report(error, "settle", f"could not settle {len(settlements)} item(s)")
                if _is_refusal(error) or tries >= SPLIT_AFTER:
                    return error
            await self._sleep(BACKOFF.delay(tries, self._draw))

    async def commit(
        self, batch: list[PendingSettlement], settlements: list[Settlement]
    ) -> list[PendingSettlement]:
        # `committed` runs right after the answer: released items may be claimed in the next loop iteration.
        return self.committed(batch, await self.core.backend.settle(settlements))

    def committed(self, batch: Sequence[PendingSettlement], answer: Settled) -> list[PendingSettlement]:
        """Pass on what the store has answered for good. Returns what must be settled once more."""
        builder = self.builder
        again: list[PendingSettlement] = []
        over: list[PendingSettlement] = []
        for pending, outcome in zip(batch, answer.outcomes, strict=True):
            if (pending.contributions or outcome.verb != "applied") and builder.revise(pending, outcome):
                again.append(pending)
            else:
                pending.outcome = outcome
                over.append(pending)
        self._listener.settled(over, answer.effects)
        if answer.effects.ended_groups:
            builder.forget(answer.effects.ended_groups)
        return again

    async def _insist(self, pending: PendingSettlement, error: Exception) -> None:
        """Settle one attempt that the store failed at, however long it takes.

        The outcome is replaced by `UNSTORABLE` only if it is proven to be the cause. In all other cases the
        store is at fault, and the same outcome is tried again.
        """
        wanted = pending.decision, pending.children
        tries = proofs = 0
        while True:
            proofs = proofs + 1 if await self._is_cause(pending, error) else 0
            if proofs < PROOFS:
                pending.decision, pending.children = wanted
            else:
                pending.decision, proofs = UNSTORABLE, 0
            again = await self.settle_batch([pending])
            if not isinstance(again, Exception):
                self._add_again(again)
                return
            error = again
            tries += 1
            await self._sleep(BACKOFF.delay(tries, self._draw))

    async def _is_cause(self, pending: PendingSettlement, error: Exception) -> bool:
        without = self.builder.build([PendingSettlement(pending.lease, UNSTORABLE)])
        return await is_cause(error, self.core.backend, without)


class AttemptFailed(Exception):
    """Rolls a handler's transaction back: its attempt did not succeed."""


def _is_refusal(error: Exception) -> bool:
    """Whether repeating the same call is pointless. Errors that are not a BackendError may be transient."""
    return isinstance(error, BackendError) and not isinstance(error, StoreUnavailable | StoreFull)


class SettlementBuilder:
    """Turns decisions into settlements, and knows the group values that are folded here."""

    def __init__(self, core: Core, held: HeldLeases, failures: FailureDecider) -> None:
        self.core = core
        self._held = held
        self._failures = failures
        self._folds: Folds = {}
        """The store's last answer for groups that are folded here."""

    def prepare(self, held: HeldLease, decision: Decision) -> PendingSettlement:
        """Encode the result and build the children of an attempt. If that fails, the item dies."""
        pending = PendingSettlement(held.lease, decision, started=held.started)
        if isinstance(decision, Succeed):
            try:
                self._prepare(held, decision, pending)
            except PayloadError as error:
                pending.decision = undecodable(error)
            except BaseException as error:  # noqa: BLE001  `options(input)` of a child is the user's code
                pending.decision = Die("bad_result", failure_of(error), error)
        return pending

    def _prepare(self, held: HeldLease, decision: Succeed, pending: PendingSettlement) -> None:
        plan, lease = decision.plan, held.lease
        settings = self.core.settings
        if plan.value is not None or plan.contributions:
            pending.result = held.bound.type.encode_result(plan.value, settings.codec)
            check_size(pending.result, settings.max_payload, "the result of", lease.type)
        if not held.stored.compensates:
            pending.contributions = plan.contributions
        if plan.children:
            builder = self.core.item_builder
            pending.children = tuple(
                builder.item(child.work, child.options, tenant=lease.tenant, parent=lease)
                for child in plan.children
            )
            builder.check_total(pending.children, f"what {lease.type!r} queued")

    def build(self, batch: Sequence[PendingSettlement]) -> list[Settlement]:
        # Folds in one batch start from each other's drafts. Other folds start from what the store has.
        drafts: Folds = {}
        return [self._settlement(pending, drafts) for pending in batch]

    def _settlement(self, pending: PendingSettlement, drafts: Folds) -> Settlement:
        if isinstance(pending.decision, Succeed):
            try:
                return self.success(pending, drafts)
            except BaseException as error:  # noqa: BLE001  a fold is the user's code
                pending.decision = self.failure(pending.lease, error)
        return self.ending(pending, pending.decision)

    def success(self, pending: PendingSettlement, drafts: Folds) -> Settlement:
        """The settlement of an attempt that succeeded."""
        return settlement(
            lease=pending.lease,
            kind="success",
            result=pending.result,
            contribution=self.contribution(pending, drafts) if pending.contributions else None,
            children=pending.children,
        )

    def contribution(self, pending: PendingSettlement, drafts: Folds) -> Contribution:
        """What the attempt gives to its group's value."""
        lease, contributions = pending.lease, pending.contributions
        if not pending.children and lease.id == lease.group_id and _is_own_result(pending):
            return OWN_RESULT
        group = (lease.tenant, lease.group_id)
        known = drafts.get(group) or self._folds.get(group)
        if needs_old(contributions):
            version, old = known or (0, None)
            value, final = fold(contributions, decode_group_value(self.core.registry, lease.type, old))
            data = encode_group_value("", self._encode_value(value))
            drafts[group] = (version + 1, data)
            return Contribution(data, final, version)
        value, final = fold(contributions, None)
        own = isinstance(pending.decision, Succeed) and value is pending.decision.plan.value
        if own and lease.id == lease.group_id and not pending.children:
            return Contribution(None, final)
        data = (
            encode_group_value(lease.type, pending.result or b"")
            if own
            else encode_group_value("", self._encode_value(value))
        )
        if known is not None:
            drafts[group] = (known[0] + 1, data)
        return Contribution(data, final)

    def _encode_value(self, value: Any) -> bytes:
        settings = self.core.settings
        data = settings.codec.encode(value)
        check_size(data, settings.max_payload, "a group's value")
        return data

    def failure(self, lease: Lease, error: BaseException) -> Decision:
        """How an attempt ends whose fold or commit raised `error`."""
        held = self._held.by_token.get(lease.token)
        if held is None:
            return Die("bad_result", failure_of(error), error)
        return undecodable(error) if isinstance(error, PayloadError) else self._failures.decide(held, error)

    def ending(self, pending: PendingSettlement, decision: Decision) -> Settlement:
        """The settlement of an attempt that did not succeed."""
        lease = pending.lease
        pending.children = self.compensation(lease, decision) if isinstance(decision, Die) else ()
        match decision:
            case RunAgain(kind=kind, delay=delay, run_at=run_at, failure=failure):
                return settlement(lease=lease, kind=kind, delay=delay, run_at=run_at, failure=failure)
            case Die(reason=reason, failure=failure):
                children = pending.children
                return settlement(lease=lease, kind="dead", reason=reason, failure=failure, children=children)
            case GiveBack(delay=delay):
                return settlement(lease=lease, kind="release", delay=delay)
            case Succeed():
                raise AssertionError("a success is settled by `success`")

    def compensation(self, lease: Lease, died: Die) -> tuple[Item, ...]:
        """The items to submit because this one died."""
        try:
            return self.core.item_builder.compensation(lease, died.reason, str(died.failure))
        except BaseException as error:  # noqa: BLE001  the item must still die
            self.core.hooks.report(error, "settle", f"could not make the compensation of {lease.id}")
            return ()

    def revise(self, pending: PendingSettlement, outcome: Outcome) -> bool:
        """Change the settlement if the store's answer requires it. True: it must be settled once more."""
        self._learn(pending, outcome)
        pending.locked = outcome.rejected is not None and outcome.rejected.why == "locked"
        if pending.locked:
            return True
        if outcome.verb == "moved":
            if outcome.final:
                pending.contributions = ()
            return True
        if outcome.verb == "rejected" and outcome.rejected is not None:
            why = f"its children cannot be stored ({outcome.rejected.why}: {', '.join(outcome.rejected.ids)})"
            pending.decision = Die("bad_result", ErrorInfo("BadResultError", why))
            return True
        return False

    def _learn(self, pending: PendingSettlement, outcome: Outcome) -> None:
        """Remember the group's version and value, for the next fold."""
        if not pending.contributions or outcome.verb not in ("moved", "applied"):
            return
        group = (pending.lease.tenant, pending.lease.group_id)
        if outcome.verb == "applied" and not needs_old(pending.contributions) and group not in self._folds:
            return
        self._folds.pop(group, None)
        if not outcome.again:
            self._folds[group] = (outcome.version, outcome.value)
        if len(self._folds) > REMEMBERED:
            del self._folds[next(iter(self._folds))]

    def forget(self, groups: Iterable[EndedGroup]) -> None:
        for group in groups:
            self._folds.pop((group.tenant, group.id), None)


def _is_own_result(pending: PendingSettlement) -> bool:
    """Whether the item's only contribution is its own value."""
    if len(pending.contributions) != 1 or not isinstance(pending.decision, Succeed):
        return False
    only = pending.contributions[0]
    return only.append is None and not only.final and only.value is pending.decision.plan.value
