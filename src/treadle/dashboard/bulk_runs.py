"""Bulk runs: a dashboard runs the portions of bulk actions itself, as long as some wait. In a fleet without
workers they would wait for ever."""

from __future__ import annotations

import asyncio

from treadle.bulk_runner import BulkRunner
from treadle.client import Client
from treadle.errors import LifecycleError
from treadle.logs.lines import log_error


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
        try:
            await BulkRunner(self._client).run(until_done=True)
        except LifecycleError:
            pass  # the app has stopped
        except Exception as error:  # noqa: BLE001  no request waits for it; the next look at the page starts it again
            log_error("the dashboard could not run a bulk action", error)
