"""Who asked: who wants a worker to stop, as far as the audit knows."""

from __future__ import annotations

import asyncio
from typing import Final

from treadle.backend import Backend
from treadle.base.wording import one_line

LOOKED_AT: Final = 100
"""So many of the newest audit entries."""
PATIENCE: Final = 2.0
"""Seconds. The worker stops after that, whether or not the store has answered."""


async def who_asked(backend: Backend, worker: str) -> str:
    """For a log line: ` by ann@example.org (reason)`. Empty: not known."""
    try:
        async with asyncio.timeout(PATIENCE):
            page = await backend.audits(limit=LOOKED_AT)
    except Exception:  # noqa: BLE001  the line is shorter then
        return ""
    asked = (entry for entry in page.entries if entry.verb == "drain_worker" and entry.ids == (worker,))
    found = next(asked, None)
    if found is None:
        return ""
    return one_line(f" by {found.actor} ({found.reason})" if found.reason else f" by {found.actor}")
