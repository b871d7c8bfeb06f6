"""settle: how attempts end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from treadle.item import (
    ErrorInfo,
    Item,
    Lease,
    Loss,
    Outcome,
    Reason,
    Ref,
    Rejected,
    Settled,
    Settlement,
    SettlementKind,
    Verdict,
)
from treadle.rules import KEPT_ATTEMPTS, due_at, failed_attempt

from .codes import DEAD, OUTCOME, READY, SCHEDULED, SUCCESS, doomed, leased
from .finish import Finish, Live, live
from .groups import Group
from .history import record
from .plan import Ids, Plan, is_plain, plan, plan_plain
from .statements import Statements
from .store import Home, Placed, store
from .tx import Tx, array

_SQL = Statements("settle")

_decoder = msgspec.json.Decoder(list[int])
_APPLIED = Outcome(verb="applied")
_AGAIN = Outcome(verb="applied", again=True)


def settle(tx: Tx, settlements: Sequence[Settlement]) -> Settled:
    """Apply each settlement whose token still owns its item, in order."""
    return _Settling(tx, settlements).run(settlements)


class _Settling:
    def __init__(self, tx: Tx, settlements: Sequence[Settlement]) -> None:
        self._tx = tx
        self._finish = Finish(tx)
        self._owned = owned(tx, [settlement.lease for settlement in settlements])
        self._workers: dict[int, str] = dict(tx.rows(_SQL["worker_ids"]))
        self._finish.groups.load(item.group for item in self._owned.values() if item.group is not None)
        self._refused: set[Ref] = set()
        self._ids = Ids(tx, [(one.lease.tenant, child.id) for one in settlements for child in one.children])
        self._children: list[Placed] = []

    def run(self, settlements: Sequence[Settlement]) -> Settled:
        outcomes = [self._settle(settlement) for settlement in settlements]
        self._flush()
        return Settled(tuple(outcomes), self._finish.effects())

    def _flush(self) -> None:
        """Write all that was noted so far."""
        self._finish.flush()
        self._finish.groups.write()
        store(self._tx, self._children)
        self._children = []

    def _settle(self, settlement: Settlement) -> Outcome:
        lease = settlement.lease
        item = self._owned.get(lease.token)
        if item is None:
            self._flush()
            outcome = _not_owned(self._tx, lease)
        else:
            outcome = self._apply(settlement, item)
        if outcome.verb != "applied":
            self._note_refused_fold(settlement)
        elif item is not None:
            del self._owned[lease.token]
            if settlement.failure is not None:
                self._record(settlement.failure, settlement.kind, item)
        return outcome

    def _note_refused_fold(self, settlement: Settlement) -> None:
        """Folds after it in this call were computed from it: they are refused too, though their version may
        be right by accident."""
        if settlement.contribution is not None and settlement.contribution.version is not None:
            self._refused.add((settlement.lease.tenant, settlement.lease.group_id))

    def _apply(self, settlement: Settlement, item: Live) -> Outcome:
        kind = settlement.kind
        if kind == "retry" or kind == "defer" or kind == "release":
            self._put_back(settlement, item)
            return _APPLIED
        if item.group is None and _stays_alone(settlement):
            return self._end_alone(settlement, item, OUTCOME[kind])
        return self._end(settlement, item, OUTCOME[kind])

    def _record(self, failure: ErrorInfo, kind: SettlementKind, item: Live) -> None:
        """Add the failure to the history, unless the item was only given back with its verdict."""
        if item.verdict is None or kind == "dead":
            worker = self._workers.get(item.worker or 0, "")
            record(self._tx, [(item.no, failed_attempt(failure, item.attempt, self._tx.now, worker))])

    # -- back into the line ----------------------------------------------------------------------------

    def _put_back(self, settlement: Settlement, item: Live) -> None:
        now = self._tx.now
        settled = array([*_tokens(item.settled), item.token][-KEPT_ATTEMPTS:])
        if item.verdict is not None:
            # It can still only end: nothing of what the settlement says about when matters.
            row = (leased(item.status), item.attempt, item.due, None, 0, item.verdict, settled, item.no)
            self._tx.run(_SQL["put_back"], *row)
            return
        due = due_at(settlement, now)
        if settlement.kind == "release" and not settlement.delay and settlement.run_at is None:
            due = item.due
        status = SCHEDULED if due > now else READY
        attempt = item.attempt if settlement.kind == "retry" else item.attempt - 1
        seq = item.seq if settlement.kind == "release" else 0
        if status == READY and seq == 0:
            seq = self._tx.numbers(seq=1).seq
        since = now if status == READY else None
        verdict: Verdict | None = None
        if item.deadline is not None and item.deadline <= now:
            status, verdict = doomed(status), "expired"
        self._tx.run(_SQL["put_back"], status, attempt, due, since, seq, verdict, settled, item.no)

    # -- the end ---------------------------------------------------------------------------------------

    def _end_alone(self, settlement: Settlement, item: Live, outcome: int) -> Outcome:
        success = outcome == SUCCESS
        given = settlement.contribution if success else None
        result = settlement.result if success else None
        worker = self._workers.get(item.worker or 0)
        reason = _reason(settlement, item) if outcome == DEAD else None
        gave = 0 if given is None else 3 if given.final else 1
        self._finish.end_alone(item, outcome, reason, result, settlement.lease.token, worker, gave)
        return Outcome(verb="applied", version=1, value=result) if gave else _APPLIED

    def _end(self, settlement: Settlement, item: Live, outcome: int) -> Outcome:
        planned = self._plan(settlement, item)
        if isinstance(planned, Rejected):
            return Outcome(verb="rejected", rejected=planned)
        moved = self._moved(settlement, item)
        if moved is not None:
            return moved
        group = self._group(item)
        answer = self._contribute(settlement, group)
        if planned is not None and planned.fresh:
            group.add(len(planned.fresh), _shortest_keep(planned.fresh))
        self._finish.end(
            item,
            outcome,
            reason=_reason(settlement, item) if outcome == DEAD else None,
            result=settlement.result if outcome == SUCCESS else None,
            token=settlement.lease.token,
            worker=self._workers.get(item.worker or 0),
        )
        if planned is not None:
            self._store(planned, Home(item.tenant, group.no, group.id, item.no, item.id))
            if planned.existing:
                answer = replace(answer, existing=planned.existing)
        return answer

    def _plan(self, settlement: Settlement, item: Live) -> Plan | Rejected | None:
        if not settlement.children:
            return None
        if is_plain(settlement.children):
            return plan_plain(settlement.children, self._ids, item.tenant)
        # Keys ask whether groups are open, gates ask what has ended.
        self._flush()
        return plan(self._tx, settlement.children, item.tenant)

    def _group(self, item: Live) -> Group:
        groups = self._finish.groups
        if item.group is not None:
            return groups.of(item.group)
        return groups.begin(item.no, item.id, item.tenant, item.type, item.shortest_keep())

    def _moved(self, settlement: Settlement, item: Live) -> Outcome | None:
        """The refusal of a fold that was not computed from the group's value."""
        given = settlement.contribution
        if given is None or given.version is None or settlement.kind != "success":
            return None
        if item.group is None:
            return None if given.version == 0 else Outcome(verb="moved")
        group = self._finish.groups.of(item.group)
        if given.version == group.version and (item.tenant, group.id) not in self._refused:
            return None
        return Outcome(verb="moved", version=group.version, value=group.value, final=group.final)

    def _contribute(self, settlement: Settlement, group: Group) -> Outcome:
        given = settlement.contribution
        if given is None or settlement.kind != "success":
            return _APPLIED
        value = settlement.result if given.value is None else given.value
        if not group.contribute(value, given.final):
            return _APPLIED
        return Outcome(verb="applied", version=group.version, value=value)

    def _store(self, planned: Plan, home: Home) -> None:
        """The children are stored after the item has ended, since they may wait for it. Plain ones wait for
        nothing, and so may wait for those of other settlements, to be stored all at once."""
        self._children += [(child, home) for child in planned.fresh]
        self._ids.take(planned.fresh, home.tenant)
        if not is_plain(planned.fresh):
            self._flush()


def _tokens(stored: str | None) -> list[int]:
    return [] if stored is None else _decoder.decode(stored)


def _reason(settlement: Settlement, item: Live) -> Reason:
    return settlement.reason or item.verdict or "aborted"


def _stays_alone(settlement: Settlement) -> bool:
    """Whether an item that is alone needs no row for its group: its own says it all."""
    given = settlement.contribution
    return not settlement.children and (given is None or (given.value is None and not given.version))


def _shortest_keep(items: Sequence[Item]) -> float:
    return min(min(item.keep, item.keep if item.keep_dead is None else item.keep_dead) for item in items)


# -- the fence -----------------------------------------------------------------------------------------


def owned(tx: Tx, leases: Sequence[Lease]) -> dict[int, Live]:
    """By token: the items that these leases still own."""
    by_number = live(tx, {lease.ref for lease in leases if lease.ref})
    gone = {no for (no,) in tx.rows(_SQL["gone_workers"])}
    found: dict[int, Live] = {}
    for lease in leases:
        item = by_number.get(lease.ref)
        if item is None or (item.id, item.tenant) != (lease.id, lease.tenant):
            item = _by_name(tx, lease)
        if item is not None and item.token == lease.token and item.worker not in gone:
            found[lease.token] = item
    return found


def _by_name(tx: Tx, lease: Lease) -> Live | None:
    no = tx.value(_SQL["number_of"], lease.id, lease.tenant)
    return None if no is None else live(tx, [no]).get(no)


def _not_owned(tx: Tx, lease: Lease) -> Outcome:
    why = loss(tx, lease)
    return _AGAIN if why is None else Outcome(verb="stale", loss=why)


def loss(tx: Tx, lease: Lease) -> Loss | None:
    """Why a token does not own its item. None: it was this very token that settled it."""
    no = tx.value(_SQL["number_of"], lease.id, lease.tenant)
    if no is None or (lease.ref and lease.ref != no):
        # Gone; another one may have come by its id.
        return "not_found"
    item = live(tx, [no]).get(no)
    if item is not None:
        return None if lease.token in _tokens(item.settled) else "taken"
    outcome, token, settled = tx.rows(_SQL["ended"], no)[0]
    if lease.token == token or lease.token in _tokens(settled):
        return None
    if token is not None:
        return "taken"
    return "completed" if outcome == SUCCESS else "cancelled"
