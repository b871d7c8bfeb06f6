"""`treadle doctor`: checks of the store and the fleet that a person should run now and then.

Each check says `fine`, `note` (it may be as you want it) or `problem`. The exit code is 4 if there is a
problem.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Final, Literal, NamedTuple
from uuid import uuid4

import typer

from treadle.backend import Backend, Inspected, Notified, placed
from treadle.base.wording import duration, listed, plural
from treadle.errors import WakeupsLost
from treadle.item import TELL_TYPE, Wake
from treadle.operate.store_look import StoreLook
from treadle.operate.why.wording import command
from treadle.problems import MAX_WAIT, ProblemKind
from treadle.records import StoreState
from treadle.store.fleet import Fleet

from .exit_codes import UNHEALTHY
from .fleet import fleet_text
from .shell import Shell, operator_command
from .text import speaks_unicode, styled, terminal_width, wrapped
from .watch import undelivered

SKEW: Final = 2.0
"""Seconds by which the clocks of this machine and of the store may differ."""
SLOW: Final = 1.0
"""Seconds after which an answer of the store is slow."""
WAKEUP: Final = 3.0
"""Seconds that a wake-up may take."""

Outcome = Literal["fine", "note", "problem"]
OUTCOME_SHAPES: Final[dict[Outcome, tuple[str, str, str]]] = {
    "fine": ("✓", "+", "green"),
    "note": ("·", ".", "yellow"),
    "problem": ("✕", "x", "red"),
}


INDENT: Final = " " * 15
CheckName = Literal["workers", "queues", "items", "schedules"]
CHECK_OF: Final[dict[ProblemKind, CheckName]] = {
    "store_away": "workers",
    "killing": "items",
    "no_worker": "workers",
    "silent": "workers",
    "blocked": "workers",
    "undecodable": "items",
    "release": "items",
    "dying": "items",
    "flood": "queues",
    "late": "queues",
    "schedule": "schedules",
    "schedule_failed": "schedules",
    "not_submitted": "items",
    "paused": "queues",
    "dead": "items",
}
FINE: Final[dict[CheckName, str]] = {
    "workers": "",
    "queues": f"none is paused, and no item has been ready for more than {duration(MAX_WAIT)}",
    "items": "none is dead, waits in vain, cannot be decoded, or ended workers",
    "schedules": "",
}
"""What is said of each if there is no problem. Of workers and schedules: how many there are."""


class Finding(NamedTuple):
    """What one check found."""

    check: str
    outcome: Outcome
    text: str
    fix: str = ""


def register(commands: typer.Typer) -> None:
    operator_command(commands, "doctor")(doctor)


async def doctor(shell: Shell) -> int | None:
    """Check the store and the fleet: schema, clocks, long transactions, workers, items, schedules, limits.

    The exit code is 4 if there is a problem: what is one for `treadle status`, and what only this command
    looks at. A note may be as you want it.
    """
    worst = False
    async for finding in _findings(shell):
        worst = worst or finding.outcome == "problem"
        if shell.json:
            shell.emit(finding._asdict())
        else:
            shell.lines(finding_lines(finding, terminal_width()))
        shell.flush()
    return UNHEALTHY if worst else None


def finding_lines(finding: Finding, width: int | None) -> Iterable[str]:
    """A finding, and what to do about it, in lines that fit."""
    shape, ascii_shape, style = OUTCOME_SHAPES[finding.outcome]
    mark = styled(shape if speaks_unicode() else ascii_shape, style)
    first, *rest = wrapped(finding.text, width, INDENT)
    yield f"{mark} {styled(finding.check.ljust(12), 'dim')} {first.removeprefix(INDENT)}"
    yield from rest
    if finding.fix:
        yield from (styled(line, "dim") for line in wrapped(finding.fix, width, INDENT))


async def _findings(shell: Shell) -> AsyncGenerator[Finding]:
    # The store was opened without migrating it: a schema of another version would have been refused.
    yield Finding("schema", "fine", "the store has the schema of this version of treadle")
    yield await _clock(shell)
    for finding in await _of_stores(shell):
        yield finding
    began = time.monotonic()
    seen = await shell.client.look()
    took = time.monotonic() - began
    if took > SLOW:
        yield Finding(
            "speed", "note", f"an overview took {duration(took)}", "is the store overloaded, or far away?"
        )
    for finding in (*_of_problems(seen), *_versions(seen.fleet)):
        yield finding
    for finding in await _limits(shell):
        yield finding
    if untold := await undelivered(shell):
        fix = f"{command('list --type', TELL_TYPE, tenant=shell.tenant)}; is the receiver there?"
        yield Finding("messages", "problem", untold, fix)


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
        f"the clock of this machine is {duration(abs(skew))} {direction} the store's",
        "set one of them: run_at= and deadline= are instants of the caller's clock, and the store's decides",
    )


async def _of_stores(shell: Shell) -> Sequence[Finding]:
    """What concerns a store. If there are several: of each, with its name."""
    if shell.tenant is not None:
        return ()  # what else goes on in the database is not the tenant's
    several = placed(shell.backend)
    if several is None:
        return (*await _inspected(shell.backend), *await _wakeups(shell.backend))
    found: list[Finding] = []
    for state in await several.stores():
        if not state.answers:
            text, fix = (
                f"it does not answer: {state.error}",
                "is its server running, and does this URL reach it?",
            )
            of_store = [Finding("store", "problem", text, fix)]
        else:
            backend = several.backends[state.name]
            of_store = [*_skew(state), *await _inspected(backend), *await _wakeups(backend)]
        found += [each._replace(text=f"{state.name}: {each.text}") for each in of_store]
    return found


def _skew(state: StoreState) -> Sequence[Finding]:
    if state.skew is None or abs(state.skew) <= SKEW:
        return ()
    text = f"its clock is {duration(abs(state.skew))} {'ahead of' if state.skew > 0 else 'behind'} home's"
    return [Finding("clock", "problem", text, "set one of them: each store decides by its own what is due")]


async def _inspected(backend: Backend) -> list[Finding]:
    if not isinstance(backend, Inspected):
        return []
    problems = [each for each in await backend.inspect() if not isinstance(each, WakeupsLost)]
    if not problems:
        has_transactions = "transactions" in backend.capabilities
        fine = "no transaction has been open for long" if has_transactions else "its settings lose no work"
        return [Finding("database", "fine", fine)]
    return [Finding("database", "problem", str(problem)) for problem in problems]


async def _wakeups(backend: Backend) -> list[Finding]:
    """What carries wake-ups, and whether one arrives here."""
    if not isinstance(backend, Notified):
        return []
    carrier = backend.wakeup_carrier
    if carrier is None:
        text = "none are sent, so processes find work by polling"
        return [Finding("wake-ups", "note", text, "notify= of the app says what carries them")]
    if await _wakeup_arrives(backend):
        return [Finding("wake-ups", "fine", f"one arrived by {carrier}")]
    text = f"none arrived by {carrier} within {duration(WAKEUP)}, so work is found by polling"
    fix = (
        "is that server running, and may this role publish and subscribe there? Behind a pooler: listen_url= "
        "or notify="
    )
    return [Finding("wake-ups", "problem", text, fix)]


async def _wakeup_arrives(backend: Backend) -> bool:
    sender, arrived = f"doctor {uuid4()}", asyncio.Event()

    def receive(wake: Wake) -> None:
        if wake.sender == sender:
            arrived.set()

    unsubscribe = await backend.subscribe(receive)
    try:
        async with asyncio.timeout(WAKEUP):
            await backend.publish(Wake(sender=sender))
            await arrived.wait()
    except TimeoutError:
        return False
    finally:
        unsubscribe()
    return True


def _of_problems(seen: StoreLook) -> Iterable[Finding]:
    """The problems of `treadle status`, by what they concern."""
    found: dict[CheckName, list[Finding]] = {check: [] for check in FINE}
    for problem in seen.problems:
        if problem.kind == "store_away":  # each store has a check of its own
            continue
        check = CHECK_OF[problem.kind]
        found[check].append(Finding(check, "problem", problem.text, problem.fix))
    if not seen.fleet.taking and not found["workers"]:
        missing = seen.fleet.no_worker()
        text = f"{missing.text}; nothing waits for one"
        found["workers"].append(Finding("workers", "note", text, missing.fix))
    for check, findings in found.items():
        fine = _fine(check, seen)
        yield from findings or ([Finding(check, "fine", fine)] if fine else [])


def _fine(check: CheckName, seen: StoreLook) -> str:
    """What is said if there is no problem. Empty: nothing."""
    if check == "workers":
        return fleet_text(seen.fleet)
    if check == "schedules":
        count = len(seen.schedules)
        fired = count and seen.fleet.taking
        return f"{plural(count, 'schedule')}, each with a process that has its code" if fired else ""
    return FINE[check]


def _versions(fleet: Fleet) -> Iterable[Finding]:
    versions = sorted({worker.info.version for worker in fleet.live if worker.info and worker.info.version})
    if len(versions) > 1:
        text = f"workers run different versions of treadle: {listed(versions)}"
        yield Finding("versions", "note", text, "after a deploy this should not stay so")


async def _limits(shell: Shell) -> Sequence[Finding]:
    """Limits in use that the code of the app does not have, of an earlier version or of another app; and
    those that were set and change nothing."""
    if shell.app is None:
        return []
    uses = await shell.client.limits()
    unknown = [use.name for use in uses if use.order is None and not shell.client.has_limit(use.name)]
    full = [use.name for use in uses if use.reached]
    found: list[Finding] = []
    if unknown:
        text = f"{plural(len(unknown), 'limit')} in use that this app does not have: {listed(unknown, 3)}"
        found.append(Finding("limits", "note", text, "of earlier code, or of another app on this store"))
    vain = [use.order.about for use in uses if use.order is not None and not use.known]
    if vain:
        text = f"{plural(len(vain), 'limit')} set that no code known here has: {listed(vain, 3)}"
        found.append(Finding("limits", "note", text, command("limits clear", vain[0], tenant=shell.tenant)))
    if full:
        text = f"{plural(len(full), 'limit')} reached: {listed(full, 3)}"
        found.append(Finding("limits", "note", text, command("limits", tenant=shell.tenant)))
    return found or [Finding("limits", "fine", f"{plural(len(uses), 'limit')} in use, none reached")]
