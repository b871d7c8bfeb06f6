"""Work: one call of a work type, before it is stored.

Making a Work runs nothing and stores nothing. It gets its id at once, so that `after=` can name it before it
is submitted.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeAlias

import msgspec
from typing_extensions import TypeIs, TypeVar

from treadle.base.callables import Unawaitable

S_co = TypeVar("S_co", covariant=True)
R_co = TypeVar("R_co", covariant=True, default=Any)
G_co = TypeVar("G_co", covariant=True, default=S_co)
Q_co = TypeVar("Q_co", covariant=True)
Q = TypeVar("Q")
S = TypeVar("S")
G = TypeVar("G")


class Queueable(Generic[Q_co]):
    """What `ctx.queue` and `.next` accept: a `Work` or a `Result`. The parameter is the type of the value
    that it contributes to the group.
    """

    __slots__ = ()


# Two levels for type checkers, not recursive: a str is a sequence of str, and mypy would accept it for works.
Items: TypeAlias = Queueable[Q] | Sequence[Queueable[Q] | Sequence[Queueable[Q]]]
"""A Work, a Result, or sequences of them."""


class WorkTypeBase(Generic[R_co]):
    """The part of a work type that Works, options, Results and contexts use. `treadle.define.work_type` has
    the rest. The parameter is the type of an item's own value."""

    __name__: str
    name: str
    aliases: tuple[str, ...]
    """Earlier names: items that are stored under them are run by this type."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which its items are stored."""
        return (self.name, *self.aliases)

    @property
    def _failure_parameter(self) -> str:
        raise NotImplementedError

    def _check_takes_failure(self) -> None:
        raise NotImplementedError

    @property
    def _undo_parameter(self) -> tuple[str, bool]:
        raise NotImplementedError


def failure_parameter(work_type: WorkTypeBase) -> str:
    """Return the parameter that receives the `Failure` if this type is used as `on_dead=`.

    TypeError if the type does not take exactly one argument.
    """
    return work_type._failure_parameter  # pyright: ignore[reportPrivateUsage]  # for this package only


def undo_parameter(work_type: WorkTypeBase) -> tuple[str, bool]:
    """Return the parameter of a type that undoes a step, and whether it takes an `Undo`: otherwise it takes
    the value of the step. TypeError if the type does not take exactly one argument."""
    return work_type._undo_parameter  # pyright: ignore[reportPrivateUsage]  # for this package only


def check_takes_value(undo: object) -> WorkTypeBase:
    """Return this work type, or raise TypeError if it cannot be the undo of a step."""
    if not is_work_type(undo):
        raise TypeError(f"undo= takes a work type, not {undo!r:.80}")
    undo_parameter(undo)
    return undo


def check_takes_failure(work_type: WorkTypeBase) -> None:
    """Raise TypeError if this type cannot be `on_dead=`: it takes no `Failure`."""
    work_type._check_takes_failure()  # pyright: ignore[reportPrivateUsage]  # for this package only


class Work(
    msgspec.Struct,
    Queueable[G_co],
    Unawaitable,
    Generic[S_co, G_co],
    frozen=True,
    eq=False,
    repr_omit_defaults=True,
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

    if not TYPE_CHECKING:  # with them, type checkers would allow the mistakes

        def __await__(self) -> NoReturn:
            called = self.type.rpartition(".")[2]
            raise TypeError(
                f"a Work is not awaited: `await app.enqueue({called}(...)).result()` submits it and waits "
                f"for its value, `await {called}.fn(...)` calls the function itself"
            )

        def __getattr__(self, name: str) -> NoReturn:
            known = name in ("cancel", "delay", "enqueue", "group", "result", "state", "submit")
            hint = ": nothing is submitted yet; `handle = await app.enqueue(work)` returns a handle"
            raise AttributeError(f"a Work has no attribute {name!r}{hint if known else ''}")

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.input.items())
        return f"<Work {self.type}({arguments}) {self.id}>"


def is_work(value: object) -> TypeIs[Work[Any, Any]]:
    return isinstance(value, Work)


def is_work_type(value: object) -> TypeIs[WorkTypeBase]:
    return isinstance(value, WorkTypeBase)


_WORK: Final = frozenset((Work,))


def works_of(given: Iterable[Work[S, G]], where: str) -> list[Work[S, G]]:
    """Return the works of a list, or raise TypeError."""
    if is_work(given) or not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{where} takes a list of works, as in {where}([add(1, 2)]), not {given!r:.80}")
    works = list(given)
    if set(map(type, works)) <= _WORK:
        return works
    for each in works:
        if not is_work(each):
            raise no_work(each, where)
    return works


def no_work(
    value: object, where: str, example: str = "add(1, 2)", several: str = "use enqueue_many"
) -> TypeError:
    """The error for what was given instead of a Work. A coroutine is closed."""
    start = f"{where} takes a Work, as in {where}({example}), not"
    if isinstance(value, WorkTypeBase):
        return TypeError(f"{start} the work type {value.name!r} itself: call it, as in {value.__name__}(...)")
    if inspect.iscoroutine(value):
        value.close()
        name = value.__name__
        return TypeError(f"{start} a coroutine of {name}: decorate {name} with @work, and enqueue its call")
    if inspect.isroutine(value):
        return TypeError(f"{start} the function {value.__name__}: decorate it with @work, and call it")
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return TypeError(f"{start} several of them: {several}")
    return TypeError(f"{start} {value!r:.80}")
