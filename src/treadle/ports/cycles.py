"""Cycles: new items that would wait for each other, directly or through items that are stored."""

from __future__ import annotations

from collections.abc import Mapping

from treadle import rules
from treadle.item import Item, Ref, Rejected, Status

from .archive import AWAITED, Archive
from .gates import Gates
from .papers import Header


class Cycles:
    def __init__(self, archive: Archive, gates: Gates) -> None:
        self._archive = archive
        self._gates = gates

    async def find(self, headers: Mapping[Ref, Header]) -> Rejected | None:
        gated = {ref: header for ref, header in headers.items() if header.item.after}
        if not gated or not await self._may_close(gated):
            return None
        graph = await self._graph(gated)
        cycle = rules.find_cycle(gated, lambda ref: graph.get(ref, ()))
        return None if cycle is None else Rejected("cycle", tuple(id for _, id in cycle))

    async def _may_close(self, gated: Mapping[Ref, Header]) -> bool:
        """Somebody waits for one of them: otherwise there is no way round."""
        named = {(tenant, id) for (tenant, _), header in gated.items() for id in header.item.after}
        if not named.isdisjoint(gated):
            return True
        for header in gated.values():
            if await self._is_awaited(header):
                return True
        return False

    async def _is_awaited(self, header: Header) -> bool:
        archive = self._archive
        if (await archive.draft(archive.names.awaited(header.ref), AWAITED)).paper is not None:
            return True
        ledger = await archive.ledger(header.group) if header.by else None
        return ledger is not None and any(header.item.id in one.waits for one in ledger.open.values())

    async def _graph(self, gated: Mapping[Ref, Header]) -> dict[Ref, list[Ref]]:
        """Who waits for whom, as far as it can be reached from these."""
        graph: dict[Ref, list[Ref]] = {}
        reached = list(gated)
        for ref in reached:
            if ref not in graph:
                header = gated.get(ref)
                graph[ref] = await (self._stored(ref) if header is None else self._new(header.item))
                reached += graph[ref]
        return graph

    async def _new(self, item: Item) -> list[Ref]:
        """What it will wait for, if what has ended already neither releases nor dooms it."""
        refs = [(item.tenant, id) for id in item.after]
        ends: list[Status | None] = [await self._gates.ended(ref) for ref in refs]
        pending = [ref for ref, end in zip(refs, ends, strict=True) if end is None]
        met = sum(rules.counts(item.counting, end) for end in ends if end is not None)
        return pending if rules.dependency_state(item.need, met, len(pending)) == "waiting" else []

    async def _stored(self, ref: Ref) -> list[Ref]:
        header = await self._archive.header(ref)
        ledger = None if header is None else await self._archive.ledger(header.group)
        member = None if ledger is None else ledger.open.get(ref[1])
        if member is None or member.status != "blocked" or member.doomed is not None:
            return []
        return [(ref[0], id) for id in member.waits]
