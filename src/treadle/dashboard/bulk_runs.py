"""Bulk runs: a dashboard runs the portions of bulk actions itself, as long as some wait. In a fleet without
workers they would wait for ever."""

from __future__ import annotations

import asyncio
from typing import Final

from treadle.bulk_runner import BulkRunner
from treadle.client import Client
from treadle.errors import LifecycleError
from treadle.log_lines import log_error

LONGEST_WAIT: Final = 5.0
FAILURES: Final = 10
"""After so many failures in a row it gives up. The next look at the page starts it again."""


class BulkRuns:
    """Runs beside requests, and ends when no portion waits, or with its event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it runs already."""
        task, loop = self._task, asyncio.get_running_loop()
        if task is None or task.done() or task.get_loop() is not loop:
            self._task = loop.create_task(self._run())

    async def _run(self) -> None:
        runner, failures = BulkRunner(self._client), 0
        while failures < FAILURES:
            try:
                due = await runner.run_once()
                failures = 0
            except LifecycleError:
                return  # the app has stopped
            except Exception as error:  # noqa: BLE001  no request waits for it
                log_error("the dashboard could not run a bulk action", error)
                failures, due = failures + 1, LONGEST_WAIT
            if due is None:
                return
            await asyncio.sleep(min(max(due, 0.05), LONGEST_WAIT))
