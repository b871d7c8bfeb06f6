"""Notices: what a page says about the action that led to it.

The URL names the action and a number. The words are here: a link cannot make the dashboard say anything else.
"""

from __future__ import annotations

import re
from typing import Final

from treadle.wording import plural

from .visit import Visit

TEXTS: Final = {
    "requeue": "requeued {items}",
    "cancel": "cancelled {items}",
    "trigger": "{items} run now",
    "complete": "completed {items}",
    "update": "changed {items}",
    "delete": "deleted {items}",
    "enqueue": "queued {items}",
    "edit": "queued {items} with the changed input",
    "pause": "the queue is paused",
    "resume": "the queue runs again",
    "pause_schedule": "the schedule is paused",
    "resume_schedule": "the schedule runs again",
    "trigger_schedule": "the schedule has run: {items}",
    "cancel_schedule": "the schedule is removed",
    "drain_worker": "the worker was asked to stop",
    "bulk": "the bulk action has started: it goes on when this page is closed",
    "stop_bulk": "the bulk action is stopped",
}
_DONE = re.compile(r"([a-z_]{1,30})\.(\d{1,9})(?:\.(\d{1,9}))?")


def notice(visit: Visit) -> str:
    """What to say about the last action: `?done=requeue.3`, or `requeue.3.1` if one was refused. Empty if
    there was none."""
    found = _DONE.fullmatch(visit.query("done"))
    if found is None or found[1] not in TEXTS:
        return ""
    text = TEXTS[found[1]].format(items=plural(int(found[2]), "item"))
    refused = int(found[3] or 0)
    return text + (f"; {plural(refused, 'item')} could not be changed" if refused else "")


def done(action: str, count: int, refused: int = 0) -> str:
    """The parameter that makes a page say so."""
    return f"{action}.{count}" + (f".{refused}" if refused else "")
