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
    """What `ctx.queue` and `.next` accept: a `Work` or a `Result`. The parameter is the type of the value
    that it contributes to the group.
    """

    __slots__ = ()


# Two levels for type checkers, not recursive: a str is a sequence of str, and mypy would accept it for works.
Items: TypeAlias = Queueable[Q] | Sequence[Queueable[Q] | Sequence[Queueable[Q]]]
"""A Work, a Result, or sequences of them."""


class WorkTypeBase:
    """The part of a work type that Works, options and Results use. `treadle.work_type` has the rest."""

    __name__: str
    name: str

    @property
    def _failure_parameter(self) -> str:
        raise NotImplementedError


def failure_parameter(work_type: WorkTypeBase) -> str:
    """Return the parameter that receives the `Failure` if this type is used as `on_dead=`.

    DefinitionError if the type does not take exactly one argument.
    """
    return work_type._failure_parameter  # pyright: ignore[reportPrivateUsage]  # for this package only


class Work(
    msgspec.Struct, Queueable[G_co], Generic[S_co, G_co], frozen=True, eq=False, repr_omit_defaults=True
):
    """One call of a work type: S is the type of the item's own value, G of the group's value.

    A Work is equal only to itself: two calls with the same arguments are two Works.
    """

    id: str
    type: str
    """The name of its work type."""
    input: dict[str, Any]
    """The validated arguments, by parameter name. Do not change it."""
    definition: WorkTypeBase
    """The work type that was called."""

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.input.items())
        return f"<Work {self.type}({arguments}) {self.id}>"


def is_work(value: object) -> TypeIs[Work[Any, Any]]:
    return isinstance(value, Work)
