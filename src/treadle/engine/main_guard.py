"""A program without `if __name__ == "__main__":`, whose handlers run in processes.

A child process imports the main module to find its handlers. Without the guard that import would run the
whole program once more, in the child. The app refuses to connect there.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Final

from treadle.errors import DefinitionError

UNGUARDED: Final = 78
"""The exit code of such a process, by which the parent knows what happened."""


def check_main_guard() -> None:
    """Raise DefinitionError in a process that is only being started to run handlers."""
    # Not imported here: few programs need it.
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None:
        return
    # The standard library sets this while a new process imports the main module.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        atexit.register(_exit)
        raise DefinitionError(
            'put the code that starts this program under `if __name__ == "__main__":`. A process for a '
            'handler with run_in="process" imports the main module, and must not run the program once more'
        )


def _exit() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(UNGUARDED)
