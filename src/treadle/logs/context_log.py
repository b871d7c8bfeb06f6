"""The logger of a Context: `ctx.log`."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Final

LOGGER: Final = logging.getLogger("treadle")

RECORD_FIELDS: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""The fields that `logging` has in records."""
TRACE_FIELDS: Final = frozenset(("trace_id", "span_id"))
"""The fields that a tracer adds to records."""
ITEM_FIELDS: Final = TRACE_FIELDS | {"id", "type", "attempt", "tenant", "workflow", "reason"}
"""The fields that treadle has in records about an attempt."""


def field_name(name: str) -> str:
    """The name of a field of `log_context` in a record. What records have anyway keeps its meaning; `logging`
    even raises for names that it uses itself (`name`, `args`)."""
    return f"input_{name}" if name in RECORD_FIELDS or name in ITEM_FIELDS else name


class ContextLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the fields of one attempt to every record. The `extra=` of a call wins over them."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs
