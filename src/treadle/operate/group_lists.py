"""Group lists: groups and workflows, page by page, each with how it stands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from treadle.base.ids import check_name
from treadle.base.timing import Instant, instant
from treadle.define.option_checks import check_count, check_page_size
from treadle.engine.core import Core
from treadle.engine.wait.wait_result import decode_states
from treadle.item import TELL_TYPE, GroupFilter, GroupOutcome, GroupSummary, Page
from treadle.store.rules.listing import OUTCOMES

from .filters import check_words, own_or
from .observer import begin_read


class GroupLists:
    """Lists of groups and workflows: of one tenant, or of all if it has no tenant."""

    _core: Core
    _tenant: str | None

    async def groups(
        self,
        outcome: GroupOutcome | Sequence[GroupOutcome] | None = None,
        type: str | None = None,
        tenant: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        reach: int | None = None,
        store: str | None = None,
    ) -> Page[GroupSummary]:
        """Return groups, newest first: how each stands, how many of its members are done, and its first
        death. Groups of a single item are not listed, and nested groups belong to the outer one.

        outcome: `running`, `succeeded`, `failed` or `cancelled`, or several of them.
        type, since, until: of the root.
        cursor: continues after an earlier page.
        reach: about the most groups to look at, as for `list`.
        store: only those of this one of several stores.
        """
        where = self._group_filter(outcome, type, tenant, since, until, store)
        return await self._groups_page(self._core.backend.groups, where, limit, cursor, reach)

    async def workflows(
        self,
        outcome: GroupOutcome | Sequence[GroupOutcome] | None = None,
        type: str | None = None,
        tenant: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        reach: int | None = None,
        store: str | None = None,
    ) -> Page[GroupSummary]:
        """Return workflows, those with the newest roots first. The newest 1,000 items of each are counted:
        `capped` says that there are more. The arguments are those of `groups`; `type`, `since` and `until`
        are about the newest root.

        reach: about the most roots to look at. Without it, a filter that few workflows match reads on until
            the page is full.
        """
        where = self._group_filter(outcome, type, tenant, since, until, store)
        return await self._groups_page(self._core.backend.workflows, where, limit, cursor, reach)

    def _group_filter(
        self,
        outcome: Any,
        type: str | None,
        tenant: str | None,
        since: Instant | None,
        until: Instant | None,
        store: str | None,
    ) -> GroupFilter:
        given: Iterable[Any] = () if outcome is None else (outcome,) if isinstance(outcome, str) else outcome
        return GroupFilter(
            outcome=check_words(given, OUTCOMES, "outcome"),
            type=None if type is None else check_name(type, "type"),
            tenant=own_or(None if tenant is None else check_name(tenant, "tenant"), self._tenant),
            since=None if since is None else instant(since, field="since"),
            until=None if until is None else instant(until, field="until"),
            store=None if store is None else check_name(store, "store"),
        )

    async def _groups_page(
        self,
        read: Callable[..., Awaitable[Page[GroupSummary]]],
        where: GroupFilter,
        limit: int,
        cursor: str | None,
        reach: int | None,
    ) -> Page[GroupSummary]:
        """Messages about problems are left out: see `Treadle(on_problem=)`."""
        check_page_size(limit, cursor)
        if reach is not None:
            check_count(reach, "reach")
        await begin_read(self._core)
        page = await read(where, limit=limit, cursor=cursor, reach=reach)
        shown = tuple(one for one in page.items if one.type != TELL_TYPE)
        await decode_states(self._core.registry, [one.death for one in shown])
        return replace(page, items=shown)
