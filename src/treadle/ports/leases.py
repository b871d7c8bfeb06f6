"""Leases: what has become of them, and those that nobody knows of."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from treadle.item import Lease, Loss

from . import ledger as moves
from .archive import Archive
from .papers import Held
from .read import lease_of
from .workers import Workers


class Leases:
    def __init__(self, archive: Archive, workers: Workers) -> None:
        self._archive = archive
        self._workers = workers

    async def lost(self, held: Sequence[Lease], known: Collection[int]) -> dict[int, Loss]:
        """Of these leases, those that are no longer in force, and why. Those in `known` are."""
        lost: dict[int, Loss] = {}
        for lease in held:
            if lease.token in known:
                continue
            ledger = await self._archive.ledger((lease.tenant, lease.group_id))
            found = moves.standing(ledger, lease.id, lease.token)
            if found != "held":
                lost[lease.token] = "taken" if found == "again" else found
        return lost

    async def unknown_leases(self, worker: str, known: Collection[int]) -> list[Lease]:
        found = await self._workers.get(worker)
        if found is None or found.dying:
            return []
        leases = [await self._lease(token, held) for token, held in found.held.items() if token not in known]
        return [lease for lease in leases if lease is not None]

    async def _lease(self, token: int, held: Held) -> Lease | None:
        ledger, header = await self._archive.ledger(held.group), await self._archive.header(held.ref)
        member = None if ledger is None else ledger.open.get(held.id)
        if header is None or member is None or member.token != token:
            return None
        return lease_of(header, member)
