"""Bugs of the engine. Each changes one place."""

from __future__ import annotations

import functools
from typing import Any

from msgspec.structs import replace

from tests.mutants.kit import Patch, mutant
from treadle.engine.combine import Combiner
from treadle.engine.core import Core
from treadle.engine.run import after_commit as afterwards
from treadle.engine.run.attempt import AttemptRunner
from treadle.engine.run.claim import Claimer
from treadle.engine.run.decide import Die, RunAgain, Succeed
from treadle.engine.run.desk import Desk
from treadle.engine.run.runtime import Runtime
from treadle.engine.run.settle import Settler
from treadle.engine.submit.build_item import timeout_of
from treadle.engine.submit.submitter import Submitter
from treadle.engine.wait import waiters as wait
from treadle.errors import StoreUnavailable
from treadle.events import Succeeded, from_lease
from treadle.item import ErrorInfo, GroupState, Submission


@mutant("children are submitted after the settlement, not with it")
def ack_before_children(patch: Patch) -> None:
    real = Settler._success

    def success(self: Any, entry: Any, drafts: Any) -> Any:
        settlement = real(self, entry, drafts)
        if settlement.children:
            later = self._backend.submit([Submission(settlement.children)])
            self._tasks.start(later, "submit")
        return replace(settlement, children=())

    patch(Settler, "_success", success)


@mutant("a settlement whose answer was lost is not repeated")
def settle_not_repeated(patch: Patch) -> None:
    async def settle(self: Any, entries: Any) -> Any:
        try:
            return await self._commit(entries, self._settlements(entries))
        except StoreUnavailable:
            return []

    patch(Settler, "_settle", settle)


@mutant("a settlement is repeated with another decision")
def another_decision(patch: Patch) -> None:
    real = Settler._settle

    async def settle(self: Any, entries: Any) -> Any:
        try:
            return await self._commit(entries, self._settlements(entries))
        except StoreUnavailable:
            for entry in entries:
                entry.decision = RunAgain("retry", 0.1, None, ErrorInfo("Lost", "the answer"))
            return await real(self, entries)

    patch(Settler, "_settle", settle)


@mutant("an append does not send the version that it was computed from")
def fold_without_version(patch: Patch) -> None:
    real = Settler._contribution
    patch(
        Settler,
        "_contribution",
        lambda self, entry, drafts: replace(real(self, entry, drafts), version=None),
    )


@mutant("a lost lease does not stop its handler")
def loss_ignored(patch: Patch) -> None:
    patch(Runtime, "lose", lambda self, token, why: None)


@mutant("an interrupt does not cancel the handler")
def interrupt_ignored(patch: Patch) -> None:
    patch(AttemptRunner, "cancel", lambda self, active: None)


@mutant("a deadline does not stop the handler")
def deadline_ignored(patch: Patch) -> None:
    def watch(self: Any, active: Any) -> None:
        timeout = timeout_of(active.stored, active.bound.timeout)
        if timeout is not None:
            self.alarm.after(timeout, functools.partial(self.interrupt, active, "timeout"))

    patch(AttemptRunner, "_watch", watch)


@mutant("a shutdown is settled as a failed attempt")
def shutdown_burns(patch: Patch) -> None:
    real = Settler._ending

    def ending(self: Any, entry: Any, decision: Any) -> Any:
        settlement = real(self, entry, decision)
        return replace(settlement, kind="retry") if settlement.kind == "release" else settlement

    patch(Settler, "_ending", ending)


@mutant("stop does not release its items")
def stop_keeps(patch: Patch) -> None:
    async def give_back(self: Any) -> None:
        return None

    patch(Runtime, "_give_back", give_back)


@mutant("stop leaves its loops running")
def stop_leaks(patch: Patch) -> None:
    async def let_go(self: Any) -> None:
        await self._sign_off()

    patch(Runtime, "_let_go", let_go)


@mutant("waiters get the result before the commit")
def told_early(patch: Patch) -> None:
    real = Desk.decided

    def decided(self: Any, active: Any, decision: Any) -> None:
        lease = active.lease
        if isinstance(decision, Succeed):
            group = GroupState(id=lease.group_id, tenant=lease.tenant, type=lease.type, open=0)
            self._core.waiters.answer_group((lease.tenant, lease.group_id), group)
        real(self, active, decision)

    patch(Desk, "decided", decided)


@mutant("an event is sent before the commit")
def announced_early(patch: Patch) -> None:
    real = Desk.decided

    def decided(self: Any, active: Any, decision: Any) -> None:
        if isinstance(decision, Succeed):
            lease = active.lease
            self._core.hooks.emit(from_lease(Succeeded, lease, self._now(active), result=None))
        real(self, active, decision)

    patch(Desk, "decided", decided)


@mutant("a repeated retry settlement announces a group that ended later")
def announced_again(patch: Patch) -> None:
    def closed(entries: Any, ended: Any) -> Any:
        marked = [replace(entry, decision=Die("aborted", ErrorInfo("x", "y"))) for entry in entries]
        return real(marked, ended)

    real = afterwards._closed
    patch(afterwards, "_closed", closed)


@mutant("unknown leases are never asked for")
def orphans_not_asked(patch: Patch) -> None:
    async def recover(self: Any) -> None:
        return None

    patch(Claimer, "_recover", recover)


@mutant("the combiner drops a request from a full batch")
def request_dropped(patch: Patch) -> None:
    real = Combiner._take

    def take(self: Any) -> Any:
        batch = real(self)
        return batch[:-1] if len(batch) > 2 else batch

    patch(Combiner, "_take", take)


def _no_compensation(patch: Patch, reason: str) -> None:
    real = Desk.compensate
    patch(
        Desk, "compensate", lambda self, lease, died: () if died.reason == reason else real(self, lease, died)
    )


@mutant("an expired item is not compensated")
def no_compensation_expired(patch: Patch) -> None:
    _no_compensation(patch, "expired")


@mutant("an item whose workers died is not compensated")
def no_compensation_lost(patch: Patch) -> None:
    _no_compensation(patch, "lease_lost")


@mutant("a submit is repeated under another id")
def submitted_twice(patch: Patch) -> None:
    real = Submitter._patiently

    async def patiently(self: Any, submissions: Any) -> Any:
        try:
            return list(await self._backend.submit(submissions))
        except StoreUnavailable:
            renamed = [
                Submission(tuple(replace(item, id=f"{item.id}x") for item in submission.items))
                for submission in submissions
            ]
            return await real(self, renamed)

    patch(Submitter, "_patiently", patiently)


@mutant("an item stored by a lost submit is reported as a duplicate")
def own_duplicate(patch: Patch) -> None:
    async def own(self: Any, items: Any, answer: Any) -> Any:
        return answer

    patch(Submitter, "_own", own)


@mutant("an item leased by a lost submit is not asked for")
def leased_and_lost(patch: Patch) -> None:
    patch(Core, "_adrift", lambda self: None)


@mutant("waiters do not poll")
def no_poll(patch: Patch) -> None:
    async def first_of(event: Any, clock: Any, seconds: float) -> bool:
        await event.wait()
        return True

    patch(wait, "first_of", first_of)
