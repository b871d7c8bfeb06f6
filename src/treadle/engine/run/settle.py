"""Settle: decisions become settlements, in batches; what follows from a commit follows after it.

An attempt's task hands its decision over and ends: nothing waits for a settlement but the store. A settlement
always runs to its end: while the store is away it is tried again, for as long as this process lives; the
token makes repeating it harmless, and makes it void should somebody else own the item by then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from treadle.backend import Backend, Transaction
from treadle.engine.combine import Combiner
from treadle.engine.tasks import Tasks, finish
from treadle.engine.wait.wait_result import encode_group_value
from treadle.errors import BackendError, LeaseLost, StoreFull, StoreUnavailable
from treadle.item import Contribution, Effects, ErrorInfo, Item, Lease, Outcome, Ref, Settled, Settlement
from treadle.result_plan import PlannedContribution, fold, needs_old
from treadle.retry import Retry

from .decide import Decision, Die, RunAgain, Succeed

OWN_RESULT = Contribution()
BACKOFF = Retry(attempts=None, base=0.05, factor=2.0, max=5.0, jitter=0.5)
PERSISTENCE = 8
"""So many failures in a row, and a batch is tried in parts: one of them may be what the store fails at."""
REFUSALS = 3
"""So many refusals, and an outcome is replaced. One alone may have been a mistake."""
UNSTORABLE = Die("undecodable", ErrorInfo("StoreError", "the store cannot hold its outcome"))

Folds: TypeAlias = dict[Ref, tuple[int, bytes | None]]
"""Version and value of groups, to fold from."""
REMEMBERED = 1000
"""So many groups are folded without being asked for first. A group may end elsewhere: nobody tells."""


class GiveBack(msgspec.Struct, frozen=True):
    """Give the lease back, attempt and all: for a shutdown, or because this worker declined."""

    delay: float = 0.0


class PendingSettlement(msgspec.Struct, eq=False, gc=False):
    """One attempt on its way through settling."""

    lease: Lease
    decision: Decision | GiveBack
    result: bytes | None = None
    """The item's own value, encoded."""
    children: tuple[Item, ...] = ()
    contributions: tuple[PlannedContribution, ...] = ()
    started: float = 0.0
    """When the attempt began, by the store's clock; 0 if it did not."""
    outcome: Outcome | None = None
    """What became of it, for good."""
    otherwise: PendingSettlement | None = None
    """What may have been settled instead, by a transaction that may or may not have been committed."""


class Consequences(Protocol):
    """What the settle stage asks of the rest of the engine."""

    def compensate(self, lease: Lease, died: Die) -> tuple[Item, ...]:
        """What is to be submitted because the item died."""
        ...

    def failed(self, lease: Lease, error: Exception) -> Decision:
        """A fold raised: how its attempt ends then."""
        ...

    def read_value(self, lease: Lease, value: bytes | None) -> Any: ...

    def write_value(self, value: Any) -> bytes: ...

    def settled(self, entries: Sequence[PendingSettlement], effects: Effects) -> None:
        """After the commit, for entries that were answered for good. Does not raise."""
        ...

    def report(self, error: BaseException, message: str) -> None: ...


class Settler:
    def __init__(
        self,
        backend: Backend,
        consequences: Consequences,
        tasks: Tasks,
        *,
        sleep: Callable[[float], Awaitable[None]],
        draw: Callable[[], float],
        limit: int = 500,
    ) -> None:
        self._backend = backend
        self._then = consequences
        self._tasks = tasks
        self._sleep = sleep
        self._draw = draw
        self._combiner: Combiner[PendingSettlement] = Combiner(self._write, tasks, name="settle", limit=limit)
        self.add: Callable[[PendingSettlement], None] = self._combiner.add
        self._folds: Folds = {}
        """What the store last said of groups that are folded here."""

    def __len__(self) -> int:
        return len(self._combiner)

    async def flush(self) -> None:
        await self._combiner.flush()

    async def within(self, transaction: Transaction, entry: PendingSettlement) -> Settled:
        """Settle one entry as a part of the handler's own transaction; `follow` is called once it has
        committed. A stale token raises `LeaseLost`, so that everything is rolled back."""
        while True:
            answer = await transaction.settle(self._settlements([entry]))
            outcome = answer.outcomes[0]
            if outcome.verb == "stale":
                raise LeaseLost(entry.lease.id, outcome.loss or "taken")
            if not self._changed(entry, outcome):
                return answer

    async def at_once(self, entry: PendingSettlement) -> Outcome:
        """Settle one entry and wait for it. Raises what the store does."""
        while True:
            again = await self._settle([entry])
            if isinstance(again, Exception):
                raise again
            if entry.outcome is not None:
                return entry.outcome

    def follow(self, entries: Sequence[PendingSettlement], answer: Settled) -> list[PendingSettlement]:
        """What a commit sets in motion. Answers the entries that must be settled once more."""
        again: list[PendingSettlement] = []
        over: list[PendingSettlement] = []
        for entry, outcome in zip(entries, answer.outcomes, strict=True):
            if (entry.contributions or outcome.verb != "applied") and self._changed(entry, outcome):
                again.append(entry)
            else:
                entry.outcome = outcome
                over.append(entry)
        self._then.settled(over, answer.effects)
        for closed in answer.effects.closed:
            self._folds.pop((closed.tenant, closed.id), None)
        return again

    # -- writing ---------------------------------------------------------------------------------------

    async def _write(self, entries: list[PendingSettlement]) -> None:
        again = await self._settle(entries)
        if not isinstance(again, Exception):
            self._readd(again)
        elif len(entries) > 1:
            half = len(entries) // 2
            await self._write(entries[:half])
            await self._write(entries[half:])
        else:
            # The others must not wait for it.
            self._tasks.start(self._insist(entries[0], again), "settle")

    def _readd(self, entries: list[PendingSettlement]) -> None:
        for entry in entries:
            self._combiner.add(entry)

    async def _settle(self, entries: list[PendingSettlement]) -> list[PendingSettlement] | Exception:
        """Settle these, and see to what follows. Answers those that must be settled once more; or why the
        store does not answer, whether it refuses or fails again and again."""
        settlements = self._settlements(entries)
        tries = 0
        while True:
            try:
                return await finish(self._commit(entries, settlements))
            except Exception as error:  # noqa: BLE001  reported, and handed to the caller
                tries += 1
                self._then.report(error, f"could not settle {len(settlements)} item(s)")
                if _is_refusal(error) or tries >= PERSISTENCE:
                    return error
            await self._sleep(BACKOFF.delay(tries, self._draw))

    async def _commit(
        self, entries: list[PendingSettlement], settlements: list[Settlement]
    ) -> list[PendingSettlement]:
        # One follows the other at once: what was released may be claimed in the next turn of the loop.
        return self.follow(entries, await self._backend.settle(settlements))

    async def _insist(self, entry: PendingSettlement, error: Exception) -> None:
        """Settle one entry that the store failed at, however long it takes. An outcome that is refused again
        and again gives way to one that the store can hold; if it takes neither, it is the store that is
        wrong, and the first is tried again, for longer."""
        wanted = entry.decision, entry.children
        tries, refused, enough = 0, 0, REFUSALS
        while True:
            refused += not isinstance(error, StoreUnavailable | StoreFull)
            if refused < enough:
                entry.decision, entry.children = wanted
            else:
                entry.decision, enough = UNSTORABLE, enough * REFUSALS
            again = await self._settle([entry])
            if not isinstance(again, Exception):
                self._readd(again)
                return
            error = again
            tries += 1
            await self._sleep(BACKOFF.delay(tries, self._draw))

    def _changed(self, entry: PendingSettlement, outcome: Outcome) -> bool:
        """Whether the entry has to be settled once more, and if so, as what."""
        self._learn(entry, outcome)
        if outcome.verb == "moved":
            if outcome.final:
                entry.contributions = ()
            return True
        if outcome.verb == "rejected" and outcome.rejected is not None:
            why = f"its children cannot be stored ({outcome.rejected.why}: {', '.join(outcome.rejected.ids)})"
            entry.decision = Die("bad_result", ErrorInfo("BadResultError", why))
            return True
        return False

    def _learn(self, entry: PendingSettlement, outcome: Outcome) -> None:
        """Keep what the store says of a group that is folded here: what was refused is not in it."""
        if not entry.contributions or outcome.verb not in ("moved", "applied"):
            return
        group = _group(entry.lease)
        if outcome.verb == "applied" and not needs_old(entry.contributions) and group not in self._folds:
            return
        self._folds.pop(group, None)
        if not outcome.again:
            self._folds[group] = (outcome.version, outcome.value)
        if len(self._folds) > REMEMBERED:
            del self._folds[next(iter(self._folds))]

    # -- from decisions to settlements -----------------------------------------------------------------

    def _settlements(self, entries: Sequence[PendingSettlement]) -> list[Settlement]:
        # Folds of one batch start from each other; nothing else does before the store has them.
        drafts: Folds = {}
        return [self._settlement(entry, drafts) for entry in entries]

    def _settlement(self, entry: PendingSettlement, drafts: Folds) -> Settlement:
        if isinstance(entry.decision, Succeed):
            try:
                return self._success(entry, drafts)
            except Exception as error:  # noqa: BLE001  a fold is the user's code
                entry.decision = self._then.failed(entry.lease, error)
        return self._ending(entry, entry.decision)

    def _success(self, entry: PendingSettlement, drafts: Folds) -> Settlement:
        return Settlement(
            lease=entry.lease,
            kind="success",
            result=entry.result,
            contribution=self._contribution(entry, drafts) if entry.contributions else None,
            children=entry.children,
        )

    def _ending(self, entry: PendingSettlement, decision: Decision | GiveBack) -> Settlement:
        lease = entry.lease
        entry.children = self._then.compensate(lease, decision) if isinstance(decision, Die) else ()
        match decision:
            case RunAgain(kind=kind, delay=delay, run_at=run_at, failure=failure):
                return Settlement(lease=lease, kind=kind, delay=delay, run_at=run_at, failure=failure)
            case Die(reason=reason, failure=failure):
                children = entry.children
                return Settlement(lease=lease, kind="dead", reason=reason, failure=failure, children=children)
            case GiveBack(delay=delay):
                return Settlement(lease=lease, kind="release", delay=delay)
            case Succeed():
                raise AssertionError("a success is not an ending of this kind")

    def _contribution(self, entry: PendingSettlement, drafts: Folds) -> Contribution:
        if not entry.children and entry.lease.id == entry.lease.group_id and _is_own(entry):
            return OWN_RESULT
        group = _group(entry.lease)
        known = drafts.get(group) or self._folds.get(group)
        if needs_old(entry.contributions):
            version, old = known or (0, None)
            value, final = fold(entry.contributions, self._then.read_value(entry.lease, old))
            data = encode_group_value("", self._then.write_value(value))
            drafts[group] = (version + 1, data)
            return Contribution(data, final, version)
        value, final = fold(entry.contributions, None)
        own = isinstance(entry.decision, Succeed) and value is entry.decision.plan.value
        if own and entry.lease.id == entry.lease.group_id and not entry.children:
            return Contribution(None, final)
        if own:
            data = encode_group_value(entry.lease.type, entry.result or b"")
        else:
            data = encode_group_value("", self._then.write_value(value))
        if known is not None:
            drafts[group] = (known[0] + 1, data)
        return Contribution(data, final)


def _is_own(entry: PendingSettlement) -> bool:
    """Whether the item gives its own value to the group, and no more than that."""
    if len(entry.contributions) != 1 or not isinstance(entry.decision, Succeed):
        return False
    only = entry.contributions[0]
    return only.append is None and not only.final and only.value is entry.decision.plan.value


def _group(lease: Lease) -> Ref:
    return (lease.tenant, lease.group_id)


def _is_refusal(error: Exception) -> bool:
    """Whether trying the same again is pointless. What drivers raise by mistake may pass."""
    return isinstance(error, BackendError) and not isinstance(error, StoreUnavailable | StoreFull)
