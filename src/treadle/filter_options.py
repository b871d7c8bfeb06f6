"""Filter options: which items a caller asks for, checked, as the Filter for the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

from typing_extensions import TypedDict, Unpack

from .bulk_action import OPERATORS
from .errors import InputError
from .ids import check_id, check_name
from .item import DeathReason, Filter, Status
from .timing import Instant, instant
from .wording import did_you_mean


class FilterOptions(TypedDict, total=False):
    """Which items: all that is given must hold."""

    status: Status | Sequence[Status] | None
    type: str | None
    queue: str | None
    tenant: str | None
    workflow: str | None
    since: Instant | None
    until: Instant | None
    group_id: str | None
    key: str | None
    reason: DeathReason | None
    mark: str | None


def item_filter(own_tenant: str | None, /, **where: Unpack[FilterOptions]) -> Filter:
    """The filter for these options. own_tenant: of the client, which it cannot leave.

    `InputError` for a status or a reason that does not exist, for texts that are no names, and for options
    that do not exist.
    """
    for name in where:
        if name not in FilterOptions.__annotations__:
            known = FilterOptions.__annotations__
            raise InputError(
                f"there is no filter {name!r}: {did_you_mean(name, known, ', '.join(known))}",
                parameters=(name,),
            )
    status, group_id, mark = where.get("status"), where.get("group_id"), where.get("mark")
    since, until, reason = where.get("since"), where.get("until"), where.get("reason")
    return Filter(
        tenant=_name(where.get("tenant"), "tenant") if own_tenant is None else own_tenant,
        status=_words((status,) if isinstance(status, str) else status or (), Status, "status"),
        type=_name(where.get("type"), "type"),
        queue=_name(where.get("queue"), "queue"),
        workflow=_name(where.get("workflow"), "workflow"),
        since=None if since is None else instant(since, field="since"),
        until=None if until is None else instant(until, field="until"),
        group_id=None if group_id is None else check_id(group_id, field="group_id"),
        key=_name(where.get("key"), "key"),
        reason=None if reason is None else _words((reason,), DeathReason, "reason")[0],
        mark=_name(mark, "mark") if mark else mark,
    )


def check_tenant(value: object) -> str:
    """Return `value`, or raise InputError if no client can be bound to a tenant of this name."""
    if value == OPERATORS:
        raise InputError.of(
            "tenant", value, "is reserved for bulk actions of all tenants: choose another name"
        )
    return check_name(value, "tenant")


def _name(value: str | None, field: str) -> str | None:
    return None if value is None else check_name(value, field)


def _words(given: Iterable[Any], words: Any, field: str) -> tuple[Any, ...]:
    """Return `given`, or raise InputError if one is not among the allowed words."""
    allowed, wanted = get_args(words), tuple(given)
    for each in wanted:
        if each not in allowed:
            raise InputError.of(field, each, f"does not exist: it is one of {', '.join(allowed)}")
    return wanted
