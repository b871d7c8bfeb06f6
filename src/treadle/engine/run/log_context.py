"""Log context: the fields that the `log_context` of a type adds to the records of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treadle.base.callables import check_not_awaitable
from treadle.base.wording import one_line
from treadle.engine.seldom import Seldom, repeated
from treadle.errors import class_name
from treadle.logs.context_log import field_name
from treadle.logs.lines import log_error


class LogContext:
    """The `log_context` of a type. If it raises, its fields are missing, and that is logged seldom: a log
    must not fail an attempt, and must not fill itself."""

    def __init__(
        self, fn: Callable[[Any], Mapping[str, Any]], type: str, monotonic: Callable[[], float]
    ) -> None:
        self._fn = fn
        self._type = type
        self._seldom = Seldom(monotonic=monotonic)

    def fields(self, input: Mapping[str, Any]) -> dict[str, Any]:
        """The fields for an attempt with this input."""
        try:
            fields = self._fn(input)
            check_not_awaitable(fields, "log_context")
            return {field_name(name): value for name, value in fields.items()}
        except BaseException as error:  # noqa: BLE001  the user's function
            left_out = self._seldom.occurrence(class_name(error))
            if left_out is not None:
                missing = f"its fields are missing in the log{repeated(left_out)}"
                log_error(f"log_context of {one_line(self._type, 100)} failed, {missing}", error)
            return {}
