"""Settle: attempts end.

    reserve the children, write the results -> replace the GroupRecord, in one step -> apply the effects
    -> ack the pointer -> drop the lease from the worker's record

Everything before the GroupRecord can be undone. Everything after it can be repeated. A crash can run an
item twice, but cannot lose it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import astuple, replace

from treadle.item import Attempt, ErrorInfo, Outcome, Ref, Rejected, Settled, Settlement, Status
from treadle.store.rules import settlement as rules
from treadle.store.rules.submission import SubmitPlan, as_child

from . import groups
from .async_ports import Pointers
from .dependencies import PortsDependencies, PortsEffects
from .groups import EffectTotals, GroupChange, TokenState
from .records import GROUP, GroupRecord, ItemEnd, OpenMember, Records, StoredValue, back_off
from .submit import Reservation, Reserver
from .workers import PortsWorkers

ENDS: dict[str, Status] = {"success": "success", "dead": "dead", "cancelled": "cancelled"}
"""The kinds of settlement that end an item, and its status afterwards."""
ALREADY_APPLIED = Outcome(verb="applied", again=True)
NO_CHILDREN = Reservation(SubmitPlan())


class PortsSettleCall:
    """The totals of one call of settle."""

    def __init__(self) -> None:
        self.total = EffectTotals()
        self.refused: set[Ref] = set()
        """Groups of which a fold was refused. Later folds were computed from a value that was not stored."""
        self.settled_tokens: dict[str, set[int]] = defaultdict(set)
        """By worker."""


class SettleStep(Struct):
    """One settlement, applied to a GroupRecord that is not written yet; or why it was not applied."""

    settlement: Settlement
    outcome: Outcome
    worker: str = ""
    """The worker that leased the item; empty if the settlement is not applied."""
    due: float = 0.0
    change: GroupChange | None = None
    """Set if the item ended."""
    failed_tokens: Sequence[int] = ()
    """The failed attempts that are part of the ItemEnd now."""


@dataclass(eq=False)
class PortsSettle:
    _records: Records
    _pointers: Pointers
    _reserver: Reserver
    _dependencies: PortsDependencies
    _effects: PortsEffects
    _workers: PortsWorkers

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        call, now = PortsSettleCall(), self._records.now()
        outcomes: dict[int, Outcome] = {}
        for run in _runs(settlements):
            answers = await self._settle_run([settlements[index] for index in run], call)
            outcomes.update(zip(run, answers, strict=True))
        for worker, tokens in call.settled_tokens.items():
            self._workers.drop_later(worker, tokens)
        effects = await self._effects.report(call.total)
        ordered = tuple(outcomes[index] for index in range(len(settlements)))
        return Settled(ordered, effects, now)

    async def _settle_run(self, run: list[Settlement], call: PortsSettleCall) -> list[Outcome]:
        """Apply settlements of one group in one step."""
        reservation = await self._reserve_children(run[0])
        group = _group(run[0])
        if isinstance(reservation, Rejected):
            if rules.is_fold(run[0]):
                call.refused.add(group)
            return [Outcome(verb="rejected", rejected=reservation)]
        key = self._records.keys.group(group)
        while True:
            draft = await self._records.draft(key, GROUP)
            record = draft.record
            refused = set(call.refused)
            steps = [await self._apply(one, record, reservation, refused) for one in run]
            if record is None or not any(step.worker for step in steps):
                break
            self._effects.clear_applied(group, record)
            if await self._records.replace(key, draft, record):
                break
            await back_off()
        call.refused = refused
        for step in steps:
            if record is not None and step.worker:
                await self._finish_applied(step, record, call)
            else:
                await self._finish_refused(step, record, reservation)
        return [step.outcome for step in steps]

    async def _reserve_children(self, settlement: Settlement) -> Reservation | Rejected:
        """Reserve the children, and register them with their prerequisites in other groups."""
        if not settlement.children:
            return NO_CHILDREN
        lease, group = settlement.lease, _group(settlement)
        record = await self._records.group(group)
        if record is None or groups.token_state(record, lease.id, lease.token) != "in force":
            return NO_CHILDREN
        children = [as_child(item, lease.tenant, lease.id) for item in settlement.children]
        now = self._records.now()
        reservation = await self._reserver.reserve(
            children, now, queued_by=lease.token, group_id=lease.group_id
        )
        if isinstance(reservation, Rejected):
            return reservation
        inside = {lease.id, *(id for _, id in reservation.items), *record.open, *record.ended}
        for stored in reservation.items.values():
            await self._dependencies.register(stored, [id for id in stored.item.after if id not in inside])
        return reservation

    # -- one settlement on a GroupRecord ---------------------------------------------------------------

    async def _apply(
        self, settlement: Settlement, record: GroupRecord | None, reservation: Reservation, refused: set[Ref]
    ) -> SettleStep:
        lease = settlement.lease
        state = groups.token_state(record, lease.id, lease.token)
        if state != "in force" or record is None:
            if rules.is_fold(settlement) and state != "settled":
                refused.add(_group(settlement))
            return SettleStep(settlement, _refusal(state))
        if settlement.kind not in ENDS:
            return await self._put_back(settlement, record)
        if not record.open[lease.id].contributes:
            settlement = replace(settlement, contribution=None)
        moved = await self._refuse_moved_fold(settlement, record, refused)
        return moved or await self._end(settlement, record, reservation)

    async def _put_back(self, settlement: Settlement, record: GroupRecord) -> SettleStep:
        member, now = record.open[settlement.lease.id], self._records.now()
        worker = member.worker
        if (failure := rules.recorded_failure(settlement, member.verdict)) is not None:
            key = self._records.keys.failed_attempt(_ref(settlement), settlement.lease.token)
            await self._records.write(key, _attempt(failure, member, now))
        groups.put_back(record, settlement, now)
        return SettleStep(settlement, Outcome(verb="applied"), worker, groups.look_at(member) or 0.0)

    async def _refuse_moved_fold(
        self, settlement: Settlement, record: GroupRecord, refused: set[Ref]
    ) -> SettleStep | None:
        """Refuse a fold that was computed from another value than the group's."""
        contribution, group = settlement.contribution, _group(settlement)
        if contribution is None:
            return None
        state = rules.contribution_state(
            contribution, record.version, final=record.final, refused=group in refused
        )
        if state != "moved":
            return None
        refused.add(group)
        value = await self._records.group_value(group, record)
        outcome = Outcome(verb="moved", version=record.version, value=value, final=record.final)
        return SettleStep(settlement, outcome)

    async def _end(self, settlement: Settlement, record: GroupRecord, reservation: Reservation) -> SettleStep:
        member, now = record.open[settlement.lease.id], self._records.now()
        await self._write_end(settlement, member, now)
        was_final = record.final
        dead = settlement.kind == "dead"
        change = groups.end_by_settlement(
            record,
            settlement,
            ENDS[settlement.kind],
            reservation.items.values(),
            now,
            tolerated=dead and await self._dependencies.is_tolerated(_ref(settlement)),
        )
        outcome = Outcome(verb="applied", existing=reservation.plan.existing or None)
        if _contributes(settlement):
            value = _contributed(settlement)
            if was_final:
                value = await self._records.group_value(_group(settlement), record)
            outcome = replace(outcome, version=record.version, value=value)
        return SettleStep(settlement, outcome, member.worker, 0.0, change, member.failed_tokens)

    async def _write_end(self, settlement: Settlement, member: OpenMember, now: float) -> None:
        """Write the end of an item and its contribution, each under the token of the settlement."""
        records, ref, token = self._records, _ref(settlement), settlement.lease.token
        history = await records.history(ref, member.failed_tokens)
        if (failure := rules.recorded_failure(settlement, member.verdict)) is not None:
            history += (_attempt(failure, member, now),)
        end = ItemEnd(
            ENDS[settlement.kind],
            now,
            rules.death_reason(settlement, member.verdict) if settlement.kind == "dead" else None,
            settlement.result if settlement.kind == "success" else None,
            member.attempt,
            member.due,
            groups.began(member, settlement, now) or None,
            member.worker,
            history[-rules.KEPT_ATTEMPTS :],
            member.failures + (settlement.kind == "dead" and member.verdict is None),
            member.losses,
            member.started or None,
            member.deferrals,
        )
        await records.write(records.keys.item_end(ref, token), end)
        if _contributes(settlement):
            key = records.keys.group_value(_group(settlement), token)
            await records.write(key, StoredValue(_contributed(settlement)))

    # -- once the GroupRecord is written ---------------------------------------------------------------

    async def _finish_applied(self, step: SettleStep, record: GroupRecord, call: PortsSettleCall) -> None:
        settlement, now = step.settlement, self._records.now()
        ref, group, token = _ref(settlement), _group(settlement), settlement.lease.token
        if step.change is not None:
            await self._effects.apply(ref, group, record, call.total)
            for failed in step.failed_tokens:
                await self._records.ports.delete(self._records.keys.failed_attempt(ref, failed))
            await self._pointers.ack(token)
            await self._effects.add_change(group, record, step.change, call.total)
        elif settlement.kind == "release":
            await self._pointers.put_back(token, ref, step.due, now)
        else:
            await self._pointers.move_to_end(token, ref, step.due, now)
        call.settled_tokens[step.worker].add(token)

    async def _finish_refused(
        self, step: SettleStep, record: GroupRecord | None, reservation: Reservation
    ) -> None:
        settlement = step.settlement
        if step.outcome.again:
            await self._repeat(settlement, record)
            return
        await self._reserver.undo(reservation)
        if step.outcome.verb == "stale":
            if settlement.kind in ENDS:
                await self._erase_end(settlement)
            await self._pointers.drop(settlement.lease.token)

    async def _repeat(self, settlement: Settlement, record: GroupRecord | None) -> None:
        """The settlement was applied before. Repeat what may have been interrupted after that."""
        lease, ref = settlement.lease, _ref(settlement)
        member = None if record is None else record.open.get(lease.id)
        if member is None:
            await self._effects.resume(ref, _group(settlement), record)
        elif member.settled_tokens[-1:] == [lease.token] and (due := groups.look_at(member)) is not None:
            await self._pointers.push(ref, due, self._records.now())
        await self._pointers.ack(lease.token)

    async def _erase_end(self, settlement: Settlement) -> None:
        ports, keys, token = self._records.ports, self._records.keys, settlement.lease.token
        await ports.delete(keys.item_end(_ref(settlement), token))
        if _contributes(settlement):
            await ports.delete(keys.group_value(_group(settlement), token))


def _runs(settlements: Sequence[Settlement]) -> Iterable[list[int]]:
    """The indexes of settlements that are applied in one step: those of one group that have no children. A
    settlement with children is a run of its own, in its place, because the first item gets an id or a key."""
    by_group: dict[Ref, list[int]] = {}
    for index, settlement in enumerate(settlements):
        if settlement.children:
            yield from by_group.values()
            by_group = {}
            yield [index]
        else:
            by_group.setdefault(_group(settlement), []).append(index)
    yield from by_group.values()


def _ref(settlement: Settlement) -> Ref:
    return (settlement.lease.tenant, settlement.lease.id)


def _group(settlement: Settlement) -> Ref:
    return (settlement.lease.tenant, settlement.lease.group_id)


def _refusal(state: TokenState) -> Outcome:
    if state == "settled" or state == "in force":
        return ALREADY_APPLIED
    return Outcome(verb="stale", loss=state)


def _contributes(settlement: Settlement) -> bool:
    return settlement.contribution is not None and settlement.kind == "success"


def _contributed(settlement: Settlement) -> bytes | None:
    contribution = settlement.contribution
    return settlement.result if contribution is None or contribution.value is None else contribution.value


def _attempt(failure: ErrorInfo, member: OpenMember, now: float) -> Attempt:
    """Error texts come from users' code. Characters that UTF-8 cannot encode are replaced."""
    readable = ErrorInfo(*(text.encode(errors="replace").decode() for text in astuple(failure)))
    return rules.failed_attempt(readable, member.attempt, now, member.worker)
