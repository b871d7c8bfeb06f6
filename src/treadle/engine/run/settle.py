"""Settle: what attempts decided is written, in batches.

An attempt's task hands its decision over and ends: no task waits for a settlement. A settlement is repeated
until the store answers, for as long as this process lives. Its token makes that safe: repeated, it changes
nothing, and it is refused if another worker owns the item by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol, cast

from treadle.backend import Transaction
from treadle.engine.combine import Combiner
from treadle.engine.core import Core
from treadle.engine.store_retry import LOCKED_PAUSE, LOCKED_TRIES
from treadle.engine.tasks import finish
from treadle.errors import BackendError, LeaseLost, StoreFull, StoreUnavailable
from treadle.handler.telemetry import Trace
from treadle.item import Effects, ErrorInfo, Loss, Outcome, Settled, Settlement
from treadle.retry import Retry

from .build_settlement import SettlementBuilder
from .decide import Decision, Die, Succeed
from .held import HeldLease, HeldLeases
from .pending import PendingSettlement
from .refused import is_cause
from .traced import tell_outcome

BACKOFF = Retry(attempts=None, base=0.05, factor=2.0, max=5.0, jitter=0.5)
SPLIT_AFTER = 8
"""After so many failures in a row a batch is split: one of its settlements may be the cause."""
PROOFS = 3
"""So often in a row the store must refuse an outcome, and accept the item's end without it, until the outcome
is replaced."""
UNSTORABLE = Die("undecodable", ErrorInfo("StoreError", "the store cannot hold its outcome"))


class CommitListener(Protocol):
    """What happens after a commit, or when a lease is lost: see after_commit.py. Neither method raises."""

    def settled(self, batch: Sequence[PendingSettlement], effects: Effects, at: float) -> None: ...

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
        self._apart: set[asyncio.Task[None]] = set()
        """Settlements in tasks of their own: refused ones, and those that a transaction must end for."""
        self.add: Callable[[PendingSettlement], None] = self._combiner.add
        self.waiting = self._combiner.waiting

    async def flush(self) -> None:
        """Return when no settlement is left to write. Under load that includes settlements that are added
        meanwhile."""
        while self._apart or self._combiner.busy or self._locked.busy:
            if self._apart:
                done, _ = await asyncio.wait(self._apart)
                self._apart -= done
            await self._combiner.flush()
            await self._locked.flush()

    def start_apart(self, settling: Coroutine[Any, Any, None]) -> None:
        """Settle in a task, so that the other settlements do not wait for this one. Public: a mutant replaces
        it."""
        task = self.core.tasks.start(settling, "settle")
        self._apart.add(task)
        task.add_done_callback(self._apart.discard)

    # -- what attempts hand over -----------------------------------------------------------------------

    def decided(self, held: HeldLease, decision: Decision) -> None:
        """Settle an attempt. If its handler has a transaction open, do that in a task."""
        pending = self.builder.prepare(held, decision)
        if held.transaction is None:
            self.add(pending)
        else:
            self.start_apart(self._decided_within(_take_transaction(held), held, pending))

    async def decided_within(self, held: HeldLease, decision: Decision) -> None:
        """Settle an attempt inside the handler's own transaction. If the attempt or the commit failed, the
        transaction is rolled back and the attempt is settled as failed, outside of it."""
        pending = self.builder.prepare(held, decision)
        await finish(self._decided_within(_take_transaction(held), held, pending))

    async def _decided_within(self, transaction: Any, held: HeldLease, pending: PendingSettlement) -> None:
        if not isinstance(pending.decision, Succeed):
            await self._roll_back(transaction, held)
            self.add(pending)
            return
        try:
            await transaction.settle(pending)
        except LeaseLost as error:
            self._listener.lost(held, cast("Loss", error.reason))
            tell_outcome(held, None)
        except Exception as error:  # noqa: BLE001  the commit failed, so the attempt failed
            failed = self.builder.failure(held.lease, error)
            tell_outcome(held, failed)
            self.add(
                PendingSettlement(
                    held.lease, failed, started=held.started, span=held.span, maybe_applied=pending
                )
            )
        else:
            tell_outcome(held, pending.decision)

    def abandon(self, held: HeldLease) -> None:
        """There is nothing to settle. If the handler has a transaction open, roll it back."""
        tell_outcome(held, None)
        if held.transaction is not None:
            self.start_apart(self._roll_back(_take_transaction(held), held))

    async def _roll_back(self, transaction: Any, held: HeldLease) -> None:
        """An error is reported: the store rolls back by itself when the connection is gone."""
        try:
            await finish(transaction.roll_back(AttemptFailed()))
        except Exception as error:  # noqa: BLE001  the attempt is over all the same
            what = f"could not roll back the transaction of {held.lease.id}"
            self.core.hooks.report(error, "settle", what)

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
            self.start_apart(self._insist(batch[0], again))

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
        core, monotonic = self.core, self.core.settings.clock.monotonic
        sent = monotonic()
        with core.store_calls.traced("settle", lambda: _traces(batch), len(settlements)):
            answer = await core.backend.settle(settlements)
        core.metrics.process.called("settle", monotonic() - sent, len(settlements))
        core.hooks.outage.answered("settle")
        # `committed` runs right after the answer: released items may be claimed in the next loop iteration.
        return self.committed(batch, answer)

    def committed(self, batch: Sequence[PendingSettlement], answer: Settled) -> list[PendingSettlement]:
        """Pass on what the store has answered for good. Returns what must be settled once more."""
        builder, has_folds = self.builder, self.builder.has_folds
        again: list[PendingSettlement] = []
        over: list[PendingSettlement] = []
        for pending, outcome in zip(batch, answer.outcomes, strict=True):
            given = pending.contributions
            # An applied settlement seldom tells something for the next fold.
            if outcome.verb != "applied" or (given and (has_folds or given[0].append is not None)):
                must_repeat, has_folds = builder.revise(pending, outcome), builder.has_folds
                if must_repeat:
                    again.append(pending)
                    continue
            pending.outcome = outcome
            over.append(pending)
        self._listener.settled(over, answer.effects, answer.at)
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


def _traces(batch: list[PendingSettlement]) -> Iterator[Trace | None]:
    """The spans of these attempts, where there are any."""
    return (None if pending.span is None else pending.span.trace for pending in batch)


def _take_transaction(held: HeldLease) -> Any:
    """The transaction of an attempt, for the one caller that ends it."""
    transaction, held.transaction = held.transaction, None
    return transaction


def _is_refusal(error: Exception) -> bool:
    """Whether repeating the same call is pointless. Errors that are not a BackendError may be transient."""
    return isinstance(error, BackendError) and not isinstance(error, StoreUnavailable | StoreFull)
