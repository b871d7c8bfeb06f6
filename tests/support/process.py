"""Whether a process that is not our child has ended.

`psutil` counts a zombie as running, and in a container the first process may be slow to reap, or never do.
"""

import time

import psutil


def ended(process: psutil.Process) -> bool:
    """Whether it runs no more, reaped or not."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_ended(process: psutil.Process, timeout: float = 30) -> None:
    """Return when it has ended. There is no event to wait for that all systems have."""
    deadline = time.monotonic() + timeout
    while not ended(process):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{process} still runs after {timeout} s")
        time.sleep(0.005)
