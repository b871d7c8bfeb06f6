"""Build settlements: from what attempts decided, with results, children and the values of groups."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from treadle.codec import check_size
from treadle.engine.core import Core
from treadle.engine.submit.build_children import build_children, silenced
from treadle.engine.submit.carry import carry_on
from treadle.engine.submit.compensation import CompensationBuilder
from treadle.engine.wait.wait_result import decode_group_value, encode_group_value
from treadle.errors import PayloadError
from treadle.item import Contribution, EndedGroup, ErrorInfo, Item, Lease, Outcome, Ref, Rejected, Settlement
from treadle.result_plan import fold, needs_old
from treadle.rules.submission import rejection_error

from .decide import Decision, Die, Drop, FailureDecider, GiveBack, RunAgain, Succeed, failure_of, undecodable
from .fingerprint import mark_of
from .held import HeldLease, HeldLeases
from .pending import PendingSettlement
from .traced import tell_outcome

OWN_RESULT = Contribution()
settlement = functools.partial(Settlement, wait=False)  # the others of a batch must not wait for one

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
        self._compensations = CompensationBuilder(core.registry, core.settings, core.item_builder)
        self._folds: Folds = {}
        """The store's last answer for groups that are folded here."""

    def prepare(self, held: HeldLease, decision: Decision) -> PendingSettlement:
        """Encode the result and build the children of an attempt. If that fails, the item dies. Whether a
        transaction of its handler succeeds is known only when it is committed."""
        pending = PendingSettlement(held.lease, decision, started=held.started, span=held.span)
        if isinstance(decision, Succeed):
            try:
                self._prepare(held, decision, pending)
            except PayloadError as error:
                pending.decision = undecodable(error)
            except BaseException as error:  # noqa: BLE001  `options(input)` of a child is the user's code
                pending.decision = Die("bad_result", failure_of(error), error)
        commits = held.transaction is not None and isinstance(pending.decision, Succeed)
        if not commits and held.span is not None:
            tell_outcome(held, pending.decision)
        return pending

    def _prepare(self, held: HeldLease, decision: Succeed, pending: PendingSettlement) -> None:
        plan, lease = decision.plan, held.lease
        settings = self.core.settings
        if plan.value is not None or plan.contributions:
            pending.result = held.bound.type.encode_result(plan.value, settings.codec)
            check_size(pending.result, settings.max_payload, "the result of", lease.type)
        compensates = held.stored.compensates
        if not compensates:
            pending.contributions = plan.contributions
        if plan.children:
            builder = self.core.item_builder
            children = build_children(builder, settings, plan, lease)
            children = silenced(children) if compensates else children
            pending.children = tuple(carry_on(children, lease, held.span))
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
            ran=self._ran(pending),
        )

    def _ran(self, pending: PendingSettlement) -> float | None:
        """Seconds since the handler began. None: it did not."""
        began = pending.started or pending.held_since
        return self.core.settings.clock.monotonic() - began if began else None

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
        if contributions[0].encoded is not None:
            return self._contribute(contributions[0].encoded, False, group, known, drafts)
        value, final = fold(contributions, None)
        own = isinstance(pending.decision, Succeed) and value is pending.decision.plan.value
        if own and lease.id == lease.group_id and not pending.children:
            return Contribution(None, final)
        data = (
            encode_group_value(lease.type, pending.result or b"")
            if own
            else encode_group_value("", self._encode_value(value))
        )
        return self._contribute(data, final, group, known, drafts)

    def _contribute(
        self, data: bytes, final: bool, group: Ref, known: tuple[int, bytes | None] | None, drafts: Folds
    ) -> Contribution:
        """A contribution that replaces the value. Later folds in the batch start from it."""
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
        lease, ran = pending.lease, self._ran(pending)
        pending.children = self.compensation(pending, decision) if isinstance(decision, Die) else ()
        match decision:
            case RunAgain(kind=kind, delay=delay, run_at=run_at, failure=failure):
                return settlement(
                    lease=lease, kind=kind, delay=delay, run_at=run_at, failure=failure, ran=ran
                )
            case Die(reason=reason, failure=failure, error=error):
                return settlement(
                    lease=lease,
                    kind="dead",
                    reason=reason,
                    failure=failure,
                    children=pending.children,
                    ran=ran,
                    mark=mark_of(lease.type, reason, failure, error),
                )
            case GiveBack(delay=delay):
                return settlement(lease=lease, kind="release", delay=delay, ran=ran)
            case Drop(failure=failure):
                return settlement(lease=lease, kind="cancelled", failure=failure)
            case Succeed():
                raise AssertionError("a success is settled by `success`")

    def compensation(self, pending: PendingSettlement, died: Die) -> tuple[Item, ...]:
        """The items to submit because this one died. If the options of their type cannot be computed, they
        are submitted without these. None if the store has refused them."""
        if pending.childless:
            return ()
        lease, error = pending.lease, str(died.failure)
        for computed in (True, False):
            try:
                attempts = pending.attempts_begun
                items = self._compensations.items(lease, died.reason, error, attempts, computed=computed)
                return tuple(carry_on(items, lease, pending.span, checked=False))
            except BaseException as own:  # noqa: BLE001  the item must still die
                what = "compute the options of" if computed else "make"
                self.core.hooks.report(own, "settle", f"could not {what} the compensation of {lease.id}")
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
        for group in groups:
            self._folds.pop((group.tenant, group.id), None)


def _is_own_result(pending: PendingSettlement) -> bool:
    """Whether the item's only contribution is its own value."""
    if len(pending.contributions) != 1 or not isinstance(pending.decision, Succeed):
        return False
    only = pending.contributions[0]
    return only.append is None and not only.final and only.value is pending.decision.plan.value
