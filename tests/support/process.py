"""Whether a process that is not our child has ended.

`psutil` counts a zombie as running. In a container the first process may reap slowly or never.
"""

import time

import psutil


def ended(process: psutil.Process) -> bool:
    """Whether the process has ended, reaped or not."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_ended(process: psutil.Process, timeout: float = 30) -> None:
    """Return when the process has ended. It polls: not all systems have an event for this."""
    deadline = time.monotonic() + timeout
    while not ended(process):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{process} still runs after {timeout} s")
        time.sleep(0.005)
