"""WorkState: an item as the work router shows it: what a caller needs, and nothing about the fleet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treadle.backend import Backend
from treadle.base.timing import MAX_INSTANT, MIN_INSTANT, to_datetime
from treadle.item import TERMINAL, DeathReason, Filter, GroupState, ItemState, Status
from treadle.operate.filters import check_tenant
from treadle.operate.item_json import Values, exact_json
from treadle.store.reads import group_ended

Outcome: TypeAlias = Literal["running", "succeeded", "failed", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class WorkDeath:
    """A member whose death failed a group."""

    id: str
    type: str
    reason: DeathReason | None
    error_type: str | None
    error: str | None


@dataclass(frozen=True, kw_only=True)
class WorkGroup:
    """The group of a root item: the item and everything that it queued."""

    open: int
    """Members that have not ended."""
    failed: int
    """Dead members whose death no other member tolerates."""
    ended_at: datetime | None
    value: Any
    """The value of the group. Null if it has not succeeded, or if it is not shown."""
    partial: Any
    """What members gave to the value of a group that runs, or has not succeeded. Null if it is not shown."""
    death: WorkDeath | None
    """The first death that failed the group. Null if errors are not shown."""


@dataclass(frozen=True, kw_only=True)
class WorkState:
    """Work as it is now."""

    id: str
    type: str
    status: Status
    """Of the item itself. What it queued may run still, or have failed: see `outcome`."""
    outcome: Outcome
    """Of the item and everything that it queued."""
    done: int | None
    """Members of its group that have ended. Null if there are more than 1,000 members."""
    total: int | None
    """Members of its group, itself included. A nested group counts as one. Members may queue more."""
    ended: bool
    """Whether it has ended, and everything that it queued. Then nothing changes any more."""
    reason: DeathReason | None
    """Why it is dead."""
    attempt: int
    """How many attempts have begun."""
    queued_at: datetime | None
    due_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    result: Any
    """What it returned. Null if it has not, or if it is not shown."""
    error_type: str | None
    """The class of the last error. Null if errors are not shown."""
    error: str | None
    """The last error. Null if errors are not shown."""
    group: WorkGroup | None
    """Null for work that other work has queued."""


def work_state(
    values: Values,
    access: WorkAccess,
    item: ItemState,
    group: GroupState | None,
    progress: Progress,
    death: ItemState | None,
) -> WorkState:
    """An item as a caller may see it. `group`: the one whose root it is, if it is one. `death`: the first one
    that failed it."""
    ended = item.status in TERMINAL and (group is None or group.open == 0)
    outcome = _outcome(item, group) if ended else "running"
    return WorkState(
        id=item.id,
        type=item.type,
        status=item.status,
        outcome=outcome,
        done=progress.done,
        total=progress.total,
        ended=ended,
        reason=item.reason,
        attempt=item.attempt,
        queued_at=_instant(item.queued_at),
        due_at=_instant(item.due_at),
        started_at=_instant(item.started_at),
        ended_at=_instant(item.ended_at),
        result=exact_json(values.result(item)[0]) if access.results else None,
        error_type=item.error_type if access.errors else None,
        error=item.error if access.errors else None,
        group=None if group is None else _work_group(values, access, group, outcome, death),
    )


def _outcome(item: ItemState, group: GroupState | None) -> Outcome:
    """Of an item that has ended with its group."""
    if group is not None:
        return group_ended(group)
    if item.status == "cancelled":
        return "cancelled"
    return "succeeded" if item.status == "success" else "failed"


def _work_group(
    values: Values, access: WorkAccess, group: GroupState, outcome: Outcome, death: ItemState | None
) -> WorkGroup:
    value = exact_json(values.group_value(group)[0]) if access.results else None
    return WorkGroup(
        open=group.open,
        failed=group.failed,
        ended_at=_instant(group.ended_at),
        value=value if outcome == "succeeded" else None,
        partial=None if outcome == "succeeded" else value,
        death=None if death is None or not access.errors else _work_death(death),
    )


def _work_death(item: ItemState) -> WorkDeath:
    return WorkDeath(
        id=item.id, type=item.type, reason=item.reason, error_type=item.error_type, error=item.error
    )


def _instant(at: float | None) -> datetime | None:
    return None if at is None else to_datetime(min(max(at, MIN_INSTANT), MAX_INSTANT))


def state_json(state: WorkState | WorkGroup | WorkDeath) -> dict[str, Any]:
    """It as JSON values. Instants are ISO 8601 in UTC, always with microseconds."""
    return {each.name: _json(getattr(state, each.name)) for each in fields(state)}


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S.%f}Z"
    return state_json(value) if isinstance(value, WorkGroup | WorkDeath) else value


MOST_COUNTED: Final = 1000
"""Members of a group that are counted."""
MOST_KEPT: Final = 1000
"""Groups whose counts are kept."""


class Progress(NamedTuple):
    """None: not counted."""

    done: int | None
    total: int | None


class MemberCounts:
    """Counts the members of groups, and again only when the group has changed: streams look once a second."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kept: dict[tuple[str, str], tuple[object, Progress]] = {}

    async def count(self, item: ItemState, group: GroupState | None) -> Progress:
        """The members of the group whose root an item is. Without a group, the item counts alone."""
        if group is None:
            return Progress(int(item.status in TERMINAL), 1)
        if item.status not in TERMINAL and group.open == 1:
            return Progress(0, 1)  # it has queued nothing yet
        ref, change = (group.tenant, group.id), (group.open, group.failed, group.version, item.status)
        kept = self._kept.pop(ref, None)
        if kept is None or kept[0] != change:
            kept = change, await self._read(group)
        self._kept[ref] = kept
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept[1]

    async def _read(self, group: GroupState) -> Progress:
        if "listing" not in self._backend.capabilities:
            return Progress(None, None)
        members = Filter(tenant=group.tenant, group_id=group.id)
        page = await self._backend.list(members, limit=MOST_COUNTED)
        if page.cursor is not None:
            return Progress(None, None)
        return Progress(sum(each.status in TERMINAL for each in page.items), len(page.items))


class WorkAccess(msgspec.Struct, frozen=True):
    """What a caller may see. Everything else does not exist for the caller: the answer is 404.

    tenant: the tenant whose items are shown. None: those of all tenants, for an app that has none.
    allows: called with each item before it is shown. False: it is not shown. Without it, all items of the
        tenant are. `lambda item: item.headers.get("user") == user.id` shows users their own.
    results: whether results and the values of groups are shown. Secrets in them are `***`, and so are whole
        results of types that the app does not know.
    errors: whether the class and the message of the last error are shown. They may quote what was
        processed.
    """

    tenant: str | None
    allows: Callable[[ItemState], bool] | None = None
    results: bool = True
    errors: bool = False

    def __post_init__(self) -> None:
        if self.tenant is not None:
            check_tenant(self.tenant)


WorkAccessAnswer: TypeAlias = WorkAccess | Response | None
WorkAccessFn: TypeAlias = Callable[[Request], WorkAccessAnswer | Awaitable[WorkAccessAnswer]]
"""Says what a caller may see. None: nothing, which is answered with 403. A response is sent as it is."""
