"""What a returned Result asks the engine to do: pure functions over its tree.

Own value, contributions to the group's value, children in the order written. A child's gate (what
it waits for) is written into its options as `after` and `when`, the same way `ctx.queue(after=...)`
is, so that the engine resolves both alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from .condition import When
from .errors import DuplicateIdError
from .result import Node, Result, cohort, is_result, walk
from .work import Work


class PlannedChild(msgspec.Struct, frozen=True, eq=False):
    """Work to be submitted with the settlement; this item is its parent."""

    work: Work[Any, Any]
    options: Mapping[str, Any]
    """Checked, and complete with the gate."""

    @property
    def after(self) -> tuple[str, ...]:
        return self.options.get("after") or ()

    @property
    def when(self) -> When:
        return self.options.get("when") or "all_success"


class PlannedContribution(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What this item adds to its group's value: `value`, or what `append` makes of the old one."""

    value: Any
    final: bool = False
    append: Callable[[Any], Any] | None = None


class Plan(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What one attempt's return value comes to."""

    value: Any = None
    """The item's own value."""
    contributions: tuple[PlannedContribution, ...] = ()
    """In the order written."""
    children: tuple[PlannedChild, ...] = ()


NOTHING: Final = Plan()

_Gate: TypeAlias = Mapping[str, Any]
_Step: TypeAlias = tuple[Node, Mapping[str, Any], _Gate]


def plan(returned: object, self_id: str) -> Plan:
    """What to do about `returned`, by the item `self_id`. A plain value is `ctx.result(value)`, None
    is `ctx.void()`.

    Raises DuplicateIdError where one Work stands in two places.
    """
    if returned is None:
        return NOTHING
    if not is_result(returned):
        return Plan(returned, (PlannedContribution(returned),))
    if not returned.items and not returned.links:
        return Plan(returned.value, (_contribution(returned),)) if returned.kind == "value" else NOTHING
    contributions = tuple(
        _contribution(part) for part in walk(returned) if isinstance(part, Result) and part.kind == "value"
    )
    return Plan(returned.value, contributions, tuple(_children(returned, self_id)))


def _contribution(result: Result[Any, Any]) -> PlannedContribution:
    return PlannedContribution(result.value, result.final, result.append)


def _children(root: Result[Any, Any], self_id: str) -> Iterator[PlannedChild]:
    seen: set[str] = set()
    stack: list[_Step] = [(root, {}, {})]
    while stack:
        node, options, gate = stack.pop()
        if isinstance(node, Result):
            stack.extend(reversed(tuple(_steps(node, gate, self_id))))
            continue
        if node.id in seen:
            raise DuplicateIdError(node.id)
        seen.add(node.id)
        yield PlannedChild(node, {**options, **gate} if gate else options)


def _steps(result: Result[Any, Any], gate: _Gate, self_id: str) -> Iterator[_Step]:
    """What `result` is made of, each with its options and with the gate it stands behind.

    `gate` is the one that `result` stands behind itself; it holds on until a link has something to
    wait for.
    """
    for node in result.items:
        yield node, result.options, gate
    if not result.links:
        return
    before = cohort(result.items) if result.kind == "queue" else (self_id,)
    for link in result.links:
        if before:
            gate = {"after": before, "when": link.when}
        for node in link.items:
            yield node, link.options, gate
        before = cohort(link.items) or before


def unreturned(created: Sequence[Result[Any, Any]], returned: object) -> list[Result[Any, Any]]:
    """Those of `created` that `returned` is not, and is not made of."""
    if not is_result(returned):
        return list(created)
    if len(created) == 1 and created[0] is returned:
        return []
    reached = {id(part) for part in walk(returned)}
    return [result for result in created if id(result) not in reached]


def needs_old(contributions: Sequence[PlannedContribution]) -> bool:
    """Whether `fold` looks at the old value of the group."""
    return bool(contributions) and contributions[0].append is not None


def fold(contributions: Sequence[PlannedContribution], old: Any) -> tuple[Any, bool]:
    """The group's value after `contributions`, and whether it is final. `old` is None if there was
    none.
    """
    for each in contributions:
        old = each.value if each.append is None else each.append(old)
        if each.final:
            return old, True
    return old, False
