"""Submit and fire: new items into the store."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import asyncpg

from treadle.errors import CycleError, DuplicateIdError, TreadleError
from treadle.item import Fire, Item, Lease, Rejected, RejectedWhy, Submission, Submitted

from .adding import ADD, ADD_ONE, TAKEN
from .base import Verbs
from .calls import Fields
from .codes import status_of
from .columns import NAMES, call_of, data, names, numbers
from .rows import COLUMNS, circular, ordered, rows_of, shape_of
from .within import row_within

Answer: TypeAlias = tuple[Submitted, ...] | Rejected

_ROWS: Final = (*COLUMNS, None, "bigint[]", NAMES, None, None, "boolean", "boolean")
STORE: Final = call_of("store", *_ROWS)
FIRE: Final = call_of("fire", "text", "float8", "float8", *_ROWS)
WITHIN: Final = call_of("submit_within", *_ROWS, "text")

REFUSALS: Final[dict[str, RejectedWhy]] = {"TR001": "duplicate_id", "TR002": "cycle"}
UNSURE: Final = 10_000
"""How many submissions are remembered whose outcome is not known."""


class Submitting(Verbs):
    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random()
        self._unsure: dict[int, tuple[Submission | Fire, int]] = {}

    async def submit(self, submissions: Sequence[Submission], *, tx: object = None) -> Sequence[Answer]:
        if tx is not None:
            return await self._submit_within(submissions, tx)
        answers: dict[int, Answer] = {}
        for wave in waves(submissions):
            await self._store(submissions, wave, answers)
        return [answers[n] for n in range(len(submissions))]

    async def _submit_within(self, submissions: Sequence[Submission], tx: object) -> Sequence[Answer]:
        answers: dict[int, Answer] = {}
        for wave in waves(submissions):
            request = Request(submissions, wave, {n: self._random.getrandbits(62) for n in wave})
            if not request.items:
                answers.update((n, ()) for n in wave)
                continue
            arguments = (*request.arguments, self._wake_channel())
            record = await row_within(tx, self._calls.sql(WITHIN), arguments)
            if record["refused"] is not None:
                raise rejection(refusals(record["refused"], record["detail"]))
            await self._answer(request, record, answers)
        return [answers[n] for n in range(len(submissions))]

    def _wake_channel(self) -> str | None:
        """Where to say that there is something to claim, when the user's transaction commits."""
        raise NotImplementedError

    async def _store(
        self, submissions: Sequence[Submission], wave: list[int], answers: dict[int, Answer]
    ) -> None:
        """Store these submissions; those that are refused are left out, and the rest tried again."""
        nonces = {n: self._nonce(submissions[n]) for n in wave}
        try:
            if not await self._add(submissions, wave, nonces, answers):
                await self._store_rows(submissions, wave, nonces, answers)
        except asyncpg.PostgresError:
            raise  # nothing has happened
        except BaseException:
            self._remember((submissions[n], nonces[n]) for n in wave)
            raise
        for n in nonces:
            self._unsure.pop(id(submissions[n]), None)

    async def _add(
        self,
        submissions: Sequence[Submission],
        wave: list[int],
        nonces: dict[int, int],
        answers: dict[int, Answer],
    ) -> bool:
        """The short way, for items that are alike. False: they are not, or an id is taken."""
        rows = [(item, n) for n in wave for item in submissions[n].items]
        shape = shape_of([item for item, _ in rows])
        if shape is None:
            return False
        try:
            if len(rows) == 1:
                item, owner = rows[0]
                record = await self._calls.row(ADD_ONE, item.id, nonces[owner], item.input, *shape)
            else:
                record = await self._calls.row(ADD, *_alike(rows, nonces), *shape)
        except TAKEN:
            return False
        status = status_of(record["state"])
        for n in wave:
            items = submissions[n].items
            answers[n] = tuple([Submitted(item.id, False, status, None, item.id) for item in items])
        return True

    async def _store_rows(
        self,
        submissions: Sequence[Submission],
        wave: list[int],
        nonces: dict[int, int],
        answers: dict[int, Answer],
    ) -> None:
        while wave:
            request = Request(submissions, wave, nonces)
            if not request.items:
                answers.update((n, ()) for n in wave)
                return
            try:
                record = await self._calls.row(STORE, *request.arguments)
            except asyncpg.PostgresError as error:
                wave = request.without(error, answers)
            else:
                await self._answer(request, record, answers)
                return

    def _nonce(self, request: Submission | Fire) -> int:
        """A number for this request, the same when it is tried again after its outcome was unknown."""
        unsure = self._unsure.get(id(request))
        return self._random.getrandbits(62) if unsure is None else unsure[1]

    def _remember(self, requests: Iterable[tuple[Submission | Fire, int]]) -> None:
        """Nobody knows what became of these."""
        self._unsure.update((id(request), (request, nonce)) for request, nonce in requests)
        for known in list(self._unsure)[:-UNSURE]:
            del self._unsure[known]

    async def _answer(self, request: Request, record: Fields, answers: dict[int, Answer]) -> None:
        stored = request.answers(record)
        for ref, item in request.resumed(record):
            stored[ref] = await self._resumed(item, stored[ref])
        request.distribute(stored, answers)

    async def _resumed(self, item: Item, answer: Submitted) -> Submitted:
        """An item that an earlier try stored already leased: its lease as it stands."""
        if item.lease_to is None or answer.status != "running":
            return answer
        leases = await self._leases_of(item.lease_to, [])
        lease = next((one for one in leases if (one.tenant, one.id) == (item.tenant, item.id)), None)
        return Submitted(answer.id, False, answer.status, lease, answer.group_id)

    async def _leases_of(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        raise NotImplementedError

    async def fire(self, fire: Fire) -> Answer | None:
        nonce = self._nonce(fire)
        request = Request([Submission(fire.items)], [0], {0: nonce})
        answers: dict[int, Answer] = {}
        try:
            record = await self._calls.row(FIRE, fire.name, fire.at, fire.next_at, *request.arguments)
        except asyncpg.PostgresError as error:
            request.without(error, answers)
        except BaseException:
            self._remember([(fire, nonce)])
            raise
        else:
            if record["fired"]:
                await self._answer(request, record, answers)
        self._unsure.pop(id(fire), None)
        return answers.get(0)


class Request:
    """Some submissions on their way, as one call."""

    def __init__(self, submissions: Sequence[Submission], wave: list[int], nonces: dict[int, int]) -> None:
        self._submissions = submissions
        self.wave = wave
        self.items = [item for n in wave for item in submissions[n].items]
        owners = [n for n in wave for _ in submissions[n].items]
        check = any(circular(submissions[n].items) for n in wave)
        rows = rows_of(self.items, owners)
        self._order = rows.order
        nonce = numbers([nonces.get(owner) for owner in rows.owners]) if self.items else None
        self.arguments = (*rows.columns, nonce, self._leases_to(rows.plain), rows.plain, check)

    def _leases_to(self, plain: bool) -> str | None:
        count = len(self.items)
        return None if plain else names([self.items[n].lease_to if n < count else None for n in self._order])

    def without(self, error: asyncpg.PostgresError, answers: dict[int, Answer]) -> list[int]:
        """Answer those that are refused; the rest."""
        found = refused(error)
        answers.update(found)
        return [n for n in self.wave if n not in found]

    def answers(self, record: Fields) -> dict[int, Submitted]:
        """What became of each item, by its place among the items of this call."""
        states, tokens, now = record["states"], record["tokens"], record["now"]
        nos, found = record["nos"], dict[int, Submitted]()
        existing = self._existing(record)
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
            found[n] = Submitted(item.id, False, status_of(states[row]), lease, item.id)
        return found

    def _existing(self, record: Fields) -> dict[int, Submitted]:
        if record["e_row"] is None:
            return {}
        columns = (record[name] for name in ("e_row", "e_id", "e_state", "e_group", "e_own"))
        return {
            row: Submitted(id, not own, status_of(state), None, group)
            for row, id, state, group, own in zip(*columns, strict=True)
        }

    def resumed(self, record: Fields) -> Iterator[tuple[int, Item]]:
        """The items that an earlier try of this very call has stored."""
        for row, own in zip(record["e_row"] or (), record["e_own"] or (), strict=True):
            if own:
                n = self._order[row - 1]
                yield n, self.items[n]

    def distribute(self, stored: dict[int, Submitted], answers: dict[int, Answer]) -> None:
        n = 0
        for owner in self.wave:
            count = len(self._submissions[owner].items)
            answers[owner] = tuple(stored[m] for m in range(n, n + count))
            n += count


def _alike(rows: list[tuple[Item, int]], nonces: dict[int, int]) -> tuple[object, ...]:
    """What `ADD` takes: items that are alike, each with the number of its submission, in the order of ids."""
    order = ordered([item.id for item, _ in rows])
    rank = None
    if not isinstance(order, range):
        rank = numbers([n + 1 for n in order], whole=True)
        rows = [rows[n] for n in order]
    return (
        names([item.id for item, _ in rows], whole=True),
        numbers([nonces[owner] for _, owner in rows]),
        data([item.input for item, _ in rows]),
        len(rows),
        rank,
    )


def refused(error: asyncpg.PostgresError) -> dict[int, Rejected]:
    """Whose items our functions refused, and why. Any other error is raised."""
    if error.sqlstate not in REFUSALS:
        raise error
    return refusals(error.sqlstate, getattr(error, "detail", None) or "{}")


def rejection(refused: dict[int, Rejected]) -> TreadleError:
    """The first refusal, as the error that says so."""
    first = refused[min(refused)]
    return CycleError(first.ids) if first.why == "cycle" else DuplicateIdError(first.ids[0])


def refusals(state: str, detail: str) -> dict[int, Rejected]:
    why, found = REFUSALS[state], json.loads(detail)
    if why == "cycle":
        return {found["owners"][0]: Rejected(why, tuple(found["ids"]))}
    by_owner: dict[int, dict[str, None]] = {}
    for owner, id in zip(found["owners"], found["ids"], strict=True):
        by_owner.setdefault(owner, {})[id] = None
    return {owner: Rejected(why, tuple(ids)) for owner, ids in by_owner.items()}


def _lease(item: Item, token: int, no: int, now: float) -> Lease:
    deadline = item.deadline
    if deadline is None and item.expires_in is not None:
        deadline = now + item.expires_in
    return Lease(
        id=item.id,
        tenant=item.tenant,
        token=token,
        type=item.type,
        input=item.input,
        attempt=1,
        group_id=item.id,
        queue=item.queue,
        lane=item.lane,
        priority=item.priority,
        attempts=item.attempts,
        parent=item.parent,
        workflow=item.workflow,
        workflow_type=item.workflow_type,
        after=item.after,
        options=item.options,
        queued_at=now,
        due_at=now + item.delay if item.run_at is None else item.run_at,
        claimed_at=now,
        deadline=deadline,
        ref=no,
    )


def waves(submissions: Sequence[Submission]) -> Iterator[list[int]]:
    """Which submissions may go in one call: none may have to come after another of the same call.

    Later ones with an id or a key that came before must see what became of the first; so must those that
    wait and are waited for."""
    if len(submissions) == 1:
        yield [0]
        return
    wave: list[int] = []
    seen: set[object] = set()
    for n, submission in enumerate(submissions):
        before, after = marks(submission.items)
        if not before.isdisjoint(seen):
            yield wave
            wave, seen = [], set()
        seen |= after
        wave.append(n)
    if wave:
        yield wave


def marks(items: Sequence[Item]) -> tuple[set[object], set[object]]:
    """What must not have been seen before, and what must not be seen again."""
    if len(items) == 1 and items[0].key is None and not items[0].after:
        refs: set[object] = {(items[0].tenant, items[0].id)}
        return refs, refs
    refs = {(item.tenant, item.id) for item in items}
    refs |= {(item.tenant, item.type, item.key) for item in items if item.key is not None}
    named: set[object] = {(item.tenant, id, "waited for") for item in items for id in item.after}
    gated: set[object] = {(item.tenant, item.id, "waited for") for item in items if item.after}
    return refs | gated, refs | named
