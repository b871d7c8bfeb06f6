"""Schedule state: why a schedule has not fired, and when it will."""

from __future__ import annotations

from treadle.base.wording import close_to, plain
from treadle.why import Reason

from .facts import ScheduleFacts
from .wording import command, since_text, until_text


def schedule_reasons(facts: ScheduleFacts) -> list[Reason]:
    """The reasons of a schedule."""
    row, name, now = facts.stored, facts.name, facts.now
    if row is None:
        return [_no_schedule(facts)]
    last = "it has not fired yet" if row.last_at is None else f"it fired last {since_text(now, row.last_at)}"
    if row.next_at is None:
        return [
            Reason(kind="ended", text=f"it has ended, no occurrence comes any more; {last}", refs=(name,))
        ]
    reasons: list[Reason] = []
    if row.paused:
        fix = command("schedules resume", name, tenant=facts.tenant)
        reasons.append(Reason(kind="paused", text=f"it is paused; {last}", refs=(name,), fix=fix))
    if facts.orphaned:
        reasons.append(_orphaned(facts, row.seen_at))
    if facts.error:
        text = f"its last run failed, and submitted nothing: {facts.error}"
        fix = "correct its `run`: the logs of the workers that have its code have the traceback"
        reasons.append(Reason(kind="run_failed", text=text, refs=(name,), fix=fix))
    if row.next_at > now:
        text = f"it is due {until_text(now, row.next_at)}; {last}"
        fix = f"to run it now: {command('schedules trigger', name, tenant=facts.tenant)}"
        reasons.append(Reason(kind="not_due", text=text, until=row.next_at, refs=(name,), fix=fix))
    elif facts.state == "overdue":
        text = f"it was due {since_text(now, row.next_at)}, and no process has fired it; {last}"
        fix = "look at the logs of the workers that have its code: its `run` may fail or take long"
        reasons.append(Reason(kind="overdue", text=text, refs=(name,), fix=fix))
    elif not reasons:
        text = f"it was due {since_text(now, row.next_at)}: a process that has its code fires it soon; {last}"
        reasons.append(Reason(kind="overdue", text=text, refs=(name,), fix="look again"))
    return reasons


def _no_schedule(facts: ScheduleFacts) -> Reason:
    text = f"no schedule is called {plain(facts.name)}"
    close = close_to(facts.name, facts.names)
    text += "" if close is None else f", but there is {plain(close)}"
    fix = "a schedule is stored when an app that calls app.schedule(...) for it starts"
    return Reason(kind="unknown", text=text, refs=(facts.name,), fix=fix)


def _orphaned(facts: ScheduleFacts, seen_at: float) -> Reason:
    text = "no running process has its code" if facts.taking else "no worker is alive that could fire it"
    text += f"; one that has its code was last seen {since_text(facts.now, seen_at)}" if seen_at else ""
    fix = f"start an app that calls app.schedule({facts.name!r}, ...), or end it: "
    fix += command("schedules cancel", facts.name, tenant=facts.tenant)
    return Reason(kind="orphaned", text=text, refs=(facts.name,), fix=fix)
