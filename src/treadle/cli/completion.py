"""Completion: names that a shell may complete: statuses, work types, queues, schedules, signals.

It runs at every press of the Tab key, so it asks little and never fails. It looks at the app or the store
that the command line, or the environment, names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import typer

from .names import known_queues, known_types

if TYPE_CHECKING:
    from treadle.client import Client

LONGEST: Final = 1.0
"""Seconds that the store may take to answer."""


def completed(names: Iterable[str], incomplete: str) -> list[str]:
    """The last of several names, separated by commas, is completed."""
    before, comma, begun = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in sorted(set(names)) if name.startswith(begun)]


def complete_words(*words: str) -> Callable[[str], list[str]]:
    """Complete one of these words."""
    return lambda incomplete: completed(words, incomplete)


def complete_type(context: typer.Context, incomplete: str) -> list[str]:
    """Types of the app, without a look at the store. With a URL: those of items in the store."""
    client = _client(context)
    if client is None:
        return []
    known = list(client.types)
    return completed(known or _ask(client, known_types), incomplete)


def complete_queue(context: typer.Context, incomplete: str) -> list[str]:
    """Queues that are known: see `known_queues`."""
    client = _client(context)
    return [] if client is None else completed(_ask(client, known_queues), incomplete)


def complete_schedule(context: typer.Context, incomplete: str) -> list[str]:
    """Schedules in the store."""
    client = _client(context)
    return [] if client is None else completed(_ask(client, _stored_schedules), incomplete)


def complete_signal(context: typer.Context, incomplete: str) -> list[str]:
    """Signals that the item of the command waits for."""
    id: str = context.params.get("id") or ""
    client = _client(context) if id else None

    async def awaited(client: Client) -> list[str]:
        return [step.signal for step in await client.steps(id) if step.signal and not step.over]

    return [] if client is None else completed(_ask(client, awaited), incomplete)


async def _stored_schedules(client: Client) -> list[str]:
    return [each.name for each in await client.schedules.list()]


def _client(context: typer.Context) -> Client | None:
    """The app or the store of this command line. None: unknown, or it cannot be opened."""
    given: dict[str, Any] = {}
    outer: Any = context
    while outer is not None:
        given = {**outer.params, **{name: value for name, value in given.items() if value}}
        outer = outer.parent
    try:
        from .load import client_of, which_store

        app, url = which_store(given.get("app"), given.get("url"))
        if not app and not url:
            return None
        client, tenant = client_of(app, url), given.get("tenant")
        return client.tenant(tenant) if tenant else client
    except Exception:  # noqa: BLE001  a shell shows no error while a person types
        return None


def _ask(client: Client, question: Callable[[Client], Awaitable[list[str]]]) -> list[str]:
    async def ask() -> list[str]:
        try:
            async with asyncio.timeout(LONGEST):
                await client.connect()
                return await question(client)
        finally:
            await client.close()

    try:
        return asyncio.run(ask())
    except Exception:  # noqa: BLE001  as above
        return []
