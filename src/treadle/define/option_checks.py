"""Checks of the values of options: each returns the value in plain form, or raises InputError."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, get_args

from treadle.base.callables import check_list, check_plain
from treadle.base.ids import check_id, check_name
from treadle.base.timing import seconds
from treadle.errors import InputError, shown
from treadle.flow_control import Failure
from treadle.item import KeyPolicy
from treadle.retry import Retry

from .condition import stored_name
from .work import Work, WorkTypeBase, check_takes_failure, is_work, is_work_type


class TakesFailure(Protocol):
    """A work type that takes a `Failure`, as type checkers see it."""

    name: str

    def __call__(self, failure: Failure, /) -> Work[Any, Any]: ...


Compensation: TypeAlias = Work[Any, Any] | TakesFailure
OwnCompensation: TypeAlias = Compensation | Callable[[Failure], object] | Callable[[Any, Failure], object]
"""Also a function, with or without a Context, that belongs to one type: `@work` makes a type of it."""


def check_positive(value: Any, name: str) -> float:
    number = seconds(value, field=name)
    if number == 0:
        raise InputError.of(name, value, "must be more than zero")
    return number


def check_count(value: object, field: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError.of(field, value, "must be a whole number, 1 or more")


def check_flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise InputError.of(name, value, "must be True or False")
    return value


def check_priority(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError.of(name, value, "must be a whole number")
    if not -(2**31) <= value < 2**31:
        raise InputError.of(name, value, "does not fit in 32 bits")
    return value


def check_page_size(limit: object, cursor: object) -> None:
    """Check what a page is asked for with: how long it is, and where it begins."""
    check_count(limit, "limit")
    if cursor is not None and not isinstance(cursor, str):
        raise InputError.of("cursor", cursor, "must be a str")


def check_lane(value: Any, name: str) -> str:
    return "" if value == "" else check_name(value, name)


def check_retry(value: Any, name: str) -> Retry:
    if not isinstance(value, Retry):
        raise InputError.of(name, value, "must be a Retry, as in retry=Retry(attempts=5)")
    return value


def check_stored_retry(value: Any, name: str) -> Retry:
    retry = check_retry(value, name)
    if retry.backoff is not None:
        raise InputError(
            "retry=Retry(backoff=...) is code, which is not stored with an item: "
            "give it to the work type or the app",
            parameters=(name,),
        )
    return retry


def check_key_scope(value: Any, name: str) -> Any:
    if value in ("open", "any"):
        return value
    if isinstance(value, str):
        raise InputError.of(name, value, "must be 'open', 'any' or a duration")
    return seconds(value, field=name)


def check_key_policy(value: Any, name: str) -> Any:
    allowed = get_args(KeyPolicy)
    if value not in allowed:
        raise InputError.of(name, value, f"must be one of {', '.join(map(repr, allowed))}")
    return value


def check_after(value: Any, name: str) -> tuple[str, ...]:
    # A single id is allowed too: it must not be read as a sequence of characters.
    given: Any = (value,) if isinstance(value, str) or hasattr(value, "id") else value
    try:
        ids = [_id_of(each, name) for each in given]
    except TypeError:
        raise InputError.of(name, value, "must be works, handles or ids, as in after=[a, b]") from None
    names: dict[str, str] = {}
    for id in ids:
        names.setdefault(stored_name(id), id)  # an item and a group may have the same id
    return tuple(names.values())


class SubmittedId(str):
    """The id of an item that was submitted before: the id of a handle. A Work, or an id alone, may be
    submitted later."""

    __slots__ = ()


def _id_of(value: Any, name: str) -> str:
    if isinstance(value, str):
        return check_id(value, field=name)
    if not hasattr(value, "id"):
        raise InputError.of(name, value, "must be a work, a handle, an id or group(...)")
    id = check_id(value.id, field=name)
    return id if is_work(value) else SubmittedId(id)


def check_compensation(value: Any, name: str) -> Any:
    # Raise where the option is written, not when an item has died.
    if not is_work(value):
        check_takes_failure(_work_type(value, name))
    return value


def check_own_compensation(value: Any, name: str) -> Any:
    return value if inspect.isfunction(value) else check_compensation(value, name)


def check_doer(value: Any, name: str) -> Any:
    """Check that a value can be a doer, as `treadle.doers.Doer` says."""
    if inspect.isroutine(value) or isinstance(value, type):
        raise InputError.of(name, value, f"makes a doer, and is none: call it, as in {name}=concurrency(5)")
    for method in ("available", "submit", "idle"):
        if not callable(getattr(value, method, None)):
            advice = f"give one of treadle.doers, as in {name}=concurrency(5), or a Doer of your own"
            raise InputError.of(name, value, f"has no method {method}: {advice}")
    for method in ("available", "submit"):
        check_plain(getattr(value, method), f"{name}.{method}")
    return value


def _work_type(value: object, name: str) -> WorkTypeBase:
    if is_work_type(value):
        return value
    wanted = f"a Work, as in {name}=refund(order), or a work type that takes a Failure"
    where = ": a function can be given to @work(...) only" if inspect.isfunction(value) else ""
    raise TypeError(f"{name}={shown(value)} must be {wanted}{where}")


def check_codec(value: Any, name: str) -> Any:
    if not callable(getattr(value, "encode", None)) or not callable(getattr(value, "decode", None)):
        raise InputError.of(name, value, "must have the methods encode(value) and decode(data)")
    check_plain(value.encode, f"{name}.encode")
    check_plain(value.decode, f"{name}.decode")
    return value


def check_aliases(value: Any, name: str) -> tuple[str, ...]:
    given = check_list(value, name, repr(value) if isinstance(value, str) else "'old.name'")
    return tuple(dict.fromkeys(check_name(each, name) for each in given))


def check_run_in(value: Any, name: str) -> Any:
    if value not in ("loop", "thread", "process"):
        raise InputError.of(name, value, "must be 'loop', 'thread' or 'process'")
    return value
