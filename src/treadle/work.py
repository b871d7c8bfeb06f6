"""Work: one call of a work type, before it is stored.

Making a Work runs nothing and stores nothing. It gets its id at once, so that `after=` can name it before it
is submitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeAlias

import msgspec
from typing_extensions import TypeIs, TypeVar

S_co = TypeVar("S_co", covariant=True)
G_co = TypeVar("G_co", covariant=True, default=S_co)
Q_co = TypeVar("Q_co", covariant=True)
Q = TypeVar("Q")


class Queueable(Generic[Q_co]):
    """What `ctx.queue` and `.next` take: a `Work` or a `Result`. The parameter is what it brings to the
    group's value.
    """

    __slots__ = ()


# Two deep for checkers, not recursive: text is a sequence of text is a sequence of text, and mypy would
# take it for works.
Items: TypeAlias = Queueable[Q] | Sequence[Queueable[Q] | Sequence[Queueable[Q]]]
"""A Work, a Result, or sequences of them."""


class WorkTypeBase:
    """What a Work, its options and its Results need of its work type. `treadle.work_type` has the rest."""

    __name__: str
    name: str

    @property
    def failure_parameter(self) -> str:
        """The parameter that takes the `Failure` if this type is used as `on_dead=`."""
        raise NotImplementedError


class Work(
    msgspec.Struct, Queueable[G_co], Generic[S_co, G_co], frozen=True, eq=False, repr_omit_defaults=True
):
    """One call of a work type: S is what `.result()` will give, G what the group will.

    Equal only to itself: two calls with the same arguments are two pieces of work.
    """

    id: str
    type: str
    """The name of its work type."""
    input: dict[str, Any]
    """The arguments, by parameter name, validated. Not to be changed."""
    definition: WorkTypeBase
    """The work type that was called."""

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.input.items())
        return f"<Work {self.type}({arguments}) {self.id}>"


def is_work(value: object) -> TypeIs[Work[Any, Any]]:
    return isinstance(value, Work)
