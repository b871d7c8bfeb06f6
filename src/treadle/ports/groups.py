"""Groups: pure functions that change a GroupRecord which was read."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, TypeAlias

from msgspec import Struct

from treadle.item import EndedGroup, Loss, Ref, Settlement, Status, Verdict
from treadle.store.rules import settlement as rules
from treadle.store.rules.submission import counts, dependency_state, is_tolerant
from treadle.store.rules.times import began_at, waiting_status

from .records import EndedMember, GroupRecord, OpenMember, StoredItem


class GroupChange(Struct):
    """The members that a step released or doomed, and whether it ended the group."""

    released: list[str] = []
    doomed: list[str] = []
    closed: bool = False


class EffectTotals(Struct):
    """What one call has caused in all groups."""

    released: list[Ref] = []
    ended_groups: list[EndedGroup] = []
    doomed: int = 0


TokenState: TypeAlias = Literal["in force", "settled"] | Loss


def token_state(record: GroupRecord | None, id: str, token: int) -> TokenState:
    """Whether a token is in force, has settled the item already, or was lost, and why."""
    if record is None:
        return "not_found"
    if (member := record.open.get(id)) is not None:
        if member.token == token:
            return "in force"
        return rules.loss_of(token, member.settled_tokens, None) or "settled"
    ended = record.ended.get(id)
    if ended is None:
        return "not_found"
    cancelled = ended.status == "cancelled"
    return rules.loss_of(token, (ended.token,), ended.status, by_operator=cancelled) or "settled"


def verdict_on(member: OpenMember, now: float) -> Verdict | None:
    """Why the item can only end. None: it can run."""
    if member.doomed is not None:
        return member.doomed
    late = member.deadline is not None and member.deadline <= now and member.status != "running"
    return "expired" if late else None


def look_at(member: OpenMember) -> float | None:
    """When a worker has to look at the item. An instant in the past means now. None: another item's end, or
    the end of its lease, will say when."""
    if member.token:
        return None
    if member.doomed is not None or member.status == "ready":
        return 0.0
    if member.status == "blocked":
        return member.deadline
    return member.due if member.deadline is None else min(member.due, member.deadline)


# ------------------------------------------------------------------------------------------------ new members


def add_member(record: GroupRecord, stored: StoredItem, origin: str = "") -> None:
    """Add a member that is blocked by every item in its `after`."""
    item = stored.item
    if item.after and is_tolerant(item.counting, item.need, item.after):
        record.tolerated += item.after
    record.open[item.id] = OpenMember(
        status="blocked",
        due=stored.due_at,
        deadline=stored.deadline,
        waits_for=list(item.after),
        need=item.need,
        counting=item.counting,
        origin=origin,
        contributes=item.contributes,
    )


def unblock(record: GroupRecord, id: str, now: float) -> None:
    """Count the prerequisites of a new member that have ended in its group. Release it if that is enough."""
    member = record.open[id]
    if not member.waits_for:
        _make_due(member, now)
        return
    for prerequisite in list(member.waits_for):
        if (ended := record.ended.get(prerequisite)) is not None:
            count_prerequisite(record, id, prerequisite, ended.status, now)
    _release_or_doom(member, now)


def count_prerequisite(
    record: GroupRecord, id: str, prerequisite: str, ended: Status, now: float
) -> str | None:
    """A prerequisite has ended. Return `released` or `doomed` if that decides about the member. Each
    prerequisite is counted once."""
    member = record.open.get(id)
    if member is None or prerequisite not in member.waits_for:
        return None
    times = member.waits_for.count(prerequisite)
    member.waits_for = [id for id in member.waits_for if id != prerequisite]
    member.met += times * counts(member.counting, ended)
    return _release_or_doom(member, now)


def _release_or_doom(member: OpenMember, now: float) -> str | None:
    if member.status != "blocked" or member.doomed is not None:
        return None
    match dependency_state(member.need, member.met, len(member.waits_for)):
        case "released":
            _make_due(member, now)
            return "released"
        case "doomed":
            member.doomed = "unsatisfiable"
            return "doomed"
        case "waiting":
            return None


def _make_due(member: OpenMember, now: float) -> None:
    member.status = waiting_status(member.due, now)
    member.ready_since = now


# ---------------------------------------------------------------------------------------------------- leases


def lease(member: OpenMember, token: int, worker: str, verdict: Verdict | None, now: float) -> None:
    member.token, member.worker, member.verdict = token, worker, verdict
    if verdict is None:
        member.status, member.started = "running", now
        member.attempt += 1


def free(member: OpenMember, now: float) -> None:
    """End the lease of a worker that is dead. The lost attempt counts."""
    token = _end_lease(member)
    if member.status != "running":
        return
    _add_failure(member, token)
    member.began = member.started
    again = rules.after_loss(now, _counters(member), token, due=member.due, deadline=member.deadline)
    _wait_again(member, again, now)


def _counters(member: OpenMember) -> rules.Counters:
    """Every lease has begun: three ports cannot tell."""
    return rules.Counters(member.attempt, member.failures, member.losses, begun=True)


def _end_lease(member: OpenMember) -> int:
    token, member.token, member.worker, member.verdict = member.token, 0, "", None
    return token


def _add_failure(member: OpenMember, token: int) -> None:
    member.failed_tokens = [*member.failed_tokens, token][-rules.KEPT_ATTEMPTS :]


def _wait_again(member: OpenMember, again: rules.WaitingAgain, now: float) -> None:
    member.status, member.due, member.attempt, member.failures, member.losses = again[:5]
    member.doomed = again.verdict
    if not again.stays_ready:
        member.ready_since = now


# ------------------------------------------------------------------------------------------------ settlements


def put_back(record: GroupRecord, settlement: Settlement, now: float) -> None:
    """Apply a retry, defer or release: the item will be claimed again."""
    member = record.open[settlement.lease.id]
    verdict = member.verdict
    token = _end_lease(member)
    member.settled_tokens = [*member.settled_tokens, token][-rules.KEPT_ATTEMPTS :]
    if verdict is not None:
        return
    if rules.recorded_failure(settlement, verdict) is not None:
        _add_failure(member, token)
    member.began = began(member, settlement, now)
    member.deferrals += settlement.kind == "defer"
    again = rules.put_back(settlement, now, _counters(member), due=member.due, deadline=member.deadline)
    _wait_again(member, again, now)


def began(member: OpenMember, settlement: Settlement, now: float) -> float:
    """When the handler of the last attempt began; 0 if none has."""
    return member.began if settlement.ran is None else began_at(settlement.ran, member.started, now)


def end_by_settlement(
    record: GroupRecord,
    settlement: Settlement,
    status: Status,
    children: Collection[StoredItem],
    now: float,
    *,
    tolerated: bool,
) -> GroupChange:
    """Add the children, set the group's value, end the item. `tolerated`: an item of another group tolerates
    its death."""
    lease, change = settlement.lease, GroupChange()
    ids = [child.item.id for child in children]
    for child in children:
        add_member(record, child, lease.id)
    if status == "success" and settlement.contribution is not None and not record.final:
        value = rules.contributed(settlement.contribution, settlement.result, lease.token)
        record.value_token, record.version, record.final = lease.token, value.version, value.final
    fails = rules.can_fail_group(lease.type, contributes=record.open[lease.id].contributes)
    if status == "dead" and fails and not tolerated and lease.id not in record.tolerated:
        record.deaths.append(lease.id)
    _end(record, lease.id, status, lease.token, now, change)
    for id in ids:
        unblock(record, id, now)
    change.released = [id for id in change.released if id not in ids]
    record.pending_effects[lease.id] = [*ids, *change.released, *change.doomed]
    return change


def cancel(record: GroupRecord, ids: Collection[str], token: int, now: float) -> GroupChange:
    change = GroupChange()
    for id in ids:
        _end(record, id, "cancelled", token, now, change)
    change.released = [id for id in change.released if id in record.open]
    change.doomed = [id for id in change.doomed if id in record.open]
    record.pending_effects.update({id: [*change.released, *change.doomed] for id in ids})
    return change


def _end(record: GroupRecord, id: str, status: Status, token: int, now: float, change: GroupChange) -> None:
    """End a member. Count it for the members that wait for it."""
    member = record.open.pop(id)
    record.ended[id] = EndedMember(status, token, member.origin)
    for other in record.open:
        match count_prerequisite(record, other, id, status, now):
            case "released":
                change.released.append(other)
            case "doomed":
                change.doomed.append(other)
            case _:
                pass
    if not record.open:
        record.ended_at, record.last_ended = now, id
        change.closed = True


def open_descendants(record: GroupRecord, ids: Iterable[str]) -> list[str]:
    """The open ones of these members and of everything that their settlements queued."""
    family = set(ids)
    grown = True
    while grown:
        size = len(family)
        family.update(id for id, member in record.open.items() if member.origin in family)
        family.update(id for id, member in record.ended.items() if member.origin in family)
        grown = len(family) > size
    return [id for id in record.open if id in family]
