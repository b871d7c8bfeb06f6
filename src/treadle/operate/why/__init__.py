"""Why: turn the facts that a store has about an item, a queue or a schedule into reasons for a person.

read.py    asks the store, walks from a blocked item to what it waits for    (the only part with I/O)
facts.py   what was found out: a closed union
meaning.py facts -> reasons: running items; blocked, suspended, ready, ended; queues (and schedules)
fleet.py   which workers could run an item
wording.py words for times, workers, items and commands
"""

from .facts import ScheduleFacts
from .read import why_item, why_queue, why_schedule

__all__ = ["ScheduleFacts", "why_item", "why_queue", "why_schedule"]
