"""Ending items: what every way to end has in common.

The item's own rows, what it waited for, who waits for it, and its group. `settle`, `cancel` and `complete`
note their endings here; `flush` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from treadle.item import Effects, EndedGroup, Reason, ReleasedItem, Verdict
from treadle.rules import dependency_state

from .codes import BLOCKED, DEAD, READY, SCHEDULED, SUCCESS, doomed
from .groups import Groups
from .remove import let_go
from .rows import ids
from .statements import Statements
from .tx import NULL, Row, Tx, array, blob

_SQL = Statements("finish")


class Live(NamedTuple):
    """An item that has not ended, as far as ending it needs to know."""

    no: int
    id: str
    tenant: str
    type: str
    status: int
    token: int | None
    settled: str | None
    worker: int | None
    attempt: int
    group: int | None
    gated: int
    due: float
    deadline: float | None
    seq: int
    keep: float
    keep_dead: float | None
    verdict: Verdict | None

    def shortest_keep(self) -> float:
        return self.keep if self.keep_dead is None else min(self.keep, self.keep_dead)


def live(tx: Tx, nos: Iterable[int]) -> dict[int, Live]:
    """Those of these items that have not ended."""
    return {row[0]: Live._make(row) for row in tx.rows(_SQL["live"], array(nos))}


class Finish:
    """The endings of one verb."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.groups = Groups(tx)
        self._done: list[tuple[Any, ...]] = []
        self._gated: list[int] = []
        self._closed: list[EndedGroup] = []
        self._released: list[ReleasedItem] = []
        self._doomed = 0

    def end(
        self,
        item: Live,
        outcome: int,
        *,
        reason: Reason | None = None,
        result: bytes | None = None,
        token: int | None = None,
        worker: str | None = None,
    ) -> None:
        """Note that a member of a group ends, or an item that is alone and gave nothing."""
        if item.group is None and self.groups.touched(item.no) is None:
            self.end_alone(item, outcome, reason, result, token, worker)
            return
        group = self.groups.of(item.no if item.group is None else item.group)
        group.leave(self._tx.now, failed=outcome != SUCCESS)
        self._note(item, outcome, reason, result, token, worker, None, 0)

    def end_alone(
        self,
        item: Live,
        outcome: int,
        reason: Reason | None,
        result: bytes | None,
        token: int | None,
        worker: str | None,
        gave: int = 0,
    ) -> None:
        """Note that an item ends which is alone in its group. `gave`: its result is the group's value (1),
        and finally so (3)."""
        keep = item.keep_dead if outcome == DEAD else item.keep
        expires = None if keep is None else self._tx.now + keep
        self._closed.append(EndedGroup(item.id, item.tenant, result if gave else None, item.type))
        self._note(item, outcome, reason, result, token, worker, expires, gave)

    def _note(
        self,
        item: Live,
        outcome: int,
        reason: Reason | None,
        result: bytes | None,
        token: int | None,
        worker: str | None,
        expires: float | None,
        gave: int,
    ) -> None:
        if item.gated:
            self._gated.append(item.no)
        self._done.append(
            (
                item.no,
                outcome,
                reason or NULL,
                token or NULL,
                self._tx.now,
                NULL if expires is None else expires,
                gave,
                worker or NULL,
                NULL if result is None else blob(result),
            )
        )

    def effects(self) -> Effects:
        """Write what is left, and say what followed."""
        self.flush()
        self.groups.write()
        closed = (*self._closed, *self.groups.closed())
        return Effects(tuple(self._released), closed, self._doomed)

    def flush(self) -> None:
        """Write the endings noted so far, and count them where they are waited for."""
        if not self._done:
            return
        tx, done = self._tx, self._done
        nos = array(row[0] for row in done)
        tx.run_rows(_SQL["insert_done"], done)
        tx.run(_SQL["delete_jobs"], nos)
        if self._gated:
            # Whether an item that is let go is alone is asked of the groups.
            self.groups.write()
            let_go(tx, array(self._gated))
            tx.run(_SQL["delete_edges_to"], array(self._gated))
            tx.run(_SQL["delete_awaited_by"], array(self._gated))
        if tx.value(_SQL["any_edge"]) is not None:
            self._count(nos, {row[0]: row[1] for row in done})
        self._done = []
        self._gated = []

    # -- who waited for them ---------------------------------------------------------------------------

    def _count(self, nos: str, outcomes: dict[int, int]) -> None:
        tx = self._tx
        counted = _counted(tx.rows(_SQL["dependents"], nos), outcomes)
        tx.run(_SQL["count_edges"], nos)
        if not counted:
            return
        released = [one for one in counted if one.is_released()]
        first = tx.numbers(seq=len(released)).seq if released else 0
        places = {one.no: first + place for place, one in enumerate(released)}
        tx.run_rows(_SQL["update_gates"], [one.row(tx.now, places.get(one.no, 0)) for one in counted])
        self._doomed += sum(one.is_doomed() for one in counted)
        self._released += _released(tx, [one.no for one in released])


class _Waiting:
    """A blocked item, while what ended is counted."""

    __slots__ = ("_any_end", "_due", "_met", "_need", "_open", "no")

    def __init__(self, row: Row) -> None:
        self.no: int = row[1]
        self._need, self._met, self._open, self._any_end, self._due = row[3:]

    def count(self, outcome: int, weight: int) -> None:
        self._open -= weight
        if outcome == SUCCESS or self._any_end:
            self._met += weight

    def is_released(self) -> bool:
        return dependency_state(self._need, self._met, self._open) == "released"

    def is_doomed(self) -> bool:
        return dependency_state(self._need, self._met, self._open) == "doomed"

    def row(self, now: float, seq: int) -> tuple[Any, ...]:
        status, verdict = BLOCKED, NULL
        since: float | str = NULL
        if self.is_released():
            status, since = (SCHEDULED, NULL) if self._due > now else (READY, now)
        elif self.is_doomed():
            status, verdict = doomed(BLOCKED), "unsatisfiable"
        return self.no, self._met, self._open, status, seq if status == READY else 0, since, verdict


def _counted(rows: Sequence[Row], outcomes: dict[int, int]) -> list[_Waiting]:
    found: dict[int, _Waiting] = {}
    for row in rows:
        found.setdefault(row[1], _Waiting(row)).count(outcomes[row[0]], row[2])
    return list(found.values())


def _released(tx: Tx, nos: Sequence[int]) -> list[ReleasedItem]:
    return [
        ReleasedItem(id, tenant, type, group_id, queue, parent, ids(after))
        for id, tenant, type, group_id, queue, parent, after in tx.rows(_SQL["released"], array(nos))
    ]
