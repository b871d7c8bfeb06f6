"""`treadle worker --metrics`: the supervisor answers for all its processes, at one address.

- `/metrics`: the numbers of all children that there were, added up, and how the store stands;
- `/health/live`: the supervisor runs;
- `/health/ready`: the store answers, and the event loop of every child has turned lately.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Final, NamedTuple, Protocol

from treadle.backend import Backend
from treadle.cli.child_process import ChildProcess
from treadle.cli.http_server import HttpServer, Response
from treadle.cli.reports import ChildReport
from treadle.errors import InputError
from treadle.logs.lines import INFO, log_line
from treadle.metrics.prometheus import CONTENT_TYPE, exposition
from treadle.store_metrics import KeptAnswer, StoreMetrics, store_exposition

LOOP_SECONDS: Final = 10.0
"""A child whose event loop has not turned for so long is not ready."""
STORE_SECONDS: Final = 2.0
"""For so long the store has time to answer, and its answer is used."""
_ADDRESS: Final = re.compile(r"(?:(?P<host>[^:\[\]/\s]*):|\[(?P<six>[0-9A-Fa-f:.%\w]+)\]:)?(?P<port>\d{1,5})")


class ListenAddress(NamedTuple):
    """Where to listen. host: None for all addresses of this machine."""

    host: str | None
    port: int


def read_address(text: str) -> ListenAddress:
    """The address that `--metrics` names: `:9100`, `127.0.0.1:9100`, `[::1]:9100`."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise InputError.of("--metrics", text, "must be host:port or :port, as in :9100 or 127.0.0.1:9100")
    return ListenAddress(match["host"] or match["six"] or None, int(match["port"]))


class Supervised(Protocol):
    """What the server needs to know of a supervisor."""

    @property
    def children(self) -> Sequence[ChildProcess]: ...

    @property
    def is_stopping(self) -> bool: ...

    def report(self) -> ChildReport: ...


class Health:
    """Whether a supervisor and its children can work."""

    def __init__(self, supervisor: Supervised, backend: Backend) -> None:
        self._supervisor = supervisor
        self._backend = backend
        self._store_answers = KeptAnswer(self._ask)

    async def problem(self) -> str | None:
        """Why it is not ready. None: it is."""
        if self._supervisor.is_stopping:
            return "it is being stopped"
        children = self._supervisor.children
        if not children:
            return "no process has been started"
        for child in children:
            blocked_for = child.liveness.blocked_for()
            if blocked_for is None:
                return f"process {child.pid} is starting"
            if blocked_for > LOOP_SECONDS:
                return f"the event loop of process {child.pid} has been blocked for {blocked_for:.0f} s"
        return None if await self._store_answers.get(STORE_SECONDS) else "the store does not answer"

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await self._backend.now()
        except Exception:  # noqa: BLE001  the heartbeats log it
            return False
        return True


class MetricsServer:
    """store: reads how the store stands. None: the store of this process is not that of its children."""

    def __init__(self, supervisor: Supervised, health: Health, store: StoreMetrics | None) -> None:
        self._supervisor = supervisor
        self._health = health
        self._store = store

    async def metrics(self) -> Response:
        text = exposition(self._supervisor.report().rows)
        if self._store is not None and self._supervisor.children:
            text += store_exposition(await self._store.rows())
        return Response(200, text, CONTENT_TYPE)

    async def live(self) -> Response:
        return Response(200, "live\n")

    async def ready(self) -> Response:
        problem = await self._health.problem()
        return Response(200, "ready\n") if problem is None else Response(503, f"not ready: {problem}\n")

    @contextlib.asynccontextmanager
    async def serve(self, address: ListenAddress) -> AsyncGenerator[None]:
        """Answer requests meanwhile. Raises `CannotListen`."""
        server = HttpServer(
            {"/metrics": self.metrics, "/health/live": self.live, "/health/ready": self.ready}
        )
        port = await server.start(*address)
        where = f"[{address.host}]" if address.host and ":" in address.host else address.host or "*"
        log_line(INFO, f"metrics at http://{where}:{port}/metrics, and /health/live, /health/ready")
        try:
            yield
        finally:
            server.close()
