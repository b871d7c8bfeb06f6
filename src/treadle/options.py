"""What can be set, where, and who wins.

The same option may be given at several levels. From the strongest:

    enqueue(x=), ctx.queue(x=), .next(x=)  >  the type's options(input)  >  @work(x=)  >  app  >  default

`resolve` lays the levels over each other, the weakest first. Three rules go beyond "the stronger
level wins": `retry` merges field by field; within one level `run_at` wins over `delay`, and
`deadline` over `expires_in`; and each of these pairs counts as one option, so that a `delay` at
enqueue beats a `run_at` that the type computed.

Values are checked where they are written (`check_options`, `check_type_options`), and are plain
seconds, ids and names from there on.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec
from typing_extensions import TypedDict

from .condition import When, need
from .errors import Defer, InputError
from .events import Event
from .ids import check_id, check_name
from .item import DEFAULT_QUEUE
from .retry import Retry
from .timing import Duration, Instant, instant, seconds
from .work import Work, WorkTypeBase, failure_parameter, is_work


class HasId(Protocol):
    """A Work, or the Handle of a submitted one."""

    @property
    def id(self) -> str: ...


KeyScope: TypeAlias = Literal["open", "any"] | Duration
After: TypeAlias = HasId | str | Iterable[HasId | str]
Compensation: TypeAlias = Work[Any, Any] | WorkTypeBase
RunIn: TypeAlias = Literal["loop", "thread", "process"]

Input: TypeAlias = dict[str, Any]
"""The arguments of a Work, by parameter name."""


class NextOptions(TypedDict, total=False):
    """Options of one item, as `.next` takes them: what it waits for is given by the chain."""

    delay: Duration | None
    """Not before so long from now."""
    run_at: Instant | None
    """Not before this instant; wins over `delay`."""
    retry: Retry | None
    priority: int | None
    """Higher goes first, within one lane. A 32-bit integer."""
    lane: str | None
    """Fairness label: the lanes of a tenant take turns."""
    queue: str | None
    """Isolation: workers may be bound to some queues."""
    deadline: Instant | None
    """Dead if it has not succeeded by then; wins over `expires_in`."""
    expires_in: Duration | None
    """The same, counted from submit. None: no deadline, also where the type has one."""
    timeout: Duration | None
    """Bounds one attempt. None: no bound, also where the type has one."""
    skip_queue: bool | None
    """Run the first attempt in this process, at once."""
    key: str | None
    """Idempotency key, unique per tenant and type: an earlier item with it answers instead."""
    key_scope: KeyScope | None
    """Which earlier items answer: of groups still open, any kept, or those at most so old."""
    workflow: str | None
    workflow_type: str | None
    on_dead: Compensation | None
    """Submitted in the same step that makes the item dead."""


class Options(NextOptions, total=False):
    """Options of one item, as `ctx.queue` takes them and a type's `options(input)` returns them."""

    after: After
    """Ids (or Works, or Handles) that it waits for."""
    when: When
    """What must have become of them."""


class EnqueueOptions(Options, total=False):
    """Options of one item, as `enqueue` takes them."""

    tx: Any
    """The caller's transaction: the item exists if and only if it commits."""


class TypeOptions(TypedDict, total=False):
    """What `@work(...)` takes. None, where allowed, is the same as not given."""

    name: str | None
    """Default: `module.function`. It is stored with every item, so it must outlive refactorings."""
    retry: Retry | None
    priority: int | None
    lane: str | None
    queue: str | None
    timeout: Duration | None
    expires_in: Duration | None
    skip_queue: bool | None
    on_dead: Compensation | None
    options: Callable[[Input], Options | None] | None
    """Options computed from the arguments of each Work."""
    doer: Any
    """How many of this type run at once, and in which order (see `treadle.doers`)."""
    codec: Any
    """How arguments and results of this type are written: anything with `encode` and `decode`."""
    on_event: Callable[[Event], object] | None
    on_failure: Callable[[Exception, Any], Literal["retry", "abort"] | Defer | None] | None
    log_context: Callable[[Input], Mapping[str, Any]] | None
    """What `ctx.log` adds to every record, from the arguments."""
    strict_return: bool | None
    run_in: RunIn | None
    """Where the handler runs. Default: `loop` for async functions, `thread` for others."""
    keep: Duration | None
    """How long ended items stay readable."""


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one item, decided.

    At most one of `run_at` and `delay` is in effect, and at most one of `deadline` and `expires_in`.
    Relative ones count from submit, by the store's clock.
    """

    delay: float = 0.0
    run_at: float | None = None
    expires_in: float | None = None
    deadline: float | None = None
    timeout: float | None = None
    retry: Retry = Retry()
    priority: int = 0
    lane: str = ""
    queue: str = DEFAULT_QUEUE
    skip_queue: bool = False
    after: tuple[str, ...] = ()
    when: When = "all_success"
    key: str | None = None
    key_scope: Literal["open", "any"] | float = "open"
    workflow: str | None = None
    workflow_type: str | None = None
    on_dead: Compensation | None = None


DEFAULTS: Final = Resolved()


def resolve(*levels: Mapping[str, Any] | None, base: Resolved = DEFAULTS) -> Resolved:
    """Lay checked `levels` over `base`, the weakest first: `resolve(app, type, computed, enqueue)`.

    Where nothing is given the answer is `base` itself: what holds for every Work of a type can be
    resolved once, and kept.
    """
    resolved = base
    for level in levels:
        if level:
            resolved = _overlay(resolved, level)
    return resolved


# What an explicit None takes away. For any other option None is the same as not given.
_REMOVABLE: Final = frozenset(("timeout", "key", "on_dead"))


def _overlay(base: Resolved, level: Mapping[str, Any]) -> Resolved:
    changes = {
        name: value
        for name, value in level.items()
        if name in _FIELDS and (value is not None or name in _REMOVABLE)
    }
    if "retry" in changes:
        changes["retry"] = base.retry.merge(changes["retry"])
    changes |= _timing(level, "run_at", "delay", 0.0)
    changes |= _timing(level, "deadline", "expires_in", None)
    return msgspec.structs.replace(base, **changes) if changes else base


def _timing(level: Mapping[str, Any], instant: str, span: str, no_span: float | None) -> dict[str, Any]:
    """Two names for one option: a level that gives either decides, and the instant wins."""
    if instant not in level and span not in level:
        return {}
    given = no_span if level.get(span) is None else level[span]
    return {instant: level.get(instant), span: given if level.get(instant) is None else no_span}


_FIELDS: Final = frozenset(Resolved.__struct_fields__)


def check_options(
    options: Mapping[str, Any], where: str, allowed: Mapping[str, Check] | None = None
) -> dict[str, Any]:
    """`options` in plain form, or an error that names the option and `where` it was given.

    `allowed` is one of `NEXT_OPTIONS`, `QUEUE_OPTIONS` (the default) and `ENQUEUE_OPTIONS`.
    """
    if not options:
        return {}
    checks = QUEUE_OPTIONS if allowed is None else allowed
    checked = {name: _checked(name, value, where, checks) for name, value in options.items()}
    if checked.get("when") is not None:
        check_when(checked["when"], len(checked.get("after") or ()))
    return checked


def check_type_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a work type in plain form, without those that are None."""
    checked = {name: _checked(name, value, "@work", TYPE_OPTIONS) for name, value in options.items()}
    return {name: value for name, value in checked.items() if value is not None}


def check_when(when: When, count: int) -> When:
    """`when`, if `count` items can meet it."""
    try:
        need(when, count)
    except ValueError as error:
        raise InputError(str(error), parameters=("when",)) from None
    return when


Check: TypeAlias = Callable[[Any, str], Any]


def _checked(name: str, value: Any, where: str, checks: Mapping[str, Check]) -> Any:
    check = checks.get(name)
    if check is None:
        raise _unknown(name, where, checks)
    return None if value is None else check(value, name)


def _unknown(name: str, where: str, known: Iterable[str]) -> TypeError:
    if name in ("after", "when") and where == ".next":
        return TypeError(f".next has no option {name!r}: it waits for the works before it")
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(sorted(known))}"
    return TypeError(f"{where} has no option {name!r}: {hint}")


def _duration(value: Any, name: str) -> float:
    return seconds(value, field=name)


def _positive(value: Any, name: str) -> float:
    number = seconds(value, field=name)
    if number == 0:
        raise InputError.of(name, value, "must be more than zero")
    return number


def _instant(value: Any, name: str) -> float:
    return instant(value, field=name)


def _name(value: Any, name: str) -> str:
    return check_name(value, field=name)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise InputError.of(name, value, "must be True or False")
    return value


def _priority(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError.of(name, value, "must be a whole number")
    if not -(2**31) <= value < 2**31:
        raise InputError.of(name, value, "does not fit in 32 bits")
    return value


def _retry(value: Any, name: str) -> Retry:
    if not isinstance(value, Retry):
        raise InputError.of(name, value, "must be a Retry, as in retry=Retry(attempts=5)")
    return value


def _stored_retry(value: Any, name: str) -> Retry:
    retry = _retry(value, name)
    if retry.backoff is not None:
        raise InputError(
            "retry=Retry(backoff=...) is code, which is not stored with an item: "
            "give it to the work type or the app",
            parameters=(name,),
        )
    return retry


def _key_scope(value: Any, name: str) -> Any:
    if value in ("open", "any"):
        return value
    if isinstance(value, str):
        raise InputError.of(name, value, "must be 'open', 'any' or a duration")
    return seconds(value, field=name)


def _after(value: Any, name: str) -> tuple[str, ...]:
    # A single id is spared the trap that text is a sequence of characters.
    given: Any = (value,) if isinstance(value, str) or hasattr(value, "id") else value
    try:
        ids = [_id_of(each, name) for each in given]
    except TypeError:
        raise InputError.of(name, value, "must be works, handles or ids, as in after=[a, b]") from None
    return tuple(dict.fromkeys(ids))


def _id_of(value: Any, name: str) -> str:
    if not isinstance(value, str) and not hasattr(value, "id"):
        raise InputError.of(name, value, "must be a work, a handle or an id")
    return check_id(value if isinstance(value, str) else value.id, field=name)


def _compensation(value: Any, name: str) -> Compensation:
    if isinstance(value, WorkTypeBase):
        failure_parameter(value)  # raise where the option is written, not when an item has died
        return value
    if not is_work(value):
        raise InputError.of(name, value, "must be a Work or a work type, as in on_dead=refund(order)")
    return value


def _function(value: Any, name: str) -> Any:
    if not callable(value):
        raise InputError.of(name, value, "must be a function")
    return value


def _codec(value: Any, name: str) -> Any:
    if not callable(getattr(value, "encode", None)) or not callable(getattr(value, "decode", None)):
        raise InputError.of(name, value, "must have the methods encode(value) and decode(data)")
    return value


def _run_in(value: Any, name: str) -> Any:
    if value not in ("loop", "thread", "process"):
        raise InputError.of(name, value, "must be 'loop', 'thread' or 'process'")
    return value


_COMMON: Final[Mapping[str, Check]] = {
    "priority": _priority,
    "lane": _name,
    "queue": _name,
    "timeout": _positive,
    "expires_in": _duration,
    "skip_queue": _flag,
    "on_dead": _compensation,
}

NEXT_OPTIONS: Final[Mapping[str, Check]] = {
    **_COMMON,
    "delay": _duration,
    "run_at": _instant,
    "retry": _stored_retry,
    "deadline": _instant,
    "key": _name,
    "key_scope": _key_scope,
    "workflow": _name,
    "workflow_type": _name,
}

QUEUE_OPTIONS: Final[Mapping[str, Check]] = {
    **NEXT_OPTIONS,
    "after": _after,
    "when": lambda when, _: check_when(when, 0),
}

ENQUEUE_OPTIONS: Final[Mapping[str, Check]] = {**QUEUE_OPTIONS, "tx": lambda tx, _: tx}

TYPE_OPTIONS: Final[Mapping[str, Check]] = {
    **_COMMON,
    "name": _name,
    "retry": _retry,
    "options": _function,
    "doer": lambda doer, _: doer,
    "codec": _codec,
    "on_event": _function,
    "on_failure": _function,
    "log_context": _function,
    "strict_return": _flag,
    "run_in": _run_in,
    "keep": _duration,
}
