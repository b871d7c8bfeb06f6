"""Exit codes of the commands, and of the processes that a supervisor starts."""

from __future__ import annotations

from typing import Final

REFUSED: Final = 1
"""The store refused it: no such item, it has ended, the role lacks a right, the schema is of another
version."""
USAGE: Final = 2
"""The command was called in a wrong way, or the app cannot be loaded."""
AWAY: Final = 3
"""The store does not answer."""
UNHEALTHY: Final = 4
"""`status`, `doctor` and `check`: they were carried out, and what they found is not healthy. `watch --once`:
the receiver has not taken a message."""
INTERRUPTED: Final = 130
"""Ctrl-C."""

# Of a worker process, for its supervisor. They differ from usual codes, with which an item may end it.

CHILD_BURST_FAILED: Final = 70
"""An error has ended a burst."""
CHILD_STORE_AWAY: Final = 71
"""The store did not answer for as long as a burst waited for it."""
CHILD_DRAINED: Final = 73
"""Someone has asked its worker to stop."""
CHILD_CANNOT_LOAD: Final = 72
"""The app could not be loaded, though its supervisor could: a file or a server is missing, or its files are
being replaced. A later try may succeed."""
