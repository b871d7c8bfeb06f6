"""Doers: when claimed work starts, and how much of it runs at once. One policy per file.

    claim -> Doer.submit -> [waits] -> runs

Set one for the app, or for a type: `@work(doer=balanced(4))`. It is a pattern: each worker makes a doer of
its own from it. The store decides the *order* of items. A doer orders only the tasks that were handed to it
and have not started.

| doer | what starts | shared by the fleet |
| --- | --- | --- |
| `unlimited()` | everything, at once | |
| `balanced(max)` | at most `max` at once; lanes that run the fewest first | |
| `priority(max)` | at most `max` at once; higher priority first | |
| `oldest(max)` | at most `max` at once; oldest first | |
| `rate_limited(limit, window)` | `limit` starts per `window` seconds | yes |
| `concurrency(limit)` | at most `limit` at once | yes |

`Doer` is the protocol for a doer of your own. The modules:

    base                     `Doer`, `Task`, and what doers share
    bounded                  at most N in this process, and how many items are leased ahead
    limited, limit_rules     limits of the fleet: the doers; limits as declared, and their names
    permitted, permit_queue  what doers with such limits share; which tasks to ask permits for
    on_full                  an item that finds its limit reached is dropped, or replaces one
"""

from __future__ import annotations

from .base import Doer, Task
from .bounded import balanced, oldest, priority, unlimited
from .limited import concurrency, rate_limited

__all__ = ["Doer", "Task", "balanced", "concurrency", "oldest", "priority", "rate_limited", "unlimited"]
