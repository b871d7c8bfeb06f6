"""`treadle workers` and `treadle limits`: what the whole fleet shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer

from treadle.base.wording import did_you_mean, duration, listed, plain, plural
from treadle.define.dependency import BUILT_IN
from treadle.errors import InputError
from treadle.item import Filter, ItemState, WorkerState
from treadle.item_facts import LimitHolder, LimitUse
from treadle.operate.filters import read_limit, read_until
from treadle.operate.fleet_json import limit_json, worker_json
from treadle.operate.item_json import ref_json
from treadle.operate.why.wording import limit_text, ordered_text
from treadle.store.fleet import Fleet, WorkerStanding, claimed_ahead, last_beat
from treadle.worker_info import BlockingItem

from .exit_codes import REFUSED
from .filters import first_items
from .names import type_remark
from .pause import TypeOption, UntilOption
from .shell import Shell, operator_command, operator_group
from .shown import item_lines
from .text import Cell, ago, number, speaks_unicode

MOST_RUNNING: Final = 1000
"""Running items that `workers --items` looks at."""


def register(commands: typer.Typer) -> None:
    group = operator_group(commands, "workers")(workers)
    operator_command(group, "drain", changes=True)(drain_workers)
    group = operator_group(commands, "limits")(limits)
    operator_command(group, "set", changes=True)(set_limit)
    operator_command(group, "clear", changes=True)(clear_limit)


# ----------------------------------------------------------------------------------------------- workers


async def workers(
    shell: Shell,
    items: Annotated[bool, typer.Option("--items", help="also what each of them runs")] = False,
) -> int | None:
    """List the workers: whether they are alive, what they serve and how much they run."""
    fleet = await read_fleet(shell)
    running = await _running(shell) if items else {}
    if shell.json:
        for worker in fleet.workers:
            own = {"items": [ref_json(each) for each in running.get(worker.id, ())]} if items else {}
            shell.emit({**worker_json(worker, fleet.standing(worker)), **own})
        return None
    if not fleet.workers:
        shell.print("no workers")
        return None
    shell.table(
        WORKER_COLUMNS,
        [worker_row(fleet, worker) for worker in fleet.workers],
        numbers=("RUNNING", "PID"),
        keep=("ID", "STATE", "RUNNING", "PID", "UP", "SEEN"),
        drop=("QUEUES", "TYPES", "UP", "HOST", "RELEASE"),
    )
    for worker in fleet.workers:
        if running.get(worker.id):
            shell.print()
            shell.print(f"Worker {worker.id}", "bold")
            shell.lines(item_lines(running[worker.id], fleet.now))
    if said := list(_blockage_lines(fleet)):
        shell.print()
        shell.lines(said)
    return None


def _blockage_lines(fleet: Fleet) -> Iterator[str]:
    """What blocks workers now, and what did in the last minutes."""
    for worker in fleet.workers:
        info = worker.info
        if info is not None and info.blocked_by:
            yield f"Worker {plain(worker.id)} is blocked by {_blocking(info.blocked_by)}"
        past = [] if info is None else list(info.blockages)
        if past:
            items = dict.fromkeys(item for each in reversed(past) for item in each.items)
            by = f" by {_blocking(list(items))}" if items else ""
            span = duration(sum(each.until - each.since for each in past))
            often = f" {len(past)} times" if len(past) > 1 else ""
            when = f"{'last ' if often else ''}{ago(past[-1].until, fleet.now)}"
            yield f"Worker {plain(worker.id)} was blocked{often}{by} for {span}, {when}"


def _blocking(items: Sequence[BlockingItem]) -> str:
    return listed(f"{each.id} ({each.type})" for each in items)


async def drain_workers(
    shell: Shell,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="ids of workers: see `treadle workers`")],
) -> int | None:
    """Ask workers to stop, as a signal would: they start nothing more, and let their handlers finish.

    Each learns so with its next heartbeat. Under `treadle worker`, its process ends, and no other is started.
    """
    refused = False
    left_behind = (await read_fleet(shell)).left_behind(ids)
    for id in ids:
        if await shell.client.drain_worker(id):
            if shell.json:
                shell.emit({"worker": id, "drain": True})
            else:
                shell.print(f"worker {id} is asked to stop: it learns so with its next heartbeat")
            continue
        refused = True
        known = [worker.id for worker in (await read_fleet(shell)).workers]
        hint = did_you_mean(id, known, "it has stopped or died")
        message = f"no worker {id!r} has a lease here: {hint}"
        if shell.json:
            shell.emit({"worker": id, "refused": "NotFound", "message": message})
        else:
            shell.warn(message)
    if left_behind:
        shell.warn(f"{left_behind}: what it would run waits until another is started")
    return REFUSED if refused else None


async def read_fleet(shell: Shell) -> Fleet:
    """The workers that the shell may see."""
    return Fleet(await shell.client.workers(), await shell.now())


async def _running(shell: Shell) -> dict[str, list[ItemState]]:
    found: dict[str, list[ItemState]] = {}
    states, more = await first_items(shell, Filter(tenant=shell.tenant, status=("running",)), MOST_RUNNING)
    for state in states:
        found.setdefault(state.worker or "", []).append(state)
    if more:
        shell.warn(f"only {MOST_RUNNING:,} running items were looked at")
    return found


# ------------------------------------------------------------------------------------------------ limits


async def limits(
    shell: Shell,
    names: Annotated[
        list[str] | None, typer.Option("--name", metavar="NAME", help="only this limit; may be repeated")
    ] = None,
    count: Annotated[int, typer.Option("--limit", min=1, help="the most limits")] = 500,
) -> int | None:
    """List the limits that are in use or were set here: how far, who holds their permits, and what the code
    says where another limit is in force.

    A tenant sees its own limits and those that all tenants share.
    """
    uses = await shell.client.limits(names or None, count=count)
    missing = set(names or ()) - {use.name for use in uses}
    if missing:
        in_use = await shell.client.limits(count=count)
        # Code names a limit `stock`, and the store `stock:slots:all`.
        begun = [use for use in in_use if use.name.partition(":")[0] in missing]
        uses += begun
        missing -= {use.name.partition(":")[0] for use in begun}
        used = [use.name for use in in_use]
        for name in sorted(missing):
            others = f"in use: {listed(used)}" if used else "none is"
            shell.warn(f"no limit {name!r} is in use: {did_you_mean(name, used, others)}")
    code = REFUSED if missing else None
    if shell.json:
        for use in uses:
            shell.emit(limit_json(use))
        return code
    if not uses:
        if not missing:
            shell.print("no limit is in use")
        return code
    now = await shell.now()
    live = {worker.id for worker in (await read_fleet(shell)).live}
    shell.table(
        ("LIMIT", "USED", "NEXT", "SET", "HELD BY"),
        [
            (use.name, limit_used(use), _next(use, now), _set(use, now), _holders(use.holders, live))
            for use in uses
        ],
        numbers=("USED",),
        keep=("USED", "NEXT"),
        drop=("HELD BY",),
    )
    return code


def _set(use: LimitUse, now: float) -> str:
    """What was set in place of the code, by whom and why."""
    if use.order is None:
        return ""
    code = f", code: {limit_text(use.code, use.code_window)}" if use.code is not None else ""
    unknown = "" if use.known else ", no such limit is known: it changes nothing"
    return f"{limit_text(use.order.limit, use.order.window)}{code}{unknown}{ordered_text(use.order, now)}"


async def set_limit(
    shell: Shell,
    given: Annotated[
        list[str], typer.Argument(metavar="[NAME] LIMIT", help="a limit in code, and 50/1m, or 4 at once")
    ],
    type: TypeOption = None,
    until: UntilOption = None,
) -> None:
    """Set a limit for the whole fleet while it runs, in place of what the code says.

    treadle limits set mail.send 50/1m: 50 starts per minute, counted from the first; 1/1.2s: as many, one
    by one, so that no minute has more. treadle limits set --type image.render 4: at most 4 of this work type
    at once, also if its code has no limit.
    """
    *names, wanted = given
    if len(names) != (type is None):
        raise InputError("write NAME LIMIT, or --type TYPE LIMIT: treadle limits set mail.send 50/1m")
    limit, window = read_limit(wanted, "LIMIT")
    name = names[0] if names else None
    remark = "" if type is None else await type_remark(shell.client, type)
    await shell.client.set_limit(name, limit, window, type=type, until=read_until(until, "--until"))
    if shell.json:
        shell.emit({"name": name, "type": type, "limit": limit, "window": window})
    else:
        what = f"limit {plain(name)}" if name else f"type {plain(type or '')}"
        counted = "" if window is None or limit == 1 else ", counted from the first start"
        shell.print(f"{what}: {limit_text(limit, window)}{counted}")
    if name is not None and not await _is_known_limit(shell, name):
        shell.warn(f"no limit {plain(name or '')} is known here: give --type to limit a work type")
    if remark:
        shell.warn(remark)


async def clear_limit(
    shell: Shell,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="the name of the limit")] = None,
    type: TypeOption = None,
) -> None:
    """Withdraw a limit that was set: what the code says holds again."""
    before = await shell.client.orders()
    cleared = await shell.client.clear_limit(name, type=type)
    if shell.json:
        shell.emit({"name": name, "type": type, "cleared": cleared})
    elif cleared:
        shell.print(f"{'limit' if type is None else 'type'} {plain(name or type or '')}: as the code says")
    else:
        names = sorted({each.about for each in before if each.kind == "limit"})
        others = f"there are {listed(names)}" if names else "none is"
        asked = name or type or ""
        shell.warn(f"no limit of {plain(asked)} was set: {did_you_mean(asked, names, others)}")


async def _is_known_limit(shell: Shell, name: str) -> bool:
    """Whether the code here, that of live workers, or a limit in use has the limit that was set."""
    return all(use.known for use in await shell.client.limits() if use.order and use.order.name == name)


def limit_used(use: LimitUse) -> Cell:
    """How far a limit is used: 5 of 5. With what some workers allow, if that is less."""
    if use.limit is None:
        return Cell(number(use.used))
    less = "" if use.lowest is None else f" (some workers: {number(use.lowest)})"
    return Cell(f"{number(use.used)} of {number(use.limit)}{less}", "yellow" if use.reached else "")


def _next(use: LimitUse, now: float) -> str:
    return ago(now + use.retry_after, now) if use.retry_after > 0 else ""


def _holders(holders: Sequence[LimitHolder], live: set[str]) -> str:
    texts: list[str] = []
    for each in holders:
        name = each.worker if each.worker in live else f"{each.worker} (silent)"
        texts.append(f"{listed(each.items, 3)} on {name}" if each.items else f"{each.count} by {name}")
    return listed(texts, 4)


_STANDINGS: dict[WorkerStanding, tuple[str, str, str]] = {
    "alive": ("●", "*", "green"),
    "blocked": ("■", "#", "red"),
    "draining": ("◐", ">", "yellow"),
    "pressed": ("◑", "=", "yellow"),
    "manual": ("○", "o", ""),
    "silent": ("✕", "x", "red"),
}


def fleet_text(fleet: Fleet) -> str:
    """The fleet in one line."""
    if not fleet.workers:
        return "no workers"
    parts = [plural(len(fleet.live), "worker")]
    running = [worker.running for worker in fleet.live if worker.running is not None]
    if running:
        ahead = sum(map(claimed_ahead, fleet.live))
        parts.append(f"{sum(running) - ahead:,} running")
        parts += [f"{ahead:,} claimed ahead"] if ahead else []
    words = [word for worker in fleet.workers if (word := fleet.standing(worker)) != "alive"]
    parts += [f"{words.count(word)} {word}" for word in _STANDINGS if word in words]
    return ", ".join(parts)


def state_cell(fleet: Fleet, worker: WorkerState) -> Cell:
    """How a worker stands: by word and shape."""
    standing = fleet.standing(worker)
    shape, ascii_shape, style = _STANDINGS[standing]
    return Cell(f"{shape if speaks_unicode() else ascii_shape} {standing}", style)


def _running_text(worker: WorkerState) -> str:
    if worker.running is None:
        return ""
    ahead, room = claimed_ahead(worker), None if worker.info is None else worker.info.room
    text = f"{worker.running - ahead}" if room is None else f"{worker.running - ahead}/{room}"
    return f"{text} +{ahead}" if ahead else text


WORKER_COLUMNS = ("ID", "STATE", "RUNNING", "HOST", "PID", "RELEASE", "UP", "SEEN", "QUEUES", "TYPES")


def worker_row(fleet: Fleet, worker: WorkerState) -> list[str]:
    """A worker as a row of a table."""
    info, now = worker.info, fleet.now
    return [
        worker.id,
        state_cell(fleet, worker),
        _running_text(worker),
        "" if info is None else info.host,
        "" if info is None or not info.pid else str(info.pid),
        "" if info is None else info.release,
        "" if info is None or not info.started_at else ago(info.started_at, now).removesuffix(" ago"),
        ago(last_beat(worker), now),
        "" if info is None else "all" if info.queues is None else listed(info.queues, 3),
        "all" if worker.types is None else listed(sorted({*worker.types}.difference(BUILT_IN)), 4),
    ]
