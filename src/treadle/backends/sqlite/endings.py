"""Endings: what every way to end an item has in common.

`settle`, `cancel` and `complete` add their endings to one `EndingBatch`. It writes the items' own rows,
counts the ends for the items that wait for them, and closes groups.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from treadle.item import Attempt, DeathReason, Effects, EndedGroup, ReleasedItem, Verdict
from treadle.store.rules.settlement import KEPT_ATTEMPTS, Counters, can_fail_group

from .dependencies import ANY_BLOCKED, count_ends, tolerated
from .groups import SqliteGroups
from .retention import let_prerequisites_expire
from .rows import CANCELLED, DEAD, RUNNING, SUCCESS, encode_text
from .statements import NULL, Tx, array, blob, statements

_SQL = statements("endings")


class OpenItem(NamedTuple):
    """The columns of an item that has not ended which settling and ending need."""

    no: int
    id: str
    tenant: str
    type: str
    status: int
    token: int | None
    settled_tokens: str | None
    worker: int | None
    attempt: int
    failures: int
    losses: int
    begun: int
    group: int | None
    has_dependencies: int
    due: float
    deadline: float | None
    seq: int
    keep: float
    keep_dead: float | None
    contributes: int
    verdict: Verdict | None

    @property
    def counters(self) -> Counters:
        return Counters(self.attempt, self.failures, self.losses, self.begun == 1)


def open_items(tx: Tx, nos: Iterable[int]) -> dict[int, OpenItem]:
    """Those of these items that have not ended."""
    return {row[0]: OpenItem._make(row) for row in tx.rows(_SQL["open_items"], array(nos))}


class EndingBatch:
    """The endings of one verb."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.groups = SqliteGroups(tx)
        self._done: list[tuple[Any, ...]] = []
        self._alone: list[int] = []
        self._special: list[int] = []
        """Items that wait for others, or add nothing to the value of their group."""
        self._dead: list[tuple[int, int]] = []
        self._marks: list[tuple[int, float, str, str, str]] = []
        """The dead items: (no, ended, reason, mark, release)."""
        self._closed: list[EndedGroup] = []
        self._released: list[ReleasedItem] = []
        self._doomed = 0

    def end(
        self,
        item: OpenItem,
        outcome: int,
        *,
        reason: DeathReason | None = None,
        result: bytes | None = None,
        token: int | None = None,
        worker: str | None = None,
        contributed: int = 0,
        began: float | None = None,
        tolerated: bool = False,
        mark: str = "",
        release: str | None = None,
    ) -> None:
        """End a member of a group, or an item that is alone in its group. `contributed`, for the latter: its
        result is the group's value (1), and final (3). `began`: when the handler began. The store knows only
        that it was not before the claim. `tolerated`: an item that is stored together with this end tolerates
        it. `mark`: the fingerprint of a death. `release`: that of its worker."""
        if token is None and item.status == RUNNING and item.begun:
            began = 0.0
        expires: float | str = NULL
        if item.group is None and self.groups.touched(item.no) is None:
            keep = item.keep_dead if outcome == DEAD else item.keep
            if keep is not None:
                expires = self._tx.now + keep
            self._alone.append(item.no)
            value, failed = result if contributed else None, None if outcome == DEAD else 0
            self._closed.append(EndedGroup(item.id, item.tenant, value, item.type, failed))
        else:
            group = self.groups.get(item.no if item.group is None else item.group)
            group.end_member(self._tx.now, cancelled=outcome == CANCELLED)
        if (
            outcome == DEAD
            and not tolerated
            and can_fail_group(item.type, contributes=bool(item.contributes))
        ):
            self._dead.append((item.no, item.no if item.group is None else item.group))
        if outcome == DEAD:
            self._marks.append((item.no, self._tx.now, reason or NULL, mark, release or NULL))
        if item.has_dependencies or not item.contributes:
            self._special.append(item.no)
        stored = NULL if result is None else blob(result)
        ending = (item.no, outcome, reason or NULL, token or NULL, self._tx.now, expires, contributed)
        failed = outcome == DEAD and item.verdict is None and item.begun
        self._done.append(
            (*ending, worker or NULL, stored, 1 if failed else 0, NULL if began is None else began)
        )

    def effects(self) -> Effects:
        """Write what is left to write. Return what the endings caused."""
        self.flush()
        self.groups.write()
        closed = (*self._closed, *self.groups.closed())
        return Effects(tuple(self._released), closed, self._doomed)

    def flush(self) -> None:
        """Write the endings so far, and count them for the items that wait for them."""
        if not self._done:
            return
        tx = self._tx
        tx.run_rows(_SQL["insert_done"], self._done)
        if self._special:
            tx.run(_SQL["keep_conditions"], array(self._special))
        if self._marks:
            tx.run_rows(_SQL["insert_dead"], self._marks)
            self._marks = []
        tx.run(_SQL["delete_open"], array(row[0] for row in self._done))
        failing = self._fail_groups() if self._dead else set[int]()
        if self._special:
            # Which prerequisites are alone is read from the stored groups.
            self.groups.write()
            let_prerequisites_expire(tx, array(self._special))
        if tx.value(ANY_BLOCKED) is not None:
            self._count(self._outcomes(failing))
        self._done = []
        self._alone = []
        self._special = []

    def add_ended_groups(self, groups: Mapping[int, EndedGroup]) -> None:
        """These nested groups had no members when they were stored, and have ended. By their negated
        numbers."""
        self._closed += groups.values()
        self._count(dict.fromkeys(groups, SUCCESS))

    def _count(self, outcomes: Mapping[int, int]) -> None:
        counted = count_ends(self._tx, outcomes)
        self._released += counted.released
        self._doomed += counted.doomed

    def _fail_groups(self) -> set[int]:
        """Decide which deaths fail their groups. Return the items that died so."""
        excused = tolerated(self._tx, (no for no, _ in self._dead))
        failing = [(no, group) for no, group in self._dead if no not in excused]
        rows: list[tuple[int, int, int]] = []
        for no, number in failing:
            group = self.groups.touched(number)
            rows.append((no, number, 1 if group is None else group.fail()))
        self._tx.run_rows(_SQL["fail_groups"], rows)
        self._dead = []
        return {no for no, _ in failing}

    def _outcomes(self, failing: Container[int]) -> dict[int, int]:
        """How items and groups ended since the last flush."""
        ended = {row[0]: row[1] for row in self._done}
        alone = {-no: DEAD if no in failing or ended[no] == CANCELLED else SUCCESS for no in self._alone}
        return ended | alone | self.groups.outcomes()


def record_attempts(tx: Tx, attempts: Iterable[tuple[int, Attempt]]) -> None:
    """Add failed attempts to the histories of their items. Only the last ones are kept."""
    for no, failed in attempts:
        texts = (encode_text(part) for part in (failed.error_type, failed.message, failed.traceback))
        known = (failed.attempt, failed.at, failed.worker, failed.release or None)
        tx.run(_SQL["insert_attempt"], no, no, *known, *texts)
        tx.run(_SQL["trim_attempts"], no, no, KEPT_ATTEMPTS)
