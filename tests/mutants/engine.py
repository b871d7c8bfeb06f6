"""Bugs of the engine. Each replaces one public method or function of it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.mutants.kit import Patch, mutant
from treadle.engine.core import Core
from treadle.engine.run import after_commit
from treadle.engine.run.attempt import AttemptRunner
from treadle.engine.run.claim import Claimer
from treadle.engine.run.decide import Die, RunAgain, Succeed
from treadle.engine.run.heartbeat import HeartbeatLoop
from treadle.engine.run.loops import Shutdown, WorkerLoops
from treadle.engine.run.permits import PermitLedger
from treadle.engine.run.settle import SettlementBuilder, Settler
from treadle.engine.submit.build_children import CompensationBuilder
from treadle.engine.submit.submitter import Submitter
from treadle.engine.tasks import Combiner
from treadle.engine.wait import waiters
from treadle.errors import StoreUnavailable
from treadle.events import Succeeded, from_lease
from treadle.item import ErrorInfo, GroupState, Submission

FORGETFUL = "tests/simulation/test_forgetful.py"


@mutant("children are submitted after the settlement, not with it")
def ack_before_children(patch: Patch) -> None:
    real = SettlementBuilder.success

    def success(self: Any, pending: Any, drafts: Any, now: float) -> Any:
        settlement = real(self, pending, drafts, now)
        if settlement.children:
            later = self.core.backend.submit([Submission(settlement.children)])
            self.core.tasks.start(later, "submit")
        return replace(settlement, children=())

    patch(SettlementBuilder, "success", success)


@mutant("a settlement whose answer was lost is not repeated")
def settle_not_repeated(patch: Patch) -> None:
    async def settle_batch(self: Any, batch: Any) -> Any:
        try:
            return await self.commit(batch, self.builder.build(batch))
        except StoreUnavailable:
            return []

    patch(Settler, "settle_batch", settle_batch)


@mutant("a settlement is repeated with another decision")
def another_decision(patch: Patch) -> None:
    real = Settler.settle_batch

    async def settle_batch(self: Any, batch: Any) -> Any:
        try:
            return await self.commit(batch, self.builder.build(batch))
        except StoreUnavailable:
            for pending in batch:
                pending.decision = RunAgain("retry", 0.1, None, ErrorInfo("Lost", "the answer"))
            return await real(self, batch)

    patch(Settler, "settle_batch", settle_batch)


@mutant("an append does not send the version that it was computed from")
def fold_without_version(patch: Patch) -> None:
    real = SettlementBuilder.contribution
    patch(
        SettlementBuilder,
        "contribution",
        lambda self, pending, drafts: replace(real(self, pending, drafts), version=None),
    )


@mutant("a lost lease does not stop its handler")
def loss_ignored(patch: Patch) -> None:
    patch(HeartbeatLoop, "lose", lambda self, token, why: None)


@mutant("an interrupt does not cancel the handler")
def interrupt_ignored(patch: Patch) -> None:
    patch(AttemptRunner, "cancel", lambda self, held: None)


@mutant("a deadline does not stop the handler")
def deadline_ignored(patch: Patch) -> None:
    patch(AttemptRunner, "watch_deadline", lambda self, held: None)


@mutant("a shutdown is settled as a failed attempt")
def shutdown_burns(patch: Patch) -> None:
    real = SettlementBuilder.ending

    def ending(self: Any, pending: Any, decision: Any) -> Any:
        settlement = real(self, pending, decision)
        return replace(settlement, kind="retry") if settlement.kind == "release" else settlement

    patch(SettlementBuilder, "ending", ending)


@mutant("stop does not release its items")
def stop_keeps(patch: Patch) -> None:
    async def give_back(self: Any) -> None:
        return None

    patch(Shutdown, "give_back", give_back)


@mutant("stop leaves its loops running")
def stop_leaks(patch: Patch) -> None:
    async def close(self: Any) -> None:
        return None

    patch(WorkerLoops, "close", close)


@mutant("waiters are answered before the commit")
def told_early(patch: Patch) -> None:
    real = Settler.decided

    def decided(self: Any, held: Any, decision: Any) -> None:
        lease = held.lease
        if isinstance(decision, Succeed):
            group = GroupState(id=lease.group_id, tenant=lease.tenant, type=lease.type, open=0)
            self.core.waiters.answer_group((lease.tenant, lease.group_id), group)
        real(self, held, decision)

    patch(Settler, "decided", decided)


@mutant("an event is sent before the commit")
def announced_early(patch: Patch) -> None:
    real = Settler.decided

    def decided(self: Any, held: Any, decision: Any) -> None:
        if isinstance(decision, Succeed):
            at = held.store_time(self.core.settings.clock.monotonic())
            self.core.hooks.emit(from_lease(Succeeded, held.lease, at, result=None))
        real(self, held, decision)

    patch(Settler, "decided", decided)


@mutant("a repeated retry settlement announces a group that ended later")
def announced_again(patch: Patch) -> None:
    def ended_groups(batch: Any, ended: Any) -> Any:
        marked = [replace(pending, decision=Die("aborted", ErrorInfo("x", "y"))) for pending in batch]
        return real(marked, ended)

    real = after_commit.ended_groups
    patch(after_commit, "ended_groups", ended_groups)


@mutant("unknown leases are never asked for")
def unknown_leases_not_asked(patch: Patch) -> None:
    async def ask_unknown_leases(self: Any) -> None:
        return None

    patch(Claimer, "ask_unknown_leases", ask_unknown_leases)


@mutant("a worker ignores leases that it has settled and the store has forgotten", tests=FORGETFUL)
def forgotten_leases_ignored(patch: Patch) -> None:
    patch(HeartbeatLoop, "compare_leases", lambda self, tokens: None)


@mutant("a worker does not say which permits it holds", tests=FORGETFUL)
def permits_not_corrected(patch: Patch) -> None:
    async def correct(self: Any) -> None:
        return None

    patch(PermitLedger, "correct", correct)


@mutant("a worker believes that it holds permits that it has returned", tests=FORGETFUL)
def ledger_keeps_returned(patch: Patch) -> None:
    patch(PermitLedger, "remove", lambda self, request: None)


@mutant("the combiner drops a request from a full batch")
def request_dropped(patch: Patch) -> None:
    real = Combiner.next_batch

    def next_batch(self: Any) -> Any:
        batch = real(self)
        return batch[:-1] if len(batch) > 2 else batch

    patch(Combiner, "next_batch", next_batch)


def _no_compensation(patch: Patch, reason: str) -> None:
    real = SettlementBuilder.compensation

    def compensation(self: Any, lease: Any, died: Any) -> Any:
        return () if died.reason == reason else real(self, lease, died)

    patch(SettlementBuilder, "compensation", compensation)


@mutant("no compensation for an item that expired")
def no_compensation_expired(patch: Patch) -> None:
    _no_compensation(patch, "expired")


@mutant("no compensation for an item whose workers all died")
def no_compensation_lost(patch: Patch) -> None:
    _no_compensation(patch, "lease_lost")


@mutant("a submit is repeated under another id")
def submitted_twice(patch: Patch) -> None:
    real = Submitter.submit_repeatedly

    async def patiently(self: Any, submissions: Any) -> Any:
        try:
            return list(await self._backend.submit(submissions))
        except StoreUnavailable:
            renamed = [
                Submission(tuple(replace(item, id=f"{item.id}x") for item in submission.items))
                for submission in submissions
            ]
            return await real(self, renamed)

    patch(Submitter, "submit_repeatedly", patiently)


@mutant("an item stored by a lost submit is reported as a duplicate")
def own_duplicate(patch: Patch) -> None:
    async def own(self: Any, items: Any, answer: Any) -> Any:
        return answer

    patch(Submitter, "recognize_own", own)


@mutant("an item leased by a lost submit is not asked for")
def leased_and_lost(patch: Patch) -> None:
    patch(Core, "recover_leases", lambda self: None)


@mutant("waiters do not poll")
def no_poll(patch: Patch) -> None:
    async def first_of(event: Any, clock: Any, seconds: float) -> bool:
        await event.wait()
        return True

    patch(waiters, "first_of", first_of)


@mutant(
    "an item that died without an attempt is compensated",
    tests="tests/engine/test_compensation.py::test_an_item_that_dies_without_an_attempt_is_compensated_if_asked",
)
def compensated_without_attempt(patch: Patch) -> None:
    real = CompensationBuilder.items

    def items(
        self: Any, lease: Any, reason: Any, error: str, attempts: int, undoable: Any, report: Any
    ) -> Any:
        return real(self, lease, reason, error, max(attempts, 1), undoable, report)

    patch(CompensationBuilder, "items", items)


@mutant(
    "the options of the compensation are ignored",
    tests="tests/engine/test_compensation.py::test_the_options_of_a_compensation_are_applied",
)
def compensation_options_ignored(patch: Patch) -> None:
    real = CompensationBuilder._item

    def item(self: Any, lease: Any, wanted: Any, argument: Any, *, computed: bool) -> Any:
        return real(self, lease, wanted, argument, computed=False)

    patch(CompensationBuilder, "_item", item)
