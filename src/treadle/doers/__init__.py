"""Doers: when claimed work starts, and how much of it runs at once. One policy per file.

    claim -> Doer.submit -> [waits its turn] -> runs

Set one for the app, or for a type: `@work(doer=balanced(4))`. *Order* is decided where the items are,
in the store; a doer orders only what it holds itself.

| doer | what starts | shared by the fleet |
| --- | --- | --- |
| `unlimited()` | everything, at once | |
| `balanced(max)` | at most `max` at once; lanes that run the fewest first | |
| `priority(max)` | at most `max` at once; higher priority first | |
| `oldest(max)` | at most `max` at once; oldest first | |
| `rate_limited(limit, window)` | `limit` starts per `window` seconds | yes |
| `concurrency(limit)` | at most `limit` at once | yes |
"""

from __future__ import annotations

from .balanced import balanced
from .base import BaseDoer, Doer, Permits, Task, managed
from .concurrency import concurrency
from .oldest import oldest
from .priority import priority
from .rate_limited import rate_limited
from .unlimited import unlimited

__all__ = [
    "BaseDoer",
    "Doer",
    "Permits",
    "Task",
    "balanced",
    "concurrency",
    "managed",
    "oldest",
    "priority",
    "rate_limited",
    "unlimited",
]
