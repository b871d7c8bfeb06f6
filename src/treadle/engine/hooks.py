"""What the engine tells its users: events after the commit, and errors that no caller receives."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

from treadle.callables import call, check_not_awaitable, raised_by_user
from treadle.errors import class_name, message_of
from treadle.events import Event

T = TypeVar("T")

LOGGER = logging.getLogger("treadle")

Phase: TypeAlias = Literal["claim", "settle", "renew", "schedule", "signal", "hook"]
OnEvent: TypeAlias = Callable[[Event], object]
OnError: TypeAlias = Callable[[BaseException, Phase], object]


class Hooks:
    """The `on_event` and `on_error` of the app, and the `on_event` of types. A hook that raises changes
    nothing. That includes SystemExit, which would end the event loop with everything that runs on it."""

    __slots__ = ("_by_type", "on_error", "on_event")

    def __init__(self, on_event: OnEvent | None = None, on_error: OnError | None = None) -> None:
        self.on_event = on_event
        self.on_error = on_error
        self._by_type: dict[str, OnEvent] = {}

    def listen(self, type: str, on_event: OnEvent | None) -> None:
        if on_event is not None:
            self._by_type[type] = on_event

    @property
    def any_listening(self) -> bool:
        """Whether a hook receives events of some type."""
        return self.on_event is not None or bool(self._by_type)

    def listening(self, type: str) -> bool:
        """Whether a hook receives events of this type. Events are built only then."""
        return self.on_event is not None or type in self._by_type

    def emit(self, event: Event) -> None:
        """Call the app's hook first, then the type's."""
        if self.on_event is not None:
            self._call(self.on_event, event)
        own = self._by_type.get(getattr(event, "type", ""))
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
        _log(error, "%s: %s: %s", message or phase, class_name(error), message_of(error))
        if self.on_error is None:
            return
        try:
            check_not_awaitable(self.on_error(error, phase), "on_error")
        except BaseException as own:  # noqa: BLE001  logged
            _log(own, "on_error itself failed: %s", message_of(own))


def ignored(answer: object) -> None:
    """Reads the answer of a hook that has none."""


def _log(error: BaseException, message: str, *args: object) -> None:
    try:
        LOGGER.warning(message, *args, exc_info=error)
    except BaseException:  # noqa: BLE001  attributes of the user's exception
        LOGGER.warning(message, *args)
