"""Workers under `treadle worker`, as users run them: a supervisor and its children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.ledger import Ledger
from tests.chaos.run import PROJECT


class SupervisedWorkers:
    """
    seconds: how long an innocent item takes.
    after: how long a poison item runs before it kills its process.
    retry: fields of the retry policy. Empty: the defaults.
    concurrency: how many a process runs at once. None: the default.
    """

    def __init__(
        self,
        url: str,
        directory: Path,
        *,
        seconds: float,
        after: float = 0.0,
        retry: dict[str, Any] | None = None,
        concurrency: int | None = None,
        processes: int = 2,
    ) -> None:
        self.ledger = Ledger(directory / "ledger")
        self._errors = directory / "errors"
        self._environment = {
            "CHAOS_URL": url,
            "CHAOS_LEDGER": str(self.ledger.path),
            "CHAOS_RETRY": json.dumps(retry or {}),
            "CHAOS_SECONDS": str(seconds),
            "CHAOS_AFTER": str(after),
        }
        self._options = ["--processes", str(processes)]
        self._options += [] if concurrency is None else ["--concurrency", str(concurrency)]
        self._supervisor: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "treadle",
            "worker",
            "tests.chaos.supervised_app:app",
            *self._options,
        ]
        with self._errors.open("ab") as errors:
            self._supervisor = subprocess.Popen(
                command,
                cwd=PROJECT,
                env={**os.environ, **self._environment},
                stderr=errors,
                start_new_session=True,
            )

    def kill_all(self) -> list[int]:
        """Kill the supervisor and its children at once. Return the children."""
        if self._supervisor is None:
            return []
        children = self.children()
        os.killpg(self._supervisor.pid, signal.SIGKILL)
        self._supervisor.wait()
        self._supervisor = None
        return children

    def children(self) -> list[int]:
        """The worker processes that are alive."""
        if self._supervisor is None:
            return []
        try:
            return [child.pid for child in psutil.Process(self._supervisor.pid).children()]
        except psutil.NoSuchProcess:
            return []

    def errors(self) -> str:
        """The end of what they wrote to standard error."""
        return self._errors.read_text()[-2000:]
