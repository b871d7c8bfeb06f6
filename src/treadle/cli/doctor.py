"""`treadle doctor`: checks of the store and the fleet that a person should run now and then.

Each check says `fine`, `note` (it may be as you want it) or `problem`. The exit code is 4 if there is a
problem.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Final, Literal, NamedTuple

import typer

from treadle.backend import Inspected
from treadle.engine.declared_limits import declared_limits, declared_rule
from treadle.fleet import Fleet
from treadle.item_facts import Overview
from treadle.operator import core_of

from .fleet import limit_used, read_limits, read_schedules
from .shell import UNHEALTHY, Shell, operator_command
from .text import ago, listed, plain, plural, span, speaks_unicode, styled
from .worker_rows import fleet_text, no_worker_text

SKEW: Final = 2.0
"""Seconds by which the clocks of this machine and of the store may differ."""
SLOW: Final = 1.0
"""Seconds after which an answer of the store is slow."""

Outcome = Literal["fine", "note", "problem"]
SHAPES: Final[dict[Outcome, tuple[str, str, str]]] = {
    "fine": ("✓", "+", "green"),
    "note": ("·", ".", "yellow"),
    "problem": ("✕", "x", "red"),
}


class Finding(NamedTuple):
    """What one check found."""

    check: str
    outcome: Outcome
    text: str
    fix: str = ""


def register(commands: typer.Typer) -> None:
    operator_command(commands, "doctor")(doctor)


async def doctor(shell: Shell) -> int | None:
    """Check the store and the fleet: schema, clocks, long transactions, workers, types, schedules, limits.

    The exit code is 4 if there is a problem. A note may be as you want it.
    """
    worst = False
    async for finding in _findings(shell):
        worst = worst or finding.outcome == "problem"
        if shell.json:
            shell.emit(finding._asdict())
        else:
            shell.lines(finding_lines(finding))
        shell.flush()
    return UNHEALTHY if worst else None


def finding_lines(finding: Finding) -> Iterable[str]:
    """A finding as one line, and what to do about it as another."""
    shape, ascii_shape, style = SHAPES[finding.outcome]
    mark = styled(shape if speaks_unicode() else ascii_shape, style)
    yield f"{mark} {styled(finding.check.ljust(12), 'dim')} {plain(finding.text)}"
    if finding.fix:
        yield f"{' ' * 15}{styled(plain(finding.fix), 'dim')}"


async def _findings(shell: Shell) -> AsyncGenerator[Finding]:
    # The store was opened without migrating it: a schema of another version would have been refused.
    yield Finding("schema", "fine", "the store has the schema of this version of treadle")
    yield await _clock(shell)
    for finding in await _inspected(shell):
        yield finding
    began = time.monotonic()
    overview = await shell.client.overview()
    took = time.monotonic() - began
    if took > SLOW:
        yield Finding(
            "speed", "note", f"an overview took {span(took)}", "is the store overloaded, or far away?"
        )
    fleet = Fleet(overview.workers, overview.now)
    for finding in (*_workers(fleet), *_types(overview), *_queues(overview, fleet)):
        yield finding
    for finding in await _schedules(shell):
        yield finding
    for finding in await _limits(shell):
        yield finding


async def _clock(shell: Shell) -> Finding:
    before = time.time()
    now = await shell.now()
    skew = now - (before + time.time()) / 2
    if abs(skew) <= SKEW:
        return Finding("clock", "fine", "this machine and the store agree about the time")
    direction = "behind" if skew > 0 else "ahead of"
    return Finding(
        "clock",
        "problem",
        f"the clock of this machine is {span(skew)} {direction} the store's",
        "set one of them: run_at= and deadline= are instants of the caller's clock, and the store's decides",
    )


async def _inspected(shell: Shell) -> list[Finding]:
    if not isinstance(shell.backend, Inspected):
        return []
    if shell.tenant is not None:
        return []  # what else goes on in the database is not the tenant's
    problems = await shell.backend.inspect()
    if not problems:
        return [Finding("database", "fine", "no transaction has been open for long")]
    return [Finding("database", "problem", str(problem)) for problem in problems]


def _workers(fleet: Fleet) -> Iterable[Finding]:
    if fleet.silent:
        ids = listed([worker.id for worker in fleet.silent], 3)
        yield Finding(
            "workers",
            "problem",
            f"{plural(len(fleet.silent), 'worker')} silent: {ids}",
            "the process is gone or blocked: its items are freed by the next claim of any worker",
        )
    if fleet.blocked:
        ids = listed([worker.id for worker in fleet.blocked], 3)
        yield Finding(
            "workers",
            "problem",
            f"{plural(len(fleet.blocked), 'worker')} blocked: {ids}",
            "a handler blocks the event loop (the log of the worker has the stack), or it is stopped",
        )
    if not fleet.taking:
        yield Finding("workers", "note", no_worker_text(fleet), "start one: treadle worker MODULE:APP")
    elif not fleet.silent and not fleet.blocked:
        yield Finding("workers", "fine", fleet_text(fleet))
    versions = sorted({worker.info.version for worker in fleet.live if worker.info and worker.info.version})
    if len(versions) > 1:
        text = f"workers run different versions of treadle: {listed(versions)}"
        yield Finding("versions", "note", text, "after a deploy this should not stay so")


def _types(overview: Overview) -> Iterable[Finding]:
    for each in overview.unserved:
        since = "" if each.since is None else f", since {span(overview.now - each.since)}"
        yield Finding(
            "types",
            "problem",
            f"no live worker has {each.type}: {plural(each.count, 'ready item')}{since}",
            "start a worker that has it, or add an alias: @work(aliases=[...])",
        )
    if not overview.unserved:
        yield Finding("types", "fine", "every type of which items are ready has a worker")


def _queues(overview: Overview, fleet: Fleet) -> Iterable[Finding]:
    for queue, tenant in overview.paused:
        whom = "for all tenants" if tenant is None else f"for tenant {tenant}"
        yield Finding("queues", "note", f"queue {queue} is paused {whom}", f"treadle resume {queue}")
    ready = {count.queue for count in overview.counts if count.status == "ready"}
    for queue in sorted(ready) if fleet.taking else ():
        if not fleet.serves(queue=queue):
            yield Finding("queues", "problem", f"no worker serves queue {queue}", "is its name misspelt?")


async def _schedules(shell: Shell) -> Sequence[Finding]:
    if "schedules" not in shell.backend.capabilities:
        return []
    found, now = await read_schedules(shell)
    waiting = [each for each in found if not each.ended]
    orphaned = [each for each in waiting if each.state == "orphaned"]
    overdue = [each for each in waiting if each.state == "overdue"]
    if not waiting:
        return []
    if not orphaned and not overdue:
        return [
            Finding(
                "schedules",
                "fine",
                f"{plural(len(waiting), 'schedule')}, each with a process that has its code",
            )
        ]
    return [
        Finding(
            "schedules",
            "problem",
            f"no running process has schedule {each.name}: last seen {span(now - each.seen_at)} ago",
            f"start a worker of its app, or end it: treadle schedules cancel {each.name}",
        )
        for each in orphaned
    ] + [
        Finding(
            "schedules",
            "problem",
            f"schedule {each.name} was due {ago(each.next_at, now)}, and no process has fired it",
            f"treadle why --schedule {each.name}",
        )
        for each in overdue
    ]


async def _limits(shell: Shell) -> Sequence[Finding]:
    """Limits in use that the code of the app does not have: of an earlier version, or of another app."""
    if shell.app is None:
        return []
    declared = declared_limits(core_of(shell.client))
    uses = await shell.client.limits()
    unknown = [use.name for use in uses if declared_rule(declared, use.name) is None]
    full = [use.name for use in await read_limits(shell, None, 500) if limit_used(use).style]
    found: list[Finding] = []
    if unknown:
        text = f"{plural(len(unknown), 'limit')} in use that this app does not have: {listed(unknown, 3)}"
        found.append(Finding("limits", "note", text, "of earlier code, or of another app on this store"))
    if full:
        text = f"{plural(len(full), 'limit')} reached: {listed(full, 3)}"
        found.append(Finding("limits", "note", text, "treadle limits"))
    return found or [Finding("limits", "fine", f"{plural(len(uses), 'limit')} in use, none reached")]
