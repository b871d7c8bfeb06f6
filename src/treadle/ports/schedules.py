"""Schedules: what recurs, in one record. An occurrence is noted there, with its items, before they are
submitted: whoever finds it still noted finishes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from treadle.item import Fire, Item, Rejected, Schedule, Submitted

from .archive import UNCHANGED, Archive, Form, Unchanged
from .submit import Submitting

A = TypeVar("A")


class Entry(msgspec.Struct, omit_defaults=True):
    schedule: Schedule
    firing: tuple[Item, ...] | None = None
    """What is being submitted for the last occurrence."""


Book: TypeAlias = dict[str, Entry]
BOOK: Form[Book] = Form(dict[str, Entry])


class Scheduling:
    def __init__(self, archive: Archive, submitting: Submitting) -> None:
        self._archive = archive
        self._submitting = submitting

    async def put(self, schedule: Schedule) -> Schedule:
        now = self._archive.now()

        def step(book: Book) -> tuple[Schedule, Book | Unchanged]:
            known = book.get(schedule.name)
            if known is not None and known.schedule.spec == schedule.spec:
                known.schedule = replace(known.schedule, seen_at=now)
                return known.schedule, book
            if schedule.next_at is None:
                return known.schedule if known is not None else schedule, UNCHANGED
            book[schedule.name] = Entry(replace(schedule, seen_at=now))
            return book[schedule.name].schedule, book

        return await self._change(step)

    async def all(self) -> list[Schedule]:
        book = (await self._archive.draft(self._archive.names.schedules, BOOK)).paper or {}
        for name, entry in book.items():
            if entry.firing is not None:
                await self._finish(name, entry)
        return [book[name].schedule for name in sorted(book)]

    async def drop(self, name: str) -> bool:
        def step(book: Book) -> tuple[bool, Book | Unchanged]:
            return (True, book) if book.pop(name, None) is not None else (False, UNCHANGED)

        return await self._change(step)

    async def pause(self, name: str, paused: bool) -> bool:
        def step(book: Book) -> tuple[bool, Book | Unchanged]:
            if name not in book:
                return False, UNCHANGED
            book[name].schedule = replace(book[name].schedule, paused=paused)
            return True, book

        return await self._change(step)

    async def fire(self, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
        before = await self._noted(fire)
        if before is None:
            return None
        answer = await self._submitting.together(fire.items)
        if isinstance(answer, Rejected):
            await self._change(lambda book: _undone(book, fire, before))
        else:
            await self._change(lambda book: _fired(book, fire.name, fire.items))
        return answer

    async def _noted(self, fire: Fire) -> Schedule | None:
        """Move on, and note what is to be submitted. None: it is not the one that is due."""
        while True:
            draft = await self._archive.draft(self._archive.names.schedules, BOOK)
            book = draft.paper or {}
            entry = book.get(fire.name)
            if entry is None or entry.schedule.paused or entry.schedule.next_at != fire.at:
                return None
            if entry.firing is not None:
                await self._finish(fire.name, entry)
                continue
            before = entry.schedule
            entry.schedule = replace(before, next_at=fire.next_at, last_at=fire.at)
            entry.firing = fire.items
            if await self._archive.put(self._archive.names.schedules, draft, book):
                return before

    async def _finish(self, name: str, entry: Entry) -> None:
        """Submit what somebody was submitting. If he has, that is refused, and fine."""
        items = entry.firing or ()
        await self._submitting.together(items)
        await self._change(lambda book: _fired(book, name, items))

    async def _change(self, step: Callable[[Book], tuple[A, Book | Unchanged]]) -> A:
        return await self._archive.change(
            self._archive.names.schedules, BOOK, lambda book: step({} if book is None else book)
        )


def _fired(book: Book, name: str, items: tuple[Item, ...]) -> tuple[None, Book | Unchanged]:
    entry = book.get(name)
    if entry is None or entry.firing != items:
        return None, UNCHANGED
    entry.firing = None
    return None, book


def _undone(book: Book, fire: Fire, before: Schedule) -> tuple[None, Book | Unchanged]:
    entry = book.get(fire.name)
    if entry is None or entry.firing != fire.items:
        return None, UNCHANGED
    book[fire.name] = Entry(before)
    return None, book
