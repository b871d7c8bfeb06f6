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
from treadle.errors import BackendError, LeaseLost, StoreUnavailable
from treadle.item import Contribution, Failure, Item, Lease, Outcome, Ref, Settled, Settlement
from treadle.plan import Contribution as Contributed
from treadle.plan import fold, needs_old
from treadle.retry import Retry

from .combine import Combiner
from .decide import Again, Decision, Die, Succeed
from .tasks import Tasks, finish
from .values import wrap

BACKOFF = Retry(attempts=None, base=0.05, factor=2.0, max=5.0, jitter=0.5)

Folds: TypeAlias = dict[Ref, tuple[int, bytes | None]]
"""Version and value of groups, to fold from."""
REMEMBERED = 1000
"""So many groups are folded without being asked for first. A group may end elsewhere: nobody tells."""


class Release(msgspec.Struct, frozen=True):
    """Give the lease back, attempt and all: for a shutdown, or because this worker declined."""

    delay: float = 0.0


class Entry(msgspec.Struct, eq=False):
    """One attempt on its way through settling."""

    lease: Lease
    decision: Decision | Release
    result: bytes | None = None
    """The item's own value, encoded."""
    children: tuple[Item, ...] = ()
    contributions: tuple[Contributed, ...] = ()
    started: float = 0.0
    """When the attempt began, by the store's clock; 0 if it did not."""


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

    def settled(self, entries: Sequence[Entry], answer: Settled) -> None:
        """After the commit, for entries that were answered for good."""
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
        self._sleep = sleep
        self._draw = draw
        self._combiner: Combiner[Entry] = Combiner(self._write, tasks, name="settle", limit=limit)
        self._folds: Folds = {}
        """What the store last said of groups that are folded here."""

    def __len__(self) -> int:
        return len(self._combiner)

    def add(self, entry: Entry) -> None:
        self._combiner.add(entry)

    async def flush(self) -> None:
        await self._combiner.flush()

    async def within(self, transaction: Transaction, entry: Entry) -> Settled:
        """Settle one entry as a part of the handler's own transaction; `follow` is called once it has
        committed. A stale token raises `LeaseLost`, so that everything is rolled back."""
        while True:
            answer = await transaction.settle(self._settlements([entry]))
            outcome = answer.outcomes[0]
            if outcome.verb == "stale":
                raise LeaseLost(entry.lease.id, outcome.loss or "taken")
            if not self._changed(entry, outcome):
                return answer

    async def at_once(self, entry: Entry) -> Outcome:
        """Settle one entry and wait for it."""
        while True:
            answer = await finish(self._settle(self._settlements([entry])))
            if answer is None:
                raise BackendError(f"the store refused the outcome of {entry.lease.id}")
            if not self._changed(entry, answer.outcomes[0]):
                self._then.settled([entry], answer)
                return answer.outcomes[0]

    def follow(self, entries: Sequence[Entry], answer: Settled) -> None:
        """What a commit sets in motion. Entries that must be settled once more are."""
        over: list[int] = []
        for index, (entry, outcome) in enumerate(zip(entries, answer.outcomes, strict=True)):
            if self._changed(entry, outcome):
                self._combiner.add(entry)
            else:
                over.append(index)
        if len(over) != len(entries):
            entries = [entries[index] for index in over]
            answer = Settled(tuple(answer.outcomes[index] for index in over), answer.effects)
        self._then.settled(entries, answer)
        for closed in answer.effects.closed:
            self._folds.pop((closed.tenant, closed.id), None)

    # -- writing ---------------------------------------------------------------------------------------

    async def _write(self, entries: list[Entry]) -> None:
        answer = await finish(self._settle(self._settlements(entries)))
        if answer is not None:
            self.follow(entries, answer)
        elif len(entries) == 1:
            await self._bury(entries[0])
        else:
            for entry in entries:
                await self._write([entry])

    async def _settle(self, settlements: list[Settlement]) -> Settled | None:
        """The answer, however long it takes; None if the store will not have this batch."""
        tries = 0
        while True:
            try:
                return await self._backend.settle(settlements)
            except StoreUnavailable as error:
                tries += 1
                self._then.report(error, f"could not settle {len(settlements)} item(s); trying again")
                await self._sleep(BACKOFF.delay(tries, self._draw))
            except BackendError as error:
                self._then.report(error, f"the store refused to settle {len(settlements)} item(s)")
                return None

    async def _bury(self, entry: Entry) -> None:
        """The store cannot hold this outcome: end the item with one that it can."""
        entry.decision = Die("undecodable", Failure("StoreError", "the store cannot hold its outcome"))
        answer = await finish(self._settle(self._settlements([entry])))
        if answer is not None:
            self.follow([entry], answer)

    def _changed(self, entry: Entry, outcome: Outcome) -> bool:
        """Whether the entry has to be settled once more, and if so, as what."""
        self._learn(entry, outcome)
        if outcome.verb == "moved":
            if outcome.final:
                entry.contributions = ()
            return True
        if outcome.verb == "rejected" and outcome.rejected is not None:
            why = f"its children cannot be stored ({outcome.rejected.why}: {', '.join(outcome.rejected.ids)})"
            entry.decision = Die("bad_result", Failure("BadResultError", why))
            return True
        return False

    def _learn(self, entry: Entry, outcome: Outcome) -> None:
        """Keep what the store says of a group that is folded here: what was refused is not in it."""
        group = _group(entry.lease)
        folded = outcome.verb == "moved" or needs_old(entry.contributions) or group in self._folds
        if outcome.verb not in ("moved", "applied") or not folded or not entry.contributions:
            return
        self._folds.pop(group, None)
        if not outcome.again:
            self._folds[group] = (outcome.version, outcome.value)
        if len(self._folds) > REMEMBERED:
            del self._folds[next(iter(self._folds))]

    # -- from decisions to settlements -----------------------------------------------------------------

    def _settlements(self, entries: Sequence[Entry]) -> list[Settlement]:
        # Folds of one batch start from each other; nothing else does before the store has them.
        drafts: Folds = {}
        return [self._settlement(entry, drafts) for entry in entries]

    def _settlement(self, entry: Entry, drafts: Folds) -> Settlement:
        if isinstance(entry.decision, Succeed):
            try:
                return self._success(entry, drafts)
            except Exception as error:  # noqa: BLE001  a fold is the user's code
                entry.decision = self._then.failed(entry.lease, error)
        return self._ending(entry.lease, entry.decision)

    def _success(self, entry: Entry, drafts: Folds) -> Settlement:
        return Settlement(
            lease=entry.lease,
            kind="success",
            result=entry.result,
            contribution=self._contribution(entry, drafts) if entry.contributions else None,
            children=entry.children,
        )

    def _ending(self, lease: Lease, decision: Decision | Release) -> Settlement:
        match decision:
            case Again(kind=kind, delay=delay, run_at=run_at, failure=failure):
                return Settlement(lease=lease, kind=kind, delay=delay, run_at=run_at, failure=failure)
            case Die(reason=reason, failure=failure):
                children = self._then.compensate(lease, decision)
                return Settlement(lease=lease, kind="dead", reason=reason, failure=failure, children=children)
            case Release(delay=delay):
                return Settlement(lease=lease, kind="release", delay=delay)
            case Succeed():
                raise AssertionError("a success is not an ending of this kind")

    def _contribution(self, entry: Entry, drafts: Folds) -> Contribution:
        group = _group(entry.lease)
        known = drafts.get(group) or self._folds.get(group)
        if needs_old(entry.contributions):
            version, old = known or (0, None)
            value, final = fold(entry.contributions, self._then.read_value(entry.lease, old))
            data = wrap("", self._then.write_value(value))
            drafts[group] = (version + 1, data)
            return Contribution(data, final, version)
        value, final = fold(entry.contributions, None)
        own = isinstance(entry.decision, Succeed) and value is entry.decision.plan.value
        if own and entry.lease.id == entry.lease.group_id and not entry.children:
            return Contribution(None, final)
        data = wrap(entry.lease.type, entry.result or b"") if own else wrap("", self._then.write_value(value))
        if known is not None:
            drafts[group] = (known[0] + 1, data)
        return Contribution(data, final)


def _group(lease: Lease) -> Ref:
    return (lease.tenant, lease.group_id)
