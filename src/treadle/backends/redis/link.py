"""The link: what the verbs call. It has a connection for each kind of call, opened when first needed.

A write that may have happened is never sent again: a claim that is repeated would leave leases that no worker
knows. If its connection is lost it raises `StoreUnavailable`, and the next call connects anew. Connecting is
tried a few times, for about two seconds, before a call raises. So are a read without an answer, and a call
that was refused because another server has the keys.
"""

from __future__ import annotations

import asyncio
import atexit
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import hiredis

from treadle.base.loop_mark import LoopMark
from treadle.errors import BackendError, NotStarted, StoreUnavailable
from treadle.retry import Retry

from .connection import Part, RedisConnection, pack
from .connector import RedisConnector
from .errors import (
    MOVED,
    NO_SCRIPT,
    STAGED,
    NotConnected,
    code_of,
    has_wrong_type,
    is_failed_script,
    translated,
)
from .wakeups import primary_switches

On: TypeAlias = Literal["work", "claim", "read"]
"""Which connection: a claim, or a long read, does not keep submits and settlements waiting."""

CONNECTING: Final = Retry(attempts=4, base=0.05, factor=2.0, max=1.0, jitter=0.5)
CONNECTING_SECONDS: Final = 2.0
"""Seconds after which connecting is not tried again: the caller would wait too long."""
ORDER_SECONDS: Final = 1.0
"""How long a claim waits for the answers to earlier calls: their connection may hang."""
REPLICAS_MS: Final = 1000
"""Seconds that the replicas may take to acknowledge a write."""
ASKED: Final = "missing_keys"
"""The script that `why_failed` runs. If it fails itself, nothing more is known."""
NEXT_WRITE: Final = "#!lua flags=allow-oom\nredis.call('INCR', KEYS[1])"
"""WAIT waits for the last write of its own connection. A script that has written nothing, because another
connection has done it already, must wait for that write too. So each is followed by this small write."""


KEPT: Final = frozenset({"meta", "shift", "writes"})
"""Keys that keep their names when the others are parked: what says so, and the clock of tests."""


class LinkSource(Protocol):
    """A script as the server gets it. `keys`: the short names of the keys that it declares, in order."""

    @property
    def text(self) -> str: ...
    @property
    def sha(self) -> str: ...
    @property
    def keys(self) -> tuple[str, ...]: ...


class LinkScript(Protocol):
    """What the link needs to know of a script."""

    @property
    def name(self) -> str: ...
    @property
    def writes(self) -> bool: ...
    @property
    def source(self) -> LinkSource: ...
    @property
    def source_for_tests(self) -> LinkSource: ...


class PackedScript(NamedTuple):
    """The beginnings of the two commands that run a script: by its sha, and with its text. `parts`: how many
    each has."""

    parts: int
    by_sha: bytes
    with_text: bytes
    writes: bool


class Tries:
    """Counts the tries of one call to reach the server that has the keys."""

    def __init__(self) -> None:
        self._failures = 0
        self._began = time.monotonic()

    async def again(self) -> bool:
        """Wait until the next try. False: there were enough."""
        self._failures += 1
        if CONNECTING.exhausted(self._failures) or time.monotonic() - self._began > CONNECTING_SECONDS:
            return False
        await asyncio.sleep(CONNECTING.delay(self._failures))
        return True


class RedisLink:
    """Carries out scripts and commands on the keys `{prefix}:...` while it is started.

    replicas: how many replicas have to acknowledge a write.
    test_clock: run the builds of the scripts whose clock tests can shift.
    single: one connection for all calls.
    folder: what the names of keys begin with: those of parked keys, see moving.py.
    """

    def __init__(
        self,
        connector: RedisConnector,
        prefix: str,
        *,
        replicas: int = 0,
        test_clock: bool = False,
        single: bool = False,
        folder: str = "",
    ) -> None:
        self.prefix = prefix
        self._folder = folder
        self._connector = connector
        self._test_clock = test_clock
        self.single = single
        self._packed: dict[str, PackedScript] = {}
        """By the name of the script."""
        self._next_write = pack((b"EVAL", NEXT_WRITE, 1, self.key("writes")))
        self._wait = pack((b"WAIT", replicas, REPLICAS_MS))
        self._replicas = replicas
        self._publish = b"SPUBLISH" if connector.is_cluster else b"PUBLISH"
        self._connections: dict[str, RedisConnection] = {}
        self._connecting: dict[str, asyncio.Task[RedisConnection]] = {}
        self._switches = primary_switches(connector)
        self.reconnected = 0
        """How often it has connected since it was started."""
        self.unfold: LinkScript | None = None
        """The script that unfolds a portion of a stage. Scripts that look at items are refused meanwhile."""
        self.why_failed: Callable[[], Awaitable[Exception | None]] | None = None
        """Asked when a script has failed that should not: keys may be missing."""
        self.until_here: Callable[[bool], Awaitable[bool]] | None = None
        """Asked when keys are of another type: whether a tenant was leaving or coming, and they are back now.
        Nothing was done then. True: it was asked before in this call."""
        self.mark: LoopMark | None = None
        """Where it was started. None: it is not."""

    def key(self, name: str) -> bytes:
        """A key of the namespace."""
        folder = "" if name in KEPT else self._folder
        return f"{{{self.prefix}}}:{folder}{name}".encode()

    # -- calls -----------------------------------------------------------------------------------------

    async def run(self, script: LinkScript, args: Sequence[Part] = (), *, on: On = "work") -> Any:
        """Run a script, and return its answer as the server sent it (bytes, int, None and lists of them)."""
        connection = self._connections.get("work" if self.single else on)
        if connection is None or not connection.is_usable:
            connection = await self._connected(on)
        packed = self._packed.get(script.name) or self._pack(script)
        parts = pack(tuple(args))
        first = b"*%d\r\n" % (packed.parts + len(args))
        rest = memoryview(parts)[parts.index(b"\n") + 1 :]
        command = b"".join((first, packed.by_sha, rest))
        tries: Tries | None = None
        waited = False
        while True:
            try:
                return await self._send(connection, command, packed.writes)
            except hiredis.ReplyError as error:
                if code_of(error) == NO_SCRIPT:
                    # The server keeps the text that it gets now, and knows it by its sha.
                    command = b"".join((first, packed.with_text, rest))
                elif code_of(error) == STAGED and self.unfold is not None:
                    await self._unfold(self.unfold)
                elif has_wrong_type(error) and await self._is_back(waited):
                    waited = True
                else:
                    raised = await self._failed(connection, script, error)
                    tries = tries or Tries()
                    if not (self._connector.is_elsewhere(error) and await tries.again()):
                        raise raised from None
                    connection = await self._connected(on)
            except StoreUnavailable:
                tries = tries or Tries()
                if packed.writes or not (self.is_started and await tries.again()):
                    raise
                connection = await self._connected(on)

    async def _is_back(self, waited: bool) -> bool:
        return self.until_here is not None and await self.until_here(waited)

    async def _failed(
        self, connection: RedisConnection, script: LinkScript, error: hiredis.ReplyError
    ) -> Exception:
        """The error to raise for a script."""
        found = None
        if self.why_failed is not None and is_failed_script(error) and script.name != ASKED:
            with suppress(BackendError):
                found = await self.why_failed()
        return found or self._refused(connection, error)

    async def _unfold(self, unfold: LinkScript) -> None:
        """Unfold what was submitted in a stage. Other processes may do the same: a call takes a portion."""
        while await self.run(unfold):
            pass

    async def command(self, *parts: Part, on: On = "work") -> Any:
        """Carry out one command that may be repeated, and return its answer as the server sent it."""
        tries = Tries()
        waited = False
        while True:
            connection = self._connections.get("work" if self.single else on)
            if connection is None or not connection.is_usable:
                connection = await self._connected(on)
            try:
                return await connection.call(*parts)
            except hiredis.ReplyError as error:
                if has_wrong_type(error) and await self._is_back(waited):
                    waited = True
                    continue
                raised = self._refused(connection, error)
                if not (self._connector.is_elsewhere(error) and await tries.again()):
                    raise raised from None
            except StoreUnavailable:
                if not (self.is_started and await tries.again()):
                    raise

    async def until_answered(self) -> None:
        """Return after the calls of `work` that are on their way, or after `ORDER_SECONDS`.

        The server may answer two connections in another order than it has carried out their calls.
        """
        connection = self._connections.get("work")
        last = None if connection is None else connection.last_call()
        if last is not None:
            await asyncio.wait([last], timeout=ORDER_SECONDS)
            return
        for _ in range(2 if self._replicas else 1):  # the answer may be here, and its caller has to go on yet
            await asyncio.sleep(0)

    async def publish(self, channel: bytes, payload: bytes) -> None:
        """Send a message behind the calls that are on their way. No caller waits for the answer."""
        connection = self._connections.get("work")
        if connection is None or not connection.is_usable:
            connection = await self._connected("work")
        connection.send_unanswered(pack((self._publish, channel, payload)))

    async def _send(self, connection: RedisConnection, command: bytes, writes: bool) -> Any:
        if not (writes and self._replicas):
            return await connection.send(command)
        sent = [connection.send(each) for each in (command, self._next_write, self._wait)]
        found: list[Any] = await asyncio.gather(*sent, return_exceptions=True)
        answer, _, acknowledged = found
        if isinstance(answer, BaseException):
            raise answer
        for each in found:
            if isinstance(each, hiredis.ReplyError):  # the script has run: it must not be repeated
                raise self._refused(connection, each)
            if isinstance(each, BaseException):
                raise each
        if acknowledged < self._replicas:
            raise StoreUnavailable(
                f"{acknowledged} of {self._replicas} replicas have acknowledged a write "
                f"within {REPLICAS_MS} ms: it has happened, and is lost if the primary is lost now"
            )
        return answer

    def _pack(self, script: LinkScript) -> PackedScript:
        source = script.source_for_tests if self._test_clock else script.source
        keys = [self.key(name) for name in source.keys]
        commands = ((b"EVALSHA", source.sha), (b"EVAL", source.text))
        by_sha, with_text = (_without_count(pack((*command, len(keys), *keys))) for command in commands)
        packed = PackedScript(3 + len(keys), by_sha, with_text, script.writes)
        self._packed[script.name] = packed
        return packed

    def _refused(self, connection: RedisConnection, error: hiredis.ReplyError) -> Exception:
        """The error to raise. If the keys have moved, the next call looks for their server."""
        if code_of(error) in MOVED:
            self._connector.learn(error)
            self._leave(
                connection, f"the keys have moved ({code_of(error)}): the call may or may not have happened"
            )
        return translated(error, looks_up=self._connector.looks_up)

    # -- connections -----------------------------------------------------------------------------------

    def _leave(self, connection: RedisConnection, reason: str) -> None:
        """Use a connection no longer: other partitions may."""
        mine = [name for name, each in self._connections.items() if each is connection]
        for name in mine:
            del self._connections[name]
        if mine and self._connector.leave(connection):
            connection.abort(reason)

    async def _connected(self, on: str) -> RedisConnection:
        """The connection for these calls. Callers that need it at once share one try to connect."""
        if self.mark is None:
            raise NotStarted("the Redis backend")
        name = "work" if self.single else on
        connection = self._connections.get(name)
        if connection is not None and connection.is_usable:  # another call has connected meanwhile
            return connection
        task = self._connecting.get(name)
        if task is None:
            task = self._connecting[name] = asyncio.create_task(self._connect(name), name="treadle-connect")
            task.add_done_callback(lambda done: self._forget_task(name, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not _is_cancelled():
                raise StoreUnavailable("the Redis backend was closed: nothing was sent") from None
            raise

    def _forget_task(self, name: str, task: asyncio.Task[RedisConnection]) -> None:
        if self._connecting.get(name) is task:
            del self._connecting[name]
        if not task.cancelled():
            task.exception()  # its callers may all be gone

    async def _connect(self, name: str) -> RedisConnection:
        tries = Tries()
        while True:
            try:
                connection = self._connections[name] = await self._connector.connect(name)
                self.reconnected += 1
                return connection
            except NotConnected:
                if not await tries.again():
                    raise

    # -- life ------------------------------------------------------------------------------------------

    @property
    def is_started(self) -> bool:
        return self.mark is not None

    async def start(self) -> RedisConnection:
        """Connect, and return the connection for work. It is tried once."""
        abandon_dead_links()
        self.mark = LoopMark()
        _links.add(self)
        try:
            connection = self._connections["work"] = await self._connector.connect("work")
        except BaseException:
            await self.stop()
            raise
        if self._switches is not None:
            self._switches.start()
        return connection

    async def stop(self) -> None:
        """Close the connections. Calls without an answer raise `StoreUnavailable`."""
        self.mark = None
        _links.discard(self)
        if self._switches is not None:
            await self._switches.stop()
        connecting, self._connecting = self._connecting, {}
        connections, self._connections = self._connections, {}
        for task in connecting.values():
            task.cancel()
        await asyncio.gather(*connecting.values(), return_exceptions=True)
        left = [connection for connection in connections.values() if self._connector.leave(connection)]
        await asyncio.gather(*(connection.close() for connection in left))

    def abandon(self) -> None:
        """Leave behind what belongs to an event loop that is gone."""
        if self.mark is None or not self.mark.is_gone:
            return
        _links.discard(self)
        if self._switches is not None:
            self._switches.abandon()
        for connection in self._connections.values():
            if self._connector.leave(connection):
                connection.abandon()
        self.mark, self._connections, self._connecting = None, {}, {}


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _without_count(packed: bytes) -> bytes:
    return packed[packed.index(b"\n") + 1 :]


_links: Final[set[RedisLink]] = set()
"""Those that are started."""


@atexit.register
def abandon_dead_links() -> None:
    """End the connections that closed event loops of this process have left open."""
    for link in list(_links):
        link.abandon()


class RedisVerbs:
    """link: carries out scripts and commands."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
