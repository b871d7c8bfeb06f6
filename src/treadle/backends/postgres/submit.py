"""Submit and fire: store new items."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Final, TypeAlias

import asyncpg

from treadle.errors import StoreUnavailable
from treadle.item import Fire, Item, Lease, Rejected, RejectedWhy, Status, Submission, Submitted
from treadle.store.rules.records import noted_submission
from treadle.store.rules.submission import rejection_error

from .columns import names, numbers, status_of
from .connection import AnswerRow, PostgresCalls
from .errors import is_locked, translated
from .item_columns import (
    bytes_of,
    circular,
    marks,
    portions,
    rows_of,
    shape_of,
    store_alike,
    waves,
)
from .records import note_values
from .statements import statement, text
from .user_transaction import row_in_transaction
from .workers import PostgresWorkers

Answer: TypeAlias = tuple[Submitted, ...] | Rejected

STORE: Final = statement("submit", "store")
STORE_NOTED: Final = statement("submit", "noted_store", noted=text("audits", "noted_if_any"))
SUBMIT_NOTED: Final = statement("submit", "noted_submit", noted=text("audits", "noted_if_any"))
FIRE: Final = statement("submit", "fire")
SUBMIT_IN_TRANSACTION: Final = statement("submit", "submit_in_transaction")

REFUSALS: Final[dict[str, RejectedWhy]] = {
    "TR001": "duplicate_id",
    "TR002": "cycle",
    "TR007": "not_found",
    "TR011": "duplicate_key",
}
LOCKED: Final = Rejected("locked", ())
EXISTING: Final = tuple(f"existing_{name}" for name in ("row", "id", "state", "group", "own"))
MOST_UNSURE: Final = 10_000
"""Submissions whose outcome is unknown that are remembered."""


class PostgresSubmit(PostgresWorkers):
    def __init__(self, calls: PostgresCalls) -> None:
        super().__init__(calls)
        self._random = random.Random()
        self._unsure: dict[int, tuple[Submission | Fire, int]] = {}
        """Requests whose outcome is unknown, and their nonces, by the id() of the request."""

    async def submit(self, submissions: Sequence[Submission], *, tx: object = None) -> Sequence[Answer]:
        answers: dict[int, Answer] = {}
        alone = len(submissions) == 1
        waiting = all(submission.wait for submission in submissions)
        separate = None if waiting else LockedSubmissions(submissions, self._store, answers)
        groups = [[0]] if alone else waves(marks(submission.items) for submission in submissions)
        if not alone and any(submission.note is not None for submission in submissions):
            groups = [part for group in groups for part in _noted_apart(submissions, group)]
        sizes = [bytes_of(submission.items, alike=submission.alike) for submission in submissions]
        for wave in (portion for group in groups for portion in portions(group, sizes.__getitem__)):
            if tx is not None:
                await self._store_in_transaction(tx, submissions, wave, answers)
            elif separate is not None:
                await separate.store(wave)
            else:
                await self._store(submissions, wave, answers)
        return [answers[n] for n in range(len(submissions))]

    async def _store_in_transaction(
        self, tx: object, submissions: Sequence[Submission], wave: list[int], answers: dict[int, Answer]
    ) -> None:
        call = SubmitCall(submissions, {n: self._random.getrandbits(62) for n in wave})
        if not call.items:
            answers.update((n, ()) for n in wave)
            return
        note = _note_values(submissions, wave)
        sql = self._calls.sql(SUBMIT_NOTED if note else SUBMIT_IN_TRANSACTION)
        store = self._calls.store_identity
        record = await row_in_transaction(tx, sql, (*call.arguments, self._calls.wake_channel, store, *note))
        if record["refused"] is not None:
            refused = _refusals(record["refused"], record["detail"])
            raise rejection_error(refused[min(refused)])
        await self._answer(call, record, answers)

    async def _store(
        self,
        submissions: Sequence[Submission],
        wave: list[int],
        answers: dict[int, Answer],
        *,
        locks: bool = True,
    ) -> None:
        """Store these submissions. Those that are refused are left out, and the rest is tried again. `locks`:
        wait for other transactions."""
        nonces = {n: self._nonce(submissions[n]) for n in wave}
        try:
            if not await self._store_alike(submissions, nonces, answers, locks):
                await self._store_rows(submissions, nonces, answers, locks)
        except asyncpg.PostgresError:
            raise  # the server rolled back
        except BaseException:
            self._remember((submissions[n], nonce) for n, nonce in nonces.items())
            raise
        for n in nonces:
            self._unsure.pop(id(submissions[n]), None)

    async def _store_alike(
        self,
        submissions: Sequence[Submission],
        nonces: dict[int, int],
        answers: dict[int, Answer],
        locks: bool,
    ) -> bool:
        """The short way, for items that are alike. False: they are not, or an id is taken."""
        shape = None if _note_values(submissions, nonces) else shape_of([submissions[n] for n in nonces])
        if shape is None:
            return False
        items = list(chain.from_iterable([submissions[n].items for n in nonces]))
        owners: list[int] = []
        for n, nonce in nonces.items():
            owners += repeat(nonce, len(submissions[n].items))
        sql, arguments = store_alike(items, owners, shape)
        try:
            record = await self._calls.row(sql, *arguments, locks=locks)
        except asyncpg.UniqueViolationError:
            return False
        status, now = status_of(record["state"]), record["now"]
        for n in nonces:
            stored = submissions[n].items
            answers[n] = tuple([Submitted(item.id, False, status, None, item.id, now) for item in stored])
        return True

    async def _store_rows(
        self,
        submissions: Sequence[Submission],
        nonces: dict[int, int],
        answers: dict[int, Answer],
        locks: bool,
    ) -> None:
        while nonces:
            call = SubmitCall(submissions, nonces)
            if not call.items:
                answers.update((n, ()) for n in nonces)
                return
            try:
                note = _note_values(submissions, nonces)
                sql = STORE_NOTED if note else STORE
                record = await self._calls.row(sql, *call.arguments, *note, locks=locks)
            except asyncpg.PostgresError as error:
                refusals = refused(error)
                answers.update(refusals)
                nonces = {n: nonce for n, nonce in nonces.items() if n not in refusals}
            else:
                await self._answer(call, record, answers)
                return

    def _nonce(self, request: Submission | Fire) -> int:
        """A number for this request, the same if it is repeated after its outcome was unknown."""
        unsure = self._unsure.get(id(request))
        return self._random.getrandbits(62) if unsure is None else unsure[1]

    def _remember(self, requests: Iterable[tuple[Submission | Fire, int]]) -> None:
        """The outcome of these is unknown."""
        self._unsure.update((id(request), (request, nonce)) for request, nonce in requests)
        for known in list(self._unsure)[:-MOST_UNSURE]:
            del self._unsure[known]

    async def _answer(self, call: SubmitCall, record: AnswerRow, answers: dict[int, Answer]) -> None:
        stored = call.answers(record)
        for n, item in call.stored_before(record):
            stored[n] = await self._with_lease(item, stored[n])
        call.distribute(stored, answers)

    async def _with_lease(self, item: Item, answer: Submitted) -> Submitted:
        """The answer for an item that an earlier try stored, with its lease if it was stored leased."""
        if item.lease_to is None or answer.status != "running":
            return answer
        leases = await self.unknown_leases(item.lease_to, [])
        lease = next((one for one in leases if (one.tenant, one.id) == (item.tenant, item.id)), None)
        return Submitted(answer.id, False, answer.status, lease, answer.group_id)

    async def fire(self, fire: Fire) -> Answer | None:
        nonce = self._nonce(fire)
        call = SubmitCall([Submission(fire.items)], {0: nonce})
        answers: dict[int, Answer] = {}
        try:
            record = await self._calls.row(
                FIRE,
                fire.name,
                fire.at,
                fire.next_at,
                *call.arguments,
                call.first_row,
                fire.error or None,
            )
        except asyncpg.PostgresError as error:
            answers.update(refused(error))
        except BaseException:
            self._remember([(fire, nonce)])
            raise
        else:
            if record["fired"]:
                await self._answer(call, record, answers)
        self._unsure.pop(id(fire), None)
        return answers.get(0)


class LockedSubmissions:
    """Finds the submissions that wait for another transaction, so that the others are stored without them."""

    def __init__(
        self,
        submissions: Sequence[Submission],
        store: Callable[..., Awaitable[None]],
        answers: dict[int, Answer],
    ) -> None:
        self._submissions = submissions
        self._store = store
        self._answers = answers
        self._locked: set[object] = set()
        """Keys of those that wait: others with the same keys wait too."""

    async def store(self, wave: list[int]) -> None:
        wave = [n for n in wave if not self._is_locked(n)]
        if not wave:
            return
        try:
            await self._store(self._submissions, wave, self._answers, locks=False)
        except StoreUnavailable as error:
            if not is_locked(error.__cause__):
                raise
        else:
            return
        left = [n for n in wave if n not in self._answers]
        if len(left) == 1:
            self._locked |= _keys(self._submissions[left[0]])
            self._answers[left[0]] = LOCKED
        else:
            for part in self._parts(left):
                await self.store(part)

    def _is_locked(self, n: int) -> bool:
        if not self._locked or self._locked.isdisjoint(_keys(self._submissions[n])):
            return False
        self._answers[n] = LOCKED
        return True

    def _parts(self, wave: list[int]) -> tuple[list[int], list[int]]:
        """Those that wait for nothing first; then halves."""
        plain = [n for n in wave if not _keys(self._submissions[n])]
        if 0 < len(plain) < len(wave):
            return plain, [n for n in wave if n not in set(plain)]
        return wave[: len(wave) // 2], wave[len(wave) // 2 :]


def _noted_apart(submissions: Sequence[Submission], wave: list[int]) -> Iterator[list[int]]:
    """The parts of a wave: those without a note together, each of the others alone."""
    plain = [n for n in wave if submissions[n].note is None]
    if plain:
        yield plain
    yield from ([n] for n in wave if submissions[n].note is not None)


def _note_values(submissions: Sequence[Submission], wave: Collection[int]) -> tuple[object, ...]:
    """What a call with these submissions says for the audit. Empty: nothing."""
    if len(wave) != 1:
        return ()
    (n,) = wave
    change = noted_submission(submissions[n])
    return () if change is None else (len(submissions[n].items), *note_values(change).values())


def _keys(submission: Submission) -> set[object]:
    return {(one.tenant, one.type, one.key) for one in submission.items if one.key is not None}


class SubmitCall:
    """Some submissions as one call: those that `nonces` names."""

    def __init__(self, submissions: Sequence[Submission], nonces: dict[int, int]) -> None:
        self._sizes = {n: len(submissions[n].items) for n in nonces}
        self.items = [item for n in nonces for item in submissions[n].items]
        owners = [n for n in nonces for _ in submissions[n].items]
        cycles = any(circular(submissions[n].items) for n in nonces)
        rows = rows_of(self.items, owners)
        self._order = rows.order
        nonce = numbers([nonces.get(owner) for owner in rows.owners]) if self.items else None
        leases_to = self._leases_to(rows.plain)
        self.arguments = (
            *rows.columns, nonce, leases_to, rows.contributes, *rows.policies, rows.plain, cycles,
        )  # fmt: skip

    @property
    def first_row(self) -> int:
        """The row of the first item, from 1 on."""
        return self._order.index(0) + 1 if self.items else 1

    def _leases_to(self, plain: bool) -> str | None:
        if plain:
            return None
        workers = [item.lease_to for item in self.items]
        # An item that takes over what a later one has is not leased at once.
        later: set[object] = set()
        for n in range(len(workers) - 1, -1, -1):
            item = self.items[n]
            key = (item.tenant, item.type, item.key)
            if item.key is not None and key in later:
                workers[n] = None
            if item.key_policy in ("replace", "debounce"):
                later.add(key)
        return names([workers[n] if n < len(workers) else None for n in self._order])

    def answers(self, record: AnswerRow) -> dict[int, Submitted]:
        """What became of each item, by its index among the items of this call."""
        states, tokens, now = record["states"], record["tokens"], record["now"]
        nos, found = record["nos"], dict[int, Submitted]()
        existing = self._existing(record)
        # One of them may be new, and have taken over what a later one has.
        changed: dict[tuple[str, str], Status] = {
            (self._tenant(row), earlier.id): earlier.status for row, earlier in existing.items()
        }
        count = len(self.items)
        for row, n in enumerate(self._order):
            if n >= count:
                continue
            item = self.items[n]
            earlier = existing.get(row + 1)
            if earlier is not None:
                found[n] = earlier
                continue
            token = None if tokens is None else tokens[row]
            lease = None if token is None else _lease(item, token, nos[row], now)
            status = changed.get((item.tenant, item.id)) or status_of(states[row])
            found[n] = Submitted(item.id, False, status, lease, item.id, now)
        return found

    def _tenant(self, row: int) -> str:
        return self.items[self._order[row - 1]].tenant

    def _existing(self, record: AnswerRow) -> dict[int, Submitted]:
        if record["existing_row"] is None:
            return {}
        return {
            row: Submitted(id, not own, status_of(state), None, group)
            for row, id, state, group, own in zip(*(record[name] for name in EXISTING), strict=True)
        }

    def stored_before(self, record: AnswerRow) -> Iterator[tuple[int, Item]]:
        """The items that an earlier try of this call has stored, with their indexes."""
        for row, own in zip(record["existing_row"] or (), record["existing_own"] or (), strict=True):
            if own:
                n = self._order[row - 1]
                yield n, self.items[n]

    def distribute(self, stored: dict[int, Submitted], answers: dict[int, Answer]) -> None:
        """Put the answers of the items together by submission."""
        n = 0
        for owner, count in self._sizes.items():
            answers[owner] = tuple(stored[m] for m in range(n, n + count))
            n += count


def refused(error: asyncpg.PostgresError) -> dict[int, Rejected]:
    """Whose items our functions refused, and why. Any other error is raised."""
    if error.sqlstate not in REFUSALS:
        raise translated(error) from error
    return _refusals(error.sqlstate, getattr(error, "detail", None) or "{}")


def _refusals(state: str, detail: str) -> dict[int, Rejected]:
    why, found = REFUSALS[state], json.loads(detail)
    if why == "cycle":
        return {found["owners"][0]: Rejected(why, tuple(found["ids"]))}
    by_owner: dict[int, dict[str, str]] = {}
    keys: list[str] = found.get("keys") or [""] * len(found["ids"])
    for owner, id, key in zip(found["owners"], found["ids"], keys, strict=True):
        by_owner.setdefault(owner, {})[id] = key
    return {
        owner: Rejected(why, tuple(ids), tuple(ids.values()) if why == "duplicate_key" else ())
        for owner, ids in by_owner.items()
    }


def _lease(item: Item, token: int, no: int, now: float) -> Lease:
    deadline = item.deadline
    if deadline is None and item.expires_in is not None:
        deadline = now + item.expires_in
    due = now + item.delay if item.run_at is None else item.run_at
    return Lease(
        item.id, item.tenant, token, item.type, item.input, 1, item.id, item.queue, item.lane, item.priority,
        item.attempts, item.parent, item.workflow, item.workflow_type, item.after, item.options, now, due,
        now, deadline, ref=no, ready_at=now,
    )  # fmt: skip
