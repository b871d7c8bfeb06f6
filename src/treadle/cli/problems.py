"""Problems: what `treadle status` and `treadle doctor` find wrong with the store, judged in one place.

The kinds, the most urgent first:

    no_worker      items wait that no live worker can run: none is alive, has the type or serves the queue
    silent         a worker has sent no heartbeat for longer than its lease
    blocked        the event loop of a worker does not run: a handler blocks it, or the process is stopped
    undecodable    items whose arguments do not fit the code of the workers that have claimed them
    late           an item of a queue that is not paused has been ready for longer than it may be
    not_submitted  blocked items have waited as long for ids that were never submitted
    paused         a queue is paused
    dead           there are dead items
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

from treadle.engine.why.wording import command
from treadle.fleet import Fleet, last_beat
from treadle.item import Count, Filter, ItemState, Status
from treadle.item_facts import Overview
from treadle.wording import close_to, duration, first_line, listed, plural
from treadle.worker_info import UndecodableType

from .shell import Shell
from .text import ago
from .worker_rows import no_worker_text

ProblemKind = Literal[
    "no_worker", "silent", "blocked", "undecodable", "late", "not_submitted", "paused", "dead"
]
PROBLEM_KINDS: Final[tuple[ProblemKind, ...]] = get_args(ProblemKind)
MAX_WAIT: Final = 300.0
"""Seconds for which a ready item may wait."""
BLOCKED_LOOKED_AT: Final = 50
"""So many blocked items, the oldest, are looked at for what they wait for."""
LISTED_QUICKLY: Final = 10_000
"""Among so many open items, the blocked ones are found in some milliseconds."""
MOST_OF_KIND: Final = 3
"""If more types, queues or tenants than these have no worker, they are one problem."""
START: Final = "start one: treadle worker MODULE:APP"
By = Literal["queue", "type", "tenant"]
WAITING: Final[tuple[Status, ...]] = ("ready", "scheduled", "blocked")


class Problem(NamedTuple):
    """Something that a person should look at."""

    kind: ProblemKind
    text: str
    fix: str
    refs: tuple[str, ...] = ()
    """The items, queues, types or workers that it speaks of."""


class Findings(NamedTuple):
    """What one look at the store has found."""

    overview: Overview
    fleet: Fleet
    problems: tuple[Problem, ...]
    """The most urgent first."""


async def look_at(shell: Shell, max_wait: float = MAX_WAIT, *, quick: bool = False) -> Findings:
    """Look at the store as a shell may see it. quick: leave out what takes longer in a larger store."""
    overview = await shell.client.overview()
    fleet = Fleet(overview.workers, overview.now)
    count, more = total(each for each in overview.counts if each.status != "dead")
    leave_out = quick and (more or count > LISTED_QUICKLY)
    stuck = [] if leave_out else await _read_stuck(shell, overview, max_wait)
    return Findings(overview, fleet, tuple(find_problems(overview, fleet, max_wait, stuck)))


async def _read_stuck(shell: Shell, overview: Overview, max_wait: float) -> list[ItemState]:
    """Blocked items that have waited for too long for ids that were never submitted: some of the oldest."""
    if not any(count.status == "blocked" for count in overview.counts):
        return []
    where = Filter(tenant=shell.tenant, status=("blocked",), until=overview.now - max_wait)
    page = await shell.backend.list(where, limit=BLOCKED_LOOKED_AT, oldest_first=True)
    by_tenant: dict[str, list[str]] = {}
    for item in page.items:
        by_tenant.setdefault(item.tenant, []).append(item.id)
    found: list[ItemState] = []
    for tenant, ids in by_tenant.items():
        states = await shell.backend.get(ids, tenant=tenant)
        found += [each for each in states if each is not None and each.waiting_for]
    return found


def find_problems(
    overview: Overview, fleet: Fleet, max_wait: float, stuck: Sequence[ItemState] = ()
) -> Iterator[Problem]:
    """What is not healthy. What follows from another problem is not one of its own. stuck: blocked items that
    wait for ids that were never submitted."""
    waiting = [each for each in overview.counts if each.status in WAITING]
    if waiting and not fleet.taking:
        yield _no_worker(fleet, waiting)
    else:
        yield from _unserved(overview, fleet)
        yield from _stuck_workers(fleet)
        yield from _undecodable(overview, fleet)
        yield from _late(overview, max_wait)
    if stuck:
        yield _not_submitted(stuck)
    for queue, tenant in overview.paused:
        whom = "" if tenant is None else f" for tenant {tenant}"
        fix = command("resume", queue, tenant=tenant)
        yield Problem("paused", f"queue {queue} is paused{whom}", fix, (queue,))
    dead = [each for each in overview.counts if each.status == "dead"]
    if dead:
        count, more = total(dead)
        types = tuple(dict.fromkeys(each.type for each in sorted(dead, key=lambda each: -each.count)))
        text = f"{plural(count, 'dead item', more)}: {listed(types, 3)}"
        yield Problem("dead", text, "treadle dead", types)


def _no_worker(fleet: Fleet, waiting: Sequence[Count]) -> Problem:
    count, more = total(waiting)
    text = f"{no_worker_text(fleet)}: {plural(count, 'open item', more)}"
    if fleet.silent and not fleet.live:
        last, at = max(((each, last_beat(each) or each.until) for each in fleet.silent), key=lambda it: it[1])
        text += f"; the last one, {last.id}, was seen {ago(at, fleet.now)}"
    return Problem("no_worker", text, START, tuple(worker.id for worker in fleet.silent))


def _stuck_workers(fleet: Fleet) -> Iterator[Problem]:
    silent = tuple(worker.id for worker in fleet.silent)
    if silent:
        text = f"{plural(len(silent), 'worker')} silent: {listed(silent, 3)}"
        fix = "look at the process: it is gone, or blocked. The next claim of any worker frees its items"
        yield Problem("silent", text, fix, silent)
    blocked = tuple(worker.id for worker in fleet.blocked)
    if blocked:
        text = f"{plural(len(blocked), 'worker')} blocked: {listed(blocked, 3)}"
        fix = (
            "a handler blocks the event loop (the log of the worker has the stack), or the process is stopped"
        )
        yield Problem("blocked", text, fix, blocked)


def _late(overview: Overview, max_wait: float) -> Iterator[Problem]:
    stopped = {queue for queue, tenant in overview.paused if tenant is None}
    for age in overview.ages:
        waited = overview.now - age.oldest_ready
        if waited > max_wait and age.queue not in stopped:
            text = f"queue {age.queue}: an item has been ready for {duration(waited)}"
            yield Problem("late", text, command("why --queue", age.queue), (age.queue,))


def _not_submitted(stuck: Sequence[ItemState]) -> Problem:
    missing = list(dict.fromkeys(name for item in stuck for name in item.waiting_for))
    more = len(stuck) >= BLOCKED_LOOKED_AT
    waits = "waits" if len(stuck) == 1 else "wait"
    text = f"{plural(len(stuck), 'blocked item', more)} {waits} for ids that were never submitted: "
    first = stuck[0]
    fix = command("why", first.id)
    return Problem("not_submitted", text + listed(missing, 3), fix, tuple(item.id for item in stuck))


# -- who is missing ------------------------------------------------------------------------------------


def _unserved(overview: Overview, fleet: Fleet) -> Iterator[Problem]:
    ready = [each for each in overview.counts if each.status == "ready"]
    types = {each.type: plural(each.count, "ready item") for each in overview.unserved}
    since = {each.type: each.since for each in overview.unserved if each.since is not None}
    known = {name for worker in fleet.taking for name in worker.types or ()}
    yield from _missing("type", types, known, lambda name: f"no worker has the type {name}", since, fleet.now)
    queues = {
        queue: plural(*_ready(counts))
        for queue, counts in counts_by(ready, "queue").items()
        if not fleet.serves(queue=queue)
    }
    known = {name for worker in fleet.taking if worker.info for name in worker.info.queues or ()}
    yield from _missing("queue", queues, known, lambda name: f"no worker serves the queue {name}")
    tenants = {
        tenant: plural(*_ready(counts))
        for tenant, counts in counts_by(ready, "tenant").items()
        if not fleet.serves(tenant=tenant)
    }
    yield from _missing("tenant", tenants, (), lambda name: f"no worker serves the tenant {name}")


def _missing(
    noun: By,
    items: Mapping[str, str],
    known: Iterable[str],
    said: Callable[[str], str],
    since: Mapping[str, float] = {},
    now: float = 0.0,
) -> Iterator[Problem]:
    """Types, queues or tenants of which items are ready and that no worker has. items: how many are ready."""
    fix = "start a worker whose app has it" if noun == "type" else "start a worker that serves it"
    if len(items) > MOST_OF_KIND:
        text = f"no worker for {len(items):,} {noun}s of which items are ready: {listed(items, MOST_OF_KIND)}"
        yield Problem("no_worker", text, fix.replace(" it", " them"), tuple(items))
        return
    for name, count in items.items():
        text = f"{said(name)}: {count}"
        text += f", since {duration(now - since[name])}" if name in since else ""
        close = close_to(name, known)
        if close is not None and noun == "type":
            own = f"{fix}, or keep the old name: @work(aliases=[{name!r}])"
            yield Problem("no_worker", f"{text}; {close} is known", own, (name,))
        elif close is not None:
            yield Problem("no_worker", f"{text}; is {close} meant?", fix, (name,))
        else:
            yield Problem("no_worker", text, fix, (name,))


def _undecodable(overview: Overview, fleet: Fleet) -> Iterator[Problem]:
    by_type: dict[str, list[UndecodableType]] = {}
    open_types = {each.type for each in overview.counts if each.status != "dead"}
    for info in (worker.info for worker in fleet.taking if worker.info is not None):
        for type, found in info.undecodable.items():
            if type in open_types:  # not only another tenant's
                by_type.setdefault(type, []).append(found)
    for type, those in sorted(by_type.items()):
        count, first = max(each.count for each in those), min(each.until for each in those)
        items = plural(count, "item") if count else "items"
        text = f"the arguments of {items} of {type} do not fit the code of {plural(len(those), 'worker')}"
        if count:
            dies = "it is dead" if count == 1 else "the first is dead"
            text += f": {first_line(those[0].error)}; {dies} {ago(first, fleet.now)} at the latest"
        fix = "treadle check says what does not fit; @work(upcast=...) turns old arguments into new ones"
        yield Problem("undecodable", text, fix, (type,))


# -- counts --------------------------------------------------------------------------------------------


def counts_by(counts: Iterable[Count], by: By) -> dict[str, list[Count]]:
    """The counts by queue, type or tenant, in the order of names."""
    found: dict[str, list[Count]] = {}
    for each in counts:
        found.setdefault(getattr(each, by), []).append(each)
    return dict(sorted(found.items()))


def total(counts: Iterable[Count]) -> tuple[int, bool]:
    """The sum, and whether there may be more."""
    given = list(counts)
    return sum(each.count for each in given), any(each.capped for each in given)


def _ready(counts: Sequence[Count]) -> tuple[int, str, bool]:
    count, more = total(counts)
    return count, "ready item", more
