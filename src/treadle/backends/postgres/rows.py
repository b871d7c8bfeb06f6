"""Rows: new items as the columns that `store` takes, sorted by id and tenant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from treadle.item import Item, Ref
from treadle.rules import find_cycle

from .codes import ANY_SCOPE, OPEN_SCOPE
from .columns import NAMES, data, joined, names, numbers

COLUMNS: Final = (
    *("int[]", "int[]", NAMES, NAMES, NAMES, NAMES, NAMES, "int[]", "int[]", "float8[]", "float8[]"),
    *("float8[]", "float8[]", NAMES, NAMES, NAMES, NAMES, "int[]", "smallint[]", NAMES, "float8[]"),
    *("float8[]", "float8[]", "bytea[]", "bytea[]"),
)
"""The types of `Rows.columns`."""

SHAPE: Final = {
    "tenant": "text", "type": "text", "queue": "text", "lane": "text", "priority": "int", "attempts": "int",
    "run_at": "float8", "delay": "float8", "deadline": "float8", "expires_in": "float8", "parent": "text",
    "workflow": "text", "workflow_type": "text", "need": "int", "keep": "float8", "keep_dead": "float8",
    "options": "bytea",
}  # fmt: skip
"""The fields that `shape_of` answers, and their types."""
_shape: Final[Callable[[Item], tuple[object, ...]]] = attrgetter(*SHAPE)


def shape_of(items: Sequence[Item]) -> tuple[object, ...] | None:
    """What these items say besides their ids and inputs, if they all say the same and none has a key, waits
    for others, or is to be leased at once."""
    first = _shape(items[0]) if items else None
    for item in items:
        if item.key is not None or item.after or item.need > 0 or item.lease_to is not None:
            return None
        if item is not items[0] and _shape(item) != first:
            return None
    return first


class Rows(NamedTuple):
    """Items and, behind them, ids that they wait for and that do not come with them."""

    order: Sequence[int]
    """For each row the item it is. Numbers beyond the last item are placeholders."""
    owners: Sequence[int]
    """For each row the number of the request that its item belongs to; -1 for placeholders."""
    columns: tuple[object, ...]
    plain: bool
    """Nobody has a key, waits for others, or is to be leased at once."""


def rows_of(items: Sequence[Item], owners: Sequence[int]) -> Rows:
    """The rows of these items; `owners[n]` is the request of item n."""
    if not items:
        return Rows((), (), (None,) * len(COLUMNS), True)
    plain = all(
        item.key is None and not item.after and item.need <= 0 and item.lease_to is None for item in items
    )
    missing = [] if plain else _missing(items, owners)
    order = _order(items, missing)
    if isinstance(order, range):
        everything: Sequence[Row] = [*items, *missing] if missing else items
        owner: Sequence[int] = [*owners, *(-1 for _ in missing)] if missing else owners
        rank = None
    else:
        together: Sequence[Row] = [*items, *missing]
        everything = [together[n] for n in order]
        owner = [owners[n] if n < len(items) else -1 for n in order]
        rank = numbers([n + 1 for n in order], whole=True)
    return Rows(order, owner, (rank, numbers(owner), *_columns(everything, plain)), plain)


class Placeholder:
    """Stands for an id that is waited for: a row without a type, which stays only if the id is not there."""

    type = queue = lane = parent = workflow = workflow_type = key = lease_to = None
    attempts = run_at = expires_in = deadline = keep_dead = input = options = None
    priority = need = 0
    delay = keep = 0.0
    after: tuple[str, ...] = ()
    counting = "success"
    key_scope = "open"

    __slots__ = ("id", "tenant")

    def __init__(self, tenant: str, id: str) -> None:
        self.tenant = tenant
        self.id = id


Row: TypeAlias = Item | Placeholder


def _missing(items: Sequence[Item], owners: Sequence[int]) -> list[Placeholder]:
    """Ids that are waited for and do not come with these items, or perhaps not: for an item with a key
    another may answer, and then only its own request means that one."""
    sure: dict[Ref, int | None] = {}
    for item, owner in zip(items, owners, strict=True):
        sure[item.tenant, item.id] = None if item.key is None else owner
    named: dict[Ref, None] = {}
    for item, owner in zip(items, owners, strict=True):
        for id in item.after:
            ref = item.tenant, id
            if ref not in sure or sure[ref] not in (None, owner):
                named[ref] = None
    return [Placeholder(*ref) for ref in named]


def _order(items: Sequence[Item], missing: Sequence[Placeholder]) -> Sequence[int]:
    keys = [(item.id, item.tenant, 0) for item in items]
    keys += [(item.id, item.tenant, 1) for item in missing]
    return ordered(keys)


def ordered(keys: Sequence[Any]) -> Sequence[int]:
    """The numbers of these keys in their order; a range if they are in order."""
    if all(first < second for first, second in pairwise(keys)):
        return range(len(keys))
    return sorted(range(len(keys)), key=keys.__getitem__)


def _columns(rows: Sequence[Row], plain: bool) -> tuple[object, ...]:
    return (
        names([row.id for row in rows], whole=True),
        names([row.tenant for row in rows]),
        names([row.type for row in rows]),
        names([row.queue for row in rows]),
        names([row.lane for row in rows]),
        numbers([row.priority for row in rows]),
        numbers([row.attempts for row in rows]),
        numbers([row.run_at for row in rows]),
        numbers([row.delay for row in rows]),
        numbers([row.deadline for row in rows]),
        numbers([row.expires_in for row in rows]),
        names([row.parent for row in rows]),
        names([row.workflow for row in rows]),
        names([row.workflow_type for row in rows]),
        None if plain else names([joined(row.after) for row in rows]),
        numbers([row.need for row in rows]),
        None if plain else numbers([int(row.counting == "done") for row in rows]),
        None if plain else names([row.key for row in rows]),
        None if plain else numbers([_scope(row.key_scope) for row in rows]),
        numbers([row.keep for row in rows]),
        numbers([row.keep_dead for row in rows]),
        data([row.input for row in rows]),
        data([row.options for row in rows]),
    )


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
