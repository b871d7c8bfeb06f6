"""Reads over several stores: of one tenant in its store, of all tenants in all stores at once.

A read that finds something needs no other store. One that finds nothing, or adds up, needs all of them: a
store that does not answer is named (`missing_stores` of treadle.backend), or the read raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from treadle.backend import note_missing
from treadle.errors import StoreUnavailable
from treadle.item import Chunk, Count, Ended, GroupState, ItemState, Recorded, Ref, Wake
from treadle.item_facts import KEPT_RELEASES, DeadMark, Explanation, LimitUse, Overview
from treadle.records import Line, Related

from .member import Member, in_parts, together
from .merge import counts_of, limits_of, lines_of, marks_of, overview_of, workers_of
from .places import TenantPlaces
from .roots import RootPlaces

ENDED_PATIENCE: Final = 0.25
"""Seconds that those who wait for items wait for one store."""
MOST_LATE: Final = 20
"""Late answers that are kept."""


def tagged(state: ItemState, member: Member) -> ItemState:
    """The item, with the name of its store."""
    state.store = member.name
    return state


class Answers:
    """The answers of several stores to one read."""

    def __init__(self, places: TenantPlaces) -> None:
        self.places = places

    async def of_all(self, verb: str, *args: Any, **options: Any) -> list[Any]:
        """The answers of the stores that are asked, home first."""
        return [answer for _, answer in await self.by_store(verb, *args, **options)]

    async def by_store(
        self, verb: str, *args: Any, patience: float | None = None, **options: Any
    ) -> list[tuple[Member, Any]]:
        """patience: seconds to wait for each store."""

        async def one(member: Member) -> tuple[Member, Any, StoreUnavailable | None]:
            try:
                async with asyncio.timeout(patience):
                    return member, await member.call(verb, *args, **options), None
            except StoreUnavailable as error:
                return member, None, error
            except TimeoutError:
                return member, None, member.refusal()

        members = self.places.asked(self.places.members)
        found: list[tuple[Member, Any]] = []
        for member, answer, error in await together(map(one, members)):
            if error is not None:
                note_missing(error)
            else:
                found.append((member, answer))
        if not found:
            raise members[0].refusal()
        return found

    async def of_tenant(self, whose: str | None, verb: str, *args: Any, **options: Any) -> list[Any]:
        """The answers of the stores that have a tenant: of one, of none, or of all."""
        return [answer for _, answer in await self.by_store_of(whose, verb, *args, **options)]

    async def by_store_of(
        self, whose: str | None, verb: str, *args: Any, **options: Any
    ) -> list[tuple[Member, Any]]:
        if whose is None or self.places.by_root:
            return await self.by_store(verb, *args, **options)
        having = self.places.asked(await self.places.having(whose))
        return [(member, await member.call(verb, *args, **options)) for member in having]


class Found(NamedTuple):
    state: Any
    member: Member


def _queued_at(state: ItemState) -> float:
    return state.queued_at


class ManyReads:
    """tell: tells those who listen in this process."""

    def __init__(self, places: TenantPlaces, answers: Answers, tell: Callable[[Wake], None]) -> None:
        self._places = places
        self._answers = answers
        self._tell = tell
        self._late: list[tuple[int, Ended]] = []
        """What was answered late."""
        self._asking: dict[int, asyncio.Task[Ended]] = {}
        """Questions for what has ended that were left behind, by the numbers of the stores."""

    # -- by id -----------------------------------------------------------------------------------------

    async def find(
        self, verb: str, ids: Sequence[str], tenant: str | None, age: Callable[[Any], float]
    ) -> list[Found | None]:
        """What has these ids, and where it is. Without a tenant, the oldest of all stores."""
        found: list[Found | None] = [None] * len(ids)
        if not ids:
            return found
        if isinstance(self._places, RootPlaces):

            async def read_some(member: Member, some: list[str]) -> list[Found | None]:
                states = await member.call(verb, some, tenant=tenant)
                return [None if state is None else Found(state, member) for state in states]

            return await in_parts(ids, self._places.of_id, read_some)
        if tenant is not None:
            member = await self._places.find(tenant)
            while member is not None:
                states = await member.call(verb, ids, tenant=tenant)
                found = [None if state is None else Found(state, member) for state in states]
                member = await self._places.moved_from(tenant, member) if None in found else None
            return found
        missing: list[StoreUnavailable] = []

        async def read(member: Member) -> None:
            try:
                states = await member.call(verb, ids, tenant=None)
            except StoreUnavailable as error:
                missing.append(error)
                return
            for place, state in enumerate(states):
                old = found[place]
                if state is not None and (old is None or age(state) < age(old.state)):
                    found[place] = Found(state, member)

        await together([read(member) for member in self._places.members])
        if missing and None in found:
            for error in missing:
                note_missing(error)
        return found

    async def find_items(self, ids: Sequence[str], tenant: str | None) -> list[Found | None]:
        return await self.find("get", ids, tenant, _queued_at)

    async def having(self, id: str, tenant: str | None) -> Member | None:
        """The store that has an item, or may have it."""
        if self._places.by_root:
            return await self._places.find(tenant, id)
        if tenant is not None:
            return await self._places.checked(tenant)
        (found,) = await self.find_items([id], None)
        return None if found is None else found.member

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        found = await self.find_items(ids, tenant)
        return [None if each is None else tagged(each.state, each.member) for each in found]

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        if tenant is not None or len(self._places.members) == 1 or self._places.by_root:
            found = await self.find("group", ids, tenant, lambda state: 0.0)
            return [None if each is None else each.state for each in found]
        # The oldest item of an id says whose group it is. If it is gone: whichever store has the group.
        roots = await self.find_items(ids, None)
        groups = await self.find("group", ids, None, lambda state: 0.0)
        answers: list[GroupState | None] = []
        for id, root, group in zip(ids, roots, groups, strict=True):
            state: GroupState | None = None if group is None else group.state
            if root is not None and state is not None and state.tenant != root.state.tenant:
                (state,) = await root.member.call("group", [id], tenant=root.state.tenant)
            answers.append(state)
        return answers

    async def steps(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[Recorded | None]:
        if tenant is not None or self._places.by_root:
            found = await self.find("steps", ids, tenant, lambda state: 0.0)
            return [None if each is None else each.state for each in found]
        answers: list[Recorded | None] = []
        for id in ids:
            member = await self.having(id, None)
            answers += [None] if member is None else await member.call("steps", [id], tenant=None)
        return answers

    async def stream(
        self, id: str, *, since: int = 0, limit: int = 1000, tenant: str | None = None
    ) -> Sequence[Chunk]:
        member = await self.having(id, tenant)
        if member is None:
            return []
        chunks: Sequence[Chunk] = await member.call("stream", id, since=since, limit=limit, tenant=tenant)
        return chunks

    async def logs(self, id: str, *, tenant: str | None = None) -> Sequence[bytes]:
        member = await self.having(id, tenant)
        found: Sequence[bytes] = [] if member is None else await member.call("logs", id, tenant=tenant)
        return found

    # -- what has ended --------------------------------------------------------------------------------

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        """What is in a store that does not answer has not ended, as far as is known."""
        found_items: dict[Ref, ItemState] = {}
        found_groups: dict[Ref, GroupState] = {}
        missing: set[Ref] = set()
        late, self._late = self._late, []
        for number, answer in late:
            found_items.update({ref: answer.items[ref] for ref in items if ref in answer.items})
            found_groups.update({ref: answer.groups[ref] for ref in groups if ref in answer.groups})
            missing |= await self._not_moved(number, answer.missing.intersection((*items, *groups)))
        known = {*found_items, *found_groups, *missing}
        parts: dict[int, tuple[Member, list[Ref], list[Ref]]] = {}
        for refs, are_groups in ((items, False), (groups, True)):
            for ref in refs:
                if ref in known:
                    continue
                member = await self._places.find(*ref)
                if member is None:
                    missing.add(ref)
                    continue
                _, some_items, some_groups = parts.setdefault(member.number, (member, [], []))
                (some_groups if are_groups else some_items).append(ref)
        for number, answer in await self._ended(list(parts.values())) if parts else ():
            found_items.update(answer.items)
            found_groups.update(answer.groups)
            missing |= await self._not_moved(number, answer.missing)
        return Ended(found_items, found_groups, frozenset(missing))

    async def _not_moved(self, number: int, refs: Collection[Ref]) -> set[Ref]:
        """Those that a store does not have, without those of tenants that have left it: they are asked for
        again, there."""
        moved = {
            tenant
            for tenant in {tenant for tenant, _ in refs}
            if await self._places.moved_from(tenant, self._places.members[number]) is not None
        }
        return {ref for ref in refs if ref[0] not in moved}

    async def _ended(self, parts: Sequence[tuple[Member, list[Ref], list[Ref]]]) -> list[tuple[int, Ended]]:
        """The answers, each with the number of its store."""
        if len(self._places.members) == 1:
            return [(member.number, await member.call("ended", *refs)) for member, *refs in parts]
        tasks: dict[asyncio.Task[Ended], int] = {}
        for member, items, groups in parts:
            if member.number not in self._asking:
                task: asyncio.Task[Ended] = asyncio.ensure_future(member.call("ended", items, groups))
                self._asking[member.number] = task
                tasks[task] = member.number
        if not tasks:
            await asyncio.sleep(ENDED_PATIENCE)
            return []
        done, late = await asyncio.wait(tasks, timeout=ENDED_PATIENCE)
        for number in [number for number, task in self._asking.items() if task in done]:
            del self._asking[number]
        for task in late:
            task.add_done_callback(self._came_late)
        errors = [error for task in done if (error := task.exception()) is not None]
        for error in errors:
            if not isinstance(error, StoreUnavailable) or len(errors) == len(tasks):
                raise error
        return [
            (number, task.result())
            for task, number in tasks.items()
            if task in done and task.exception() is None
        ]

    def _came_late(self, task: asyncio.Task[Ended]) -> None:
        """Keep an answer for the next question, and let it be asked."""
        (number,) = [number for number, each in self._asking.items() if each is task] or [0]
        self._asking = {number: each for number, each in self._asking.items() if each is not task}
        if task.cancelled() or task.exception() is not None:
            return  # the store is asked again
        answer = task.result()
        self._late = [*self._late, (number, answer)][-MOST_LATE:]
        if refs := (*answer.items, *answer.missing):
            self._tell(Wake(items=refs, groups=tuple(answer.groups)))
        elif answer.groups:
            self._tell(Wake(groups=tuple(answer.groups)))

    # -- for operators ---------------------------------------------------------------------------------

    async def counts(self, *, tenant: str | None = None, ended: bool = False) -> Sequence[Count]:
        return counts_of(await self._answers.of_tenant(tenant, "counts", tenant=tenant, ended=ended))

    async def explain(self, id: str, *, tenant: str | None = None) -> Explanation | None:
        """All of it from the store of the item, but for the workers."""
        member = await self.having(id, tenant)
        if member is None:
            return None
        found: Explanation | None = await member.call("explain", id, tenant=tenant)
        if found is None or len(self._places.members) == 1:
            return found
        tagged(found.item, member)
        return replace(found, workers=tuple(workers_of(await self._answers.of_all("workers"))))

    async def overview(
        self, *, tenant: str | None = None, quick: bool = False, brief: bool = False
    ) -> Overview:
        # What one store leaves out, another one may have counted: together they would not say what is sure.
        asked = {"quick": quick or brief, "brief": brief and len(self._places.members) == 1}
        parts = await self._answers.of_tenant(tenant, "overview", tenant=tenant, **asked)
        if not parts:  # the tenant has nothing yet
            empty = (*self._places.asked(self._places.members), self._places.home)[0]
            parts = [await empty.call("overview", tenant=tenant, **asked)]
        found = overview_of(parts, KEPT_RELEASES)
        if tenant is not None and len(self._places.members) > 1:
            workers = workers_of(await self._answers.of_all("workers"))
            return replace(found, workers=tuple(workers))
        return found

    async def limits(self, names: Sequence[str] | None = None, *, count: int = 500) -> Sequence[LimitUse]:
        return limits_of(await self._answers.of_all("limits", names, count=count), count)

    async def marks(
        self,
        *,
        tenant: str | None = None,
        count: int = 100,
        cap: int = 10_000,
        release: str | None = None,
    ) -> Sequence[DeadMark]:
        found = await self._answers.by_store_of(
            tenant, "marks", tenant=tenant, count=count, cap=cap, release=release
        )
        parts = [[replace(mark, stores=(member.name,)) for mark in part] for member, part in found]
        return marks_of(parts, count, cap)

    async def lines(
        self, queue: str, *, tenant: str | None = None, count: int = 200, cap: int = 1000
    ) -> Sequence[Line]:
        found = await self._answers.of_tenant(tenant, "lines", queue, tenant=tenant, count=count, cap=cap)
        return lines_of(found, count, cap)

    async def related(self, id: str, *, tenant: str | None = None, count: int = 100) -> Related | None:
        member = await self.having(id, tenant)
        if member is None:
            return None
        found: Related | None = await member.call("related", id, tenant=tenant, count=count)
        return found
