"""Reap: wait for dead processes that were left to this one.

The first process of a container becomes the parent of every process whose own parent has died: those of
`run_in="process"` whose worker was killed, and programs that handlers started. Dead ones stay in the table of
processes until their parent waits for them.
"""

from __future__ import annotations

import os
from collections.abc import Collection


def reap_others(own: Collection[int]) -> None:
    """Wait for dead children that are not `own`, if this is the first process. Never blocks."""
    if os.getpid() != 1:
        return
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # there are no children
            return
        if found is None or found.si_pid in own:  # its exit code is read elsewhere, before the next look
            return
        os.waitpid(found.si_pid, os.WNOHANG)
