"""Problems: what `app.problems()`, `treadle status` and `treadle doctor` find wrong with the store, judged in
one place.

The kinds, the most urgent first:

    store_away       one of several stores does not answer: what it has is not known
    killing          workers died, one after the other, while they ran an item
    no_worker        items wait that no live worker can run: none is alive, has the type or serves the queue;
                     or schedules, and no worker is alive
    silent           a worker has sent no heartbeat for longer than its lease
    blocked          the event loop of a worker does not run: a handler blocks it, or the process is stopped
    undecodable      items whose arguments do not fit the code of the workers that have claimed them
    release          a mark of dead items appears only under the newest release
    dying            many of the items of a type that end now die
    flood            one tenant or type is most of the ready items of a queue, and others wait there for long
    late             an item that is not paused, and has a worker, has been ready for longer than it may be
    schedule         no process has the code of a schedule, or none has fired it
    schedule_failed  the last run of a schedule raised, and submitted nothing; or the last two died
    not_submitted    blocked items have waited as long for ids that were never submitted
    paused           a queue, a type or a tenant is paused
    dead             there are dead items
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from treadle.base.wording import duration, error_line, listed, plain, plural
from treadle.bulk_action import BulkState
from treadle.item import DEFAULT_TENANT, KILLING, UNSATISFIABLE, Count, ItemState, Order, Status, WorkerState
from treadle.item_facts import MAX_WAIT as MAX_WAIT
from treadle.item_facts import By, DeadMark, Overview, QueueAge, counts_by, total
from treadle.operate.bulk_states import requeue_text
from treadle.operate.schedule_state import ScheduleState
from treadle.operate.webhook import PROBLEM_KINDS as PROBLEM_KINDS
from treadle.operate.webhook import OnProblem as OnProblem
from treadle.operate.webhook import ProblemChange as ProblemChange
from treadle.operate.webhook import ProblemKind as ProblemKind
from treadle.operate.webhook import Webhook as Webhook
from treadle.operate.webhook import check_kinds as check_kinds
from treadle.operate.webhook import verify_webhook as verify_webhook
from treadle.operate.why.fleet import (
    FIX,
    WorkerFleet,
    dies_text,
    misfit_text,
    no_worker_for_queue,
    no_worker_for_tenant,
)
from treadle.operate.why.wording import (
    command,
    give_up_killer,
    item_name,
    kill_command,
    killed_text,
    ordered_text,
    pause_text,
    process_name,
    releases_text,
    resume_command,
    tenant_option,
    worker_name,
)
from treadle.records import ScheduleRun
from treadle.why import Reason
from treadle.worker_info import UndecodableType

BLOCKED_LOOKED_AT: Final = 50
"""Limit on blocked items, the oldest, that are looked at for what they wait for."""
MOST_OF_KIND: Final = 3
"""If more types, queues or tenants than these have no worker, they are one problem."""
FLOOD_LEAST: Final = 1000
"""Ready items of a queue of which a flood can be said."""
FLOOD_SHARE: Final = 0.8
"""Share of these that one tenant or type has, at least."""
FLOOD_OTHERS: Final = 10
"""Other items that wait there too, at least."""
FLOOD_WAIT: Final = 60.0
"""Seconds for which one of these has waited, at least."""
NO_WAITS: Final[Mapping[str, float]] = MappingProxyType({})
RELEASE_LEAST: Final = 3
"""Deaths of a mark, at least, for which a release may be the cause."""
RELEASE_WITHIN: Final = 86_400.0
"""Seconds after the start of a release within which the first of them was."""
DYING_WITHIN: Final = 300.0
"""Seconds in which deaths of a type are counted."""
DYING_STILL: Final = 60.0
"""Seconds in which one of them was at the latest, and up to a minute more: statistics are by minute, and some
seconds late. Without one, the type dies no more."""
DYING_LEAST: Final = 20
"""Deaths of a type in that time of which a person is told while they happen: four a minute. Fewer can wait
for a look at dead letters."""
DYING_SHARE: Final = 0.2
"""Share of the items of the type that ended, at least. With a smaller one, most work is done."""
WAITING: Final[tuple[Status, ...]] = ("ready", "scheduled", "blocked")


class TypeDeaths(NamedTuple):
    """What workers counted of a type that dies now."""

    type: str
    dead: int
    ended: int
    """With those that are dead."""
    seconds: float
    """In this time."""
    mark: DeadMark | None = None
    """What most of them died of. None: it is not known."""


class Problem(NamedTuple):
    """Something that a person should look at."""

    kind: ProblemKind
    text: str
    fix: str
    refs: tuple[str, ...] = ()
    """The items, queues, types or workers that it speaks of."""
    items: int = 0
    """How many items it is about, as far as it says so. It may be an estimate."""
    item: str = ""
    """The item that its fix holds. Empty: none."""
    mark: str = ""
    """The mark of dead items that its fix looks at, or runs again. Empty: none."""
    tenant: str | None = None
    """The tenant of the item, or the one that its fix pauses. None: it is about none."""
    pause: Order | None = None
    """The pause that its fix ends."""
    schedule: str = ""
    """The schedule that its fix ends. Empty: none."""


def find_problems(
    overview: Overview,
    fleet: WorkerFleet,
    max_wait: float,
    stuck: Sequence[ItemState] = (),
    *,
    items: Sequence[ItemState] = (),
    schedules: Sequence[ScheduleState] = (),
    dying: Sequence[ScheduleRun] = (),
    marks: Sequence[DeadMark] = (),
    deaths: Sequence[TypeDeaths] = (),
    requeues: Sequence[BulkState] = (),
    waits: Mapping[str, float] = NO_WAITS,
    ready: ReadyCounts | None = None,
    tenant: str | None = None,
    away: Sequence[str] = (),
) -> Iterator[Problem]:
    """What is not healthy. What follows from another problem is not one of its own.

    stuck: blocked items that wait for ids that were never submitted.
    items: some that run, or could.
    schedules: those that have not ended.
    dying: the last run of each schedule whose runs die.
    marks: of dead items, if there are several releases, except those that an earlier one may have had.
    deaths: types that die now.
    requeues: bulk actions that run dead items again now.
    waits: for how long others have waited in a queue with a flood, in seconds.
    ready: those of the overview. None: they are not known.
    tenant: whose overview it is. None: of all.
    away: the stores that did not answer.
    """
    for name in away:
        text = f"the store {plain(name)} does not answer: its items wait, and are not counted"
        yield Problem("store_away", text, command("stores"), (name,))
    yield from _killing(items)
    ready = ready or ReadyCounts(overview, fleet)
    if fleet.taking:
        yield from _unserved(overview, fleet, ready)
        yield from _stuck_workers(fleet, items)
        yield from _undecodable(overview, fleet)
        yield from _releases(overview, marks, tenant)
        yield from _dying(overview, deaths, marks)
        for flood in find_floods(ready.able) if waits else ():
            if (waited := waits.get(flood.queue, 0.0)) >= FLOOD_WAIT:
                yield _flood_problem(flood, waited, tenant)
        yield from _late(overview, fleet, ready, max_wait, tenant)
        yield from _schedule_problems(schedules, overview.now, tenant)
        yield from _dying_schedules(dying, tenant)
    else:
        yield from _no_worker(overview, fleet, items, schedules)
        yield from _releases(overview, marks, tenant)
        yield from _dying(overview, deaths, marks)
    if stuck:
        yield _not_submitted(stuck, tenant)
    for pause in overview.paused:
        yield _paused(overview, pause, ready.held)
    dead = [each for each in overview.counts if each.status == "dead"]
    if dead:
        count, estimated = total(dead)
        types = tuple(dict.fromkeys(each.type for each in sorted(dead, key=lambda each: -each.count)))
        text = f"{plural(count, 'dead item', estimated=estimated)}: {listed(types, 3)}"
        fix = command("dead", tenant=tenant)
        if requeues:
            text += f"; {requeue_text(requeues[0])}"
            fix = f"wait for it: {command('bulk show', requeues[0].id, tenant=tenant)}; then {fix}"
        yield Problem("dead", text, fix, types, count)


def _of(
    kind: ProblemKind, reason: Reason, more: str = "", refs: tuple[str, ...] | None = None, items: int = 0
) -> Problem:
    """A problem that `why` explains in the same words. more: what is said besides. refs: what it is known by,
    if these are not the refs of the reason."""
    text = f"{reason.text}; {more}" if more else reason.text
    return Problem(kind, text, reason.fix, reason.refs if refs is None else refs, items)


def _waits(count: int, noun: str, more: bool = False, *, estimated: bool = False) -> str:
    number = plural(count, noun, more, estimated=estimated)
    return f"{number} {'waits' if count == 1 and not more else 'wait'}"


def _killing(items: Sequence[ItemState]) -> Iterator[Problem]:
    """The item that lost the most workers. Items that ran beside it have lost as many, or fewer. One that is
    held ends no more."""
    killers = sorted((each for each in items if each.losses >= KILLING), key=lambda each: -each.losses)
    most = max((each.losses for each in killers), default=0)
    first = [each for each in killers if each.losses == most and not each.held]
    others = [each for each in killers if each.losses < most and not each.held] if first else []
    if len(first) == 1:
        text = f"{item_name(first[0].id, first[0].type)}: {killed_text(first[0].losses)}"
        killer = first[0]
        held = "" if killer.status == "running" else killer.id
        fix = give_up_killer(killer)
        yield Problem("killing", text, fix, (killer.id,), 1, item=held, tenant=killer.tenant)
    elif first:
        text = f"{killed_text(first[0].losses)}: this is so for {len(first):,} items, and one of them may be "
        text += f"at fault: {_named(first)}"
        fix = "see the logs of those that died. Each of the items runs beside ever fewer others, until it is "
        fix += "known which one it is"
        yield Problem("killing", text, fix, tuple(each.id for each in first), len(first))
    if others:
        have = "has" if len(others) == 1 else "have"
        text = f"{plural(len(others), 'other item')} {have} lost {KILLING} workers in a row or more, and may "
        text += f"have run beside {'it' if len(first) == 1 else 'them'}: {_named(others)}"
        ids = tuple(each.id for each in others)
        yield Problem("killing", text, "see what the logs say of the first", ids, len(others))


def _named(items: Sequence[ItemState]) -> str:
    return listed((item_name(each.id, each.type) for each in items), MOST_OF_KIND)


def _no_worker(
    overview: Overview,
    fleet: WorkerFleet,
    items: Sequence[ItemState],
    schedules: Sequence[ScheduleState],
) -> Iterator[Problem]:
    waiting = [each for each in overview.counts if each.status in WAITING]
    left = max((each.since for each in overview.unserved if each.since is not None), default=None)
    count, estimated = total(waiting)
    said = [_waits(count, "open item", estimated=estimated) if waiting else "", _unfired_text(schedules)]
    if any(said):
        yield _of("no_worker", fleet.no_worker(left), "; ".join(filter(None, said)), (), count)
    else:
        yield from _stuck_workers(fleet, items)


def _stuck_workers(fleet: WorkerFleet, items: Sequence[ItemState]) -> Iterator[Problem]:
    if fleet.silent:
        yield _silent(fleet)
    if fleet.blocked:
        # Where it is not known what blocks a worker: what runs there.
        ids = {worker.id for worker in fleet.blocked if worker.info and not worker.info.blocked_by}
        runs = [item_name(each.id, each.type) for each in items if each.worker in ids]
        more = f"there {'runs' if len(runs) == 1 else 'run'} {listed(runs)}" if runs else ""
        yield _of("blocked", fleet.worker_blocked(fleet.blocked), more)
    if often := fleet.often_blocked():
        yield _of("blocked", fleet.worker_often_blocked(often))


def _silent(fleet: WorkerFleet) -> Problem:
    names, first = listed(map(worker_name, fleet.silent), 3), fleet.silent[0]
    text = f"{plural(len(fleet.silent), 'worker')} silent: {names}"
    fix = f"look at {process_name(first)}: it is gone, or stopped ({kill_command('CONT', first)}). "
    fix += "The next claim of any worker frees its items"
    return Problem("silent", text, fix, tuple(worker.id for worker in fleet.silent))


class ReadyCounts:
    """The ready items of an overview, and what they wait for."""

    def __init__(self, overview: Overview, fleet: WorkerFleet) -> None:
        self.held: list[Count] = []
        """A pause holds them back."""
        self.free: list[Count] = []
        """The others."""
        self.able: list[Count] = []
        """Of these, those that do not wait for a worker."""
        missing = {each.type for each in overview.unserved}
        for each in overview.counts:
            if each.status != "ready":
                continue
            if overview.holds(each):
                self.held.append(each)
                continue
            self.free.append(each)
            if each.type not in missing and fleet.serves(
                type=each.type, queue=each.queue, tenant=each.tenant
            ):
                self.able.append(each)


def late_queues(
    overview: Overview, fleet: WorkerFleet, ready: ReadyCounts, max_wait: float, tenant: str | None
) -> list[QueueAge]:
    """Queues with late items, except those in which nothing waits that could run. Of a queue that was not
    counted, not all types are known."""
    late = [each for each in overview.ages if overview.now - each.oldest_ready > max_wait]
    if not late:
        return []
    able_queues = {each.queue for each in ready.able}
    able_queues |= {each.queue for each in ready.free if each.estimated and fleet.serves(queue=each.queue)}
    ready_queues = {each.queue for each in (*ready.held, *ready.free)}
    stopped = {each.queue for each in overview.paused if each.type is None and each.tenant in (None, tenant)}
    return [
        age
        for age in late
        if age.queue not in stopped and (age.queue in able_queues or age.queue not in ready_queues)
    ]


def _late(
    overview: Overview, fleet: WorkerFleet, ready: ReadyCounts, max_wait: float, tenant: str | None
) -> Iterator[Problem]:
    waiting = counts_by(ready.able, "queue")
    for age in late_queues(overview, fleet, ready, max_wait, tenant):
        count, _ = total(waiting.get(age.queue, ()))
        text = f"queue {age.queue}: an item has been ready for {duration(overview.now - age.oldest_ready)}"
        text += f"; {_ready_waits(waiting[age.queue])}" if count else ""
        yield Problem("late", text, command("why --queue", age.queue, tenant=tenant), (age.queue,), count)


class Flood(NamedTuple):
    """A tenant or a type that is most of the ready items of a queue."""

    queue: str
    by: Literal["tenant", "type"]
    name: str
    items: int
    whole: int
    """Ready items of the queue that could run."""
    estimated: bool
    others: tuple[str, ...]
    """The other tenants or types, those with the most items first."""


def find_floods(able: Iterable[Count]) -> list[Flood]:
    """One for each queue at most. able: `able` of `ReadyCounts`: what cannot run is in the way of none."""
    queues = counts_by(able, "queue").items()
    found = ((_flood(queue, "tenant", counts) or _flood(queue, "type", counts)) for queue, counts in queues)
    return [each for each in found if each is not None]


def _flood(queue: str, by: Literal["tenant", "type"], counts: Sequence[Count]) -> Flood | None:
    whole, estimated = total(counts)
    if whole < FLOOD_LEAST:
        return None
    parts = {name: total(those)[0] for name, those in counts_by(counts, by).items()}
    name, *others = sorted(parts, key=lambda each: -parts[each])
    count = parts[name]
    if count < FLOOD_SHARE * whole or whole - count < FLOOD_OTHERS:
        return None
    return Flood(queue, by, name, count, whole, estimated, tuple(others))


def _flood_problem(flood: Flood, waited: float, tenant: str | None) -> Problem:
    queue, by, name, count, whole, *_ = flood
    share, others = f"{min(count / whole, 0.99):.0%}".replace("%", " %"), whole - count
    text = f"{by} {plain(name)} is {share} of the backlog of queue {plain(queue)}: {count:,} of "
    text += f"{plural(whole, 'ready item', estimated=flood.estimated)}. {plural(others, 'other')} wait there "
    text += f"too, one of them for {duration(waited)}"
    if by == "tenant":
        fix = f"let the others go on: {command('pause', queue, tenant=name)}; or park it elsewhere: "
        fix += command("update --queue parked --from-queue", queue, tenant=name)
    else:
        fix = "let the others go first: "
        fix += command(f"update --priority -5 --type {shlex.quote(name)} --from-queue", queue, tenant=tenant)
    return Problem("flood", text, fix, (queue, name), count, tenant=name if by == "tenant" else None)


def _paused(overview: Overview, pause: Order, counts: Iterable[Count]) -> Problem:
    held = [each for each in counts if pause.holds(each.queue, each.type, each.tenant)]
    text = pause_text(pause) + ordered_text(pause, overview.now)
    text += f"; {_ready_waits(held)}" if held else ""
    if held and pause.queue is not None and pause.tenant is None:
        ages = [age.oldest_ready for age in overview.ages if age.queue == pause.queue]
        text += f", the oldest for {duration(overview.now - min(ages, default=overview.now))}"
    return Problem("paused", text, resume_command(pause), (pause.about,), total(held)[0], pause=pause)


def _not_submitted(stuck: Sequence[ItemState], tenant: str | None) -> Problem:
    missing = list(dict.fromkeys(name for item in stuck for name in item.waiting_for))
    waits = _waits(len(stuck), "blocked item", len(stuck) >= BLOCKED_LOOKED_AT)
    text = f"{waits} for ids that were never submitted: "
    first = stuck[0]
    fix = command("why", first.id, tenant=tenant or tenant_option(first.tenant))
    ids = tuple(item.id for item in stuck)
    return Problem("not_submitted", text + listed(missing, 3), fix, ids, len(stuck))


# -- who is missing ------------------------------------------------------------------------------------


def _unserved(overview: Overview, fleet: WorkerFleet, ready: ReadyCounts) -> Iterator[Problem]:
    """What waits for a worker that does not exist. What a pause holds back does not wait for one."""
    held = {each.type for each in ready.held} - {each.type for each in ready.free}
    estimated = {each.type for each in ready.free if each.estimated}
    types = [
        _of(
            "no_worker",
            fleet.no_worker_for_type(each.type, each.since, None),
            _waits(each.count, "ready item", estimated=each.type in estimated),
            items=each.count,
        )
        for each in overview.unserved
        if each.type not in held
    ]
    yield from _at_most("type", [*types, *_apart(ready.free, fleet)])
    queues = [
        _ready_of(no_worker_for_queue(fleet.taking, "", queue), counts, (queue,))
        for queue, counts in counts_by(ready.free, "queue").items()
        if not fleet.serves(queue=queue)
    ]
    yield from _at_most("queue", queues)
    tenants = [
        _ready_of(no_worker_for_tenant(fleet.taking, tenant), counts, (tenant,))
        for tenant, counts in counts_by(ready.free, "tenant").items()
        if not fleet.serves(tenant=tenant)
    ]
    yield from _at_most("tenant", tenants)


def _apart(ready: Sequence[Count], fleet: WorkerFleet) -> Iterator[Problem]:
    """Items whose type some workers have, and whose queue and tenant only others serve."""
    found: dict[Reason, list[Count]] = {}
    for each in ready:
        if fleet.serves(type=each.type, queue=each.queue, tenant=each.tenant):
            continue
        having = fleet.serving(type=each.type)
        if having and fleet.serves(queue=each.queue) and fleet.serves(tenant=each.tenant):
            _, missing = fleet.not_serving(having, each.type, each.queue, each.tenant)
            if missing is not None:
                found.setdefault(replace(missing, refs=(each.type, each.queue)), []).append(each)
    for reason, counts in found.items():
        yield _ready_of(reason, counts)


def _ready_of(reason: Reason, counts: Sequence[Count], refs: tuple[str, ...] | None = None) -> Problem:
    return _of("no_worker", reason, _ready_waits(counts), refs, total(counts)[0])


def _ready_waits(counts: Sequence[Count]) -> str:
    count, estimated = total(counts)
    return _waits(count, "ready item", estimated=estimated)


def _at_most(noun: By, problems: Sequence[Problem]) -> Iterator[Problem]:
    """The problems of types, queues or tenants that no worker has. Many of them are one."""
    if len(problems) <= MOST_OF_KIND:
        yield from problems
        return
    names = tuple(each.refs[0] for each in problems)
    text = f"no worker for {len(names):,} {noun}s of which items are ready: {listed(names, MOST_OF_KIND)}"
    have = "whose app has them" if noun == "type" else "that serves them"
    yield Problem("no_worker", text, f"start a worker {have}", names, sum(each.items for each in problems))


def _undecodable(overview: Overview, fleet: WorkerFleet) -> Iterator[Problem]:
    by_type: dict[str, list[tuple[WorkerState, UndecodableType]]] = {}
    if not any(worker.info is not None and worker.info.undecodable for worker in fleet.taking):
        return
    open_types = {each.type for each in overview.counts if each.status != "dead"}
    for worker in fleet.taking:
        for type, said in worker.info.undecodable.items() if worker.info is not None else ():
            if type in open_types:  # not only another tenant's
                by_type.setdefault(type, []).append((worker, said))
    for type, those in sorted(by_type.items()):
        # What a worker says may be a minute old.
        there, estimated = total(
            each for each in overview.counts if each.type == type and each.status != "dead"
        )
        most = max(said.count for _, said in those)
        count = most if estimated else min(most, there)
        items = plural(count, "item") if count else "items"
        workers = [worker for worker, _ in those]
        text = misfit_text(f"the arguments of {items} of {type}", workers, those[0][1].error)
        if count:
            text += f"; {dies_text(fleet.now, (said for _, said in those), count)}"
        yield Problem("undecodable", text, FIX, (type,), count)


def _releases(overview: Overview, marks: Sequence[DeadMark], tenant: str | None) -> Iterator[Problem]:
    """Marks that appear only under the newest release. Those that follow from the deaths of others are none
    of their own."""
    if len(overview.releases) < 2:
        return
    newest, before = overview.releases[0].name, overview.releases[1].name
    found = sorted(_began_with_newest(overview, marks), key=lambda mark: -mark.count)
    live = any(each.info is not None and each.info.release == newest for each in overview.workers)
    what = f"go back to {plain(before)}, or mend it; then run the dead items again"
    if not live:
        what = f"no worker runs {plain(newest)} any more; run the dead items again"
    for mark in found[:MOST_OF_KIND]:
        error = error_line(mark.error_type.rpartition(".")[2], mark.error)
        again = command("dead requeue --canary 5 --mark", mark.mark, tenant=tenant)
        text = f"{plain(mark.type)} fails with {error}: {releases_text(mark)}"
        yield Problem("release", text, f"{what}: {again}", (mark.mark,), mark.count, mark=mark.mark)
    more = found[MOST_OF_KIND:]
    if more:
        text = f"{plural(len(more), 'more mark')} of dead items began with {plain(newest)}"
        fix = command("dead --release", newest, tenant=tenant)
        yield Problem("release", text, fix, (newest,), sum(mark.count for mark in more))


def began_with(mark: DeadMark, newest: str) -> bool:
    """Whether a release may be the cause of a mark, as far as its dead items say."""
    if mark.count < RELEASE_LEAST or mark.error_type == UNSATISFIABLE or len(mark.releases) != 1:
        return False
    (only,) = mark.releases
    soon = only.began_at is not None and only.first_at <= only.began_at + RELEASE_WITHIN
    return only.release == newest and only.count >= mark.count and soon


def _dying(overview: Overview, deaths: Sequence[TypeDeaths], marks: Sequence[DeadMark]) -> Iterator[Problem]:
    """Types that die now, those with the most deaths first. Not those of which a release is said to be the
    cause: it has a remedy."""
    explained = {mark.type for mark in _began_with_newest(overview, marks)}
    for each in sorted(deaths, key=lambda one: (-one.dead, one.type)):
        if each.type in explained:
            continue
        share = f"{min(each.dead / each.ended, 1.0):.0%}".replace("%", " %")
        text = f"{plain(each.type)} dies: {each.dead:,} in the last {duration(each.seconds, brief=True)}, "
        text += f"{share} of those that ended"
        look = "treadle dead"
        if (mark := each.mark) is not None:
            text += f"; {error_line(mark.error_type.rpartition('.')[2], mark.error)}"
            look = command("dead show", mark.mark)
        fix = f"look at them: {look}; stop it: {command('pause --type', each.type)}; or slow it down: "
        fix += f"{command('limits set --type', each.type)} 4"
        known = "" if mark is None else mark.mark
        yield Problem("dying", text, fix, (each.type,), each.dead, mark=known)


def _began_with_newest(overview: Overview, marks: Sequence[DeadMark]) -> list[DeadMark]:
    if len(overview.releases) < 2:
        return []
    return [mark for mark in marks if began_with(mark, overview.releases[0].name)]


# -- schedules -----------------------------------------------------------------------------------------


def _schedule_problems(
    schedules: Sequence[ScheduleState], now: float, tenant: str | None
) -> Iterator[Problem]:
    """Schedules that are not fired although workers are alive, and those whose runs fail."""
    orphaned = _orphaned(schedules)
    for each in orphaned[:MOST_OF_KIND]:
        text = f"no running process has schedule {each.name}: last seen {duration(now - each.seen_at)} ago"
        end = command("schedules cancel", each.name, tenant=tenant)
        fix = f"start a worker of its app, or end it: {end}"
        yield Problem("schedule", text, fix, (each.name,), schedule=each.name)
    more = tuple(each.name for each in orphaned[MOST_OF_KIND:])
    if more:
        text = f"nor has one of these schedules: {listed(more, 3)}"
        yield Problem("schedule", text, command("schedules", tenant=tenant), more)
    overdue = tuple(each.name for each in schedules if each.state == "overdue")
    if overdue:
        text = f"{plural(len(overdue), 'schedule')} overdue: no process has fired {listed(overdue, 3)}"
        yield Problem("schedule", text, command("why --schedule", overdue[0], tenant=tenant), overdue)
    failing = [each for each in schedules if each.state == "failing"]
    for each in failing[:MOST_OF_KIND]:
        text = f"schedule {each.name}: its last run failed, and submitted nothing: {each.last_error}"
        fix = f"correct its `run`: {command('why --schedule', each.name, tenant=tenant)}; then run it now: "
        fix += command("schedules trigger", each.name, tenant=tenant)
        yield Problem("schedule_failed", text, fix, (each.name,))
    more = tuple(each.name for each in failing[MOST_OF_KIND:])
    if more:
        text = f"the last runs of these schedules failed too: {listed(more, 3)}"
        yield Problem("schedule_failed", text, command("schedules", tenant=tenant), more)


def _dying_schedules(dying: Sequence[ScheduleRun], tenant: str | None) -> Iterator[Problem]:
    for run in dying[:MOST_OF_KIND]:
        text = f"schedule {run.name}: the items of its last runs have died"
        fix = command("why", run.id or "", tenant=tenant or tenant_option(run.tenant or DEFAULT_TENANT))
        yield Problem("schedule_failed", text, fix, (run.name,))
    more = tuple(run.name for run in dying[MOST_OF_KIND:])
    if more:
        text = f"so have those of these schedules: {listed(more, 3)}"
        yield Problem("schedule_failed", text, command("schedules", tenant=tenant), more)


def _unfired_text(schedules: Sequence[ScheduleState]) -> str:
    """Which schedules are not fired because no worker takes items. Empty: none."""
    names = [each.name for each in _orphaned(schedules)]
    are = "is" if len(names) == 1 else "are"
    return f"{plural(len(names), 'schedule')} {are} not fired: {listed(names, 3)}" if names else ""


def _orphaned(schedules: Sequence[ScheduleState]) -> list[ScheduleState]:
    return [each for each in schedules if each.state == "orphaned"]
