"""Submit: store new items.

Most items are plain: they are ready at once, and have no key, prerequisite, parent or time. A short script
stores many of them with few commands. It refuses, and has written nothing, if an id exists. The general
script takes all that is not plain, and what the short one has refused. A large submission of plain items is
stored in portions that become visible together: see stage.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

from treadle.errors import InputError, TenantElsewhere, UnsupportedError
from treadle.item import Item, Rejected, Submission, Submitted
from treadle.store.rules.records import noted_submission

from .item_bytes import (
    STATUSES,
    Argument,
    item_arguments,
    lease_of,
    pack_plain,
    plain_class,
    read_double,
    read_item,
)
from .record_bytes import NO_NOTE, pack_change
from .scripts import RedisScript
from .stage import TRIES, RedisStages, plain_items

Answer: TypeAlias = tuple[Submitted, ...] | Rejected

PORTION: Final = 300
"""Plain items that one call stores, unless a submission has more: the server is busy for some ms."""
GENERAL_PORTION: Final = 35
"""The same for items that are not plain."""
MOST_PLAIN: Final = 100_000
"""Items that a submission may have if all are plain."""
MOST_GENERAL: Final = 20_000
"""Items that it may have otherwise. It is one call then, and the server does nothing else meanwhile: 10,000
take it about a second. With many more, heartbeats would be late, and the caller would get no answer."""
CLASSES: Final = 200
"""Classes of items that the short script takes at once."""

_SUBMIT: Final = RedisScript("submit")
_SUBMIT_PLAIN: Final = RedisScript("submit_plain")
"""The short way. Without it an enqueue takes a sixth more processor time."""


class RedisSubmit(RedisStages):
    async def submit(self, submissions: Sequence[Submission], *, tx: object = None) -> Sequence[Answer]:
        if tx is not None:
            raise UnsupportedError("transactions", "RedisBackend")
        _check_sizes(submissions)
        answers: list[Answer] = []
        try:
            for part, plain in _parts(submissions):
                stored = await self._store_plain(part) if plain else None
                if stored is not None:
                    answers += stored
                    continue
                for portion in _portions(part, GENERAL_PORTION):
                    answers += await self._store(portion)
        except TenantElsewhere as error:
            error.answers = tuple(answers)
            raise
        return answers

    async def _store_plain(self, submissions: Sequence[Submission]) -> list[Answer] | None:
        """None: nothing was stored. An id exists or comes twice."""
        if len(submissions) == 1 and self._is_large(submissions[0].items):
            return await self._store_in_stage(submissions[0].items)
        arguments = _plain_arguments(submissions)
        answer = None if arguments is None else await self._link.run(_SUBMIT_PLAIN, arguments)
        if answer is None:
            return None
        now = read_double(answer)
        return [
            tuple([Submitted(item.id, False, "ready", None, item.id, now) for item in submission.items])
            for submission in submissions
        ]

    async def _store_in_stage(self, items: Sequence[Item]) -> list[Answer] | None:
        """The same for one large submission, in many short calls."""
        plain = plain_items(items)
        if plain is None:
            return None
        for _ in range(TRIES):
            staged = await self._stage(plain)
            if staged.taken:
                return [Rejected("duplicate_id", tuple(items[place].id for place in staged.taken))]
            if not staged.stage:
                continue
            if (at := await self._decide_stage(staged.stage, len(plain))) is not None:
                now = read_double(at)
                return [tuple([Submitted(item.id, False, "ready", None, item.id, now) for item in items])]
        return None

    async def _store(self, submissions: Sequence[Submission]) -> list[Answer]:
        arguments: list[Argument] = [os.urandom(3), len(submissions)]
        for submission in submissions:
            change = noted_submission(submission)
            arguments.append(NO_NOTE if change is None else pack_change(change))
            arguments += item_arguments(submission.items)
        now, *found = await self._link.run(_SUBMIT, arguments)
        at = read_double(now)
        return [
            read_submitted(answer, submission.items, at)
            for answer, submission in zip(found, submissions, strict=True)
        ]


def read_submitted(answer: Sequence[Any], items: Sequence[Item], now: float) -> Answer:
    """The answer of `submit` in submit.lua for one submission."""
    if answer[0] == 0:
        _, why, ids, keys = answer
        return Rejected(why.decode(), tuple(id.decode() for id in ids), tuple(key.decode() for key in keys))
    return tuple(_submitted(each, item, now) for each, item in zip(answer[1], items, strict=True))


def _submitted(answer: Any, item: Item, now: float) -> Submitted:
    if isinstance(answer, bytes):
        return Submitted(item.id, False, STATUSES[answer], None, item.id, now)
    if len(answer) == 3:
        id, status, group = answer
        return Submitted(id.decode(), existing=True, status=STATUSES[status], group_id=group.decode())
    return Submitted(item.id, False, "running", lease_of(read_item(answer), now), item.id, now)


def _check_sizes(submissions: Sequence[Submission]) -> None:
    for submission in submissions:
        size = len(submission.items)
        if size > MOST_PLAIN:
            raise InputError.of(
                "items", size, f"are too many: a submission can have {MOST_PLAIN:,}; use several"
            )
        if size > MOST_GENERAL and not _is_plain(submission):
            raise InputError.of(
                "items",
                size,
                f"are too many: a submission can have {MOST_GENERAL:,} if some of them have a key, "
                "a prerequisite, a time or a parent; use several",
            )


def _parts(submissions: Sequence[Submission]) -> Iterator[tuple[Sequence[Submission], bool]]:
    """The submissions in order, in portions: whether all of a portion are plain."""
    if len(submissions) == 1:
        yield submissions, _is_plain(submissions[0])
        return
    for plain, alike in groupby(submissions, _is_plain):
        if plain:
            yield from ((portion, True) for portion in _portions(list(alike), PORTION))
        else:
            yield list(alike), False


def _portions(submissions: Sequence[Submission], most: int) -> Iterator[Sequence[Submission]]:
    """Portions of at most `most` items, or of one submission."""
    begin = count = 0
    for index, submission in enumerate(submissions):
        size = len(submission.items)
        if index > begin and count + size > most:
            yield submissions[begin:index]
            begin, count = index, 0
        count += size
    yield submissions[begin:]


def _is_plain(submission: Submission) -> bool:
    if submission.note is not None or not submission.items:
        return False
    for item in submission.items:
        if (
            item.key is not None
            or item.after
            or item.delay
            or item.run_at is not None
            or item.deadline is not None
            or item.expires_in is not None
            or item.lease_to is not None
            or item.parent is not None
            or item.workflow is not None
            or item.workflow_type is not None
            or item.must_exist
            or item.closes_group
            or not item.contributes
        ):
            return False
    return True


def _plain_arguments(submissions: Sequence[Submission]) -> list[Argument] | None:
    """What submit_plain.lua gets. None: an id comes twice, or there are too many classes."""
    classes: dict[bytes, int] = {}
    class_of = bytearray()
    ids: set[str] = set()
    rows: list[Argument] = []
    for submission in submissions:
        for item in submission.items:
            ids.add(item.id)
            number = classes.setdefault(plain_class(item), len(classes) + 1)
            if number > CLASSES:
                return None
            class_of.append(number)
            rows += pack_plain(item)
    if 2 * len(ids) != len(rows):
        return None
    return [len(classes), *classes, bytes(class_of) if len(classes) > 1 else b"", *rows]
