"""CeleryTask: a work type with the methods of a Celery task; signatures and groups of such tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, ParamSpec, Self, TypeVar, cast

from typing_extensions import TypedDict, Unpack

from treadle.base.headers import check_headers
from treadle.base.ids import check_id, check_name
from treadle.base.timing import Duration, instant, seconds
from treadle.base.wording import did_you_mean
from treadle.client import Client
from treadle.define.option_checks import check_flag, check_positive, check_priority
from treadle.define.work import Work
from treadle.define.work_type import WorkType, handler_of
from treadle.errors import InputError
from treadle.options import EnqueueOptions

from .result import CeleryGroupResult, CeleryResult, run_blocking

P = ParamSpec("P")
S = TypeVar("S")
V = TypeVar("V")


class CeleryTask(Generic[P, S, V]):
    """A work type with the methods of a Celery task: callers stay as they are.

    Methods block until the item is durable. In async code use those that begin with `a`.

    client: the app, or a client of a tenant.
    type: the work type that callers mean.
    redis_priorities: a lower `priority` goes first, as with Celery on Redis. Otherwise a higher one does, as
        on RabbitMQ.
    """

    def __init__(self, client: Client, type: WorkType[P, S, V], *, redis_priorities: bool = False) -> None:
        if not isinstance(client, Client):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError.of("client", client, "must be a Treadle app, or a client")
        if not isinstance(type, WorkType):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError.of("type", type, "must be a work type: decorate the function with @work")
        self.client = client
        self.type = type
        self._redis_priorities = redis_priorities

    @property
    def name(self) -> str:
        """The name of the work type."""
        return self.type.name

    # -- submitting ----------------------------------------------------------------------------------------

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> CeleryResult[V]:
        """Submit a call. Returns when it is durable."""
        return run_blocking(
            self.client,
            self.adelay(*args, **kwargs),
            f"{self._called}.delay",
            f"await {self._called}.adelay(...)",
        )

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[ApplyOptions],
    ) -> CeleryResult[V]:
        """Submit a call with options. InputError for an option that treadle does not have: it says what to do
        instead."""
        return run_blocking(
            self.client,
            self.aapply_async(args, kwargs, **options),
            f"{self._called}.apply_async",
            f"await {self._called}.aapply_async(...)",
        )

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> CeleryResult[V]:
        """As `delay`."""
        return await self.aapply_async(args, kwargs)

    async def aapply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[ApplyOptions],
    ) -> CeleryResult[V]:
        """As `apply_async`."""
        return await self.s(*(args or ()), **(kwargs or {})).aapply_async(**options)

    # -- signatures, results, the function -----------------------------------------------------------------

    def s(self, *args: Any, **kwargs: Any) -> CelerySignature[V]:
        """A signature: a call that is submitted later, perhaps with more arguments."""
        return CelerySignature(self.client, self.type, args, kwargs, redis_priorities=self._redis_priorities)

    def si(self, *args: P.args, **kwargs: P.kwargs) -> CelerySignature[V]:
        """A signature that takes no more arguments."""
        return CelerySignature(
            self.client, self.type, args, kwargs, immutable=True, redis_priorities=self._redis_priorities
        )

    def AsyncResult(self, task_id: str) -> CeleryResult[V]:  # noqa: N802  Celery's name
        """The result of an item that was submitted before, by its id."""
        return CeleryResult(self.client, self.client.handle(task_id))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> S:
        """Call the function itself, here and now. TypeError if it is async, or takes a Context."""
        handler = handler_of(self.type)
        if handler.is_async or handler.wants_context or handler.wants_contexts or self.type.batch:
            raise TypeError(
                f"{self.name} cannot be called like a plain function: submit it with "
                f"{self._called}.delay(...), or call {self._called}.type.fn(...) as it is declared"
            )
        value: S = handler.fn(*args, **kwargs)
        return value

    @property
    def _called(self) -> str:
        return self.type.__name__

    def __repr__(self) -> str:
        return f"<CeleryTask {self.name}>"

    if not TYPE_CHECKING:  # with it, type checkers would allow every attribute

        def __getattr__(self, name: str) -> NoReturn:
            hint = f": {_ADVICE[name]}" if name in _ADVICE else ""
            raise AttributeError(f"a CeleryTask has no attribute {name!r}{hint}")


_ADVICE: Final[Mapping[str, str]] = {
    "apply": "use delay(...).get(), or treadle.testing.run_inline in tests",
    "chunks": "enqueue_many(...) submits many works in one step, and @work.batch(...) runs many in one call",
    "map": "enqueue_many(...) submits many works in one step, and @work.batch(...) runs many in one call",
    "starmap": "enqueue_many(...) submits many works in one step, and @work.batch(...) runs many in one call",
    "request": "take `ctx: Context` as the first parameter of the handler",
    "retry": "raise the error, and @work(retry=Retry(...)) says how often; or raise RetryAfter(60)",
    "replace": "return ctx.queue(other(...)) from the handler",
    "update_state": "a handler has no states of its own: store progress elsewhere",
    "signature": "use s(...) or si(...), and set(...) for options",
    "subtask": "use s(...)",
    "backend": "results are in the store: result.handle, or app.get(id)",
    "run": "use type.fn",
}
"""Attributes of a Celery task that have another form here."""


# -- signatures and groups ---------------------------------------------------------------------------
#
# A chain or a chord hands the results of some tasks to another as arguments. Here the arguments of a Work are
# fixed when it is made, and a handler says what comes next. So there are none.

_CHAIN: Final = (
    "there are no chains: a Work cannot take the result of another as an argument. Return "
    "ctx.queue(first(...)).next(second()) from a handler, where the second reads "
    "ctx.results(ctx.dependencies); or submit the second with enqueue(second(), after=[first])"
)
_CHORD: Final = (
    "there are no chords: return ctx.queue([...]).next(total()) from a handler, where the handler of total "
    "reads ctx.results(ctx.dependencies)"
)


class CelerySignature(Generic[V]):
    """A call of a task that is not submitted yet: `send.s("ada")`.

    Positional arguments that are given later come first, as in Celery. With `immutable` (`send.si`) later
    arguments are ignored.
    """

    def __init__(
        self,
        client: Client,
        type: WorkType[..., Any, V],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
        redis_priorities: bool = False,
    ) -> None:
        self.client = client
        self.type = type
        self.args = tuple(args)
        self.kwargs = dict(kwargs or {})
        self.options = dict(options or {})
        self.immutable = immutable
        self.redis_priorities = redis_priorities

    def delay(self, *args: Any, **kwargs: Any) -> CeleryResult[V]:
        """Submit it. Returns when it is durable."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[ApplyOptions],
    ) -> CeleryResult[V]:
        """Submit it with more arguments and options."""
        submit = self.aapply_async(args, kwargs, **options)
        return run_blocking(self.client, submit, "apply_async", "await ....aapply_async(...)")

    async def adelay(self, *args: Any, **kwargs: Any) -> CeleryResult[V]:
        """As `delay`."""
        return await self.aapply_async(args, kwargs)

    async def aapply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[ApplyOptions],
    ) -> CeleryResult[V]:
        """As `apply_async`."""
        return await submit_one(
            self.client, self.work(*(args or ()), **(kwargs or {})), self.enqueue_options(**options)
        )

    def work(self, *args: Any, **kwargs: Any) -> Work[Any, V]:
        """The call as a Work of treadle, for `ctx.queue(...)` and `after=`. Its options are not in it."""
        if self.immutable:
            return self.type(*self.args, **self.kwargs)
        return self.type(*args, *self.args, **{**self.kwargs, **kwargs})

    def set(self, **options: Unpack[ApplyOptions]) -> Self:
        """Add options. They are checked here."""
        self.enqueue_options(**options)
        self.options.update(options)
        return self

    def clone(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[ApplyOptions],
    ) -> CelerySignature[V]:
        """A copy with more arguments and options."""
        more = () if self.immutable else tuple(args or ())
        return CelerySignature(
            self.client,
            self.type,
            (*more, *self.args),
            self.kwargs if self.immutable else {**self.kwargs, **(kwargs or {})},
            {**self.options, **options},
            immutable=self.immutable,
            redis_priorities=self.redis_priorities,
        )

    def enqueue_options(self, **options: Unpack[ApplyOptions]) -> EnqueueOptions:
        """Its options and these, as those of `enqueue`."""
        return enqueue_options({**self.options, **options}, redis_priorities=self.redis_priorities)

    def __or__(self, other: object) -> NoReturn:
        raise InputError(_CHAIN)

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"<signature {self.type.name}({', '.join(given)})>"


async def submit_one(client: Client, work: Work[Any, V], options: EnqueueOptions) -> CeleryResult[V]:
    return CeleryResult(client, await client.enqueue(work, **options))


class CeleryGroup(Generic[V]):
    """Signatures that are submitted together. Made by `group`."""

    def __init__(self, signatures: Sequence[CelerySignature[V]]) -> None:
        self.signatures = signatures

    def delay(self) -> CeleryGroupResult[V]:
        """Submit them all."""
        return self.apply_async()

    __call__ = delay

    def apply_async(self, **options: Unpack[ApplyOptions]) -> CeleryGroupResult[V]:
        """Submit them all, each with these options. In one step of the store, if they are of one app and have
        no options of their own."""
        if not self.signatures:
            return CeleryGroupResult([])
        client = self.signatures[0].client
        return run_blocking(
            client, self.aapply_async(**options), "group.apply_async", "await ....aapply_async(...)"
        )

    async def aapply_async(self, **options: Unpack[ApplyOptions]) -> CeleryGroupResult[V]:
        """As `apply_async`."""
        if options.get("task_id") is not None:
            raise InputError(
                "apply_async: task_id names one item, and a group has several", parameters=("task_id",)
            )
        if not _share_options(self.signatures):
            return CeleryGroupResult([await each.clone(**options).adelay() for each in self.signatures])
        client = self.signatures[0].client
        works = [each.work() for each in self.signatures]
        handles = await client.enqueue_many(works, **self.signatures[0].enqueue_options(**options))
        return CeleryGroupResult([CeleryResult(client, handle) for handle in handles])

    async def adelay(self) -> CeleryGroupResult[V]:
        """As `delay`."""
        return await self.aapply_async()

    def __or__(self, other: object) -> NoReturn:
        raise InputError(_CHORD)

    def __len__(self) -> int:
        return len(self.signatures)

    def __repr__(self) -> str:
        return f"<group of {len(self.signatures)} signatures>"


def _share_options(signatures: Sequence[CelerySignature[Any]]) -> bool:
    kinds = {(id(each.client), each.redis_priorities) for each in signatures}
    return len(kinds) == 1 and not any(each.options for each in signatures)


def group(*signatures: CelerySignature[V] | Iterable[CelerySignature[V]]) -> CeleryGroup[V]:
    """Return signatures as a group: `group(add.s(1, 2), add.s(3, 4))`, or of one list."""
    found: list[CelerySignature[V]] = []
    for each in signatures:
        found += (each,) if isinstance(each, CelerySignature) else each
    for one in found:
        if not isinstance(one, CelerySignature):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError.of("group", one, "must be a signature, as in group(send.s('ada'))")
    return CeleryGroup(found)


def chain(*signatures: object, **options: object) -> NoReturn:
    """Raise InputError, which says what to write instead."""
    raise InputError(_CHAIN)


def chord(header: object = (), body: object = None, **options: object) -> NoReturn:
    """Raise InputError, which says what to write instead."""
    raise InputError(_CHORD)


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
    if name in _OPTION_ADVICE:
        raise InputError(f"apply_async: {name} {_OPTION_ADVICE[name]}", parameters=(name,))
    if name not in _KNOWN:
        known = ", ".join(sorted(_KNOWN))
        hint = did_you_mean(name, (*_KNOWN, *_OPTION_ADVICE), f"it takes {known}")
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
_OPTION_ADVICE: Final[Mapping[str, str]] = {
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
