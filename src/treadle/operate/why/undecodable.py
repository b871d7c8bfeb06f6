"""Undecodable: workers have claimed an item, and could not decode its arguments."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.base.wording import first_line, listed, plain
from treadle.item import ItemState, WorkerState
from treadle.item_facts import Explanation
from treadle.why import Reason
from treadle.worker_info import UndecodableType

from .wording import until_text, worker_name

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
