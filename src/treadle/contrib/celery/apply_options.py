"""The options of `apply_async`: what they are called in treadle, or what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, cast

from typing_extensions import TypedDict

from treadle.base.headers import check_headers
from treadle.base.ids import check_id, check_name
from treadle.base.timing import Duration, instant, seconds
from treadle.base.wording import did_you_mean
from treadle.define.option_checks import check_flag, check_positive, check_priority
from treadle.errors import InputError
from treadle.options import EnqueueOptions


class ApplyOptions(TypedDict, total=False):
    """Options of `apply_async`. None is the same as not given."""

    countdown: Duration | None
    """Start at the earliest this long from now: `delay`."""
    eta: datetime | None
    """Start at the earliest at this instant: `run_at`. It needs a time zone."""
    expires: Duration | datetime | None
    """The item is dead if it has not succeeded by then: `expires_in` or `deadline`."""
    priority: int | None
    """A higher number goes first, as with RabbitMQ. As with Redis: `CeleryTask(redis_priorities=True)`."""
    queue: str | None
    task_id: str | None
    """The id of the item: `id`. `DuplicateIdError` if an item has it."""
    headers: Mapping[str, str] | None
    time_limit: Duration | None
    """The longest time of one attempt: `timeout`."""
    ignore_result: bool | None
    """No effect: a result is kept for as long as its item (`keep`)."""


def enqueue_options(given: Mapping[str, Any], *, redis_priorities: bool = False) -> EnqueueOptions:
    """Return options of `apply_async` as those of `enqueue`.

    InputError for a bad value, and for an option that treadle does not have. TypeError for an unknown one.
    """
    options = {name: value for name, value in given.items() if value is not None}
    for name in given:
        _check_known(name)
    if "eta" in options and "countdown" in options:
        raise InputError("apply_async takes eta or countdown, not both", parameters=("eta", "countdown"))
    found: dict[str, Any] = {}
    for name, value in options.items():
        option, check = _expires(value) if name == "expires" else _OPTIONS[name]
        found[option] = check(value, name)
    found.pop("ignore_result", None)
    if redis_priorities and "priority" in found:
        found["priority"] = -found["priority"]
    return cast("EnqueueOptions", found)


def _expires(value: Any) -> tuple[str, Callable[[Any, str], Any]]:
    return ("deadline", instant) if isinstance(value, datetime) else ("expires_in", check_positive)


def _check_known(name: str) -> None:
    if name in _ADVICE:
        raise InputError(f"apply_async: {name} {_ADVICE[name]}", parameters=(name,))
    if name not in _KNOWN:
        known = ", ".join(sorted(_KNOWN))
        hint = did_you_mean(name, (*_KNOWN, *_ADVICE), f"it takes {known}")
        raise TypeError(f"apply_async has no option {name!r}: {hint}")


def _eta(value: Any, name: str) -> float:
    if not isinstance(value, datetime):
        raise InputError.of(name, value, "must be a datetime with a time zone")
    return instant(value, name)


_OPTIONS: Final[Mapping[str, tuple[str, Callable[[Any, str], Any]]]] = {
    "countdown": ("delay", seconds),
    "eta": ("run_at", _eta),
    "priority": ("priority", check_priority),
    "queue": ("queue", check_name),
    "task_id": ("id", lambda value, name: check_id(value, field=name)),
    "headers": ("headers", check_headers),
    "time_limit": ("timeout", check_positive),
    "ignore_result": ("ignore_result", check_flag),
}
_KNOWN: Final = frozenset(ApplyOptions.__annotations__)

_BROKER: Final = "is about the messages of a broker, and there are none: leave it out"
_STAMPS: Final = "is for stamps, which treadle does not have: use headers={...}"
_ADVICE: Final[Mapping[str, str]] = {
    "link": "is not supported: let the handler return ctx.result(value).next(other(...)), or submit the "
    "other work with enqueue(other(...), after=[result.id])",
    "link_error": "is not supported: give the work type @work(on_dead=...), which gets a Failure",
    "soft_time_limit": "is not supported: use time_limit, and @work(timeout_grace=...) for the time between "
    "ctx.interrupt and the end",
    "retry": "is about sending messages, and treadle does that itself: leave it out. For attempts of the "
    "work, use @work(retry=Retry(...))",
    "retry_policy": "is about sending messages, and treadle does that itself: leave it out. For attempts of "
    "the work, use @work(retry=Retry(...))",
    "serializer": "is not supported: arguments are stored as their annotations say. For a format of your "
    "own, use @work(codec=...)",
    "compression": "is not supported: use @work(codec=...), with a codec that compresses",
    "shadow": "is not supported: an item has the name of its type. Leave it out, or use headers={...}",
    "add_to_parent": "is not supported: children are what a handler returns with ctx.queue(...)",
    "root_id": "is not supported: leave it out. ctx.group_id is the root of an item",
    "parent_id": "is not supported: leave it out. ctx.parent is the parent of an item",
    "group_id": "is not supported: leave it out. A handler that returns ctx.queue(...) makes a group",
    "stamped_headers": _STAMPS,
    **dict.fromkeys(
        (
            "connection",
            "correlation_id",
            "declare",
            "delivery_mode",
            "exchange",
            "exchange_type",
            "immediate",
            "mandatory",
            "producer",
            "publisher",
            "reply_to",
            "router",
        ),
        _BROKER,
    ),
    "routing_key": f"{_BROKER}. The name of a queue is queue='...'",
}
"""Options of Celery that have no equivalent, each with what to do."""
