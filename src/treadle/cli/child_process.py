"""ChildProcess: one worker process, as its supervisor sees it."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from treadle.base.ids import generate_id
from treadle.cli.child import ChildOptions
from treadle.cli.reports import ReportReader
from treadle.logs.lines import ERROR, log_line
from treadle.logs.tracebacks import is_users

from .reports import LoopLiveness

STACKS_TIME = 0.3
"""Seconds that a process has to write its stacks."""
_FILE = re.compile(r'^  File "(.*)", line ', re.MULTILINE)


class ChildProcess:
    """One worker process, and the id of its worker."""

    def __init__(self, options: ChildOptions) -> None:
        self.worker = generate_id()
        self.started_at = time.monotonic()
        self.last_heartbeat = 0.0
        self.heartbeat: asyncio.Task[None] | None = None
        """The heartbeat that is being sent."""
        self.reported = False
        """Its blocked event loop was logged."""
        self.ending_since: float | None = None
        """When it was told to end, by the monotonic clock."""
        self.waited_for = False
        """That it has not ended with its drain was logged."""
        self._killed = False
        # Files without a name: no other user can open them, and if this process is killed nothing is left.
        with contextlib.ExitStack() as undo, tempfile.TemporaryFile() as file:
            file.truncate(mmap.PAGESIZE)
            path = Path(f"/dev/fd/{file.fileno()}")
            self.liveness = LoopLiveness(path)
            undo.callback(self.liveness.close)
            self._stacks = undo.enter_context(tempfile.TemporaryFile())
            self._stacks_asked: float | None = None
            self.reports = ReportReader()
            undo.callback(self.reports.close)
            passed = (file.fileno(), self.reports.writing, self._stacks.fileno())
            self.process = self._start(
                msgspec.structs.replace(
                    options, worker=self.worker, liveness=str(path), reports=passed[1], stacks=passed[2]
                ),
                passed,
            )
            undo.pop_all()  # `close` does it

    def _start(self, options: ChildOptions, passed: tuple[int, ...]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "treadle.cli.child", msgspec.json.encode(options).decode()]
        # Ctrl-C of the terminal reaches the child too, also before it can say that it ignores it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=passed)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self.reports.passed()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it: SIGSTOP, or a debugger. False where the system does not tell."""
        if sys.platform == "darwin":
            return False
        with contextlib.suppress(OSError):
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        return False

    def is_blocked(self, seconds: float) -> bool:
        """Whether its event loop has been blocked for longer than `seconds`."""
        blocked_for = self.liveness.blocked_for()
        return blocked_for is not None and blocked_for > seconds

    def terminate(self) -> None:
        """Tell it to drain and end."""
        if self.ending_since is None and self.alive:
            self.ending_since = time.monotonic()
            self.process.terminate()

    def kill(self, why: str) -> None:
        """Kill it, once. A later check finds that it has ended."""
        if not self._killed:
            self._killed = True
            log_line(ERROR, f"killed process {self.pid}: {why}")
            self.process.kill()

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.liveness.close()
        self.reports.close()
        self._stacks.close()

    def ask_stacks(self) -> None:
        """Let it write the stacks of its threads, also while its event loop is blocked."""
        self._stacks_asked = time.monotonic()
        self.process.send_signal(signal.SIGUSR1)

    def stacks(self) -> str | None:
        """The stacks that it was asked for, once it has had the time to write them."""
        if self._stacks_asked is None or time.monotonic() - self._stacks_asked < STACKS_TIME:
            return None
        self._stacks_asked = None
        file = self._stacks.fileno()  # the child writes where this process has set the position
        text = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        return users_stacks(text)


def users_stacks(text: str) -> str:
    """Of the stacks of all threads, as `faulthandler` writes them: those with code of the user, or all."""
    threads = text.strip().split("\n\n")
    users = [each for each in threads if any(map(is_users, _FILE.findall(each)))]
    return "\n\n".join(users or threads)


def ended_how(code: int) -> str:
    """What the code with which a process ended means."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
