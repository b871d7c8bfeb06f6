"""Notices: what a page says about the action that led to it.

The URL names the action and a number, and the browser keeps the same for a short while in a cookie. The words
are here: a link cannot make the dashboard say something that did not happen, nor anything else.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote

from starlette.responses import Response

from treadle.base.wording import plural

from .addresses import PageAddresses, name_of, segment
from .visit import Visit

COOKIE: Final = "treadle_done"
SECONDS: Final = 60
"""Later, the page does not say it again."""

TEXTS: Final = {
    "requeue": "requeued {items}",
    "cancel": "cancelled {items}",
    "trigger": "triggered {items}",
    "hold": "held {items}",
    "unhold": "let go {items}",
    "complete": "completed {items}",
    "signal": "sent the signal",
    "update": "changed {items}",
    "delete": "deleted {items}",
    "enqueue": "queued {items}",
    "edit": "queued {items} with the edited input",
    "pause": "it is paused",
    "resume": "it runs again",
    "set_limit": "the limit is set",
    "clear_limit": "what the code says holds again",
    "pause_schedule": "the schedule is paused",
    "resume_schedule": "the schedule runs again",
    "trigger_schedule": "the schedule was triggered: {items}",
    "cancel_schedule": "the schedule is cancelled",
    "drain_worker": "the worker was asked to stop",
    "bulk": "the bulk action has started: it goes on when this page is closed",
    "stop_bulk": "the bulk action is stopped",
}
_DONE = re.compile(r"([a-z_]{1,30})\.(\d{1,9})")


class PageNotice(NamedTuple):
    text: str
    item: tuple[str, str] | None = None
    """The id and the tenant of the item that was queued."""


def notice(visit: Visit) -> PageNotice | None:
    """What to say about the last action: `?done=requeue.3`. None if there was none, or if this browser did
    not do it just now."""
    kept, *item = visit.request.cookies.get(COOKIE, "").split("/")
    found = _DONE.fullmatch(visit.query("done"))
    if found is None or found[1] not in TEXTS or kept != found[0]:
        return None
    text = TEXTS[found[1]].format(items=plural(int(found[2]), "item"))
    return PageNotice(
        text, (name_of(unquote(item[0])), name_of(unquote(item[1]))) if len(item) == 2 else None
    )


def done(action: str, count: int) -> str:
    """The parameter that makes a page say so."""
    return f"{action}.{count}"


def keep_done(visit: Visit, response: Response, said: str, item: tuple[str, str] | None = None) -> None:
    """Let the browser keep what was done. item: one that was queued, to link to."""
    kept = [said, *(segment(part) for part in item or ())]
    keep(visit, response, COOKIE, "/".join(kept), seconds=SECONDS)


def keep(page: PageAddresses, response: Response, name: str, value: str, *, seconds: int) -> None:
    """Let the browser keep a text. Other sites can neither read nor send it."""
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=page.root or "/",
        secure=page.request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
