"""Client: submits work, waits for it, and operates on it. It runs nothing."""

from __future__ import annotations

import functools
import os
import random as random_module
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast, overload

from msgspec.structs import replace
from typing_extensions import TypedDict, TypeVar, Unpack

from treadle.backend import Backend, By, store_name
from treadle.base.callables import check_callable, check_list, check_plain
from treadle.base.ids import IdGenerator, check_id, check_name, check_names, checked_generator
from treadle.base.timing import Clock, Duration, Instant, seconds
from treadle.base.wording import did_you_mean
from treadle.bulk_action import OPERATORS
from treadle.codec import Codec
from treadle.connect import Stores, check_backend, connect
from treadle.define.secret_values import check_mask
from treadle.define.work import Work, is_work, no_work, works_of
from treadle.define.work_type import WorkType
from treadle.engine.core import Core
from treadle.engine.hooks import Hooks, OnError, OnEvent
from treadle.engine.registry import AnyType, Registry
from treadle.engine.schedule.entry import RunFn
from treadle.engine.schedule.occurrence import CatchUp, NextFn
from treadle.engine.settings import Settings
from treadle.engine.submit.build_item import encode_stored, read_stored
from treadle.engine.submit.enqueue import named, submit
from treadle.errors import ConflictError, InputError, NotFound
from treadle.flow_control import OnUnhandledGroup
from treadle.handle import EnqueueCall, Handle, submitted_handle, submitted_handles
from treadle.handler.telemetry import Telemetry
from treadle.item import TERMINAL, AuditNote, Item, ItemState, Lease
from treadle.metrics import Metrics
from treadle.operate.filters import check_tenant
from treadle.operate.operator import Operator, note_of, tenant_of
from treadle.operate.sync_loop import SyncLoop
from treadle.options import (
    ENQUEUE_MANY_OPTIONS,
    ENQUEUE_OPTIONS,
    EnqueueOptions,
    Options,
    check_options,
)
from treadle.retry import Retry
from treadle.schedule import Schedule, ScheduleHandle, Schedules
from treadle.store.audit_note import checked_note
from treadle.submit_middleware import SubmitMiddleware

if TYPE_CHECKING:
    from treadle.manual_lease import ClaimedLease
    from treadle.operate.bulk import Bulk
    from treadle.operate.dead_letters import DeadLetters
    from treadle.operate.webhook import OnProblem
    from treadle.store.wakeups import PubSub
    from treadle.sync import SyncClient

S = TypeVar("S")
G = TypeVar("G")


def _dead(client: Client) -> DeadLetters:
    """The dead items: `app.dead.list()`, `app.dead.requeue(...)`."""
    from treadle.operate.dead_letters import DeadLetters  # few programs need it

    return DeadLetters(client)


def _bulk(client: Client) -> Bulk:
    """Changes of many items, which workers carry out: `app.bulk.start(...)`."""
    from treadle.operate.bulk import Bulk  # few programs need it

    return Bulk(client)


class Client(Operator):
    """Submits work and observes it. It needs no handlers: see `work.declare`.

    schedules: what its workers submit again and again. `ScheduleError` if two have the same name.
    """

    dead = functools.cached_property(_dead)
    bulk = functools.cached_property(_bulk)

    def __init__(
        self,
        backend: str | Backend | Stores = "memory://",
        *,
        work: Iterable[AnyType | ModuleType] = (),
        schedules: Iterable[Schedule] = (),
        tenant: str | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        on_problem = settings.get("on_problem")
        core = build_core(backend, settings, type(self).__init__.__kwdefaults__ or ())
        super().__init__(core, None if tenant is None else check_tenant(tenant))
        if on_problem is not None:
            core.on_problem = on_problem
            core.watch_problems = _problem_watch(core, self._tenant, on_problem)
        core.learn(*check_list(work, "work", "add"))
        self._sync_loop = SyncLoop(core)
        for each in check_list(schedules, "schedules", "nightly"):
            self.schedules.add(each)

    # -- what it has -----------------------------------------------------------------------------------

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

    def register(self, *types: AnyType | ModuleType | Iterable[AnyType]) -> None:
        """Register work types, or all those of a module. `DuplicateWorkError` if two have the same name."""
        self._core.learn(*types)

    def tenant(self, name: str) -> Client:
        """Return a client of the same app that is bound to one tenant: all its methods are. A client that is
        bound to another tenant refuses: `InputError`."""
        tenant = check_tenant(name)
        if tenant == self._tenant:
            return self
        if self._tenant is not None:
            raise InputError.of("tenant", name, f"is refused: this client is bound to {self._tenant!r}")
        return self._like(tenant, self._note)

    def by(self, actor: str, *, reason: str = "", address: str = "") -> Client:
        """Return a client of the same app whose changes are noted in the audit: `app.by("ann").cancel(id)`.
        What it enqueues is noted too. See `audits`.

        actor: who makes the changes: a name or an address, 200 characters at most.
        reason: why, 2,000 characters at most.
        address: from where, as the address of a browser.
        """
        return self._like(self._tenant, checked_note(actor, reason, address))

    def elsewhere(self, backend: str | Backend) -> Client:
        """Return a client of another store with the same work types, codec, mask and tenant."""
        settings = self._core.settings
        return Client(
            backend, work=self.types.values(), tenant=self._tenant, codec=settings.codec, mask=settings.mask
        )

    def _like(self, tenant: str | None, note: AuditNote | None) -> Client:
        client = Client.__new__(Client)
        Operator.__init__(client, self._core, tenant, note)
        client._sync_loop = self._sync_loop
        return client

    @property
    def sync(self) -> SyncClient:
        """The same methods for code that is not async: `client.sync.get(ids)`."""
        from treadle.sync import SyncClient  # it needs this module

        return SyncClient(self._sync_loop, self)

    # -- life ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop its workers, finish pending writes and close the backend. Idempotent."""
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
        *more: object,
        **options: Unpack[EnqueueOptions],
    ) -> EnqueueCall[Any, Any]:
        """Submit work. `await` returns its handle; the item is durable then. `.result()` and `.group()`
        submit and wait. By name: `enqueue("math.add", {"a": 1, "b": 2})`.

        Without `await` nothing is submitted, and the log has an error with the line of the call.
        """
        work = work_of(self._core.registry, work, input, *more)
        checked: dict[str, Any] = {}
        if options:
            work, checked = named(
                work, check_options(options, "enqueue", ENQUEUE_OPTIONS), keep=self._core.by_root
            )
        return EnqueueCall(self._core, self._submits_to, work, checked, self._note)

    async def enqueue_many(
        self, works: Iterable[Work[S, G]], /, **options: Unpack[EnqueueOptions]
    ) -> list[Handle[S, G]]:
        """Submit works in one atomic step, one group each, all with the same options."""
        checked = check_options(options, "enqueue_many", ENQUEUE_MANY_OPTIONS)
        works = works_of(works, "enqueue_many")
        if not works:
            return []
        self._core.check_unopened(checked.get("tx"))
        await self.connect()
        tenant, note = self._submits_to, self._note
        answers = await submit(self._core, tenant, works, checked, note=note)
        return submitted_handles(self._core, tenant, answers, note)

    async def claim_one(
        self,
        *,
        types: Iterable[AnyType | str] | None = None,
        queues: Sequence[str] | None = None,
        lease: Duration = 30,
    ) -> ClaimedLease | None:
        """Lease one ready item without a worker. None if no item is ready. See `treadle.manual_lease`."""
        from treadle.manual_lease import claim_one  # few programs need it

        await self._begin_change("claim_one")
        names = None if types is None else self._core.registry.all_names(names_of(types, aliases=True))
        return await claim_one(
            self._core,
            tenant=self._tenant,
            types=names,
            queues=None if queues is None else check_names(queues, "queues"),
            lease=seconds(lease, field="lease"),
        )

    async def edit(self, item: ItemState, work: Work[S, G], /, *, key: str | None = None) -> Handle[S, G]:
        """Submit work in place of an item that has ended: in the same tenant, queue, lane and workflow, with
        the same priority, attempts, timeout, headers and compensation. The new item is the root of a group of
        its own, and the old one is its parent, and stays as it is.

        item: as `get` or `list` returned it. `ConflictError` if it had not ended.
        key: its idempotency key. `ConflictError` if an item of an open group has it.
        """
        _check_edit(item, work, self._tenant)
        await self._begin_change("edit")
        now = await self._core.backend.now()
        options = check_options(_edited_options(item, key, now), "enqueue", ENQUEUE_OPTIONS)
        note = self._note
        if note is not None:
            note = replace(note, verb="edit", about=f"edit of {item.id}")
        (answer,) = await submit(
            self._core, item.tenant, (work,), options, note=note, change=lambda new: _as_child(new, item)
        )
        if answer.existing:
            raise ConflictError(f"nothing was queued: the item {answer.id} has the key {key!r}")
        return submitted_handle(self._core, item.tenant, answer, self._note)

    def handle(self, item: str | ItemState) -> Handle[Any, Any]:
        """Return a handle for an item that was submitted before, by any process: by its id, or as it was
        read. `InputError` if this cannot be an id."""
        if isinstance(item, ItemState) and self._tenant in (None, item.tenant):
            return Handle(self._core, item.id, item.group_id, tenant=item.tenant, note=self._note)
        id = item.id if isinstance(item, ItemState) else check_id(item)
        return Handle(self._core, id, None, tenant=self._tenant, note=self._note)

    # -- schedules -------------------------------------------------------------------------------------

    def schedule(
        self,
        name: str,
        *,
        run: RunFn,
        cron: str | None = None,
        tz: str | None = None,
        every: Duration | None = None,
        next: NextFn | None = None,
        start: Instant | None = None,
        end: Instant | None = None,
        catch_up: CatchUp = "none",
        **options: Unpack[Options],
    ) -> ScheduleHandle:
        """Submit the Work that `run()` returns, again and again: `schedule("report", every=60, run=report)`.

        name: its name in the whole fleet, where each occurrence fires once. `ScheduleError` if this app has a
            schedule of that name already.
        run: returns a Work, or None to submit nothing this time. It may be async. It is called once per
            occurrence, in one process; again only if that process died or the store did not answer.
        cron, tz: a cron expression in a time zone, by default UTC. `CronError` names the bad field.
        every: seconds or a timedelta. The first occurrence is that long after the schedule is first stored.
        next: `next(now)`, in epoch seconds, returns the first occurrence. Then it is called with each
            occurrence to get the one after it. None ends the schedule.
        start, end: no occurrence comes before `start` or after `end`. With `every`, the first one is at
            `start`, and the others count from there. `ScheduleError` if `end` is before `start`.
        catch_up: how to treat occurrences that were missed while no process ran. `none` skips them, `one`
            runs once for all of them, `all` runs each, at most the latest 100.
        options: as for `enqueue`.

        It is stored at once if the app runs, otherwise when it starts. As a value it is a `Schedule`, for
        `Treadle(schedules=[...])`. See docs/schedules.md.
        """
        made = Schedule(
            name,
            run=run,
            cron=cron,
            tz=tz,
            every=every,
            next=next,
            start=start,
            end=end,
            catch_up=catch_up,
            **options,
        )
        return self.schedules.add(made)

    @property
    def schedules(self) -> Schedules:
        """The schedules of the store: `list`, `pause`, `resume`, `trigger`, `cancel`."""
        return Schedules(self._core, self._tenant, self._note)


def _check_edit(item: object, work: object, tenant: str | None) -> None:
    if not isinstance(item, ItemState):
        raise InputError.of("item", item, "must be an item as app.get returns it")
    if not is_work(work):
        raise no_work(work, "edit")
    if tenant not in (None, item.tenant):
        raise NotFound(item.id)
    check_ended(item)


def check_ended(item: ItemState) -> None:
    """Refuse to edit an item that has not ended."""
    if item.status not in TERMINAL:
        raise ConflictError(
            f"the item is {item.status}, and would run beside the new one: wait for its end, or cancel it"
        )


def _edited_options(old: ItemState, key: str | None, now: float) -> dict[str, Any]:
    return {
        "queue": old.queue,
        "lane": old.lane,
        "priority": old.priority,
        "workflow": old.workflow,
        "workflow_type": old.workflow_type,
        "headers": dict(old.headers),
        "key_policy": "existing",
        **({"unique": False} if key is None else {"key": key, "key_scope": "open"}),
        **({"deadline": old.deadline} if old.deadline is not None and old.deadline > now else {}),
    }


def _as_child(item: Item, old: ItemState) -> Item:
    """The new item, with what is stored about the old one."""
    stored, own = read_stored(old.options), read_stored(item.options)
    options = replace(own, retry=stored.retry, timeout=stored.timeout, on_dead=stored.on_dead)
    return replace(item, parent=old.id, attempts=old.attempts, options=encode_stored(options))


def sync_loop_of(client: Client) -> SyncLoop:
    """Return the loop on which calls of other threads run, for the modules of this package."""
    return client._sync_loop  # pyright: ignore[reportPrivateUsage]


def noted(client: Client, note: AuditNote | None) -> Client:
    """Return a client whose changes carry this note, for the modules of this package."""
    return client._like(tenant_of(client), note)  # pyright: ignore[reportPrivateUsage]


def work_of(registry: Registry, work: object, input: object, *more: object) -> Work[Any, Any]:
    """Return the Work that `enqueue` was given, or make it from a name and arguments by name."""
    if is_work(work):
        if input is None:
            return work
        raise InputError(
            f"enqueue takes arguments beside a name only: {work.type!r} was called with its own. Give "
            "options by name, as in enqueue(add(1, 2), delay=60)",
            parameters=("input",),
        )
    if not isinstance(work, str):
        raise no_work(work, "enqueue")
    type = registry.find(work)
    if more or not (input is None or isinstance(input, Mapping)):
        raise TypeError(
            f"enqueue takes the arguments of {work!r} in a dict, as in enqueue({work!r}, {{...}})"
        )
    return type.from_input({} if input is None else cast("Mapping[str, Any]", input))


def names_of(types: Iterable[AnyType | str], *, aliases: bool = False) -> tuple[str, ...]:
    """Return the names of work types, with the aliases of those that are no names if asked for."""
    names: list[str] = []
    for each in check_list(types, "types", types if isinstance(types, str) else "add"):
        if isinstance(each, WorkType):
            names += (each.name, *(each.aliases if aliases else ()))
        else:
            names.append(check_name(each, "types"))
    return tuple(names)


class ClientSettings(TypedDict, total=False):
    """Settings of a client or an app. Durations are seconds or `timedelta`."""

    poll_interval: Duration
    """How often to look for work when no wake-up came: the safety net."""
    lease: Duration
    """How long after its last heartbeat a worker counts as alive."""
    heartbeat: Duration
    """How often a worker sends a heartbeat. Default: lease / 5. At most lease / 2."""
    drain: Duration
    """How long `stop` waits for handlers."""
    keep: Duration
    """How long ended items stay readable, counted from the end of their group."""
    keep_dead: Duration | None
    """The same for dead items. None: until an operator requeues or deletes them."""
    retry: Retry
    strict_return: bool
    on_dead_unstarted: bool
    """Submit the `on_dead` of items also if they died before their first attempt."""
    max_payload: int
    """The most bytes of one input, one result or one group's value."""
    max_submission: int
    """The most bytes of all inputs that are stored in one step: those of `enqueue_many`, or of the children
    of one Result."""
    interrupt_grace: Duration
    """How long an interrupted handler may go on before it is cancelled. For its timeout: `timeout_grace`."""
    timeout_grace: Duration
    """How long a handler may go on after its timeout was signalled, before it is cancelled."""
    unknown_type_grace: Duration | None
    """How long an item waits for a worker that has its type before it is dead. None: without limit."""
    undecodable_grace: Duration
    """How long an item whose arguments a worker cannot decode is left to others before it is dead."""
    unhandled_grace: Duration
    """How long to wait for a waiter before `on_unhandled_group` is called."""
    codec: Codec
    clock: Clock
    random: random_module.Random
    generate_id: IdGenerator
    on_event: OnEvent | None
    on_error: OnError | None
    on_failure: Callable[..., Any] | None
    log_failures: bool
    """Log failed attempts (a warning) and deaths (an error, with the traceback)."""
    logs: bool
    """Keep with each item what its handler logs: `app.logs()`. Default: True. A type can say otherwise."""
    statistics: bool
    """Add what workers count to the statistics in the store: `app.statistics()`."""
    release: str | None
    """What the code that runs here is called, such as `v2` or a commit: see `Attempt.release`. Default: the
    environment variable TREADLE_RELEASE. Empty: none."""
    mask: Iterable[str]
    """More names of values that are not shown to operators, besides
    `treadle.define.secret_values.SECRET_NAMES`."""
    on_unhandled_group: OnUnhandledGroup | None
    """Called once for a group that ends with a value while no process waits for it."""
    on_problem: OnProblem | None
    """Told, once in the whole fleet, when a problem appears, changes or ends: a `Webhook` of
    `treadle.problems`, or a function that takes a `ProblemChange`. Workers look for problems."""
    submit_middleware: Sequence[SubmitMiddleware]
    """`async def m(items, call_next)`, around each submit; the first is the outermost."""
    telemetry: Telemetry | None
    """Traces: `treadle.contrib.otel.OpenTelemetry()`."""
    registry: Any
    """A prometheus-client registry to export metrics on."""
    by: By
    """With several stores, `{"eu": url, "us": url}`: what is whole in one store, each `tenant` or each
    `root` with all that follows from it."""
    prefix: str
    notify: bool | str | PubSub | None
    """What wakes other processes: True for the store itself, a URL (redis://, nats://) or a `PubSub` of
    `treadle.ports`, False or None for nothing: they find work by polling."""


def _check_names(given: Iterable[str], others: Iterable[str]) -> None:
    known = (*ClientSettings.__annotations__, *others)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known, f"there are {', '.join(sorted(known))}")
            raise TypeError(f"there is no setting {name!r}: {hint}")


_DURATIONS = (
    "poll_interval",
    "lease",
    "heartbeat",
    "drain",
    "keep",
    "keep_dead",
    "interrupt_grace",
    "timeout_grace",
    "unknown_type_grace",
    "undecodable_grace",
    "unhandled_grace",
)


MOST_RELEASE_BYTES: Final = 100
_PLAIN_FUNCTIONS = ("on_event", "on_error", "on_failure", "generate_id")


def _check_functions(values: Mapping[str, Any]) -> None:
    for name in _PLAIN_FUNCTIONS:
        if values.get(name) is not None:
            check_plain(values[name], name)
    if values.get("on_unhandled_group") is not None:
        check_callable(values["on_unhandled_group"], "on_unhandled_group")


def _check_telemetry(given: Any) -> Telemetry | None:
    if given is None:
        return None
    if isinstance(given, type) or not callable(getattr(given, "attempt", None)):
        raise InputError.of("telemetry", given, "must be an OpenTelemetry() of treadle.contrib.otel, or None")
    telemetry: Telemetry = given
    return telemetry


RELEASE_VARIABLE: Final = "TREADLE_RELEASE"


def _check_release(given: Any) -> str:
    """A name that fits into every store beside the id of a worker. Empty: none. None: that of the
    environment."""
    field = "release" if given is not None else RELEASE_VARIABLE
    name = os.environ.get(RELEASE_VARIABLE, "") if given is None else given
    if name == "":
        return ""
    if len(check_name(name, field).encode()) > MOST_RELEASE_BYTES:
        raise InputError.of(field, name, f"is longer than {MOST_RELEASE_BYTES} bytes")
    return str(name)


def build_core(backend: str | Backend | Stores, given: ClientSettings, others: Iterable[str]) -> Core:
    """others: names of the settings that the caller takes besides these, for messages."""
    values: dict[str, Any] = dict(given)
    _check_names(values, others)
    _check_functions(values)
    on_event, on_error = values.pop("on_event", None), values.pop("on_error", None)
    unhandled = values.pop("on_unhandled_group", None)
    values.pop("on_problem", None)
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
    middlewares = check_list(values.pop("submit_middleware", ()), "submit_middleware", "with_user")
    telemetry = _check_telemetry(values.pop("telemetry", None))
    if "generate_id" in values:
        values["generate_id"] = checked_generator(values["generate_id"])
    if "mask" in values:
        values["mask"] = check_mask(values["mask"])
    values["release"] = _check_release(values.get("release"))
    check_backend(backend, by := values.pop("by", None))
    settings = Settings(**values)
    metrics = Metrics(now=settings.clock.now, registry=registry)
    if isinstance(backend, str | Mapping):
        backend = connect(backend, prefix=prefix, notify=notify, clock=settings.clock, by=by or "tenant")
    elif not isinstance(notify, bool) and notify is not None:
        raise InputError("notify= belongs to a URL: give it to the backend itself", parameters=("notify",))
    core = Core(
        backend,
        settings,
        Hooks(on_event, on_error, settings.clock.monotonic),
        metrics,
        submit_middleware=[check_callable(each, "submit_middleware") for each in middlewares],
        telemetry=telemetry,
        run_portion=_run_portion,
    )
    if core.telemetry is not None:
        core.telemetry.use_store(store_name(backend))
    if unhandled is not None:
        core.watch_groups(unhandled)
    return core


def bound_to(client: Client, tenant: str) -> Client:
    """A client of the tenant of an item that `client` has read: also of a bulk action of all tenants."""
    if tenant == OPERATORS and tenant_of(client) is None:
        return client._like(tenant, note_of(client))  # pyright: ignore[reportPrivateUsage]
    return client.tenant(tenant)


def _problem_watch(core: Core, tenant: str | None, receiver: OnProblem) -> Callable[[], Any]:
    from treadle.operate.tell import ProblemWatch  # few programs need it

    return functools.partial(ProblemWatch(core, tenant, receiver).run, at_once=False)


async def _run_portion(core: Core, lease: Lease) -> Any:
    from treadle.operate.bulk_portion import run_portion  # few programs need it

    return await run_portion(core, lease)
