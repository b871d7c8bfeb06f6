"""Client: submits work, waits for it, and operates on it. It runs nothing."""

from __future__ import annotations

import difflib
import functools
import random as random_module
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, overload

from typing_extensions import TypedDict, TypeVar, Unpack

from treadle.backend import Backend
from treadle.clock import Clock
from treadle.codec import Codec
from treadle.connect import connect
from treadle.engine.core import Core, LocalRuntime
from treadle.engine.hooks import Hooks, OnError, OnEvent
from treadle.engine.registry import AnyType
from treadle.engine.schedule.entry import Run
from treadle.engine.schedule.occurrence import CatchUp, NextFn
from treadle.engine.settings import Settings
from treadle.errors import DuplicateIdError
from treadle.flow_control import OnUnhandledGroup
from treadle.handle import EnqueueCall, Handle
from treadle.ids import IdGenerator, check_name
from treadle.item import DEFAULT_TENANT, Item, Submitted
from treadle.manual_lease import ClaimedLease, claim_one
from treadle.metrics import Metrics
from treadle.operator import DeadLetters, Operator
from treadle.options import ENQUEUE_OPTIONS, EnqueueOptions, Options, check_options
from treadle.retry import Retry
from treadle.schedule import ScheduleHandle, Schedules, timing_of
from treadle.timing import Duration, seconds
from treadle.work import Work

S = TypeVar("S")
G = TypeVar("G")


class ClientSettings(TypedDict, total=False):
    """What a client, and so an app, can be set to. Durations are seconds or `timedelta`."""

    poll_interval: Duration
    """How often to look without having been woken: the safety net."""
    lease: Duration
    """How long a worker that gives no sign of life is still believed to live."""
    heartbeat: Duration
    """How often a worker gives a sign of life; lease / 5 unless given, lease / 2 at most."""
    drain: Duration
    """How long `stop` waits for handlers."""
    keep: Duration
    """How long ended items stay readable."""
    keep_dead: Duration | None
    """The same for dead ones; None: until someone decides."""
    retry: Retry
    strict_return: bool
    max_payload: int
    interrupt_grace: Duration
    """How long a handler that is told to end may go on before it is cancelled."""
    unknown_type_grace: Duration | None
    """Dead after waiting so long for a worker that has the type; None: it waits."""
    unhandled_grace: Duration
    codec: Codec
    clock: Clock
    random: random_module.Random
    generate_id: IdGenerator
    on_event: OnEvent | None
    on_error: OnError | None
    on_failure: Callable[..., Any] | None
    on_unhandled_group: OnUnhandledGroup | None
    """Told, once, of a group that ends with a value nobody waits for."""
    registry: Any
    """A prometheus-client registry to export metrics on."""
    prefix: str
    notify: Any


class Client(Operator):
    """Submits and observes. It needs no handlers: see `work.declare`."""

    def __init__(
        self,
        backend: str | Backend = "memory://",
        *,
        work: Iterable[AnyType | ModuleType] = (),
        tenant: str | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        core = _core(backend, settings)
        super().__init__(core, None if tenant is None else check_name(tenant, field="tenant"))
        core.learn(*work)
        self.dead = DeadLetters(self)

    # -- what it knows ---------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        return self._core.backend

    @property
    def types(self) -> Mapping[str, AnyType]:
        """The work types it knows, by name."""
        return self._core.registry.types

    @property
    def metrics(self) -> Metrics:
        return self._core.metrics

    @property
    def submits_to(self) -> str:
        """The tenant that new items belong to."""
        return DEFAULT_TENANT if self._tenant is None else self._tenant

    def register(self, *types: AnyType | ModuleType | Iterable[AnyType]) -> None:
        """Make work types known, or all those in a module. `DuplicateWorkError` for two with one name."""
        self._core.learn(*types)

    def tenant(self, name: str) -> Client:
        """A client of the same app that is bound to one tenant; every verb of it is."""
        return self.bound(check_name(name, field="tenant"))

    def bound(self, tenant: str | None) -> Client:
        if tenant == self._tenant:
            return self
        client = Client.__new__(Client)
        Operator.__init__(client, self._core, tenant)
        client.dead = DeadLetters(client)
        return client

    # -- life ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish what is being written and let go of the backend. Idempotent."""
        await self._core.close()

    async def __aenter__(self) -> Client:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- submitting ------------------------------------------------------------------------------------

    @overload
    def enqueue(self, work: Work[S, G], /, **options: Unpack[EnqueueOptions]) -> EnqueueCall[S, G]: ...
    @overload
    def enqueue(
        self, work: str, input: Mapping[str, Any] | None = ..., /, **options: Unpack[EnqueueOptions]
    ) -> EnqueueCall[Any, Any]: ...
    def enqueue(
        self,
        work: Work[Any, Any] | str,
        input: Mapping[str, Any] | None = None,
        /,
        **options: Unpack[EnqueueOptions],
    ) -> EnqueueCall[Any, Any]:
        """Submit work: `await` gives its handle, and then it is durable; `.result()` and `.group()` submit
        and wait. By name: `enqueue("math.add", {"a": 1, "b": 2})`.

        Without `await` nothing is submitted, and a warning says so.
        """
        minted = self._minted(work, input)
        checked = check_options(options, "enqueue", ENQUEUE_OPTIONS)
        return EnqueueCall(self, minted, checked)

    def _minted(self, work: Work[Any, Any] | str, input: Mapping[str, Any] | None) -> Work[Any, Any]:
        if isinstance(work, Work):
            return work
        if not isinstance(work, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"enqueue takes a Work, as in enqueue(add(1, 2)), not {work!r:.80}")
        return self._core.registry.find(work).mint(input or {})

    def submit(
        self, works: Sequence[Work[Any, Any]], options: dict[str, Any]
    ) -> Awaitable[tuple[Submitted, ...]]:
        """Submit, once connected; `options` are checked."""
        tx = options.pop("tx", None)
        if tx is not None:
            return self._core.submitter.submit_within(self._items(works, options, None), tx)
        items = self._items(works, options, self._core.local())
        sent = self._core.settings.clock.monotonic()
        return self._core.submitter.submit(items, functools.partial(self._submitted, items, sent))

    async def enqueue_many(
        self, works: Iterable[Work[S, G]], /, **options: Unpack[EnqueueOptions]
    ) -> list[Handle[S, G]]:
        """Submit works in one atomic step, one group each; the options are the same for all."""
        checked = check_options(options, "enqueue_many", ENQUEUE_OPTIONS)
        minted = list(works)
        if not minted:
            return []
        await self.connect()
        return [self.answered(answer) for answer in await self.submit(minted, checked)]

    async def submit_within(
        self, tx: object, works: Sequence[Work[Any, Any]], options: Mapping[str, Any]
    ) -> list[Handle[Any, Any]]:
        """Submit in the caller's transaction, once connected; `options` are checked. If the driver of `tx` is
        not async, neither is this: it never waits."""
        answers = await self._core.submitter.submit_within(self._items(works, options, None), tx)
        return [self.answered(answer) for answer in answers]

    def _items(
        self, works: Sequence[Work[Any, Any]], options: Mapping[str, Any], runtime: LocalRuntime | None
    ) -> tuple[Item, ...]:
        item, tenant = self._core.item_builder.item, self.submits_to
        lease_to = None if runtime is None else runtime.offers
        items = tuple([item(work, options, tenant=tenant, lease_to=lease_to) for work in works])
        _check_ids(items)
        return items

    def _submitted(self, items: tuple[Item, ...], sent: float, answers: tuple[Submitted, ...]) -> bool:
        """What follows once they are in the store. Whether there is something to claim."""
        core = self._core
        stored = [item for item, answer in zip(items, answers, strict=True) if not answer.existing]
        core.announcer.queued(stored)
        leases = [answer.lease for answer in answers if answer.lease is not None]
        if leases and (runtime := core.local()) is not None:
            runtime.take(tuple(leases), sent)
        return len(leases) < len(stored)

    def answered(self, answer: Submitted) -> Handle[Any, Any]:
        """The handle of what was submitted, or of what was there already."""
        return Handle(
            self, answer.id, answer.group_id or answer.id, tenant=self.submits_to, existing=answer.existing
        )

    async def claim_one(
        self,
        *,
        types: Iterable[AnyType | str] | None = None,
        queues: Sequence[str] | None = None,
        lease: Duration = 30,
    ) -> ClaimedLease | None:
        """Lease one ready item, without a worker. None if there is none. See `treadle.manual_lease`."""
        await self.connect()
        names = None if types is None else tuple(t if isinstance(t, str) else t.name for t in types)
        return await claim_one(
            self._core,
            tenant=self._tenant,
            types=names,
            queues=None if queues is None else tuple(queues),
            lease=seconds(lease, field="lease"),
        )

    def handle(self, id: str) -> Handle[Any, Any]:
        """A handle for an item that was submitted before, perhaps by another process."""
        return Handle(self, id, None, tenant=self._tenant)

    # -- schedules -------------------------------------------------------------------------------------

    def schedule(
        self,
        name: str,
        *,
        run: Run,
        cron: str | None = None,
        tz: str | None = None,
        every: Duration | None = None,
        next: NextFn | None = None,
        catch_up: CatchUp = "none",
        **options: Unpack[Options],
    ) -> ScheduleHandle:
        """Submit what `run()` returns, again and again: `schedule("nightly", cron="0 3 * * *", run=report)`.

        name: known by it in the whole fleet, where each occurrence fires once. The same name replaces.
        run: returns a Work, or None for nothing this time; may be async. Called once per occurrence, as a
            rule: in one process, and again only if that one died or the store did not answer.
        cron, tz: a cron expression, in a time zone, UTC unless given. `CronError` names the bad field.
        every: seconds, or a timedelta; the first time that long after it is first stored.
        next: `next(now)`, in epoch seconds, gives the first time; from then on it is asked with the
            occurrence that just was. None ends the schedule.
        catch_up: what becomes of occurrences missed while nothing ran: `none`, `one` for all of them, or
            `all`, at most the latest 100.
        options: as for `enqueue`.

        Stored at once in an app that runs, else when it starts. See docs/schedules.md.
        """
        timing = timing_of(cron, tz, every, next)
        return self.schedules.add(name, run, timing=timing, catch_up=catch_up, options=options)

    @property
    def schedules(self) -> Schedules:
        """The schedules of the store: `list`, `pause`, `resume`, `trigger`, `cancel`."""
        return Schedules(self, self._core.scheduler, self._tenant)


def _check_ids(items: tuple[Item, ...]) -> None:
    if len(items) > 1:
        seen: set[str] = set()
        for item in items:
            if item.id in seen:
                raise DuplicateIdError(item.id)
            seen.add(item.id)


def _check_names(given: Iterable[str]) -> None:
    known = ClientSettings.__annotations__
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(known))}"
            raise TypeError(f"there is no setting {name!r}: {hint}")


_DURATIONS = (
    "poll_interval",
    "lease",
    "heartbeat",
    "drain",
    "keep",
    "keep_dead",
    "interrupt_grace",
    "unknown_type_grace",
    "unhandled_grace",
)


def _core(backend: str | Backend, given: ClientSettings) -> Core:
    values: dict[str, Any] = dict(given)
    _check_names(values)
    hooks = Hooks(values.pop("on_event", None), values.pop("on_error", None))
    unhandled = values.pop("on_unhandled_group", None)
    prefix, notify = values.pop("prefix", "treadle"), values.pop("notify", True)
    for name in _DURATIONS:
        if values.get(name) is not None:
            values[name] = seconds(values[name], field=name)
    if "lease" in values:
        values.setdefault("heartbeat", values["lease"] / 5)
    values = {
        "random": random_module.Random(),
        **{name: value for name, value in values.items() if value is not None},
    }
    registry = values.pop("registry", None)
    settings = Settings(**values)
    metrics = Metrics(now=settings.clock.now, registry=registry)
    if isinstance(backend, str):
        backend = connect(backend, prefix=prefix, notify=notify, clock=settings.clock)
    core = Core(backend, settings, hooks, metrics)
    if unhandled is not None:
        core.watch_groups(unhandled)
    return core
