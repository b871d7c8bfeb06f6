"""The options of items and work types: what can be set, where, and which level wins.

The same option may be given at several levels. From the strongest:

    enqueue(x=), ctx.queue(x=), .next(x=)  >  the type's options(input)  >  @work(x=)  >  app  >  default

`resolve` applies the levels, the weakest first. The stronger level wins, with four additional rules. `retry`
is merged field by field, `headers` name by name (`{}` removes them). Within one level, `run_at` wins over
`delay` and `deadline` over `expires_in`. Each of these pairs counts as one option, so a `delay` at enqueue
wins over a `run_at` that the type computed. So do `key` and `unique`, of which one level can give only one.

Values are checked where they are written (`check_options`, `check_type_options`). After that they are plain
seconds, ids and names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec
from typing_extensions import TypedDict

from .base.callables import check_plain
from .base.headers import add_headers, check_headers
from .base.ids import check_id, check_name
from .base.timing import Duration, Instant, instant, seconds
from .base.wording import did_you_mean
from .define.condition import When, need
from .define.option_checks import (
    Compensation,
    OwnCompensation,
    check_after,
    check_aliases,
    check_codec,
    check_compensation,
    check_doer,
    check_flag,
    check_key_policy,
    check_key_scope,
    check_lane,
    check_own_compensation,
    check_positive,
    check_priority,
    check_retry,
    check_run_in,
    check_stored_retry,
)
from .errors import Defer, InputError, RetryAfter
from .events import Event
from .item import DEFAULT_QUEUE, ItemUpdate, KeyPolicy
from .retry import Retry, merge_retry
from .store.user_transaction import check_tx


class HasId(Protocol):
    """A Work, or the Handle of a submitted one."""

    @property
    def id(self) -> str: ...


KeyScope: TypeAlias = Literal["open", "any"] | Duration
After: TypeAlias = HasId | str | Iterable[HasId | str]
RunIn: TypeAlias = Literal["loop", "thread", "process"]

Input: TypeAlias = dict[str, Any]
"""The arguments of a Work, by parameter name."""


class NextOptions(TypedDict, total=False):
    """Options of one item in `.next`, where the chain says what the item waits for."""

    when: When
    """The condition that the items it waits for must meet."""
    delay: Duration | None
    """Start at the earliest this long from now."""
    run_at: Instant | None
    """Start at the earliest at this instant. Wins over `delay`."""
    retry: Retry | None
    priority: int | None
    """A higher number goes first within one lane. A 32-bit integer."""
    lane: str | None
    """A label for fairness: the lanes of a tenant are served in rotation. "" is the lane of all others."""
    queue: str | None
    """Isolates work: a worker may be limited to some queues."""
    deadline: Instant | None
    """The item is dead if it has not succeeded by then. Wins over `expires_in`."""
    expires_in: Duration | None
    """The deadline, counted from the submit. None: no deadline, even if the type has one."""
    timeout: Duration | None
    """The longest time of one attempt. None: no limit, even if the type has one."""
    skip_queue: bool | None
    """Run the first attempt at once in this process."""
    key: str | None
    """Idempotency key, unique per tenant and type. If an earlier item has it, no new item is stored."""
    key_scope: KeyScope | None
    """Which earlier items count: those of open groups, all that are kept, or those of at most this age."""
    key_policy: KeyPolicy | None
    """What happens to an earlier item that has the key. `existing`: nothing. `replace`: if it has not
    started, it gets the newest arguments and options. `debounce`: its delay starts again too. `error`: the
    submit raises `DuplicateKeyError`."""
    debounce_max: Duration | None
    """For `debounce`: the longest time, since the earlier item was submitted, by which it can be delayed."""
    unique: bool | None
    """Derive the key from the type and the arguments."""
    workflow: str | None
    workflow_type: str | None
    headers: Mapping[str, str] | None
    """A few short texts that the item carries: `ctx.headers`. A child carries those of its parent too; `{}`:
    it does not."""
    on_dead: Compensation | None
    """The work to submit in the same step that makes the item dead, if an attempt of it began."""
    on_dead_unstarted: bool | None
    """Submit `on_dead` also for an item that died before its first attempt."""


class Options(NextOptions, total=False):
    """Options of one item in `ctx.queue`, and as a type's `options(input)` returns them."""

    after: After
    """The ids, Works or Handles that it waits for, or whole groups: `group(handle)`."""


class EnqueueOptions(Options, total=False):
    """Options of one item in `enqueue`."""

    place: str | None
    """Over several stores by root: what has the same place is in one store, and can wait for each other.
    Keys are then unique in that place. Else it changes nothing."""
    id: str | None
    """The id of the item. `DuplicateIdError` if an item has it. Not for `enqueue_many`."""
    tx: Any
    """A connection in the caller's transaction. The item exists if and only if the transaction commits."""


class TypeOptions(TypedDict, total=False):
    """Options of `@work(...)`. None, where allowed, is the same as not given."""

    name: str | None
    """Default: `module.function`. It is stored with every item, so it should not change."""
    aliases: Iterable[str] | None
    """Earlier names of the type. Items that are stored under them are run by this type too."""
    upcast: Callable[[dict[str, Any]], dict[str, Any]] | None
    """Turns stored arguments of earlier versions into those of this one, before they are validated. It is
    called for every item, with the arguments by name, as stored. It must be quick and pure."""
    retry: Retry | None
    priority: int | None
    lane: str | None
    queue: str | None
    timeout: Duration | None
    timeout_grace: Duration | None
    """How long a handler may go on after its timeout was signalled (`ctx.interrupt`). Then it is
    cancelled."""
    expires_in: Duration | None
    skip_queue: bool | None
    key_scope: KeyScope | None
    key_policy: KeyPolicy | None
    debounce_max: Duration | None
    unique: bool | None
    on_dead: OwnCompensation | None
    on_dead_unstarted: bool | None
    options: Callable[[Input], Options | None] | None
    """Options computed from the arguments of each Work."""
    doer: Any
    """How many items of this type run at once, and in which order. See `treadle.doers`."""
    codec: Any
    """How arguments and results of this type are stored: an object with `encode` and `decode`."""
    on_event: Callable[[Event], object] | None
    on_failure: Callable[[Exception, Any], Literal["retry", "abort"] | Defer | RetryAfter | None] | None
    log_context: Callable[[Input], Mapping[str, Any]] | None
    """Computes, from the arguments, the fields that `ctx.log` adds to every record."""
    logs: bool | None
    """Keep what the handler logs with its item: `app.logs()`."""
    strict_return: bool | None
    run_in: RunIn | None
    """Where the handler runs. Default: `loop` for async functions, `thread` for others."""
    keep: Duration | None
    """How long ended items stay readable."""


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one item after all levels were applied.

    At most one of `run_at` and `delay` is in effect, and at most one of `deadline` and `expires_in`. The
    relative ones count from the submit, by the store's clock.
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
    key_policy: KeyPolicy = "existing"
    debounce_max: float | None = None
    unique: bool = False
    workflow: str | None = None
    workflow_type: str | None = None
    headers: Mapping[str, str] | None = None
    """None: not given. Empty: none, not even those of its parent."""
    on_dead: Compensation | None = None
    on_dead_unstarted: bool = False


DEFAULTS: Final = Resolved()


def resolve(*levels: Mapping[str, Any] | None, base: Resolved = DEFAULTS) -> Resolved:
    """Apply checked `levels` to `base`, the weakest first: `resolve(app, type, computed, enqueue)`.

    Returns `base` itself if no level has options, so the options of a type can be resolved once and kept.
    """
    resolved = base
    for level in levels:
        if level:
            resolved = _overlay(resolved, level)
    return resolved


# An explicit None removes these. For any other option None is the same as not given.
_REMOVABLE: Final = frozenset(("timeout", "key", "on_dead"))


def _overlay(base: Resolved, level: Mapping[str, Any]) -> Resolved:
    changes = {
        name: value
        for name, value in level.items()
        if name in _FIELDS and (value is not None or name in _REMOVABLE)
    }
    if "retry" in changes:
        changes["retry"] = merge_retry(base.retry, changes["retry"])
    if "headers" in changes:
        changes["headers"] = add_headers(base.headers or {}, changes["headers"])
    changes |= _timing(level, "run_at", "delay", 0.0)
    changes |= _timing(level, "deadline", "expires_in", None)
    if "key" in changes:
        changes["unique"] = bool(level.get("unique"))
    elif changes.get("unique"):
        changes["key"] = None
    return msgspec.structs.replace(base, **changes) if changes else base


def _timing(level: Mapping[str, Any], instant: str, span: str, no_span: float | None) -> dict[str, Any]:
    """Resolve two names for one option. A level that gives one of them decides, and the instant wins."""
    if instant not in level and span not in level:
        return {}
    given = no_span if level.get(span) is None else level[span]
    return {instant: level.get(instant), span: given if level.get(instant) is None else no_span}


_FIELDS: Final = frozenset(Resolved.__struct_fields__)


def check_options(
    options: Mapping[str, Any], where: str, allowed: Mapping[str, Check] | None = None
) -> dict[str, Any]:
    """Return `options` in plain form. An error names the option and `where` it was given.

    `allowed` is one of `NEXT_OPTIONS`, `QUEUE_OPTIONS` (the default) and `ENQUEUE_OPTIONS`.
    """
    if not options:
        return {}
    checks = QUEUE_OPTIONS if allowed is None else allowed
    checked = {name: _checked(name, value, where, checks) for name, value in options.items()}
    if checked.get("when") is not None:
        check_when(checked["when"], len(checked.get("after") or ()))
    if checked.get("unique") and checked.get("key") is not None:
        problem = (
            "is given together with unique=True, which derives the key from the arguments: leave one out"
        )
        raise InputError.of("key", checked["key"], problem)
    return checked


def check_type_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a work type in plain form, without those that are None."""
    checked = {name: _checked(name, value, "@work", TYPE_OPTIONS) for name, value in options.items()}
    return {name: value for name, value in checked.items() if value is not None}


def check_when(when: When, count: int) -> When:
    """Return `when`, or raise InputError if `count` items cannot meet it."""
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
        return TypeError(f".next has no option {name!r}: it always waits for the works before it")
    if name == "id":
        return TypeError(
            f"{where} has no option 'id', which names one item: give it to enqueue(work, id=...)"
        )
    same = _ELSEWHERE.get(name, "")
    if same in known:
        return TypeError(f"{where} has no option {name!r}: did you mean {same!r}?")
    hint = did_you_mean(name, known, f"it takes {', '.join(sorted(known))}")
    return TypeError(f"{where} has no option {name!r}: {hint}")


_ELSEWHERE: Final[Mapping[str, str]] = {
    "countdown": "delay",
    "defer_by": "delay",
    "schedule_in": "delay",
    "eta": "run_at",
    "defer_until": "run_at",
    "schedule_at": "run_at",
    "expires": "expires_in",
    "time_limit": "timeout",
    "job_timeout": "timeout",
    "task_id": "id",
    "job_id": "id",
    "max_retries": "retry",
    "depends_on": "after",
    "queueing_lock": "key",
}
"""Options as other libraries spell them, with those that do the same here."""


_COMMON: Final[Mapping[str, Check]] = {
    "priority": check_priority,
    "lane": check_lane,
    "queue": check_name,
    "timeout": check_positive,
    "expires_in": check_positive,
    "skip_queue": check_flag,
    "key_scope": check_key_scope,
    "key_policy": check_key_policy,
    "debounce_max": check_positive,
    "unique": check_flag,
    "on_dead": check_compensation,
    "on_dead_unstarted": check_flag,
}

NEXT_OPTIONS: Final[Mapping[str, Check]] = {
    **_COMMON,
    "delay": seconds,
    "run_at": instant,
    "retry": check_stored_retry,
    "deadline": instant,
    "key": check_name,
    "workflow": check_name,
    "workflow_type": check_name,
    "headers": check_headers,
}

QUEUE_OPTIONS: Final[Mapping[str, Check]] = {
    **NEXT_OPTIONS,
    "after": check_after,
    "when": lambda when, _: check_when(when, 0),
}

ENQUEUE_MANY_OPTIONS: Final[Mapping[str, Check]] = {**QUEUE_OPTIONS, "tx": check_tx, "place": check_name}
ENQUEUE_OPTIONS: Final[Mapping[str, Check]] = {
    **ENQUEUE_MANY_OPTIONS,
    "id": lambda value, name: check_id(value, field=name),
}

TYPE_OPTIONS: Final[Mapping[str, Check]] = {
    **_COMMON,
    "name": check_name,
    "aliases": check_aliases,
    "upcast": check_plain,
    "retry": check_retry,
    "options": check_plain,
    "on_dead": check_own_compensation,
    "doer": check_doer,
    "codec": check_codec,
    "on_event": check_plain,
    "on_failure": check_plain,
    "log_context": check_plain,
    "logs": check_flag,
    "strict_return": check_flag,
    "run_in": check_run_in,
    "keep": seconds,
    "timeout_grace": seconds,
}


class UpdateOptions(TypedDict, total=False):
    """What `update` changes about items that have not started."""

    run_at: Instant
    """Start at the earliest at this instant. One in the past: now."""
    priority: int
    lane: str
    queue: str
    deadline: Instant | None
    """None: no deadline."""


_CHECKS: Final[Mapping[str, Check]] = {
    name: QUEUE_OPTIONS[name] for name in ("run_at", "priority", "lane", "queue", "deadline")
}


def check_update(changes: Mapping[str, Any]) -> ItemUpdate:
    """Return what `update` was given in plain form. None removes a deadline. InputError if nothing is
    given."""
    checked = check_options(changes, "update", _CHECKS)
    given: dict[str, Any] = {
        name: value for name, value in checked.items() if value is not None or name == "deadline"
    }
    if not given:
        raise InputError(
            f"update has nothing to change: give one of {', '.join(_CHECKS)}", parameters=tuple(_CHECKS)
        )
    return ItemUpdate(**given)
