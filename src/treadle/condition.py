"""When an item that waits for others may start.

`condition_met` is the rule itself. Backends do not call it: `need` compiles it to counters that
each settlement moves by one, and `doomed` says when they can no longer be met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

Counts: TypeAlias = Literal["success", "done"]

DONE = frozenset({"success", "dead", "cancelled"})


class AtLeast(Struct, frozen=True):
    """`n` of the dependencies succeeded, or (`of="done"`) ended in any way. Made by `at_least`."""

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
    return AtLeast(n, of)


def condition_met(when: When, states: Sequence[HasStatus | str | None]) -> bool:
    """Whether `when` holds, given the status (or state) of each dependency; None is an id nobody
    knows yet.

    No dependencies: met at once.
    """
    if not states:
        return True
    required, counts = _required(when, len(states))
    return sum(_counted(state, counts) for state in states) >= required


def need(when: When, count: int) -> tuple[int, Counts]:
    """How many of `count` dependencies must be counted, and what counts: `success`, or `done`.

    Raises ValueError where the condition asks for more dependencies than there are.
    """
    required, counts = _required(when, count)
    if count and required > count:
        raise ValueError(f"at_least({required}) of {count} can never be met: ask for fewer")
    return min(required, count), counts


def doomed(need: int, met: int, open: int) -> bool:
    """Whether the condition can no longer hold: even if all still open were to count."""
    return met + open < need


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
