"""WorkerFleet: which workers could run an item, and why they do not; and items that workers have claimed, and
could not decode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from treadle.base.wording import close_to, duration, first_line, listed, plain, plural
from treadle.bulk_action import BULK_TYPE
from treadle.define.dependency import BUILT_IN
from treadle.item import TELL_TYPE, ItemState, WorkerState
from treadle.item_facts import Explanation
from treadle.store.fleet import Fleet, is_blocked, queues_of, serves
from treadle.why import Reason
from treadle.worker_info import MOST_BLOCKAGES, Blockage, UndecodableType

from .wording import (
    command,
    item_name,
    kill_command,
    killed_text,
    last_seen,
    process_name,
    since_text,
    tenant_option,
    until_text,
    worker_name,
)

OFTEN_WITHIN: Final = 300.0
"""Seconds in which a worker was blocked several times, so that it is a problem also in between."""
OFTEN: Final = 2
"""Times, at least. Once may be chance."""
NO_RUNS: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})
MOST_PLACES: Final = 0.5
"""Share of the places of full workers, from which on it is said that one type holds them."""
START_WORKER: Final = "start one: treadle worker MODULE:APP"


class WorkerFleet(Fleet):
    """The workers, with the reasons for which they do not run an item."""

    def types(self) -> list[str]:
        """The types that the workers have."""
        names = {name for worker in self.taking for name in worker.types or ()}
        return sorted(names.difference(BUILT_IN))

    # -- what is missing -------------------------------------------------------------------------------

    def no_worker(self, left_at: float | None = None) -> Reason:
        """No worker claims items. left_at: when the last one that had the type in question was gone."""
        if self.live:
            stopping = [worker for worker in self.live if (info := worker.info) and info.draining]
            names = listed(worker_name(worker) for worker in stopping or self.live)
            state = "is stopping" if len(stopping) == 1 else "are stopping"
            text = f"no worker takes new items: {names} {state if stopping else 'runs one item by hand'}"
            return Reason(kind="no_worker", text=text, refs=_ids(self.live), fix=START_WORKER)
        if not self.workers:
            left = "" if left_at is None else f": the last one left {self._since(left_at)}"
            return Reason(kind="no_worker", text=f"no worker is alive{left}", fix=START_WORKER)
        last = max(self.workers, key=last_seen)
        seen = "was last seen" if last.info is not None else "lost its lease"
        text = f"no worker is alive: the last one, {worker_name(last)}, {seen} {self._since(last_seen(last))}"
        return Reason(kind="no_worker", text=text, refs=(last.id,), fix=START_WORKER)

    def no_worker_for_type(self, type: str, lost_at: float | None, waits_since: float | None) -> Reason:
        """No worker has the type. lost_at: when the last one left that had it. waits_since: since when the
        item could run. None: it is about many."""
        close = close_to(type, self.types())
        count = len(self.taking)
        text = f"none of {count:,} live workers has {plain(type)}"
        if count == 1:
            text = f"the only live worker, {worker_name(self.taking[0])}, does not have {plain(type)}"
        if close is not None:
            text += f", but {plain(close)} is known"
        text += f"; the last that had it left {self._since(lost_at)}" if lost_at is not None else ""
        graces = [info.unknown_type_grace for worker in self.taking if (info := worker.info)]
        grace = min([each for each in graces if each is not None and type != BULK_TYPE], default=None)
        dies_at = None if grace is None or waits_since is None else max(waits_since, lost_at or 0.0) + grace
        if dies_at is not None:
            text += f"; without one it is dead (unknown_type) {until_text(self.now, dies_at)}"
        fix = "start a worker whose app has this type"
        if type in BUILT_IN:
            fix = "start a worker that serves all queues: treadle worker"
            if type == TELL_TYPE:
                fix = "start a process that tells of problems: a worker with on_problem=, or treadle watch"
            return Reason(kind="no_worker_for_type", text=text, refs=(type,), fix=fix)
        fix += f"; if it was renamed, keep the old name: @work(aliases=[{type!r}])"
        return Reason(kind="no_worker_for_type", text=text, until=dies_at, refs=(type,), fix=fix)

    def not_serving(
        self, workers: Sequence[WorkerState], type: str, queue: str, tenant: str | None
    ) -> tuple[list[WorkerState], Reason | None]:
        """Those of `workers` that serve the queue and the tenant (None: any). If there is none: why."""
        served = [worker for worker in workers if serves(worker, queue=queue)]
        if not served:
            return [], no_worker_for_queue(workers, type, queue)
        if tenant is None:
            return served, None
        both = [worker for worker in served if serves(worker, tenant=tenant)]
        return both, None if both else no_worker_for_tenant(served, tenant, type, queue)

    # -- what holds them back --------------------------------------------------------------------------

    def declining(self, workers: Sequence[WorkerState], type: str) -> list[Reason]:
        """That workers declined items of this type, if they did."""
        those = [worker for worker in workers if _declines(worker, type)]
        return [_declined(those, type)] if those else []

    def busy(
        self, workers: Sequence[WorkerState], type: str, runs: Mapping[str, Sequence[str]] = NO_RUNS
    ) -> list[Reason]:
        """Why none of the workers that could run an item takes it now. Empty if one could, or may.

        runs: the types of the items that workers run, by the ids of the workers, as far as they were read.
        """
        blocked = [worker for worker in workers if is_blocked(worker)]
        pressed = [worker for worker in workers if self.is_pressed(worker)]
        declining = [worker for worker in workers if _declines(worker, type)]
        tried = [
            worker
            for worker in workers
            if self.is_on_trial(worker) and (type == BULK_TYPE or not _is_counted_full(worker))
        ]
        full = [worker for worker in workers if _is_full(worker, type) and worker not in tried + blocked]
        held_back = {worker.id for worker in (*blocked, *pressed, *declining, *tried, *full)}
        if any(worker.id not in held_back for worker in workers):
            return []
        return [
            *([self.worker_blocked(blocked)] if blocked else ()),
            *([self._pressed(pressed)] if pressed else ()),
            *self.declining(declining, type),
            *([self._tried(tried)] if tried else ()),
            *([_worker_full(full, type, runs)] if full else ()),
        ]

    def worker_blocked(self, workers: Sequence[WorkerState]) -> Reason:
        """The event loops of these workers do not run."""
        times = [info.blocked_since for worker in workers if (info := worker.info)]
        since = min(each for each in times if each is not None)
        names = listed(worker_name(worker) for worker in workers)
        processes = listed(map(process_name, workers))
        text = f"{names} {_verb(workers, 'is', 'are')} blocked: "
        text += f"{_verb(workers, 'its event loop has', 'their event loops have')} not run for "
        text += duration(self.now - since)
        blockers = [each for worker in workers if worker.info for each in worker.info.blocked_by]
        if blockers:
            block = "blocks" if len(blockers) == 1 else "block"
            text += f"; {listed(item_name(each.id, each.type) for each in blockers)} {block} it"
        if often := self._often_text(workers):
            text += f"; {often}"
        fix = f"look at {processes}: a handler blocks it (the log of the worker has its stack), or it is "
        fix += f"stopped ({kill_command('CONT', workers[0])})"
        return Reason(
            kind="worker_blocked", text=text, refs=_ids(workers), fix=fix + self._stop_blocking(workers)
        )

    def often_blocked(self) -> list[WorkerState]:
        """Live workers that run now, and were blocked several times in the last minutes."""
        return [each for each in self.live if not is_blocked(each) and len(self._recent(each)) >= OFTEN]

    def worker_often_blocked(self, workers: Sequence[WorkerState]) -> Reason:
        """The event loops of these workers run now, and did not again and again."""
        names, processes = listed(map(worker_name, workers)), listed(map(process_name, workers))
        fix = f"look at the log of {processes}: it has the stack of what blocked it"
        text = f"{names} {_verb(workers, 'was', 'were')} {self._often_text(workers)}"
        return Reason(
            kind="worker_blocked", text=text, refs=_ids(workers), fix=fix + self._stop_blocking(workers)
        )

    def _recent(self, worker: WorkerState) -> list[Blockage]:
        info = worker.info
        past = () if info is None else info.blockages
        return [each for each in past if each.until >= self.now - OFTEN_WITHIN]

    def _often_text(self, workers: Sequence[WorkerState]) -> str:
        """`blocked 5 times in the last 5 min, 110 s in all, by feed.export`. Empty: not several times."""
        past = [each for worker in workers for each in self._recent(worker)]
        if len(past) < OFTEN:
            return ""
        least = "at least " if any(len(self._recent(each)) >= MOST_BLOCKAGES for each in workers) else ""
        text = f"blocked {least}{len(past)} times in the last {duration(OFTEN_WITHIN)}, "
        text += f"{duration(sum(each.until - each.since for each in past), brief=True)} in all"
        types = dict.fromkeys(item.type for each in past for item in each.items)
        return text + (f", by {listed(map(plain, types), 3)}" if types else "")

    def _stop_blocking(self, workers: Sequence[WorkerState]) -> str:
        """How to keep what blocks them from being run."""
        items = [item for worker in workers for each in self._recent(worker) for item in each.items]
        items += [each for worker in workers if worker.info for each in worker.info.blocked_by]
        most = next((type for type, _ in Counter(each.type for each in items).most_common(1)), "")
        return f"; to run no more of {plain(most)}: {command('pause --type', most)}" if most else ""

    def _pressed(self, workers: Sequence[WorkerState]) -> Reason:
        times = [info.pressed_until for worker in workers if (info := worker.info)]
        until = min(each for each in times if each is not None)
        names = listed(worker_name(worker) for worker in workers)
        claim = _verb(workers, "claims", "claim")
        text = f"back-pressure: {names} {claim} nothing for {duration(until - self.now)}"
        return Reason(
            kind="pressed",
            text=f"{text} more",
            until=until,
            refs=_ids(workers),
            fix="see what the hook `backpressure` measures, or start more workers",
        )

    def _tried(self, workers: Sequence[WorkerState]) -> Reason:
        """An item on trial runs, or waits, on each of these."""
        trials = [info.trial for worker in workers if (info := worker.info) and info.trial]
        first, ids = trials[0], tuple(dict.fromkeys(trial.id for trial in trials if trial.id))
        fix = "wait, or start more workers"
        if first.id:
            cancel = command("cancel", first.id, tenant=tenant_option(first.tenant))
            fix += f"; if {plain(first.id)} is at fault, give it up: {cancel}"
        return Reason(
            kind="trial",
            text=listed(map(self._trial_text, workers)),
            until=min(trial.until for trial in trials),
            refs=(*ids, *_ids(workers)),
            fix=fix,
        )

    def _trial_text(self, worker: WorkerState) -> str:
        trial = None if worker.info is None else worker.info.trial
        assert trial is not None
        others = plural(trial.most - 1, "other")
        takes, runs = "few items", f"runs beside at most {others}"
        if trial.most == 1:
            takes, runs = "no other items", "runs alone"
        if trial.waits:
            takes = "no items"
            runs = "waits until no other runs," if trial.most == 1 else f"waits until at most {others} run,"
        text = f"{worker_name(worker)} takes {takes}: {plain(trial.id) or 'an item'} is on trial, and {runs} "
        text += f"for {duration(trial.until - self.now)} more at the longest"
        return f"{text} ({killed_text(trial.losses)})" if trial.losses else text

    def _since(self, at: float) -> str:
        return since_text(self.now, at)


def unknown_workers(workers: Iterable[WorkerState]) -> str:
    """What is not known about workers that say nothing about themselves. Empty: all of them do."""
    unsaid = [worker for worker in workers if worker.info is None]
    if not unsaid:
        return ""
    names = listed(worker_name(worker) for worker in unsaid)
    if len(unsaid) == 1:
        return f"{names} says nothing about itself: its queues, tenants and room are not known"
    return f"{names} say nothing about themselves: their queues, tenants and room are not known"


def no_worker_for_queue(workers: Sequence[WorkerState], type: str, queue: str) -> Reason:
    """None of these workers serves the queue. type: they have it. Empty: any."""
    queues = sorted(queues_of(workers))
    close = close_to(queue, queues)
    that, have = "", ""
    if type:
        that, have = f" that has {plain(type)}", f" that {_verb(workers, 'has', 'have')} it"
    text = f"no worker{that} serves queue {plain(queue)}: {plural(len(workers), 'worker')}{have} "
    text += f"{_verb(workers, 'serves', 'serve')} {listed(queues, most=5)}"
    fix = f"start a worker for it: {command('worker MODULE:APP --queues', queue)}"
    if close is not None:
        text += f"; {plain(close)} and {plain(queue)} look alike"
        fix = f"correct --queues of the worker or, if that is right, update the queue of the items; or {fix}"
    return Reason(kind="no_worker_for_queue", text=text, refs=(queue, *queues), fix=fix)


def no_worker_for_tenant(
    workers: Sequence[WorkerState], tenant: str, type: str = "", queue: str = ""
) -> Reason:
    """None of these workers serves the tenant. type, queue: they have and serve it. Empty: any."""
    that = " and ".join([f"has {plain(type)}"] * bool(type) + [f"serves queue {plain(queue)}"] * bool(queue))
    tenants = sorted({name for worker in workers if (info := worker.info) for name in info.tenants or ()})
    text = f"no worker {f'that {that} ' if that else ''}serves tenant {plain(tenant)}: "
    text += f"{plural(len(workers), 'worker')} "
    text += f"{_verb(workers, 'serves', 'serve')} {listed(tenants, most=5)}"
    fix = f"start a worker for it: {command('worker MODULE:APP --tenants', tenant)}"
    return Reason(kind="no_worker_for_tenant", text=text, refs=(tenant, *tenants), fix=fix)


def _declines(worker: WorkerState, type: str) -> bool:
    info = worker.info
    return info is not None and info.declined.get(type, 0) > 0


def _declined(workers: Sequence[WorkerState], type: str) -> Reason:
    counts = [(worker, info.declined.get(type, 0)) for worker in workers if (info := worker.info)]
    said = listed(f"{worker_name(worker)} declined {count:,}" for worker, count in counts)
    text = f"the hook `accept` declines {plain(type)}: {said} in the last minute"
    return Reason(
        kind="declined", text=text, refs=_ids(workers), fix="see what `accept` waits for on these workers"
    )


def _is_full(worker: WorkerState, type: str) -> bool:
    """Whether it has no room for the type. A portion of a bulk action needs none."""
    if type == BULK_TYPE:
        return False
    info = worker.info
    return _is_counted_full(worker) or (info is not None and (info.full or type in info.full_types))


def _is_counted_full(worker: WorkerState) -> bool:
    """By the count of the store, which is newer than what the worker said. It says all if all types share one
    doer."""
    info = worker.info
    return (
        info is not None and not info.rooms and info.room is not None and (worker.running or 0) >= info.room
    )


def has_no_place(worker: WorkerState, type: str) -> bool:
    """Whether it may be full without a fleet-wide limit: it runs as many items as its doer takes at once."""
    info = worker.info
    room = None if info is None else info.rooms.get(type, info.room)
    return room is not None and (worker.running is None or worker.running >= room)


def _worker_full(workers: Sequence[WorkerState], type: str, runs: Mapping[str, Sequence[str]]) -> Reason:
    if len(workers) == 1:
        text = f"the only worker that could run it is full: {_fullness(workers[0], type)}"
    else:
        said = listed(_fullness(worker, type) for worker in workers)
        text = f"the {len(workers):,} workers that could run it are full: {said}"
    fix = "wait, start more workers, or raise max of the doer"
    held = [each for worker in workers for each in runs.get(worker.id, ())]
    most, count = next(iter(Counter(held).most_common(1)), ("", 0))
    if most != type and count > MOST_PLACES * len(held):
        text += f"; {count:,} of {len(held):,} run {plain(most)}"
        if len(held) > 1:
            limit = command("limits set --type", most)
            fix = f"let it leave places to others: {limit} {len(held) * 2 // 3}; or {fix}"
    return Reason(kind="worker_full", text=text, refs=_ids(workers), fix=fix)


def _fullness(worker: WorkerState, type: str) -> str:
    info, name = worker.info, worker_name(worker)
    room = None if info is None else info.rooms.get(type, info.room)
    if info is None or room is None:
        return f"{name} has no room for {plain(type)}"
    if type in info.rooms:
        return f"{name} runs at most {room:,} of {plain(type)} at once"
    if worker.running is None:
        return f"the doer of {name} is full ({room:,} at once)"
    if worker.running >= room and not info.rooms:
        return f"{name} runs {worker.running:,} of {room:,}"
    return f"{name} runs {plural(worker.running, 'item')}, and its doer is full ({room:,} at once)"


def _verb(workers: Sequence[WorkerState], one: str, many: str) -> str:
    return one if len(workers) == 1 else many


def _ids(workers: Iterable[WorkerState]) -> tuple[str, ...]:
    return tuple(worker.id for worker in workers)


FIX = "turn old arguments into those of today: @work(upcast=...); to see what does not fit: treadle check"


def undecodable_reasons(explained: Explanation, workers: Iterable[WorkerState]) -> list[Reason]:
    """That workers could not decode it, if they say so of its type and have given it back. workers: those
    that could run it."""
    item = explained.item
    if not _came_back(item):
        return []
    said = [
        (worker, of_type)
        for worker in workers
        if (info := worker.info) is not None and (of_type := info.undecodable.get(item.type)) is not None
    ]
    if not said:
        return []
    first = min(of_type.until for _, of_type in said)
    count = max(of_type.count for _, of_type in said)
    text = misfit_text("its arguments", [worker for worker, _ in said], said[0][1].error)
    text += "; it is left to workers with other code and tried again"
    if count:
        others = f"{count:,} items of {plain(item.type)} are in this state, and " if count > 1 else ""
        text += f"; {others}{dies_text(explained.now, (each for _, each in said), count)}"
    refs = tuple(worker.id for worker, _ in said)
    return [Reason(kind="undecodable", text=text, until=first if count else None, refs=refs, fix=FIX)]


def misfit_text(arguments: str, workers: Iterable[WorkerState], error: str) -> str:
    """That arguments do not fit the code of these workers."""
    why = first_line(error)
    return (
        f"{arguments} do not fit the code of {listed(map(worker_name, workers))}{f': {why}' if why else ''}"
    )


def dies_text(now: float, said: Iterable[UndecodableType], count: int) -> str:
    """When `count` items die of that, as workers say: the first of them."""
    which = "it" if count == 1 else "the first of them"
    return f"{which} is dead (undecodable) {until_text(now, min(each.until for each in said))} at the latest"


def _came_back(item: ItemState) -> bool:
    """Whether a worker claimed it last without running it."""
    claimed, started = item.claimed_at, item.started_at
    return claimed is not None and (started is None or started < claimed)
