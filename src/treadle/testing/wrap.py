"""A backend around a backend: every call of the engine to its store passes through one method, `around`.

`treadle.testing.faults` makes calls fail there, `treadle.testing.counting` counts them there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Protocol, TypeVar, cast

from treadle.backend import (
    Backend,
    Export,
    HeartbeatConnection,
    Import,
    Transaction,
    carries_results,
    store_name,
)
from treadle.item import Loss, Record, Settled, Settlement

T = TypeVar("T")
Verb = TypeVar("Verb", bound=Callable[..., Awaitable[Any]])


class AroundCalls(Protocol):
    """What is around something that has the same methods."""

    @property
    def inner(self) -> object: ...

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T: ...


def passed_on(verb: Verb, name: str | None = None) -> Verb:
    """A method with the signature of `verb` that makes the same call of `inner`, within `around`.

    name: what `around` is told, by default the name of the verb."""
    own_name, shown_name = verb.__name__, name or verb.__name__
    form = signature(verb)
    positional = [one for one in form.parameters.values() if one.kind is Parameter.POSITIONAL_OR_KEYWORD][1:]

    @wraps(verb)
    async def pass_on(self: AroundCalls, *args: Any, **options: Any) -> Any:
        given = args
        if len(args) < len(positional):
            bound = form.bind(self, *args, **options)
            bound.apply_defaults()
            given = bound.args[1:]
        return await self.around(shown_name, given, lambda: getattr(self.inner, own_name)(*args, **options))

    return cast(Verb, pass_on)


class WrappedBackend(Backend):
    """Calls `inner`. Subclasses override `around`."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities - {"tenant_moves"}  # it does not pass their verbs on
        self.carries_results = carries_results(inner)

    @property
    def address(self) -> str:
        return store_name(self.inner)

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        """Called for every call of every verb. `call` carries it out. `args` are its positional arguments.

        Besides the verbs of `Backend`: `begin`, `settle_within` and `commit` are the three steps of a
        transaction; `heartbeat_connection` is a heartbeat of a blocked worker, from another thread.
        """
        return await call()

    # -- lifetime --------------------------------------------------------------------------------------

    open = passed_on(Backend.open)
    close = passed_on(Backend.close)

    def abandon(self) -> None:
        self.inner.abandon()

    def heartbeat_connection(self) -> HeartbeatConnection:
        return WrappedHeartbeatConnection(self.inner.heartbeat_connection(), self)

    # -- the path of work -----------------------------------------------------------------------------

    submit = passed_on(Backend.submit)
    claim = passed_on(Backend.claim)
    begin = passed_on(Backend.begin)
    beat = passed_on(Backend.beat)
    remove_worker = passed_on(Backend.remove_worker)
    settle = passed_on(Backend.settle)
    record = passed_on(Backend.record)
    unknown_leases = passed_on(Backend.unknown_leases)

    # -- reads ----------------------------------------------------------------------------------------

    get = passed_on(Backend.get)
    group = passed_on(Backend.group)
    steps = passed_on(Backend.steps)
    stream = passed_on(Backend.stream)
    logs = passed_on(Backend.logs)
    ended = passed_on(Backend.ended)
    list = passed_on(Backend.list)
    counts = passed_on(Backend.counts)
    workers = passed_on(Backend.workers)
    explain = passed_on(Backend.explain)
    overview = passed_on(Backend.overview)
    limits = passed_on(Backend.limits)
    marks = passed_on(Backend.marks)
    lines = passed_on(Backend.lines)
    related = passed_on(Backend.related)
    groups = passed_on(Backend.groups)
    workflows = passed_on(Backend.workflows)

    # -- records --------------------------------------------------------------------------------------

    add_stats = passed_on(Backend.add_stats)
    stats = passed_on(Backend.stats)
    put_samples = passed_on(Backend.put_samples)
    samples = passed_on(Backend.samples)
    schedule_runs = passed_on(Backend.schedule_runs)
    audits = passed_on(Backend.audits)
    drain_worker = passed_on(Backend.drain_worker)

    # -- operators ------------------------------------------------------------------------------------

    cancel = passed_on(Backend.cancel)
    complete = passed_on(Backend.complete)
    requeue = passed_on(Backend.requeue)
    update = passed_on(Backend.update)
    trigger = passed_on(Backend.trigger)
    hold = passed_on(Backend.hold)
    signal = passed_on(Backend.signal)
    delete = passed_on(Backend.delete)
    order = passed_on(Backend.order)
    withdraw = passed_on(Backend.withdraw)
    orders = passed_on(Backend.orders)
    prune = passed_on(Backend.prune)

    # -- coordination ---------------------------------------------------------------------------------

    claim_key = passed_on(Backend.claim_key)
    key_owner = passed_on(Backend.key_owner)
    take_permits = passed_on(Backend.take_permits)
    return_permits = passed_on(Backend.return_permits)
    keep_permits = passed_on(Backend.keep_permits)
    put_schedule = passed_on(Backend.put_schedule)
    schedules = passed_on(Backend.schedules)
    drop_schedule = passed_on(Backend.drop_schedule)
    pause_schedule = passed_on(Backend.pause_schedule)
    fire = passed_on(Backend.fire)

    # -- moving ---------------------------------------------------------------------------------------

    mark = passed_on(Backend.mark)
    own = passed_on(Backend.own)
    discard = passed_on(Backend.discard)
    take_back = passed_on(Backend.take_back)
    identity = passed_on(Backend.identity)

    def export(
        self, *, freeze: float | None = None, move: str | None = None, tenant: str | None = None
    ) -> AbstractAsyncContextManager[Export]:
        return self.inner.export(freeze=freeze, move=move, tenant=tenant)

    def import_(
        self, move: str, source: str = "", *, tenant: str | None = None
    ) -> AbstractAsyncContextManager[Import]:
        return self.inner.import_(move, source, tenant=tenant)

    # -- wake-ups -------------------------------------------------------------------------------------

    publish = passed_on(Backend.publish)
    subscribe = passed_on(Backend.subscribe)
    now = passed_on(Backend.now)

    # -- transactions ----------------------------------------------------------------------------------

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Transaction]:
        manager = self.inner.transaction()
        transaction = await self._begin(manager)
        wrapped, committing = WrappedTransaction(transaction, self), False

        async def commit() -> None:
            nonlocal committing
            committing = True
            await manager.__aexit__(None, None, None)

        try:
            yield wrapped
            await self.around("commit", (wrapped.settlements, wrapped.records), commit)
        except BaseException as error:
            if not committing:
                await manager.__aexit__(type(error), error, error.__traceback__)
            raise

    async def _begin(self, manager: AbstractAsyncContextManager[Transaction]) -> Transaction:
        """Begin a transaction. If its answer is lost, roll it back."""
        begun = False

        async def begin() -> Transaction:
            nonlocal begun
            transaction = await manager.__aenter__()
            begun = True
            return transaction

        try:
            return await self.around("begin", (), begin)
        except BaseException as error:
            if begun:
                await manager.__aexit__(type(error), error, error.__traceback__)
            raise


class WrappedTransaction(Transaction):
    def __init__(self, inner: Transaction, backend: WrappedBackend) -> None:
        self.inner = inner
        self.around = backend.around
        self.settlements: list[Settlement] = []
        self.records: list[Record] = []
        """What it commits."""

    @property
    def connection(self) -> object:
        return self.inner.connection

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        self.settlements += settlements
        return await self.around("settle_within", (settlements,), lambda: self.inner.settle(settlements))

    async def record(self, records: Sequence[Record]) -> Sequence[Loss | None]:
        self.records += records
        return await self.around("record_within", (records,), lambda: self.inner.record(records))

    submit = passed_on(Transaction.submit, "submit_within")
    get = passed_on(Transaction.get, "get_within")
    claim_key = passed_on(Transaction.claim_key, "claim_key_within")


class WrappedHeartbeatConnection(HeartbeatConnection):
    def __init__(self, inner: HeartbeatConnection, backend: WrappedBackend) -> None:
        self.inner = inner
        self.around = backend.around

    async def open(self) -> None:
        await self.inner.open()

    beat = passed_on(HeartbeatConnection.beat, "heartbeat_connection")

    async def close(self) -> None:
        await self.inner.close()


VERBS: frozenset[str] = frozenset(
    name
    for name in vars(Backend)
    if not name.startswith("_")
    and name not in ("heartbeat_connection", "transaction", "capabilities", "export", "import_")
) | {
    *("begin", "settle_within", "submit_within", "record_within", "get_within", "claim_key_within"),
    *("commit", "heartbeat_connection"),
}
"""The verbs that `around` is called for."""
