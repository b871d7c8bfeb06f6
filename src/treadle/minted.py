"""Work: one call of a work type, minted and not yet stored.

Minting runs nothing and stores nothing. The id is given here and then, so that a Work can be named in
`after=` before it is submitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

import msgspec
from typing_extensions import TypeVar

if TYPE_CHECKING:
    from .work import WorkType

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
    definition: WorkType[..., S_co, G_co]
    """The work type that minted it."""

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.input.items())
        return f"<Work {self.type}({arguments}) {self.id}>"
