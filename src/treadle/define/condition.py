"""When an item that waits for others may start.

`condition_met` is the rule. Backends do not call it: `need` turns a condition into a number that they compare
with counters (`rules.submission.dependency_state`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

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
