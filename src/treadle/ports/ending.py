"""Ending: what is written of an item's end before its ledger says so, and what the ledger says then."""

from __future__ import annotations

from msgspec.structs import astuple

from treadle import rules
from treadle.item import Attempt, ErrorInfo, Ref, Settlement, Status

from . import ledger as moves
from .admit import Admission
from .archive import Archive, written
from .ledger import HISTORY, Moves
from .papers import Ending, Ledger, Member, Value

ENDS: dict[str, Status] = {"success": "success", "dead": "dead", "cancelled": "cancelled"}
"""The kinds of settlement that end an item, and how it has ended then."""


def ref_of(settlement: Settlement) -> Ref:
    return (settlement.lease.tenant, settlement.lease.id)


def group_of(settlement: Settlement) -> Ref:
    return (settlement.lease.tenant, settlement.lease.group_id)


async def write_end(archive: Archive, settlement: Settlement, member: Member, now: float) -> None:
    """The end of an item, and its contribution, each under the settlement's own token."""
    ref, token = ref_of(settlement), settlement.lease.token
    history = await archive.history(ref, member.failed)
    if settlement.kind == "dead" and settlement.failure is not None:
        history += (_attempt(settlement.failure, member, now),)
    reason = settlement.reason or member.verdict or "aborted"
    ending = Ending(
        ENDS[settlement.kind],
        now,
        reason if settlement.kind == "dead" else None,
        settlement.result if settlement.kind == "success" else None,
        member.attempt,
        member.due,
        member.started or None,
        member.worker,
        history[-HISTORY:],
    )
    await archive.ports.set(archive.names.end(ref, token), written(ending))
    if contributes(settlement):
        key = archive.names.value(group_of(settlement), token)
        await archive.ports.set(key, written(Value(contributed(settlement))))


async def erase_end(archive: Archive, settlement: Settlement) -> None:
    """It did not come to that."""
    token = settlement.lease.token
    await archive.ports.delete(archive.names.end(ref_of(settlement), token))
    if contributes(settlement):
        await archive.ports.delete(archive.names.value(group_of(settlement), token))


def contributes(settlement: Settlement) -> bool:
    return settlement.contribution is not None and settlement.kind == "success"


def contributed(settlement: Settlement) -> bytes | None:
    contribution = settlement.contribution
    return settlement.result if contribution is None or contribution.value is None else contribution.value


async def write_failure(archive: Archive, settlement: Settlement, member: Member, now: float) -> None:
    """A failed attempt of an item that will be run again."""
    if settlement.kind == "retry" and settlement.failure is not None:
        attempt = _attempt(settlement.failure, member, now)
        key = archive.names.failed(ref_of(settlement), settlement.lease.token)
        await archive.ports.set(key, written(attempt))


def _attempt(failure: ErrorInfo, member: Member, now: float) -> Attempt:
    """Error texts come from the users' code: what UTF-8 cannot hold is replaced."""
    readable = ErrorInfo(*(text.encode(errors="replace").decode() for text in astuple(failure)))
    return rules.failed_attempt(readable, member.attempt, now, member.worker)


def apply_end(ledger: Ledger, settlement: Settlement, admission: Admission, now: float) -> Moves:
    """Children join, the value changes, the item ends."""
    lease, followed = settlement.lease, Moves()
    children = [id for _, id in admission.headers]
    for header in admission.headers.values():
        ledger.open[header.item.id] = moves.joining(header, lease.id)
    if settlement.kind == "success" and settlement.contribution is not None:
        moves.contribute(ledger, settlement.contribution, lease.token)
    moves.end(ledger, lease.id, ENDS[settlement.kind], lease.token, now, followed)
    for id in children:
        moves.assess(ledger, id, now)
    followed.released = [id for id in followed.released if id not in children]
    ledger.owing[lease.id] = [*children, *followed.released, *followed.doomed]
    return followed
