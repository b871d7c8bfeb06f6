"""What the engine tells its users: events after the commit, and errors that no caller receives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

from treadle.base.callables import call, check_not_awaitable, raised_by_user
from treadle.errors import BackendError, StoreUnavailable, class_name
from treadle.events import Event
from treadle.logs.lines import WARNING, Seldom, error_text, log_line, repeated, traceback_of
from treadle.logs.tracebacks import frames_of
from treadle.store.outage import StoreOutage, is_outage

T = TypeVar("T")

Phase: TypeAlias = Literal["claim", "settle", "renew", "schedule", "signal", "hook"]
OnEvent: TypeAlias = Callable[[Event], object]
OnError: TypeAlias = Callable[[BaseException, Phase], object]


class Hooks:
    """The `on_event` and `on_error` of the app, and the `on_event` of types. A hook that raises changes
    nothing. That includes SystemExit, which would end the event loop with everything that runs on it."""

    __slots__ = ("_seldom", "by_type", "on_error", "on_event", "outage")

    def __init__(
        self,
        on_event: OnEvent | None = None,
        on_error: OnError | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_event = on_event
        self.on_error = on_error
        self.outage = StoreOutage(monotonic)
        self._seldom = Seldom(monotonic=monotonic)
        self.by_type: dict[str, OnEvent] = {}
        """The hooks of single types."""

    def listen(self, type: str, on_event: OnEvent | None) -> None:
        if on_event is not None:
            self.by_type[type] = on_event

    @property
    def any_listening(self) -> bool:
        """Whether a hook receives events of some type."""
        return self.on_event is not None or bool(self.by_type)

    def listening(self, type: str) -> bool:
        """Whether a hook receives events of this type. Events are built only then."""
        return self.on_event is not None or type in self.by_type

    def emit(self, event: Event) -> None:
        """Call the app's hook first, then the type's."""
        if self.on_event is not None:
            self._call(self.on_event, event)
        own = self.by_type.get(getattr(event, "type", ""))
        if own is not None:
            self._call(own, event)

    def _call(self, hook: OnEvent, event: Event) -> None:
        try:
            check_not_awaitable(hook(event), "on_event")
        except BaseException as error:  # noqa: BLE001  a hook changes nothing
            self.report(error, "hook", f"on_event failed for {type(event).__name__}")

    async def ask(
        self, hook: Callable[..., object], name: str, info: object, read: Callable[[Any], T], otherwise: T
    ) -> T:
        """Call a hook that may be async, and `read` its answer. If one of the two raises, report that and
        return `otherwise`."""
        try:
            return read(await call(hook, info))
        except BaseException as error:
            if not raised_by_user(error):
                raise
            self.report(error, "hook", f"{name} failed")
            return otherwise

    def report(self, error: BaseException, phase: Phase, message: str = "") -> None:
        """Log an error that no caller receives, and call `on_error` with it."""
        self.log(error, phase, message)
        if self.on_error is None:
            return
        try:
            check_not_awaitable(self.on_error(error, phase), "on_error")
        except BaseException as own:  # noqa: BLE001  logged
            self.log(own, "on_error", "on_error itself failed")

    def log(self, error: BaseException, source: str, message: str = "") -> None:
        """Log an error that no caller receives. Threads may call it.

        An outage of the store is logged as one, for all calls that fail. Any other error is logged when it
        first comes from a place, then at most once a minute. A traceback is shown for what may be a bug.
        """
        if is_outage(error):
            if not (isinstance(error, StoreUnavailable) and error.store):  # one of several tells it itself
                self.outage.failed(error, source)
            return
        left_out = self._seldom.occurrence((source, _words(message), class_name(error), _place(error)))
        if left_out is None:
            return
        expected = isinstance(error, BackendError) and type(error) is not BackendError
        log_line(
            WARNING,
            f"{message or source}: {error_text(error)}{repeated(left_out)}",
            error=error,
            trace="" if expected else traceback_of(error, whole=source not in ("hook", "on_error")),
        )


def ignored(answer: object) -> None:
    """Reads the answer of a hook that has none."""


def _words(message: str) -> str:
    """The message without ids and numbers."""
    return " ".join(word for word in message.split() if not any(map(str.isdigit, word)))


def _place(error: BaseException) -> tuple[str, int] | None:
    """Where the error was raised."""
    last = frames_of(error)
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return None if last is None else (last.tb_frame.f_code.co_filename, last.tb_lineno)
