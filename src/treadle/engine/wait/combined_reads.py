"""Reads of many handlers at a time: while one read is under way, the next ones collect."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from treadle.backend import Backend
from treadle.engine.combine import Combiner
from treadle.engine.tasks import Tasks
from treadle.item import ItemState

FEW: Final = 50
"""A read of more ids than this is not combined with others."""


class _Read(NamedTuple):
    tenant: str
    ids: Sequence[str]
    answer: asyncio.Future[list[ItemState | None]]


class CombinedReads:
    """Reads items as `Backend.get`, with few calls to the store."""

    def __init__(self, backend: Backend, tasks: Tasks) -> None:
        self._backend = backend
        self._combiner: Combiner[_Read] = Combiner(self._read, tasks, name="read")

    async def get(self, ids: Sequence[str], *, tenant: str) -> Sequence[ItemState | None]:
        if len(ids) > FEW:
            return await self._backend.get(ids, tenant=tenant)
        answer: asyncio.Future[list[ItemState | None]] = asyncio.get_running_loop().create_future()
        self._combiner.add(_Read(tenant, ids, answer))
        return await answer

    async def _read(self, reads: list[_Read]) -> None:
        by_tenant: dict[str, list[_Read]] = {}
        for read in reads:
            by_tenant.setdefault(read.tenant, []).append(read)
        for tenant, some in by_tenant.items():
            ids = list(dict.fromkeys(id for read in some for id in read.ids))
            try:
                found = dict(zip(ids, await self._backend.get(ids, tenant=tenant), strict=True))
            except BaseException as error:
                for read in some:
                    if not read.answer.done():
                        read.answer.set_exception(error)
                if not isinstance(error, Exception):
                    raise
                continue
            for read in some:
                if not read.answer.done():
                    # Each gets objects of its own: states are decoded in place.
                    read.answer.set_result([_copy(found[id]) for id in read.ids])


def _copy(state: ItemState | None) -> ItemState | None:
    return None if state is None else replace(state)
