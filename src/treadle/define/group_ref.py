"""group: names a whole group in `after=`, where an id alone names one item."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from treadle.base.ids import check_id
from treadle.errors import InputError
from treadle.item import GROUP_MARK


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


def _has_group(names: Iterable[str]) -> bool:
    return any(name.startswith(GROUP_MARK) for name in names)
