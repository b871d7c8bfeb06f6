"""One request to an ASGI app, driven by hand: its answer is read while it is made, and the caller can go."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.engine.kit import PATIENCE


class Exchange:
    def __init__(
        self, web: Any, path: str, *, query: str = "", headers: dict[str, str] | None = None
    ) -> None:
        self._web = web
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._asked = False
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
            "client": ("127.0.0.1", 5000),
            "server": ("127.0.0.1", 80),
        }
        self.task = asyncio.ensure_future(web(self.scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self._sent.put_nowait(message)

    def leave(self) -> None:
        """The caller goes."""
        self._gone.set()

    async def ended(self) -> None:
        """Wait until the app has done with it."""
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait({self.task})
        self.task.result()

    async def message(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            return await self._sent.get()

    async def event(self) -> tuple[str, Any]:
        """The name and the data of the next event of a stream. No name: the stream has ended."""
        while True:
            message = await self.message()
            if message["type"] != "http.response.body":
                continue
            fields = dict(
                line.split(": ", 1) for line in message["body"].decode().splitlines() if ": " in line
            )
            if "event" in fields:
                return fields["event"], json.loads(fields["data"])
            if not message.get("more_body"):
                return "", None
