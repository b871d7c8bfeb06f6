"""settle: apply how attempts ended, each by the token that still owns its item."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from treadle.item import (
    Contribution,
    Effects,
    EndedGroup,
    Item,
    Lease,
    Loss,
    Outcome,
    Record,
    Ref,
    Rejected,
    Settled,
    Settlement,
)
from treadle.store.rules.settlement import (
    KEPT_ATTEMPTS,
    LONE_VERSION,
    GroupValue,
    WaitingAgain,
    contributed,
    contribution_state,
    death_reason,
    failed_attempt,
    is_fold,
    loss_of,
    put_back,
    recorded_failure,
    shortest_keep,
)
from treadle.store.rules.submission import is_tolerant

from . import steps
from .dependencies import ANY_BLOCKED, count_ends, is_closed, refuse_cycle
from .endings import EndingBatch, OpenItem, open_items, record_attempts
from .groups import SqliteGroup
from .operate import take_over
from .rows import DEAD, OUTCOME, READY, SCHEDULED, STATUS, SUCCESS, doomed, leased
from .statements import NULL, Tx, array, blob, statements
from .submit import Home, PlacedItem, TakenIds, is_plain, plan, store_children

_SQL = statements("settle")

_decoder = msgspec.json.Decoder(list[int])
_NO_GROUP = GroupValue()
_APPLIED = Outcome(verb="applied")
_AGAIN = Outcome(verb="applied", again=True)


def settle(tx: Tx, settlements: Sequence[Settlement]) -> Settled:
    """Apply each settlement whose token still owns its item, in order."""
    if logged := [one for one in settlements if one.log is not None]:
        steps.write_logs(tx, logged)
    return settle_plain(tx, settlements) or _SettleCall(tx, settlements).run(settlements)


def settle_few(tx: Tx, settlements: Sequence[Settlement]) -> Settled | None:
    """The same for those that have no log. None: they are not plain, or others wait, who may be many."""
    return settle_plain(tx, settlements) if tx.value(ANY_BLOCKED) is None else None


class _PlannedChildren(NamedTuple):
    new: Sequence[Item]
    existing: Mapping[str, str]
    """The ids that are not stored, and the ids that answer for them."""
    changes: Mapping[Ref, Item] = {}
    """What items that hold keys take over."""


_NO_CHILDREN = _PlannedChildren((), {})


class _SettleCall:
    """One call: reads what it needs, applies the settlements in memory, and writes in batches."""

    def __init__(self, tx: Tx, settlements: Sequence[Settlement]) -> None:
        self._tx = tx
        self._endings = EndingBatch(tx)
        workers = tx.rows(_SQL["workers"])
        self._workers: dict[int | None, str] = {no: id for no, id, _, _ in workers}
        self._releases: dict[int | None, str | None] = {no: release for no, _, _, release in workers}
        removed = {no for no, _, is_removed, _ in workers if is_removed}
        self._owned = owned(tx, [settlement.lease for settlement in settlements], removed)
        groups = [item.group for item in self._owned.values() if item.group is not None]
        if groups:
            self._endings.groups.load(groups)
        self._refused: set[Ref] = set()
        self._ids = TakenIds(
            tx, [(one.lease.tenant, child.id) for one in settlements for child in one.children]
        )
        self._children: list[PlacedItem] = []

    def run(self, settlements: Sequence[Settlement]) -> Settled:
        outcomes = [self._settle(settlement) for settlement in settlements]
        self._flush()
        return Settled(tuple(outcomes), self._endings.effects(), self._tx.now)

    def _flush(self) -> None:
        """Write everything so far."""
        self._endings.flush()
        self._endings.groups.write()
        if self._children:
            ended = store_children(self._tx, self._children)
            self._children = []
            if ended:
                self._endings.add_ended_groups(ended)

    def _settle(self, settlement: Settlement) -> Outcome:
        lease = settlement.lease
        item = self._owned.get(lease.token)
        if item is None:
            self._flush()
            outcome = _not_owned(self._tx, lease)
        else:
            outcome = self._apply(settlement, item)
        if outcome.verb != "applied":
            if is_fold(settlement):
                self._refused.add((lease.tenant, lease.group_id))
        elif item is not None:
            del self._owned[lease.token]
            if settlement.failure is not None:
                self._record_failure(settlement, item)
        return outcome

    def _apply(self, settlement: Settlement, item: OpenItem) -> Outcome:
        kind = settlement.kind
        if kind == "retry" or kind == "defer" or kind == "release":
            self._put_back(settlement, item)
            return _APPLIED
        if kind == "suspend":
            return self._suspend(settlement, item)
        if item.group is None and stays_alone(settlement):
            return self._end_alone(settlement, item, OUTCOME[kind])
        return self._end(settlement, item, OUTCOME[kind])

    def _record_failure(self, settlement: Settlement, item: OpenItem) -> None:
        failure = recorded_failure(settlement, item.verdict)
        if failure is not None:
            worker = self._workers.get(item.worker, "")
            release = self._releases.get(item.worker)
            attempt = failed_attempt(failure, item.attempt, self._tx.now, worker, release)
            record_attempts(self._tx, [(item.no, attempt)])

    # -- not the end -----------------------------------------------------------------------------------

    def _put_back(self, settlement: Settlement, item: OpenItem) -> None:
        tokens = _settled(item)
        if item.verdict is not None:
            counters = (item.attempt, item.failures, item.losses, 0)
            unchanged = (leased(item.status), *counters, item.due, None, 0, item.verdict)
            self._tx.run(_SQL["put_back"], *unchanged, None, tokens, item.no)
            return
        again = put_back(settlement, self._tx.now, item.counters, due=item.due, deadline=item.deadline)
        seq = item.seq if again.keeps_place else 0
        if again.status == "ready" and seq == 0:
            seq = self._tx.numbers(seq=1).seq
        status, since = waiting_columns(again, self._tx.now)
        deferred = settlement.kind == "defer"
        counters = (again.attempt, again.failures, again.losses, deferred)
        began = None if settlement.ran is None else self._tx.now - settlement.ran
        columns = (status, *counters, again.due, since, seq, again.verdict, began)
        self._tx.run(_SQL["put_back"], *columns, tokens, item.no)

    def _suspend(self, settlement: Settlement, item: OpenItem) -> Outcome:
        planned = self._plan_children(settlement, item)
        if isinstance(planned, Rejected):
            return Outcome(verb="rejected", rejected=planned)
        if planned.new:
            group = self._group(item)
            self._add_members(group, planned.new)
            self._add_children(planned.new, _home(item, group))
            self._tx.run(_SQL["join_group"], group.no, item.no)
        if planned.changes:
            self._flush()
            take_over(self._tx, planned.changes)
        ready = steps.suspend(self._tx, item.no, item.attempt, settlement, _settled(item))
        return Outcome(verb="applied", ready=ready, existing=planned.existing or None)

    # -- the end ---------------------------------------------------------------------------------------

    def _end_alone(self, settlement: Settlement, item: OpenItem, outcome: int) -> Outcome:
        given = settlement.contribution
        code = 0 if given is None or outcome != SUCCESS or not item.contributes else 3 if given.final else 1
        self._add_ending(settlement, item, outcome, code)
        return Outcome(verb="applied", version=LONE_VERSION, value=settlement.result) if code else _APPLIED

    def _end(self, settlement: Settlement, item: OpenItem, outcome: int) -> Outcome:
        planned = self._plan_children(settlement, item)
        if isinstance(planned, Rejected):
            return Outcome(verb="rejected", rejected=planned)
        given = _contribution(settlement, item)
        moved = None if given is None else self._moved(settlement, item, given)
        if moved is not None:
            return moved
        group = self._group(item)
        answer = _APPLIED if given is None else _contribute(settlement, given, group)
        if not planned.new:
            self._add_ending(settlement, item, outcome)
        else:
            self._add_members(group, planned.new)
            self._add_ending(settlement, item, outcome, tolerated=_tolerates(planned.new, item.id))
            self._add_children(planned.new, _home(item, group))
        if planned.changes:
            self._flush()
            take_over(self._tx, planned.changes)
        return replace(answer, existing=planned.existing) if planned.existing else answer

    def _add_ending(
        self,
        settlement: Settlement,
        item: OpenItem,
        outcome: int,
        contributed: int = 0,
        *,
        tolerated: bool = False,
    ) -> None:
        self._endings.end(
            item,
            outcome,
            reason=death_reason(settlement, item.verdict) if outcome == DEAD else None,
            result=settlement.result if outcome == SUCCESS else None,
            token=settlement.lease.token,
            worker=self._workers.get(item.worker),
            contributed=contributed,
            began=None if settlement.ran is None else self._tx.now - settlement.ran,
            tolerated=tolerated,
            mark=settlement.mark,
            release=None if settlement.failure is None else self._releases.get(item.worker),
        )

    def _plan_children(self, settlement: Settlement, item: OpenItem) -> _PlannedChildren | Rejected:
        children = settlement.children
        if not children:
            return _NO_CHILDREN
        group_id = item.id if item.group is None else self._endings.groups.get(item.group).id
        if is_plain(children) or is_closed(children):
            refused = self._ids.clash([(item.tenant, child.id) for child in children])
            refused = refused or refuse_cycle(children, item.tenant, group_id)
            return _PlannedChildren(children, {}) if refused is None else refused
        # Keys depend on open groups, and dependencies on ended items.
        self._flush()
        planned = plan(self._tx, children, item.tenant, group_id)
        if isinstance(planned, Rejected):
            return planned
        return _PlannedChildren(list(planned.plan.new.values()), planned.plan.existing, planned.plan.changes)

    def _add_members(self, group: SqliteGroup, children: Sequence[Item]) -> None:
        """Count the children that join this group. Others join the groups that are nested in it."""
        nested = {child.id for child in children if child.closes_group}
        joining = [child for child in children if child.group_id not in nested]
        if joining:
            group.join(len(joining), min(shortest_keep(one.keep, one.keep_dead) for one in joining))

    def _group(self, item: OpenItem) -> SqliteGroup:
        groups = self._endings.groups
        if item.group is not None:
            return groups.get(item.group)
        keep = shortest_keep(item.keep, item.keep_dead)
        return groups.create(item.no, item.id, item.tenant, item.type, keep)

    def _moved(self, settlement: Settlement, item: OpenItem, given: Contribution) -> Outcome | None:
        """The refusal of a fold that was not computed from the group's current value."""
        group = _NO_GROUP if item.group is None else self._endings.groups.get(item.group)
        refused = (item.tenant, settlement.lease.group_id) in self._refused
        if contribution_state(given, group.version, final=group.final, refused=refused) != "moved":
            return None
        return Outcome(verb="moved", version=group.version, value=group.value, final=group.final)

    def _add_children(self, children: Sequence[Item], home: Home) -> None:
        """Children are stored after their item has ended, since they may wait for it. Those that wait for
        nothing, or only for each other, are stored together with those of other settlements: 40 fan-outs of
        ten take 16 ms, not 32."""
        self._children += [(child, home) for child in children]
        self._ids.add([(home.tenant, child.id) for child in children])
        if not is_plain(children) and not is_closed(children):
            self._flush()


def _home(item: OpenItem, group: SqliteGroup) -> Home:
    """Where the children of an item are stored that join this group."""
    outermost = group.outermost or group.no
    return Home(item.tenant, group.no, group.id, item.no, item.id, outermost)


def waiting_columns(again: WaitingAgain, now: float) -> tuple[int, float | None]:
    """The status code of an item that waits again, and since when it is ready. None: as before."""
    status = READY if again.status == "ready" else SCHEDULED
    since = now if status == READY and not again.stays_ready else None
    return (status if again.verdict is None else doomed(status)), since


def _settled(item: OpenItem) -> str:
    """The tokens that have settled it, with the one that does so now."""
    return array([*_tokens(item.settled_tokens), item.token][-KEPT_ATTEMPTS:])


def _tokens(stored: str | None) -> list[int]:
    return [] if stored is None else _decoder.decode(stored)


def _contribution(settlement: Settlement, item: OpenItem) -> Contribution | None:
    """What a settlement adds to the value of the item's group."""
    return settlement.contribution if settlement.kind == "success" and item.contributes else None


def _contribute(settlement: Settlement, given: Contribution, group: SqliteGroup) -> Outcome:
    if group.final:
        return _APPLIED
    group.set_value(contributed(given, settlement.result, settlement.lease.token))
    return Outcome(verb="applied", version=group.version, value=group.value)


def _tolerates(children: Sequence[Item], id: str) -> bool:
    """Whether one of these items waits for an item and would run although that is dead."""
    return any(id in one.after and is_tolerant(one.counting, one.need, one.after) for one in children)


# -- which token owns an item --------------------------------------------------------------------------


def record(tx: Tx, records: Sequence[Record]) -> list[Loss | None]:
    """Write what running items have done: each record whose token owns its item."""
    removed = {no for no, _, is_removed, _ in tx.rows(_SQL["workers"]) if is_removed}
    mine = owned(tx, [one.lease for one in records], removed)
    steps.write(tx, [(mine[one.lease.token].no, one) for one in records if one.lease.token in mine])
    return [None if one.lease.token in mine else loss(tx, one.lease) or "taken" for one in records]


def owned(tx: Tx, leases: Sequence[Lease], removed: Container[int | None]) -> dict[int, OpenItem]:
    """By token: the items that these leases still own. `removed`: the numbers of removed workers."""
    by_number = open_items(tx, {lease.ref for lease in leases if lease.ref})
    found: dict[int, OpenItem] = {}
    for lease in leases:
        item = by_number.get(lease.ref)
        if item is None or (item.id, item.tenant) != (lease.id, lease.tenant):
            item = _by_id(tx, lease)
        if item is not None and item.token == lease.token and item.worker not in removed:
            found[lease.token] = item
    return found


def _by_id(tx: Tx, lease: Lease) -> OpenItem | None:
    no = tx.value(_SQL["number_of"], lease.id, lease.tenant)
    return None if no is None else open_items(tx, [no]).get(no)


def _not_owned(tx: Tx, lease: Lease) -> Outcome:
    why = loss(tx, lease)
    return _AGAIN if why is None else Outcome(verb="stale", loss=why)


def loss(tx: Tx, lease: Lease) -> Loss | None:
    """Why a token does not own its item. None: this token has settled it."""
    no = tx.value(_SQL["number_of"], lease.id, lease.tenant)
    if no is None:
        return "not_found"
    item = open_items(tx, [no]).get(no)
    if item is not None:
        why = loss_of(lease.token, _tokens(item.settled_tokens), None)
    else:
        outcome, token, settled_tokens = tx.rows(_SQL["ended"], no)[0]
        settled = [*_tokens(settled_tokens), token]
        why = loss_of(lease.token, settled, STATUS[outcome], by_operator=token is None)
    # If it was removed, another item may have its id now. If its tenant came back, it has another number.
    return "not_found" if why is not None and lease.ref and lease.ref != no else why


# -- many items that are alone and succeed -------------------------------------------------------------
#
# Most items are so. What `_SettleCall` reads of an item, and decides about it, is a condition of one
# statement here. A settle of one item takes 45 us, not 99.


def stays_alone(settlement: Settlement) -> bool:
    """Whether an item that is alone needs no row for its group: its own row says everything."""
    given = settlement.contribution
    return not settlement.children and (given is None or (given.value is None and not given.version))


def settle_plain(tx: Tx, settlements: Sequence[Settlement]) -> Settled | None:
    """Apply these settlements, as `settle` does. None: one of them is not plain, or its token does not own
    its item. Then nothing was written."""
    now = tx.now
    rows: list[tuple[Any, ...]] = []
    outcomes: list[Outcome] = []
    ended: list[EndedGroup] = []
    nos: dict[int, int] = {}
    for one in settlements:
        if one.kind != "success" or one.failure is not None or not stays_alone(one):
            return None
        lease, given, result = one.lease, one.contribution, one.result
        code = 0 if given is None else 3 if given.final else 1
        rows.append(
            (
                lease.ref,
                lease.token,
                lease.id,
                lease.tenant,
                code,
                NULL if result is None else blob(result),
                NULL if one.ran is None else now - one.ran,
            )
        )
        nos[lease.ref] = SUCCESS
        if code:
            outcomes.append(Outcome(verb="applied", version=LONE_VERSION, value=result))
            ended.append(EndedGroup(lease.id, lease.tenant, result, lease.type, 0))
        else:
            outcomes.append(_APPLIED)
            ended.append(EndedGroup(lease.id, lease.tenant, None, lease.type, 0))
    if len(nos) < len(rows):
        return None
    if tx.run_rows(_SQL["insert_done"], rows, now, now) < len(rows):
        tx.run(_SQL["delete_inserted"], array(nos))
        return None
    tx.run(_SQL["delete_open"], array(nos))
    if tx.value(ANY_BLOCKED) is None:
        return Settled(tuple(outcomes), Effects((), tuple(ended), 0), now)
    counted = count_ends(tx, nos | {-no: SUCCESS for no in nos})
    return Settled(tuple(outcomes), Effects(tuple(counted.released), tuple(ended), counted.doomed), now)
