"""When an item that waits for others may start.

`condition_met` is the rule. Backends do not call it: `need` turns a condition into a number that they compare
with counters (`rules.submission.dependency_state`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from treadle.base.ids import check_id
from treadle.errors import InputError
from treadle.item import GROUP_MARK, ItemState

Counts: TypeAlias = Literal["success", "done"]

DONE = frozenset({"success", "dead", "cancelled"})


class AtLeast(Struct, frozen=True):
    """`n` dependencies succeeded or, with `of="done"`, ended in any way. Made by `at_least`."""

    n: int
    of: Counts = "success"

    def __post_init__(self) -> None:
        if type(self.n) is not int or self.n < 1:
            raise ValueError(f"at_least({self.n!r}): n must be a whole number, 1 or more")
        if self.of not in ("success", "done"):
            raise ValueError(f"at_least(of={self.of!r}): of must be 'success' or 'done'")


When: TypeAlias = Literal["all_success", "all_done"] | AtLeast


class HasStatus(Protocol):
    @property
    def status(self) -> str: ...


def at_least(n: int, of: Counts = "success") -> AtLeast:
    """The condition that `n` dependencies have succeeded or, with `of="done"`, have ended in any way."""
    return AtLeast(n, of)


def condition_met(when: When, states: Sequence[HasStatus | str | None]) -> bool:
    """Whether `when` is met, given the status (or state) of each dependency. None is an unknown id.

    Without dependencies it is met.
    """
    if not states:
        return True
    required, counts = _required(when, len(states))
    return sum(_counted(state, counts) for state in states) >= required


def need(when: When, count: int) -> tuple[int, Counts]:
    """Return how many of `count` dependencies must end, and which ends count: `success`, or `done` for any.

    Raises ValueError if the condition asks for more dependencies than there are.
    """
    required, counts = _required(when, count)
    if count and required > count:
        raise ValueError(f"at_least({required}) of {count} can never be met: ask for fewer")
    return min(required, count), counts


def _required(when: When, count: int) -> tuple[int, Counts]:
    match when:
        case AtLeast(n, of):
            return n, of
        case "all_success":
            return count, "success"
        case "all_done":
            return count, "done"
        case _:
            raise ValueError(f"when={when!r}: must be 'all_success', 'all_done' or at_least(n)")


def _counted(state: HasStatus | str | None, counts: Counts) -> bool:
    if state is None:
        return False
    status = state if isinstance(state, str) else state.status
    return status == "success" if counts == "success" else status in DONE


class GroupRef(str):
    """The id of a group, for `after=[group(handle)]`: wait until the whole group has ended. As a text it is
    the group's id."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"group({str.__repr__(self)})"


class SubmittedGroup(GroupRef):
    """A group whose root was submitted before: that of a handle."""

    __slots__ = ()


def group(of: Any) -> GroupRef:
    """Return the name of a whole group, for `after=`: `app.enqueue(report(), after=[group(handle)])`.

    of: a handle, a Work (its group, once it is submitted), or the id of a group. A group that fails counts as
    a dead prerequisite.
    """
    if isinstance(of, GroupRef):
        return of
    if isinstance(of, str):
        return GroupRef(check_id(of, field="group"))
    group_id = getattr(of, "group_id", None)
    if group_id is not None:
        return SubmittedGroup(check_id(group_id, field="group"))
    id = getattr(of, "id", None)
    if not id:
        raise InputError.of("group", of, "must be a handle, a Work or the id of a group")
    return GroupRef(check_id(id, field="group"))


def stored_name(ref: str) -> str:
    """The name of an item or a group as a store has it in `after`."""
    return f"{GROUP_MARK}{ref}" if isinstance(ref, GroupRef) else str(ref)


def shown_name(name: str) -> str:
    """The id, or the GroupRef, for a name in `after` as a store has it."""
    return GroupRef(name[len(GROUP_MARK) :]) if name.startswith(GROUP_MARK) else name


def shown_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same for all of `after`."""
    if not names or not _has_group(names):
        return names
    return tuple(map(shown_name, names))


def waits_for(items: Sequence[ItemState]) -> Iterator[tuple[ItemState, list[str]]]:
    """Each item, with the ids of those that it waits for. A group stands for the members after which no other
    member comes, and for itself if none of its members is here."""
    groups = {item.id: item.group_id for item in items}
    followed: set[tuple[str, str]] = set()
    for item in items:
        followed.update((item.group_id, name) for name in (*shown_names(item.after), item.parent or ""))
    members: dict[str, list[str]] = {}
    for id, group in groups.items():
        if (group, id) not in followed:
            members.setdefault(group, []).append(id)
    for item in items:
        found: list[str] = []
        for name in shown_names(item.after):
            found += members.get(name, (name,)) if isinstance(name, GroupRef) else (name,)
        yield item, [str(id) for id in found if id != item.id]


def _has_group(names: Iterable[str]) -> bool:
    return GROUP_MARK in "".join(names)
