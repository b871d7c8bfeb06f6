"""Wording of `why`: short words for instants, workers, items and commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from treadle.base.timing import to_datetime
from treadle.base.wording import HOUR, duration, plain
from treadle.bulk_action import OPERATORS
from treadle.item import DEFAULT_TENANT, GROUP_MARK, ItemState, Order, WorkerState
from treadle.item_facts import DeadMark, Prerequisite
from treadle.store.fleet import last_beat

_MADE_UP: Final = re.compile("[0-9a-f]{32}")
"""The id of a worker that was given none."""


def until_text(now: float, at: float) -> str:
    """When something comes: `in 40 s`, `in 5 h (at 03:00 UTC)`, `in 2 d (2026-11-18 03:00 UTC)`."""
    left = at - now
    if left <= 0:
        return "now"
    return f"in {duration(left)}{_clock_time(now, at) if left >= HOUR else ''}"


def since_text(now: float, at: float) -> str:
    """When something was: `40 s ago`, `5 h ago (at 03:00 UTC)`."""
    gone = now - at
    if gone < 0.05:
        return "just now"
    return f"{duration(gone)} ago{_clock_time(now, at) if gone >= HOUR else ''}"


def _clock_time(now: float, at: float) -> str:
    try:
        moment, today = to_datetime(at), to_datetime(now)
    except (ValueError, OverflowError, OSError):
        return ""
    if moment.date() == today.date():
        return f" (at {moment:%H:%M} UTC)"
    return f" ({moment:%Y-%m-%d %H:%M} UTC)"


def releases_text(mark: DeadMark) -> str:
    """Under which releases items of a mark died. Empty: under none."""
    if not mark.releases:
        return ""
    first, counted = mark.releases[0], sum(each.count for each in mark.releases)
    if len(mark.releases) > 1 or counted < mark.count:
        parts = [f"{each.count:,} under {plain(each.release)}" for each in mark.releases]
        parts += [f"{mark.count - counted:,} under none"] if counted < mark.count else []
        return f"of the deaths of this mark {', '.join(parts)}"
    deaths = f"all {mark.count:,} deaths of this mark"
    if mark.capped:
        deaths = f"all {mark.count:,} deaths of this mark that were counted"
    elif mark.count == 1:
        deaths = "the only death of this mark"
    began = first.began_at
    after = "" if began is None else f", {_whole(first.first_at - began)} after it started"
    return f"{deaths} began with {plain(first.release)}{after}"


def _whole(seconds: float) -> str:
    """In whole seconds: clocks of two machines differ by parts of one."""
    return duration(max(1, round(seconds)))


def paused_what(order: Order) -> str:
    """`queue mail`, `type mail.send`, `tenant acme`."""
    kind = "queue" if order.queue is not None else "type" if order.type is not None else "tenant"
    return f"{kind} {plain(order.about)}"


def pause_text(order: Order, done: str = "paused") -> str:
    """`queue mail is paused`, `type mail.send is paused for tenant acme`, `tenant acme is paused`."""
    is_part = order.queue is not None or order.type is not None
    whom = f" for tenant {plain(order.tenant)}" if is_part and order.tenant is not None else ""
    return f"{paused_what(order)} is {done}{whom}"


def ordered_text(order: Order, now: float) -> str:
    """Who has given an order, when and why, as the end of a sentence. Empty: it is not known."""
    text = f", by {plain(order.actor)} {since_text(now, order.at)}" if order.actor else ""
    text += f": {plain(order.reason)}" if order.reason else ""
    return text + ("" if order.until is None else f"; it ends {until_text(now, order.until)}")


def resume_command(order: Order) -> str:
    """The command that ends a pause."""
    if order.type is not None:
        return command(f"resume --type {shlex.quote(order.type)}", tenant=order.tenant)
    return command("resume", *(() if order.queue is None else (order.queue,)), tenant=order.tenant)


def clear_command(order: Order) -> str:
    """The command that withdraws a limit."""
    if order.type is not None:
        return command(f"limits clear --type {shlex.quote(order.type)}")
    return command("limits clear", order.name or "")


def limit_text(limit: int | None, window: float | None) -> str:
    """`50 per 1 min`, `4 at once`."""
    return f"{limit:,} at once" if window is None else f"{limit:,} per {duration(window)}"


def item_name(id: str, type: str = "", *words: str) -> str:
    """`a1 (mail.send, running)`. A whole group: `group a1`."""
    name = f"group {plain(id[1:])}" if id.startswith(GROUP_MARK) else plain(id)
    inside = ", ".join(each for each in (plain(type), *words) if each)
    return f"{name} ({inside})" if inside else name


def attempt_name(attempt: int, attempts: int | None) -> str:
    """`attempt 2 of 3`. attempts: how many may fail. Lost ones do not count there: there may be more."""
    return f"attempt {attempt:,}" + (f" of {attempts:,}" if attempts and attempt <= attempts else "")


def give_up_killer(item: ItemState) -> str:
    """What to do about an item whose workers died."""
    hold, cancel = (command(verb, item.id, tenant=tenant_option(item.tenant)) for verb in ("hold", "cancel"))
    keep = f"To keep it from running: {hold}. "
    if item.status == "running":
        keep = f"It cannot be held while it runs; when that worker is gone: {hold}. "
    return f"it may end the next worker too: see the logs of those that died. {keep}To give it up: {cancel}"


def killed_text(losses: int) -> str:
    """`3 workers in a row died, or lost the lease, while they ran it`."""
    many = "a worker" if losses == 1 else f"{losses:,} workers in a row"
    return f"{many} died, or lost the lease, while {'it' if losses == 1 else 'they'} ran it"


def process_name(worker: WorkerState) -> str:
    """`process 7 on host h`."""
    info = worker.info
    if info is None or not info.pid:
        return f"the process of {plain(worker.id)}"
    return f"process {info.pid}{f' on host {plain(info.host)}' if info.host else ''}"


def kill_command(signal: str, worker: WorkerState) -> str:
    """`kill -CONT 7`."""
    info = worker.info
    return f"kill -{signal} {info.pid if info is not None and info.pid else 'PID'}"


def worker_name(worker: WorkerState | str | None, workers: Sequence[WorkerState] = ()) -> str:
    """`w1 (host h, pid 7)`, or `h:7` if its id was made up. By its id: found among `workers`."""
    if worker is None:
        return "a worker"
    if isinstance(worker, str):
        found = next((each for each in workers if each.id == worker), None)
        return plain(worker) if found is None else worker_name(found)
    info = worker.info
    if info is None or not (info.host or info.pid):
        return plain(worker.id)
    if info.host and info.pid and _MADE_UP.fullmatch(worker.id):
        return f"{plain(info.host)}:{info.pid}"
    return f"{plain(worker.id)} (host {plain(info.host)}, pid {info.pid})"


def last_seen(worker: WorkerState) -> float:
    """When its last heartbeat came, by the store's clock. If that is not known: when its lease lapsed."""
    beat = last_beat(worker)
    return worker.until if beat is None else beat


def command(verb: str, *args: str, tenant: str | None = None, from_step: str | None = None) -> str:
    """A command line, as for a shell."""
    words = ["treadle", *verb.split()]
    named = [] if from_step is None else ["--from-step", shlex.quote(from_step)]
    named += [] if tenant is None else ["--tenant", shlex.quote(tenant)]
    quoted = [shlex.quote(arg) for arg in args]
    if any(arg.startswith("-") for arg in args):
        return " ".join([*words, *named, "--", *quoted])
    return " ".join([*words, *quoted, *named])


def run_again(cause: Prerequisite, tenant: str | None) -> str:
    """The command that runs an item, or what died of a group, again."""
    if cause.id.startswith(GROUP_MARK):
        return command("repair", cause.id.removeprefix(GROUP_MARK), tenant=tenant)
    verb = "requeue --cancelled" if cause.status == "cancelled" else "requeue"
    return command(verb, cause.id, tenant=tenant)


def tenant_option(tenant: str) -> str | None:
    """The tenant for a command about an item. None: it need not be named, or cannot be."""
    return None if tenant in (DEFAULT_TENANT, OPERATORS) else tenant
