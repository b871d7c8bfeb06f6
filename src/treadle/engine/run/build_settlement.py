"""Build settlements: from what attempts decided, with results, children and the values of groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from treadle.codec import check_size
from treadle.engine.core import Core
from treadle.engine.submit.build_children import build_children, silenced
from treadle.engine.submit.carry import carry_on
from treadle.engine.submit.compensation import CompensationBuilder
from treadle.engine.wait.wait_result import decode_group_value, encode_group_value
from treadle.errors import EncodeError, PayloadError
from treadle.handler.result_plan import ResultPlan, fold, needs_old
from treadle.item import Contribution, EndedGroup, ErrorInfo, Item, Lease, Outcome, Ref, Rejected, Settlement
from treadle.store.rules.settlement import next_version
from treadle.store.rules.submission import rejection_error

from .bad_result import unfit_result, unstorable
from .decide import Decision, Die, Drop, FailureDecider, GiveBack, RunAgain, Succeed, failure_of
from .fingerprint import mark_of
from .held import HeldLease, HeldLeases
from .pending import PendingSettlement
from .traced import tell_outcome

OWN_RESULT = Contribution()

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
                    pending.children = self._children(held, plan)
            except PayloadError as error:
                pending.decision = self._unstorable(held, pending, plan, error)
            except BaseException as error:  # noqa: BLE001  `options(input)` of a child is the user's code
                pending.decision = Die("bad_result", failure_of(error), error)
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

    def _children(self, held: HeldLease, plan: ResultPlan) -> tuple[Item, ...]:
        lease, builder = held.lease, self.core.item_builder
        children = build_children(builder, self.core.settings, plan, lease)
        children = silenced(children) if held.stored.compensates else children
        carried = tuple(carry_on(children, lease, held.span))
        builder.check_total(carried, f"what {lease.type!r} queued")
        return carried

    def build(self, batch: Sequence[PendingSettlement]) -> list[Settlement]:
        # Folds in one batch start from each other's drafts. Other folds start from what the store has.
        drafts: Folds = {}
        now = self._monotonic()
        settlements: list[Settlement] = []
        for pending in batch:
            if isinstance(pending.decision, Succeed):
                try:
                    settlements.append(self.success(pending, drafts, now))
                    continue
                except BaseException as error:  # noqa: BLE001  a fold is the user's code
                    pending.decision = self.failure(pending.lease, error)
            settlements.append(self.ending(pending, pending.decision))
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
        )

    def contribution(self, pending: PendingSettlement, drafts: Folds) -> Contribution:
        """What the attempt gives to its group's value."""
        lease, contributions, decision = pending.lease, pending.contributions, pending.decision
        alone = not pending.children and lease.id == lease.group_id
        if alone and len(contributions) == 1 and isinstance(decision, Succeed):
            only = contributions[0]
            if only.value is decision.plan.value and only.append is None and not only.final:
                return OWN_RESULT
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
        pending.children = self.compensation(pending, decision) if isinstance(decision, Die) else ()
        match decision:
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
