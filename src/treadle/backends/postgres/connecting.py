"""Connecting: new connections, and what their sessions are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[Any]

STATEMENTS: Final = 100
"""How many prepared statements a connection keeps."""


class Connector:
    """
    prepare: whether statements are prepared and kept.
    timeout: seconds that connecting may take.
    statement_timeout: seconds after which the server itself ends a statement, whoever still waits for it.
    """

    def __init__(self, *, prepare: bool, timeout: float, statement_timeout: float) -> None:
        self._prepare = prepare
        self._timeout = timeout
        self._limit = {"statement_timeout": f"{max(0, round(statement_timeout * 1000))}"}
        self._poolers: set[str] = set()

    async def connect(self, url: str) -> Connection:
        """A new connection. A pooler may refuse to set anything for sessions that it shares out: those keep
        the timeouts of their role, and the caller's own patience is the net."""
        if url in self._poolers:
            return await self._connect(url, {})
        try:
            return await self._connect(url, self._limit)
        except asyncpg.ProtocolViolationError:
            connection = await self._connect(url, {})
            self._poolers.add(url)
            return connection

    async def _connect(self, url: str, settings: dict[str, str]) -> Connection:
        return await asyncpg.connect(
            url,
            timeout=self._timeout,
            statement_cache_size=STATEMENTS if self._prepare else 0,
            server_settings={"application_name": "treadle", **settings},
        )
