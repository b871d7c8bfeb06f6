"""What becomes of a group's members. Pure: each function changes a Ledger that was read, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from treadle import rules
from treadle.item import Contribution, Loss, Settlement, Status, Verdict

from .papers import Header, Ledger, Member, Past

HISTORY = 10


class Moves:
    """What followed from a step: members that were released or doomed, and whether the group has ended."""

    __slots__ = ("closed", "doomed", "released")

    def __init__(self) -> None:
        self.released: list[str] = []
        self.doomed: list[str] = []
        self.closed = False


Standing: TypeAlias = Literal["held", "again"] | Loss


def standing(ledger: Ledger | None, id: str, token: int) -> Standing:
    """What a token is worth: it holds the item, it has settled it already, or why neither."""
    if ledger is None:
        return "not_found"
    if (member := ledger.open.get(id)) is not None:
        return "held" if member.token == token else "again" if token in member.settled else "taken"
    past = ledger.past.get(id)
    if past is None:
        return "not_found"
    return "again" if past.token == token else "cancelled" if past.status == "cancelled" else "taken"


def verdict_on(member: Member, now: float) -> Verdict | None:
    """Why it can only end, if it can."""
    if member.doomed is not None:
        return member.doomed
    late = member.deadline is not None and member.deadline <= now and member.status != "running"
    return "expired" if late else None


def look_at(member: Member) -> float | None:
    """When somebody has to look at it: an instant, past if that is now. None: others will say when."""
    if member.token:
        return None
    if member.doomed is not None or member.status == "ready":
        return 0.0
    if member.status == "blocked":
        return member.deadline
    return member.due if member.deadline is None else min(member.due, member.deadline)


# ---------------------------------------------------------------------------------------------------- joining


def joining(header: Header, origin: str = "") -> Member:
    """A new member, which waits for everything that it names."""
    item = header.item
    return Member(
        status="blocked",
        due=header.due_at,
        deadline=header.deadline,
        attempts=item.attempts,
        waits=list(item.after),
        need=item.need,
        counting=item.counting,
        origin=origin,
    )


def assess(ledger: Ledger, id: str, now: float) -> None:
    """Let a new member go on if it waits for nothing, or for nothing that is still to come in its group."""
    member = ledger.open[id]
    if not member.waits:
        _wait(member, now)
        return
    for prerequisite in list(member.waits):
        if (past := ledger.past.get(prerequisite)) is not None:
            count(ledger, id, prerequisite, past.status, now)
    _stand(member, now)


def count(ledger: Ledger, id: str, prerequisite: str, ended: Status, now: float) -> str | None:
    """A prerequisite has ended. Whether that `released` or `doomed` the member; counted once."""
    member = ledger.open.get(id)
    if member is None or prerequisite not in member.waits:
        return None
    times = member.waits.count(prerequisite)
    member.waits = [id for id in member.waits if id != prerequisite]
    member.met += times * rules.counts(member.counting, ended)
    return _stand(member, now)


def _stand(member: Member, now: float) -> str | None:
    if member.status != "blocked" or member.doomed is not None:
        return None
    match rules.dependency_state(member.need, member.met, len(member.waits)):
        case "released":
            _wait(member, now)
            return "released"
        case "doomed":
            member.doomed = "unsatisfiable"
            return "doomed"
        case "waiting":
            return None


def _wait(member: Member, now: float) -> None:
    member.status = "scheduled" if member.due > now else "ready"
    member.since = now


# ---------------------------------------------------------------------------------------------------- leasing


def lease(member: Member, token: int, worker: str, verdict: Verdict | None, now: float) -> None:
    member.token, member.worker, member.verdict = token, worker, verdict
    if verdict is None:
        member.status, member.started = "running", now
        member.attempt += 1


def free(member: Member, now: float) -> bool:
    """The worker that held it is dead. Whether an attempt was lost with it."""
    token = _unlease(member)
    if member.status != "running":
        return False
    member.losses += 1
    _note_failure(member, token)
    member.due = now + rules.loss_delay(member.losses)
    _wait(member, now)
    if rules.budget_spent(member.attempt, member.attempts):
        member.doomed = "lease_lost"
    return True


def _unlease(member: Member) -> int:
    token, member.token, member.worker, member.verdict = member.token, 0, "", None
    return token


def _note_failure(member: Member, token: int) -> None:
    member.failed = [*member.failed, token][-HISTORY:]


# --------------------------------------------------------------------------------------------------- settling


def put_back(ledger: Ledger, settlement: Settlement, now: float) -> None:
    """retry, defer, release: it will be claimed again."""
    member = ledger.open[settlement.lease.id]
    verdict = member.verdict
    token = _unlease(member)
    member.settled = [*member.settled, token][-HISTORY:]
    if verdict is not None:
        return
    if settlement.kind != "retry":
        member.attempt -= 1
    elif settlement.failure is not None:
        _note_failure(member, token)
    member.losses = 0
    if settlement.kind != "release" or settlement.delay or settlement.run_at is not None:
        member.due = rules.due_at(settlement, now)
    _wait(member, now)


def contribute(ledger: Ledger, contribution: Contribution, token: int) -> None:
    """Unless the value is locked."""
    if not ledger.final:
        ledger.value, ledger.final = token, contribution.final
        ledger.version += 1


def end(ledger: Ledger, id: str, status: Status, token: int, now: float, moves: Moves) -> None:
    """A member ends; those of its group that wait for it are counted."""
    member = ledger.open.pop(id)
    ledger.past[id] = Past(status, token, member.origin)
    for other in ledger.open:
        match count(ledger, other, id, status, now):
            case "released":
                moves.released.append(other)
            case "doomed":
                moves.doomed.append(other)
            case _:
                pass
    if not ledger.open:
        ledger.ended_at, ledger.last = now, id
        moves.closed = True


# -------------------------------------------------------------------------------------------------- families


def descendants(ledger: Ledger, ids: Iterable[str]) -> list[str]:
    """These members, and all that their settlements queued, as far as they are open."""
    family = set(ids)
    grown = True
    while grown:
        size = len(family)
        family.update(id for id, one in ledger.open.items() if one.origin in family)
        family.update(id for id, one in ledger.past.items() if one.origin in family)
        grown = len(family) > size
    return [id for id in ledger.open if id in family]
