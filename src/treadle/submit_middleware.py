"""Submit middlewares: an onion around each submit of a client.

    async def with_user(items: Sequence[NewItem], call_next: SubmitNext) -> None:
        for item in items:
            item.headers["user"] = current_user.get()
        await call_next()

    app = Treadle(..., submit_middleware=[with_user])

They see what `enqueue`, `enqueue_many`, schedules and `app.sync` submit, also with `tx=`. They do not see
what a handler queues with `ctx.queue`, `ctx.group` and `.next`, nor compensation: that is part of a
settlement. It carries the headers of the item that queued it.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from .base.headers import check_headers
from .define.work import Work
from .handler.call_next import NextCall
from .options import QUEUE_OPTIONS, Check, check_options


class NewItem:
    """An item that is about to be submitted. A middleware may change `headers` and `options`, and nothing
    else: neither what it is nor how many there are."""

    __slots__ = ("_given", "_tenant", "_work", "headers", "options")

    def __init__(self, work: Work[Any, Any], tenant: str, given: Mapping[str, Any]) -> None:
        """given: the checked options of the call."""
        self._work = work
        self._tenant = tenant
        self._given = given
        self.headers: dict[str, str] = dict(given.get("headers") or {})
        """Those that the caller gave, to be changed or replaced. Not those that `options(input)` of the type
        computes: they are added later, where the names differ."""
        self.options: dict[str, Any] = {name: given[name] for name in given if name not in _OTHERS}
        """The options that the caller gave, to be changed: those of `ctx.queue`. Durations are in seconds."""

    @property
    def id(self) -> str:
        return self._work.id

    @property
    def type(self) -> str:
        """The name of its work type."""
        return self._work.type

    @property
    def input(self) -> Mapping[str, Any]:
        """The arguments, by name, read-only."""
        return MappingProxyType(self._work.input)

    @property
    def tenant(self) -> str:
        return self._tenant

    def __repr__(self) -> str:
        return f"<NewItem {self.type} {self.id}>"


_OTHERS = frozenset(("headers", "id", "place", "tx"))
_CHECKS: Mapping[str, Check] = {name: QUEUE_OPTIONS[name] for name in QUEUE_OPTIONS if name not in _OTHERS}


def options_of(item: NewItem) -> dict[str, Any]:
    """The options of an item after the middlewares, checked."""
    given: Mapping[str, Any] = item._given  # pyright: ignore[reportPrivateUsage]  # for this package only
    options = check_options(item.options, "a submit middleware", _CHECKS)
    headers = check_headers(item.headers, "headers")
    if headers or given.get("headers") is not None:
        options["headers"] = headers
    return options


class SubmitNext(Protocol):
    """Submits the items, through the other middlewares. Returns when they are stored; for a schedule, and
    with `tx=`, when they are part of a step that is not committed yet."""

    def __call__(self) -> Awaitable[None]: ...


SubmitMiddleware: TypeAlias = Callable[[Sequence[NewItem], SubmitNext], Awaitable[Any]]


async def submit_through(
    middlewares: Sequence[SubmitMiddleware], items: Sequence[NewItem], store: Callable[[], Awaitable[None]]
) -> None:
    """Call `store` through the middlewares, the first of which is the outermost."""
    if not middlewares:
        await store()
        return
    inner = functools.partial(submit_through, middlewares[1:], items, store)
    call = NextCall(middlewares[0], inner, "a submit middleware", "items", once=True)
    await call.through(items)
    if call.returned:
        return
    # Nothing is stored: the caller must know, also if a middleware has swallowed the error.
    if isinstance(call.failure, Exception):
        raise call.failure
    if call.failure is not None:
        raise call.mistake("has stopped call_next(), so the items may be stored or not")
    raise call.mistake("has not called call_next(). To refuse the items, raise an error")
