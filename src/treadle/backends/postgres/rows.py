"""Rows: new items as the columns that `store` takes, sorted by id and tenant.

Everything is an array per column: one round trip for any number of items. A column in which nobody says
anything is not sent at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, pairwise
from typing import Any, Final, NamedTuple

from treadle.item import Item, Ref
from treadle.rules import find_cycle

from .codes import ANY_SCOPE, OPEN_SCOPE

SEPARATOR: Final = "\n"
"""Between the ids of an `after`. Names hold no control characters."""


COLUMNS: Final = (
    *("text[]", "text[]", "int[]", "int[]", "float8[]", "float8[]", "float8[]", "float8[]"),
    *("text[]", "text[]", "text[]", "text[]", "int[]", "smallint[]", "text[]", "float8[]"),
    *("float8[]", "float8[]"),
)
"""The types of `Rows.columns`."""


def call_of(function: str, *types: str | None) -> str:
    """A call with its parameters and their types: an array of nothing has none of its own. None: null."""
    numbers = count(1)
    parameters = ", ".join("null" if type is None else f"${next(numbers)}::{type}" for type in types)
    return f"select * from treadle.{function}({parameters})"  # noqa: S608  constants


class Rows(NamedTuple):
    """The columns, in the order of `store`, without `owner` and what only one of its callers has."""

    order: Sequence[int] | None
    """For each row the item it is, beyond the last item a placeholder. None: they are in order."""
    rank: Sequence[int] | None
    owner: Sequence[int]
    id: Sequence[str]
    tenant: Sequence[str]
    type: Sequence[str | None]
    columns: tuple[Sequence[Any] | None, ...]
    input: Sequence[bytes | None]
    options: Sequence[bytes | None]
    plain: bool


def rows_of(items: Sequence[Item], owners: Sequence[int]) -> Rows:
    """The rows of these items; `owners[n]` is the number of the request that item n belongs to."""
    plain = all(
        item.key is None and not item.after and item.need <= 0 and item.lease_to is None for item in items
    )
    missing = [] if plain else _named(items)
    total = len(items)
    refs: list[tuple[str, str, int]] = [(item.id, item.tenant, n) for n, item in enumerate(items)]
    refs += [(id, tenant, total + n) for n, (tenant, id) in enumerate(missing)]
    in_order = all(first < second for first, second in pairwise(refs))
    order = None if in_order else [ref[2] for ref in sorted(refs)]
    if order is not None or missing:
        order = order or range(len(refs))
        placeholders = [_placeholder(ref) for ref in missing]
        everything: Sequence[Item | Placeholder] = [*items, *placeholders]
        ordered = [everything[n] for n in order]
        owner = [owners[n] if n < total else 0 for n in order]
    else:
        ordered, owner = items, owners
    return Rows(
        order=order,
        rank=None if order is None or isinstance(order, range) else [n + 1 for n in order],
        owner=owner,
        id=[item.id for item in ordered],
        tenant=[item.tenant for item in ordered],
        type=[item.type for item in ordered],
        columns=_columns(ordered, plain),
        input=[item.input for item in ordered],
        options=[item.options for item in ordered],
        plain=plain,
    )


class Placeholder:
    """Stands for an id that is waited for: a row without a type, which stays only if the id is not there."""

    type = queue = lane = input = options = parent = workflow = workflow_type = key = lease_to = None
    attempts = run_at = expires_in = deadline = keep_dead = None
    priority = need = 0
    delay = keep = 0.0
    after: tuple[str, ...] = ()
    counting = "success"
    key_scope = "open"

    __slots__ = ("id", "tenant")

    def __init__(self, tenant: str, id: str) -> None:
        self.tenant = tenant
        self.id = id


def _placeholder(ref: Ref) -> Placeholder:
    return Placeholder(*ref)


def _named(items: Iterable[Item]) -> list[Ref]:
    """Ids that are waited for and do not come with these items."""
    here = {(item.tenant, item.id) for item in items}
    named = dict.fromkeys((item.tenant, id) for item in items for id in item.after)
    return [ref for ref in named if ref not in here]


def _columns(items: Sequence[Item | Placeholder], plain: bool) -> tuple[Sequence[Any] | None, ...]:
    return (
        [item.queue for item in items],
        [item.lane for item in items],
        [item.priority for item in items],
        [item.attempts for item in items],
        [item.run_at for item in items],
        [item.delay for item in items],
        _sparse([item.deadline for item in items]),
        _sparse([item.expires_in for item in items]),
        _sparse([item.parent for item in items]),
        _sparse([item.workflow for item in items]),
        _sparse([item.workflow_type for item in items]),
        None if plain else _sparse([SEPARATOR.join(item.after) or None for item in items]),
        [item.need for item in items],
        None if plain else [int(item.counting == "done") for item in items],
        None if plain else _sparse([item.key for item in items]),
        None if plain else [_scope(item.key_scope) for item in items],
        [item.keep for item in items],
        _sparse([item.keep_dead for item in items]),
    )


def _sparse(column: list[Any]) -> list[Any] | None:
    return None if all(value is None for value in column) else column


def _scope(scope: str | float) -> float:
    if scope == "open":
        return OPEN_SCOPE
    return ANY_SCOPE if scope == "any" else max(0.0, float(scope))


def circular(items: Sequence[Item]) -> bool:
    """Whether these items seem to wait for each other. The store looks closer: some may have been met."""
    gated = {(item.tenant, item.id): item for item in items if item.after}
    if not any((item.tenant, id) in gated for item in gated.values() for id in item.after):
        return False

    def waits_for(ref: Ref) -> list[Ref]:
        return [(ref[0], id) for id in gated[ref].after if (ref[0], id) in gated]

    return find_cycle(gated, waits_for) is not None
