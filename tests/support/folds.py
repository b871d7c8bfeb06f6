"""Folds in random calls."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from treadle.backend import Backend
from treadle.item import Settlement

PRESENT = 1
"""Stands for the version that the group has at present. No group with members has it."""


async def with_present_versions(backend: Backend, settlements: Sequence[Settlement]) -> list[Settlement]:
    """These settlements, with folds from the present value of their groups where they say so."""
    return [await _with_present_version(backend, one) for one in settlements]


async def _with_present_version(backend: Backend, settlement: Settlement) -> Settlement:
    fold, lease = settlement.contribution, settlement.lease
    if fold is None or fold.version != PRESENT:
        return settlement
    (group,) = await backend.group([lease.group_id], tenant=lease.tenant)
    version = 0 if group is None else group.version
    return replace(settlement, contribution=replace(fold, version=version))
