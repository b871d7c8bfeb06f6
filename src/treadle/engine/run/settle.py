"""Settle: what attempts decided is written, in batches.

An attempt's task hands its decision over and ends: no task waits for a settlement. A settlement is repeated
until the store answers, for as long as this process lives. Its token makes that safe: repeated, it changes
nothing, and it is refused if another worker owns the item by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence, Sized
from functools import partial
from typing import Any, Protocol, TypeAlias, cast

from msgspec.structs import replace

from treadle.backend import Backend, Placed, Transaction, answers_at_once, placed, transaction_of
from treadle.codec import check_size
from treadle.engine.core import Core
from treadle.engine.guarded_telemetry import NOTHING
from treadle.engine.store_retry import LOCKED_PAUSE, LOCKED_TRIES
from treadle.engine.submit.build_children import (
    CompensationBuilder,
    build_children,
    carry_on,
    joining_item,
    silenced,
)
from treadle.engine.tasks import Combiner, combined, finish
from treadle.engine.wait.wait_result import decode_group_value, encode_group_value
from treadle.errors import (
    BackendError,
    EncodeError,
    LeaseLost,
    PayloadError,
    StoreFull,
    StoreUnavailable,
)
from treadle.handler.result_plan import ResultPlan, fold, needs_old
from treadle.handler.telemetry import Trace
from treadle.item import (
    OWN_RESULT,
    Contribution,
    Effects,
    EndedGroup,
    ErrorInfo,
    Item,
    Lease,
    Loss,
    Outcome,
    Ref,
    Rejected,
    Settled,
    Settlement,
)
from treadle.logs.tracebacks import mark_of
from treadle.retry import Retry, retry_call
from treadle.store.rules.settlement import next_version
from treadle.store.rules.submission import rejection_error

from .decide import (
    Await,
    Decision,
    Die,
    Drop,
    FailureDecider,
    GiveBack,
    PendingSettlement,
    RunAgain,
    Succeed,
    failure_of,
    unfit_result,
    unstorable,
)
from .held import HeldLease, HeldLeases
from .traced import tell_outcome

BACKOFF = Retry(attempts=None, base=0.05, factor=2.0, max=5.0, jitter=0.5)
SPLIT_AFTER = 8
"""Failures in a row after which a batch is split: one of its settlements may be the cause."""
PROOFS = 3
"""Proofs in a row, until an outcome is replaced. A proof: the store refuses it, and accepts the item's end
without it."""
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
        self._at_once = answers_at_once(core.backend, "settle")
        several = placed(core.backend)

        def make() -> Combiner[PendingSettlement]:
            return Combiner(self._write, core.tasks, name="settle")

        def make_locked() -> Combiner[PendingSettlement]:
            return Combiner(self._write, core.tasks, name="settle", pause=lambda: self._sleep(LOCKED_PAUSE))

        self._combiner = combined(make, several, _place)
        self._locked = combined(make_locked, several, _place)
        self._apart: set[asyncio.Task[None]] = set()
        """Settlements in tasks of their own: refused ones, and those that a transaction must end for."""
        self.add: Callable[[PendingSettlement], None] = self._combiner.add
        self.waiting: Sized = self._combiner.waiting

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
        """Settle in a task, so that the other settlements do not wait for this one."""
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
                    held.lease,
                    failed,
                    started=held.started,
                    span=held.span,
                    log=pending.log,
                    ran_steps=pending.ran_steps,
                    maybe_applied=pending,
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

    def settle_without_attempt(self, pending: PendingSettlement) -> None:
        """Settle a claimed item without an attempt."""
        self._held.take_without_attempt(pending.lease)
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
        written once more, or the error with which the store refused, or kept failing."""
        settlements = self.builder.build(batch)
        # Some of them may die only because their settlements could not be built.
        if dying := [each for each in batch if isinstance(each.decision, Die) and each.may_undo]:
            await self._read_undoable([each for each in dying if each.undoable is None])
            settlements = self.builder.build(batch)
        tries = 0
        while True:
            try:
                return await finish(self.commit(batch, settlements), at_once=self._at_once)
            except Exception as error:  # noqa: BLE001  reported, and handed to the caller
                tries += 1
                self.core.hooks.report(error, "settle", f"could not settle {len(settlements)} item(s)")
                if _is_refusal(error) or tries >= SPLIT_AFTER:
                    return error
            await self._sleep(BACKOFF.delay(tries, self._draw))

    async def _read_undoable(self, batch: list[PendingSettlement]) -> None:
        """Read which steps of dying items can be undone. What their attempts know may not be all: a commit
        whose answer was lost has recorded a step."""
        for pending in batch:
            lease = pending.lease
            (found,) = await retry_call(
                partial(self.core.backend.steps, [lease.id], tenant=lease.tenant),
                BACKOFF,
                on=lambda error: self.core.hooks.report(error, "settle", "could not read what to undo"),
                clock=self.core.settings.clock,
                random=self._draw,
            )
            steps = () if found is None else found.steps
            pending.undoable = tuple(step for step in steps if step.undo is not None)

    async def commit(
        self, batch: list[PendingSettlement], settlements: list[Settlement]
    ) -> list[PendingSettlement]:
        core, monotonic = self.core, self.core.settings.clock.monotonic
        sent = monotonic()
        calls = core.store_calls
        traced = (
            calls.traced("settle", lambda: _traces(batch), len(settlements)) if calls.are_traced else NOTHING
        )
        with traced:
            answer = await core.backend.settle(settlements)
        core.metrics.process.called("settle", monotonic() - sent, len(settlements))
        if core.hooks.outage.since is not None:
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
        if answer.effects.ended_groups:
            builder.forget(answer.effects.ended_groups)
        self._listener.settled(over, answer.effects, answer.at)
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


def _place(several: Placed, pending: PendingSettlement) -> int:
    return several.place_of_token(pending.lease.token)


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


class Undone(Exception):
    """Rolls back a settlement that was only tried."""


async def is_cause(error: Exception, backend: Backend, without: Sequence[Settlement]) -> bool:
    """Whether an outcome is the cause of a refusal: the store, which just refused it with `error`, accepts
    the end of the same items `without` it. An error alone proves nothing: no list of a store's troubles is
    complete.

    That is tried in a transaction that is rolled back. A store without transactions is believed: it raises
    `StoreUnavailable` if the cause is not in the request.
    """
    if isinstance(error, StoreUnavailable | StoreFull):
        return False
    if "transactions" not in backend.capabilities:
        return True
    try:
        async with transaction_of(backend, without[0].lease.tenant) as transaction:
            await transaction.settle(without)
            raise Undone
    except Undone:
        return True
    except Exception:  # noqa: BLE001  the store is at fault
        return False


Folds: TypeAlias = dict[Ref, tuple[int, bytes | None]]
"""Version and value of groups, to fold from."""
REMEMBERED = 1000
"""How many groups `Folds` remembers. A group may end in another process, which removes no entry here."""


class SettlementBuilder:
    """Turns decisions into settlements, and knows the group values that are folded here."""

    def __init__(self, core: Core, held: HeldLeases, failures: FailureDecider) -> None:
        self.core = core
        self._held = held
        self._failures = failures
        self._monotonic = core.settings.clock.monotonic
        self._max_payload = core.settings.max_payload
        self._compensations = CompensationBuilder(core.registry, core.settings, core.item_builder)
        self._folds: Folds = {}
        """The store's last answer for groups that are folded here."""

    def prepare(self, held: HeldLease, decision: Decision) -> PendingSettlement:
        """Encode the result and build the children of an attempt. If that fails, the item dies. Whether a
        transaction of its handler succeeds is known only when it is committed."""
        lease = held.lease
        pending = PendingSettlement(lease, decision, started=held.started, span=held.span)
        if held.lines is not None or held.batch is not None:
            pending.log = held.log()
        if isinstance(decision, Succeed):
            plan = decision.plan
            try:
                if plan.value is not None or plan.contributions:
                    result = held.bound.result_shape.encode(plan.value, held.bound.codec)
                    limit = self._max_payload
                    if type(result) is not bytes or len(result) > limit:
                        check_size(result, limit, "the result of", lease.type)
                    pending.result = result
                if not held.stored.compensates:
                    pending.contributions = plan.contributions
                if plan.children:
                    children = build_children(self.core.item_builder, self.core.settings, plan, lease)
                    pending.children = self._carried(held, children)
            except PayloadError as error:
                pending.decision = self._unstorable(held, pending, plan, error)
            except BaseException as error:  # noqa: BLE001  `options(input)` of a child is the user's code
                pending.decision = unstorable(error)
        elif isinstance(decision, Await):
            try:
                pending.children = self._carried(held, self._awaited(held, decision))
            except BaseException as error:  # noqa: BLE001  as above
                pending.decision = unstorable(error)
        pending.ran_steps = held.steps is not None
        commits = held.transaction is not None and isinstance(pending.decision, Succeed)
        if not commits and held.span is not None:
            tell_outcome(held, pending.decision)
        return pending

    def _unstorable(
        self, held: HeldLease, pending: PendingSettlement, plan: ResultPlan, error: PayloadError
    ) -> Decision:
        """The result or the children of an attempt cannot be stored."""
        gives = plan.value is not None or plan.contributions
        if gives and pending.result is None and isinstance(error, EncodeError):
            unfit = unfit_result(held.bound, plan.value, error)
            return Die("bad_result", failure_of(unfit), unfit)
        return unstorable(error)

    def _carried(self, held: HeldLease, children: Sequence[Item]) -> tuple[Item, ...]:
        """The children of an attempt as they are stored."""
        children = silenced(children) if held.stored.compensates else children
        carried = tuple(carry_on(children, held.lease, held.span))
        if self.core.by_root:
            carried = self._beside(carried, held.lease, check=True)
        self.core.item_builder.check_total(carried, f"what {held.lease.type!r} queued")
        return carried

    def _beside(self, children: Sequence[Item], lease: Lease, *, check: bool = False) -> tuple[Item, ...]:
        """What is queued over several stores by root. check: raise if it cannot be where its group is."""
        from treadle.engine.submit.place_roots import beside, check_beside  # few programs need it

        children = beside(children, lease)
        if check:
            check_beside(children, lease)
        return children

    def _awaited(self, held: HeldLease, decision: Await) -> list[Item]:
        """The works that a suspended item waits for, and for each wait the item that ends it."""
        lease, builder = held.lease, self.core.item_builder
        children: list[Item] = []
        for wait, works, requeued in decision.waits:
            items = [builder.item(work, {}, tenant=lease.tenant, parent=lease) for work in works]
            children += items
            if awaited := (*(item.id for item in items), *requeued):
                children.append(joining_item(wait, awaited, lease, self.core.settings))
        return children

    def build(self, batch: Sequence[PendingSettlement]) -> list[Settlement]:
        # Folds in one batch start from each other's drafts. Other folds start from what the store has.
        drafts: Folds = {}
        now = self._monotonic()
        settlements: list[Settlement] = []
        for pending in batch:
            if pending.children and self.core.by_root:
                pending.children = self._beside(pending.children, pending.lease)
            if isinstance(pending.decision, Succeed):
                try:
                    settlements.append(self.success(pending, drafts, now))
                    continue
                except BaseException as error:  # noqa: BLE001  a fold is the user's code
                    pending.decision = self.failure(pending.lease, error)
            ending = self.ending(pending, pending.decision)
            settlements.append(ending if pending.log is None else replace(ending, log=pending.log))
        return settlements

    # All settlements have `wait=False`: the others of a batch must not wait for one.

    def success(self, pending: PendingSettlement, drafts: Folds, now: float) -> Settlement:
        """The settlement of an attempt that succeeded."""
        began = pending.started or pending.held_since
        return Settlement(
            lease=pending.lease,
            kind="success",
            result=pending.result,
            contribution=self.contribution(pending, drafts) if pending.contributions else None,
            children=pending.children,
            wait=False,
            ran=now - began if began else None,
            log=pending.log,
        )

    def contribution(self, pending: PendingSettlement, drafts: Folds) -> Contribution:
        """What the attempt gives to its group's value."""
        lease, contributions, decision = pending.lease, pending.contributions, pending.decision
        alone = not pending.children and lease.id == lease.group_id
        if isinstance(decision, Succeed) and decision.plan.is_plain:
            if alone:
                return OWN_RESULT
            if not self._folds and not drafts:  # as below, with less to look at
                return Contribution(encode_group_value(lease.type, pending.result or b"", is_result=True))
        group = (lease.tenant, lease.group_id)
        known = drafts.get(group) or self._folds.get(group)
        if needs_old(contributions):
            version, old = known or (0, None)
            value, final = fold(contributions, decode_group_value(self.core.registry, lease.type, old))
            data = encode_group_value(lease.type, self._encode_value(value), is_result=False)
            drafts[group] = (next_version(lease.token, version), data)
            return Contribution(data, final, version)
        if contributions[0].encoded is not None:
            return self._contribute(contributions[0].encoded, False, lease, known, drafts)
        value, final = fold(contributions, None)
        own = isinstance(decision, Succeed) and value is decision.plan.value
        if own and alone:
            return Contribution(None, final)
        data = (pending.result or b"") if own else self._encode_value(value)
        data = encode_group_value(lease.type, data, is_result=own)
        return self._contribute(data, final, lease, known, drafts)

    def _contribute(
        self, data: bytes, final: bool, lease: Lease, known: tuple[int, bytes | None] | None, drafts: Folds
    ) -> Contribution:
        """A contribution that replaces the value. Later folds in the batch start from it."""
        if known is not None:
            drafts[lease.tenant, lease.group_id] = (next_version(lease.token, None), data)
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
        return unstorable(error) if isinstance(error, PayloadError) else self._failures.decide(held, error)

    def ending(self, pending: PendingSettlement, decision: Decision) -> Settlement:
        """The settlement of an attempt that did not succeed."""
        lease, began = pending.lease, pending.started or pending.held_since
        ran = self._monotonic() - began if began else None
        if not isinstance(decision, Await):
            pending.children = self.compensation(pending, decision) if isinstance(decision, Die) else ()
        match decision:
            case Await(waits=waits, passed=passed):
                steps = (*passed, *(wait.step for wait in waits))
                children = pending.children
                return Settlement(
                    lease=lease, kind="suspend", steps=steps, children=children, wait=False, ran=ran
                )
            case RunAgain(kind=kind, delay=delay, run_at=run_at, failure=failure):
                return Settlement(
                    lease=lease, kind=kind, delay=delay, run_at=run_at, failure=failure, wait=False, ran=ran
                )
            case Die(reason=reason, failure=failure, error=error):
                return Settlement(
                    lease=lease,
                    kind="dead",
                    reason=reason,
                    failure=failure,
                    children=pending.children,
                    wait=False,
                    ran=ran,
                    mark=mark_of(lease.type, reason, failure, error),
                )
            case GiveBack(delay=delay):
                return Settlement(lease=lease, kind="release", delay=delay, wait=False, ran=ran)
            case Drop(failure=failure):
                return Settlement(lease=lease, kind="cancelled", failure=failure, wait=False)
            case Succeed():
                raise AssertionError("a success is settled by `success`")

    def compensation(self, pending: PendingSettlement, died: Die) -> tuple[Item, ...]:
        """The items to submit because this one died. None if the store has refused them."""
        if pending.childless:
            return ()
        lease, error, undo = pending.lease, str(died.failure), pending.undoable or ()

        def report(own: BaseException, what: str) -> None:
            self.core.hooks.report(own, "settle", f"could not {what} the compensation of {lease.id}")

        items = self._compensations.items(lease, died.reason, error, pending.attempts_begun, undo, report)
        if self.core.by_root:
            items = self._beside(items, lease)
        try:
            return tuple(carry_on(items, lease, pending.span, checked=False))
        except BaseException as own:  # noqa: BLE001  the item must still die
            report(own, "make")
            return ()

    @property
    def has_folds(self) -> bool:
        """Whether some group is folded here: then all applied contributions tell something for the next
        fold."""
        return bool(self._folds)

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
            self._refused(pending, outcome.rejected)
            return True
        return False

    def _refused(self, pending: PendingSettlement, rejected: Rejected) -> None:
        """The store cannot hold the children: the item dies. If it cannot hold the compensation, the item
        dies without."""
        error = rejection_error(rejected)
        if isinstance(pending.decision, Die):
            pending.childless = True
            self.core.hooks.report(error, "settle", f"could not store the compensation of {pending.lease.id}")
        else:
            why = f"its children cannot be stored ({rejected.why}): {error}"
            pending.decision = Die("bad_result", ErrorInfo("BadResultError", why))

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
        if self._folds:
            for group in groups:
                self._folds.pop((group.tenant, group.id), None)
