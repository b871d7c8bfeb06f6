"""CeleryResult: what `delay` and `apply_async` return. It has the methods of AsyncResult that callers use."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Final, Generic, Literal, TypeVar, overload

from treadle.base.callables import runs_any_loop
from treadle.base.timing import Duration, seconds
from treadle.client import Client
from treadle.errors import InputError, WaitTimeout, WorkCancelled, WorkFailed
from treadle.handle import Handle
from treadle.item import GroupState

V = TypeVar("V")
T = TypeVar("T")

_STATES: Final = {"running": "STARTED", "dead": "FAILURE", "cancelled": "REVOKED"}


class CeleryResult(Generic[V]):
    """A submitted item. Methods block; those that begin with `a` are for async code.

    Its value is that of the item's group: of a workflow, what the last work gave.
    """

    def __init__(self, client: Client, handle: Handle[Any, V]) -> None:
        self._client = client
        self.handle = handle
        """The handle of treadle."""

    @property
    def id(self) -> str:
        """The id of the item."""
        return self.handle.id

    @property
    def task_id(self) -> str:
        """The same."""
        return self.handle.id

    @overload
    def get(self, timeout: Duration | None = None, propagate: Literal[True] = True) -> V: ...
    @overload
    def get(self, timeout: Duration | None = None, propagate: bool = True) -> V | Exception: ...
    def get(self, timeout: Duration | None = None, propagate: bool = True) -> V | Exception:
        """Wait for the value.

        `WorkFailed` if the work died, `WorkCancelled` if it was cancelled, `WaitTimeout` after `timeout`
        seconds. propagate: False returns the first two instead of raising them.
        """
        return self._wait("get", self._get(timeout, propagate))

    async def aget(self, timeout: Duration | None = None) -> V:
        """As `get`."""
        return await self.handle.group(timeout)

    async def _get(self, timeout: Duration | None, propagate: bool) -> V | Exception:
        try:
            return await self.handle.group(timeout)
        except (WorkFailed, WorkCancelled) as error:
            if propagate:
                raise
            return error

    @property
    def state(self) -> str:
        """The state in the words of Celery: PENDING, STARTED, RETRY, SUCCESS, FAILURE or REVOKED. `NotFound`
        if there is no such item, where Celery says PENDING."""
        return self._wait("state", self.astate())

    status = state

    async def astate(self) -> str:
        """As `state`."""
        item = await self.handle.state()
        if item.status != "success":
            waits = "RETRY" if item.attempt else "PENDING"
            return _STATES.get(item.status, waits)
        group = await self._client.group(item.group_id)
        return "SUCCESS" if group is None else _group_state(group)

    def ready(self) -> bool:
        """Whether it has ended."""
        return self.state in ("SUCCESS", "FAILURE", "REVOKED")

    def successful(self) -> bool:
        """Whether it has ended with a value."""
        return self.state == "SUCCESS"

    def failed(self) -> bool:
        """Whether it is dead."""
        return self.state == "FAILURE"

    @property
    def result(self) -> V | Exception | None:
        """The value, or the error. None if it has not ended."""
        return self.get(propagate=False) if self.ready() else None

    def revoke(self, *, terminate: bool = False) -> None:
        """Cancel it. A handler that runs is interrupted too, so say so: `revoke(terminate=True)`."""
        _check_terminate(terminate)
        self._wait("revoke", self.handle.cancel())

    async def arevoke(self, *, terminate: bool = False) -> None:
        """As `revoke`."""
        _check_terminate(terminate)
        await self.handle.cancel()

    def _wait(self, method: str, answer: Coroutine[Any, Any, T]) -> T:
        return run_blocking(self._client, answer, f"result.{method}", f"await result.a{method}(...)")

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<CeleryResult {self.id}>"


def _group_state(group: GroupState) -> str:
    """The state of a group whose root has succeeded: `get` returns, or raises, the same."""
    if group.ended_at is None:
        return "STARTED"
    if group.final and group.contributed:
        return "SUCCESS"
    if group.failed:
        return "FAILURE"
    return "REVOKED" if group.cancelled is not None and not group.contributed else "SUCCESS"


def _check_terminate(terminate: bool) -> None:
    if not terminate:
        raise InputError(
            "revoke cancels a handler that runs, too: say revoke(terminate=True). There is no revoke that "
            "lets it run",
            parameters=("terminate",),
        )


class CeleryGroupResult(Generic[V]):
    """The results of a group, in the order of its signatures."""

    def __init__(self, results: Sequence[CeleryResult[V]]) -> None:
        self.results = results

    def get(self, timeout: Duration | None = None) -> list[V]:
        """Wait for all values. The first failure, in their order, is raised: see `CeleryResult.get`."""
        until = _until(timeout)
        return [each.get(_left(until, each, timeout)) for each in self.results]

    join = get

    async def aget(self, timeout: Duration | None = None) -> list[V]:
        """As `get`."""
        until = _until(timeout)
        return [await each.aget(_left(until, each, timeout)) for each in self.results]

    def ready(self) -> bool:
        """Whether all have ended."""
        return all(each.ready() for each in self.results)

    def successful(self) -> bool:
        """Whether all have ended with a value."""
        return all(each.successful() for each in self.results)

    def failed(self) -> bool:
        """Whether one is dead."""
        return any(each.failed() for each in self.results)

    def completed_count(self) -> int:
        """How many have ended with a value."""
        return sum(each.successful() for each in self.results)

    def __iter__(self) -> Iterator[CeleryResult[V]]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __repr__(self) -> str:
        return f"<CeleryGroupResult of {len(self.results)}>"


def _until(timeout: Duration | None) -> float | None:
    return None if timeout is None else time.monotonic() + seconds(timeout, field="timeout")


def _left(until: float | None, result: CeleryResult[Any], timeout: Duration | None) -> float | None:
    """The seconds that are left for one of them."""
    if until is None or timeout is None:
        return None
    left = until - time.monotonic()
    if left < 0:
        raise WaitTimeout(result.id, seconds(timeout))
    return left


def run_blocking(client: Client, coroutine: Coroutine[Any, Any, T], method: str, instead: str) -> T:
    """Run a coroutine on the app's loop, and wait for it here. RuntimeError in a thread that runs an event
    loop: the loop would stand still meanwhile."""
    if not runs_any_loop():
        return client.sync.call(coroutine)
    coroutine.close()
    raise RuntimeError(f"{method} would block the event loop of this thread: use `{instead}`")
