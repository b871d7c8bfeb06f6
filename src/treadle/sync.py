"""The app for code that is not async: Flask views, Django views, scripts.

Each async method has a method here with the same name and arguments, which blocks until it has the answer.
Calls run on the app's event loop (see `treadle.operate.sync_loop`) and may come from any thread without a
loop.
"""

from __future__ import annotations

import functools
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Concatenate, Generic, ParamSpec, Self, overload

from typing_extensions import TypeVar, Unpack

from treadle.base.callables import is_awaitable
from treadle.base.timing import Duration
from treadle.client import Client, work_of
from treadle.define.work import Work, works_of
from treadle.engine.open_transaction import current_transaction
from treadle.engine.submit.enqueue import named, submit
from treadle.errors import InputError
from treadle.handle import Handle, has_connection, is_enqueue, submitted_handle
from treadle.item import Chunk, ItemState
from treadle.manual_lease import ClaimedLease
from treadle.operate.bulk import Bulk
from treadle.operate.dead_letters import DeadLetters
from treadle.operate.operator import Operator, core_of, note_of, submits_to
from treadle.operate.sync_loop import SyncLoop, run_without_loop
from treadle.options import ENQUEUE_MANY_OPTIONS, ENQUEUE_OPTIONS, EnqueueOptions, check_options
from treadle.records import Progress
from treadle.schedule import ScheduleHandle, Schedules

S = TypeVar("S")
G = TypeVar("G", default=S)
A = TypeVar("A")
T = TypeVar("T")
O = TypeVar("O")  # noqa: E741
P = ParamSpec("P")


class SyncSide:
    """Base of the classes here. `target` is the object with the async methods."""

    def __init__(self, loop: SyncLoop, target: Any) -> None:
        self._loop = loop
        self._target = target


class BlockingVerb(Generic[P, T]):
    """A method that calls the async method of the same name and waits for its answer.

    Its arguments are those of the async method. So a new option there is one here, for type checkers too.
    """

    def __init__(self, verb: Callable[..., Any], convert: Callable[[SyncLoop, Any], T] | None) -> None:
        self.verb = verb
        self._convert = convert
        self.__name__ = verb.__name__
        self.__doc__ = verb.__doc__

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(self, instance: SyncSide, owner: type[Any]) -> Callable[P, T]: ...
    def __get__(self, instance: SyncSide | None, owner: type[Any]) -> Any:
        if instance is None:
            return self
        loop, verb = instance._loop, getattr(instance._target, self.verb.__name__)  # pyright: ignore[reportPrivateUsage]

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = loop.run(verb(*args, **kwargs))
            return answer if self._convert is None else self._convert(loop, answer)

        return functools.update_wrapper(call, verb)


def blocking(verb: Callable[Concatenate[O, P], Coroutine[Any, Any, T]]) -> BlockingVerb[P, T]:
    """The sync side of an async method."""
    return BlockingVerb(verb, None)


def blocking_as(
    verb: Callable[Concatenate[O, P], Coroutine[Any, Any, A]], convert: Callable[[SyncLoop, A], T]
) -> BlockingVerb[P, T]:
    """The sync side of an async method that returns an object with async methods of its own."""
    return BlockingVerb(verb, convert)


class SyncHandle(SyncSide, Generic[S, G]):
    """A submitted item. Each method blocks until it has the answer."""

    def __init__(self, loop: SyncLoop, handle: Handle[S, G]) -> None:
        super().__init__(loop, handle)
        self._handle = handle
        self.id = handle.id
        self.existing = handle.existing

    @property
    def group_id(self) -> str:
        """As `Handle.group_id`."""
        return self._handle.group_id

    def result(self, timeout: Duration | None = None) -> S:
        """As `Handle.result`."""
        return self._loop.run(self._handle.result(timeout))

    def group(self, timeout: Duration | None = None, *, partial: bool = False) -> G:
        """As `Handle.group`."""
        return self._loop.run(self._handle.group(timeout, partial=partial))

    @property
    def queued_at(self) -> float | None:
        """As `Handle.queued_at`."""
        return self._handle.queued_at

    def wait(self, timeout: Duration | None = None, *, group: bool = False) -> bool:
        """As `Handle.wait`."""
        return self._loop.run(self._handle.wait(timeout, group=group))

    def state(self) -> ItemState:
        """As `Handle.state`."""
        return self._loop.run(self._handle.state())

    def progress(self) -> Progress | None:
        """As `Handle.progress`."""
        return self._loop.run(self._handle.progress())

    def stream(self, since: int = 0) -> Iterator[Chunk]:
        """As `Handle.stream`."""
        chunks = aiter(self._handle.stream(since))
        while (chunk := self._loop.run(_next(chunks))) is not None:
            yield chunk

    def cancel(self) -> int:
        """As `Handle.cancel`."""
        return self._loop.run(self._handle.cancel())

    def __repr__(self) -> str:
        return f"<SyncHandle {self.id}>"


async def _next(chunks: AsyncIterator[Chunk]) -> Chunk | None:
    return await anext(chunks, None)


def _sync_handle(loop: SyncLoop, handle: Handle[Any, Any] | None) -> SyncHandle[Any, Any] | None:
    return None if handle is None else SyncHandle(loop, handle)


class SyncClaimedLease(SyncSide):
    """One attempt of one item: what `app.sync.claim_one(...)` returns. See `treadle.manual_lease`."""

    def __init__(self, loop: SyncLoop, lease: ClaimedLease) -> None:
        super().__init__(loop, lease)
        self.id = lease.id
        self.type = lease.type
        self.attempt = lease.attempt
        self.tenant = lease.tenant
        self.headers = lease.headers
        self.input = lease.input

    complete = blocking(ClaimedLease.complete)
    fail = blocking(ClaimedLease.fail)
    release = blocking(ClaimedLease.release)
    renew = blocking(ClaimedLease.renew)


def _sync_lease(loop: SyncLoop, lease: ClaimedLease | None) -> SyncClaimedLease | None:
    return None if lease is None else SyncClaimedLease(loop, lease)


class SyncScheduleHandle(SyncSide):
    """One schedule of this process: what `app.sync.schedule(...)` returns."""

    def __init__(self, loop: SyncLoop, handle: ScheduleHandle) -> None:
        super().__init__(loop, handle)
        self._handle = handle
        self.name = handle.name

    @property
    def next_at(self) -> float | None:
        """As `ScheduleHandle.next_at`."""
        return self._handle.next_at

    cancel = blocking(ScheduleHandle.cancel)
    pause = blocking(ScheduleHandle.pause)
    resume = blocking(ScheduleHandle.resume)
    trigger = blocking_as(ScheduleHandle.trigger, _sync_handle)


class SyncSchedules(SyncSide):
    """The schedules of the store: `app.sync.schedules`."""

    list = blocking(Schedules.list)

    def has_code(self, name: str) -> bool:
        """As `Schedules.has_code`."""
        return bool(self._target.has_code(name))

    why = blocking(Schedules.why)
    runs = blocking(Schedules.runs)
    pause = blocking(Schedules.pause)
    resume = blocking(Schedules.resume)
    cancel = blocking(Schedules.cancel)
    trigger = blocking_as(Schedules.trigger, _sync_handle)


class SyncDeadLetters(SyncSide):
    """The dead items: `app.sync.dead`."""

    list = blocking(DeadLetters.list)
    marks = blocking(DeadLetters.marks)
    causes = blocking(DeadLetters.causes)
    requeue = blocking(DeadLetters.requeue)
    delete = blocking(DeadLetters.delete)


class SyncBulk(SyncSide):
    """The bulk actions: `app.sync.bulk`."""

    start = blocking(Bulk.start)
    state = blocking(Bulk.state)
    list = blocking(Bulk.list)
    stop = blocking(Bulk.stop)


class SyncOperator(SyncSide):
    """Reads and changes items, as `Operator`."""

    connect = blocking(Operator.connect)
    get = blocking(Operator.get)
    group = blocking(Operator.group)
    workflow = blocking(Operator.workflow)
    groups = blocking(Operator.groups)
    workflows = blocking(Operator.workflows)
    list = blocking(Operator.list)
    counts = blocking(Operator.counts)
    why = blocking(Operator.why)
    why_queue = blocking(Operator.why_queue)
    workers = blocking(Operator.workers)
    limits = blocking(Operator.limits)
    overview = blocking(Operator.overview)
    problems = blocking(Operator.problems)
    watch_problems = blocking(Operator.watch_problems)
    look = blocking(Operator.look)
    lines = blocking(Operator.lines)
    related = blocking(Operator.related)
    stores = blocking(Operator.stores)
    place = blocking(Operator.place)
    accept_store = blocking(Operator.accept_store)
    move_tenant = blocking(Operator.move_tenant)
    give_up_move = blocking(Operator.give_up_move)
    plan_rebalance = blocking(Operator.plan_rebalance)
    statistics = blocking(Operator.statistics)
    backlogs = blocking(Operator.backlogs)
    backlog_history = blocking(Operator.backlog_history)
    audits = blocking(Operator.audits)
    steps = blocking(Operator.steps)
    logs = blocking(Operator.logs)
    signal = blocking(Operator.signal)
    cancel = blocking(Operator.cancel)
    complete = blocking(Operator.complete)
    requeue = blocking(Operator.requeue)
    repair = blocking(Operator.repair)
    update = blocking(Operator.update)
    trigger = blocking(Operator.trigger)
    hold = blocking(Operator.hold)
    unhold = blocking(Operator.unhold)
    delete = blocking(Operator.delete)
    pause = blocking(Operator.pause)
    resume = blocking(Operator.resume)
    set_limit = blocking(Operator.set_limit)
    clear_limit = blocking(Operator.clear_limit)
    orders = blocking(Operator.orders)
    drain_worker = blocking(Operator.drain_worker)


def on_loop_if_any(
    verb: Callable[Concatenate[O, P], A], convert: Callable[[SyncLoop, A], T]
) -> Callable[Concatenate[SyncSide, P], T]:
    """The sync side of a plain method: it may start tasks on the app's loop, if the app has one."""

    @functools.wraps(verb)
    def call(self: SyncSide, /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop, bound = self._loop, getattr(self._target, verb.__name__)  # pyright: ignore[reportPrivateUsage]

        async def on_loop() -> A:
            answer: A = bound(*args, **kwargs)
            return answer

        on_loop.__name__ = verb.__name__  # for errors
        return convert(loop, loop.run(on_loop()) if loop.has_loop else bound(*args, **kwargs))

    return call


class SyncClient(SyncOperator):
    """The methods of a client for code that is not async: `client.sync`, `app.tenant("x").sync`.

    `with client.sync:` connects, and closes at the end.
    """

    def __init__(self, loop: SyncLoop, client: Client) -> None:
        super().__init__(loop, client)
        self._client = client

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def dead(self) -> SyncDeadLetters:
        """As `Client.dead`."""
        return SyncDeadLetters(self._loop, self._client.dead)

    @property
    def bulk(self) -> SyncBulk:
        """As `Client.bulk`."""
        return SyncBulk(self._loop, self._client.bulk)

    @property
    def schedules(self) -> SyncSchedules:
        """As `Client.schedules`."""
        return SyncSchedules(self._loop, self._client.schedules)

    def tenant(self, name: str) -> SyncClient:
        """As `Client.tenant`."""
        return self._client.tenant(name).sync

    def by(self, actor: str, *, reason: str = "", address: str = "") -> SyncClient:
        """As `Client.by`."""
        return self._client.by(actor, reason=reason, address=address).sync

    def call(self, awaitable: Awaitable[T]) -> T:
        """Run a coroutine, or an enqueue, on the app's loop, and return what awaiting it returns:
        `app.sync.call(app.enqueue(add(1, 2)).result())`."""
        _check_awaitable(awaitable)

        async def wait() -> T:
            return await awaitable

        wait.__name__ = "enqueue"  # for errors: what is given is what it returned, in most programs
        return self._loop.run(wait())

    @overload
    def enqueue(self, work: Work[S, G], /, **options: Unpack[EnqueueOptions]) -> SyncHandle[S, G]: ...
    @overload
    def enqueue(
        self, work: str, input: Mapping[str, Any] | None = ..., /, **options: Unpack[EnqueueOptions]
    ) -> SyncHandle[Any, Any]: ...
    def enqueue(
        self,
        work: Work[Any, Any] | str,
        input: Mapping[str, Any] | None = None,
        /,
        *more: object,
        **options: Unpack[EnqueueOptions],
    ) -> SyncHandle[Any, Any]:
        """Submit work. The item is durable when this returns."""
        work = work_of(core_of(self._client).registry, work, input, *more)
        if self._is_callers(options.get("tx")):
            work, checked = named(
                work,
                check_options(options, "enqueue", ENQUEUE_OPTIONS),
                keep=core_of(self._client).by_root,
            )
            return self._enqueue_within([work], checked)[0]

        async def enqueue() -> Handle[Any, Any]:
            return await self._client.enqueue(work, **options)

        return SyncHandle(self._loop, self._loop.run(enqueue()))

    def enqueue_many(
        self, works: Iterable[Work[S, G]], /, **options: Unpack[EnqueueOptions]
    ) -> list[SyncHandle[S, G]]:
        """Submit works in one atomic step, one group each, all with the same options."""
        if self._is_callers(options.get("tx")):
            checked = check_options(options, "enqueue_many", ENQUEUE_MANY_OPTIONS)
            return self._enqueue_within(works_of(works, "enqueue_many"), checked)
        handles = self._loop.run(self._client.enqueue_many(works, **options))
        return [SyncHandle(self._loop, handle) for handle in handles]

    def edit(self, item: ItemState, work: Work[S, G], /, *, key: str | None = None) -> SyncHandle[S, G]:
        """As `Client.edit`."""
        return SyncHandle(self._loop, self._loop.run(self._client.edit(item, work, key=key)))

    def _is_callers(self, tx: object) -> bool:
        """Whether `tx` is a connection of the caller, and not what `ctx.sync.transaction()` gave it."""
        transaction = current_transaction(core_of(self._client).backend)
        return tx is not None and (transaction is None or not transaction.is_connection(tx))

    def _enqueue_within(
        self, works: Sequence[Work[Any, Any]], checked: dict[str, Any]
    ) -> list[SyncHandle[Any, Any]]:
        """Submit in the caller's transaction, and in the caller's thread, which owns the connection."""
        core, tenant, note = core_of(self._client), submits_to(self._client), note_of(self._client)
        core.check_unopened(checked.get("tx"))
        self.connect()
        answers = run_without_loop(submit(core, tenant, works, checked, note=note))
        return [SyncHandle(self._loop, submitted_handle(core, tenant, answer, note)) for answer in answers]

    claim_one = blocking_as(Client.claim_one, _sync_lease)
    schedule = on_loop_if_any(Client.schedule, SyncScheduleHandle)

    def handle(self, item: str | ItemState) -> SyncHandle[Any, Any]:
        """As `Client.handle`."""
        return SyncHandle(self._loop, self._client.handle(item))

    def close(self) -> None:
        """End the background loop, if there is one, and close the app on it. An app on the user's own loop is
        not closed. Calls of other threads that have not ended raise `Stopped`."""
        self._loop.close()


def _check_awaitable(value: object) -> None:
    if is_enqueue(value):
        if has_connection(value):
            raise InputError(
                "tx: app.sync.call runs in another thread than the connection: use "
                "app.sync.enqueue(..., tx=connection)",
                parameters=("tx",),
            )
    elif not is_awaitable(value):
        raise TypeError(
            "app.sync.call takes a coroutine or an enqueue, as in app.sync.call(app.enqueue(add(1, 2))), "
            f"not {value!r:.80}"
        )


class SyncApp(SyncClient):
    """`app.sync`: the methods of a client, and `start` and `stop`, for code that is not async.

    `with app.sync:` starts the worker, and stops it at the end.
    """

    def start(self) -> None:
        """Connect and start the worker. Idempotent."""
        self._loop.run(self._target.start())

    def stop(self, drain: Duration | None = None) -> None:
        """Stop the worker (see `Worker.stop`) and end the background thread. Idempotent."""
        self._loop.run(self._target.stop(drain))
        self.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
