"""The logger of a Context: `ctx.log`."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Final

LOGGER: Final = logging.getLogger("treadle")

OF_RECORDS: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""The attributes that every record has."""


class ContextLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the fields of one attempt to every record. The `extra=` of a call wins over them."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs
