"""What a returned Result asks the engine to do: pure functions over its tree.

A plan has the item's own value, the contributions to the group's value, the children in the order written,
and the nested groups that they belong to. What a child waits for is written into its options as `after` and
`when`, as with `ctx.queue(after=...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from treadle.base.callables import check_not_awaitable
from treadle.define.condition import When
from treadle.define.work import Work
from treadle.errors import DuplicateIdError

from .result import Node, Result, cohort, first_cohort, has_work, is_result, walk


class PlannedChild(msgspec.Struct, frozen=True, eq=False):
    """Work to submit with the settlement. This item is its parent."""

    work: Work[Any, Any]
    options: Mapping[str, Any]
    """Checked options, including `after` and `when`."""
    group_id: str | None = None
    """The nested group that it joins. None: the group of this item."""

    @property
    def after(self) -> tuple[str, ...]:
        return self.options.get("after") or ()

    @property
    def when(self) -> When:
        return self.options.get("when") or "all_success"


class PlannedGroup(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A nested group, and the item with its id that closes it."""

    id: str
    group_id: str | None = None
    """The nested group around it. None: the group of this item."""
    followed: bool = False
    """Works come after it: they take its value, and it is not contributed to the group around it."""


class PlannedContribution(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What this item adds to its group's value: `value`, or `append(old value)`."""

    value: Any
    final: bool = False
    append: Callable[[Any], Any] | None = None
    encoded: bytes | None = None
    """The value as groups store it, if it is taken from another group."""


class ResultPlan(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What the engine has to do for the return value of one attempt."""

    value: Any = None
    """The item's own value."""
    contributions: tuple[PlannedContribution, ...] = ()
    """In the order written."""
    children: tuple[PlannedChild, ...] = ()
    groups: tuple[PlannedGroup, ...] = ()
    """The nested groups of the children. Each comes after the group around it."""
    is_plain: bool = False
    """Its value is all that there is, and all that it gives to its group."""


NOTHING: Final = ResultPlan()

_Wait: TypeAlias = Mapping[str, Any]
"""`after` and `when`, or empty."""
_Step: TypeAlias = tuple[Node, Mapping[str, Any], _Wait, str | None]
"""A part, its options, what it waits for, and the nested group that it belongs to."""


def plan(returned: object, self_id: str) -> ResultPlan:
    """Plan what the item `self_id` returned. A plain value is `ctx.result(value)`, None is `ctx.void()`.

    Raises DuplicateIdError if one Work occurs twice.
    """
    if not is_result(returned):
        return plan_value(returned)
    if not returned.items and not returned.links:
        return ResultPlan(returned.value, (_contribution(returned),)) if returned.kind == "value" else NOTHING
    contributions = tuple(
        _contribution(part) for part in walk(returned) if isinstance(part, Result) and part.kind == "value"
    )
    groups: list[PlannedGroup] = []
    children = tuple(_children(returned, self_id, groups))
    return ResultPlan(returned.value, contributions, children, tuple(groups))


def plan_value(value: object) -> ResultPlan:
    """Plan what an item returned that is no Result."""
    return NOTHING if value is None else ResultPlan(value, (PlannedContribution(value),), (), (), True)


def _contribution(result: Result[Any, Any]) -> PlannedContribution:
    return PlannedContribution(result.value, result.final, result.append)


def _children(root: Result[Any, Any], self_id: str, groups: list[PlannedGroup]) -> Iterator[PlannedChild]:
    """Yield the children, and add the nested groups to `groups`."""
    seen: set[str] = set()
    stack: list[_Step] = [(root, {}, {}, None)]
    while stack:
        node, options, wait, group_id = stack.pop()
        if isinstance(node, Work):
            _add_once(node.id, seen)
            yield PlannedChild(node, {**options, **wait} if wait else options, group_id)
            continue
        if node.kind == "group" and has_work(node):
            _add_once(node.id, seen)
            followed = any(cohort(link.items) for link in node.links)
            groups.append(PlannedGroup(node.id, group_id, followed))
        stack.extend(reversed(tuple(_steps(node, wait, self_id, group_id))))


def _add_once(id: str, seen: set[str]) -> None:
    if id in seen:
        raise DuplicateIdError(id)
    seen.add(id)


def _steps(result: Result[Any, Any], wait: _Wait, self_id: str, group_id: str | None) -> Iterator[_Step]:
    """Yield the parts of `result`, each with its options, with what it waits for, and with its group.

    `wait` is what `result` itself waits for. Its parts wait for the same until a link has works before it.
    """
    inside = result.id if result.kind == "group" else group_id
    for node in result.items:
        yield node, result.options, wait, inside
    if not result.links:
        return
    before = first_cohort(result, self_id)
    for link in result.links:
        if before:
            wait = {"after": before, "when": link.when}
        for node in link.items:
            yield node, link.options, wait, group_id
        before = cohort(link.items) or before


def unreturned(created: Sequence[Result[Any, Any]], returned: object) -> list[Result[Any, Any]]:
    """Return the Results in `created` that are neither `returned` nor a part of it."""
    if not is_result(returned):
        return list(created)
    if len(created) == 1 and created[0] is returned:
        return []
    reached = {id(part) for part in walk(returned)}
    return [result for result in created if id(result) not in reached]


def needs_old(contributions: Sequence[PlannedContribution]) -> bool:
    """Whether `fold` uses the old value of the group."""
    return bool(contributions) and contributions[0].append is not None


def fold(contributions: Sequence[PlannedContribution], old: Any) -> tuple[Any, bool]:
    """Return the group's value after `contributions`, and whether it is final. `old` None: it has none."""
    for each in contributions:
        if each.append is None:
            old = each.value
        else:
            old = each.append(old)
            check_not_awaitable(old, "append")
        if each.final:
            return old, True
    return old, False
