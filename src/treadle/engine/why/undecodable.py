"""Undecodable: workers have claimed an item, and could not decode its arguments."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.item import ItemState, WorkerState
from treadle.item_facts import Explanation
from treadle.why import Reason
from treadle.wording import first_line, listed, plain

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
    names = listed(worker_name(worker) for worker, _ in said)
    error = first_line(said[0][1].error)
    text = f"its arguments do not fit the code of {names}{f': {error}' if error else ''}; "
    text += "it is left to workers with other code and tried again"
    dies = f"dead (undecodable) {until_text(explained.now, first)} at the latest"
    if count == 1:
        text += f"; it is {dies}"
    elif count:
        text += f"; {count:,} items of {plain(item.type)} are in this state, and the first of them is {dies}"
    refs = tuple(worker.id for worker, _ in said)
    return [Reason(kind="undecodable", text=text, until=first if count else None, refs=refs, fix=FIX)]


def _came_back(item: ItemState) -> bool:
    """Whether a worker claimed it last without running it."""
    claimed, started = item.claimed_at, item.started_at
    return claimed is not None and (started is None or started < claimed)
