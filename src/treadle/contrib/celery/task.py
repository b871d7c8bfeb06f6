"""CeleryTask: a work type with the methods of a Celery task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, ParamSpec, TypeVar

from typing_extensions import Unpack

from treadle.client import Client
from treadle.define.work_type import WorkType, handler_of
from treadle.errors import InputError

from .canvas import ApplyOptions, CelerySignature
from .result import CeleryResult, run_blocking

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
