"""Client: submits work, waits for it, and operates on it. It runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast, overload

from typing_extensions import TypeVar, Unpack

from treadle.audit_note import checked_note
from treadle.backend import Backend
from treadle.bulk import Bulk
from treadle.callables import check_list
from treadle.client_settings import ClientSettings, build_core
from treadle.dead_letters import DeadLetters
from treadle.engine.registry import AnyType, Registry
from treadle.engine.schedule.entry import RunFn
from treadle.engine.schedule.occurrence import CatchUp, NextFn
from treadle.engine.submit.enqueue import named, submit
from treadle.errors import InputError
from treadle.filter_options import check_tenant
from treadle.handle import EnqueueCall, Handle, submitted_handles
from treadle.ids import check_id, check_name
from treadle.item import AuditNote
from treadle.manual_lease import ClaimedLease, claim_one
from treadle.metrics import Metrics
from treadle.operator import Operator, tenant_of
from treadle.options import (
    ENQUEUE_MANY_OPTIONS,
    ENQUEUE_OPTIONS,
    EnqueueOptions,
    Options,
    check_options,
)
from treadle.schedule import Schedule, ScheduleHandle, Schedules
from treadle.sync_loop import SyncLoop
from treadle.timing import Duration, Instant, seconds
from treadle.work import Work, is_work, no_work, works_of
from treadle.work_type import WorkType

if TYPE_CHECKING:
    from treadle.sync import SyncClient

S = TypeVar("S")
G = TypeVar("G")


class Client(Operator):
    """Submits work and observes it. It needs no handlers: see `work.declare`.

    schedules: what its workers submit again and again. `ScheduleError` if two have the same name.
    """

    def __init__(
        self,
        backend: str | Backend = "memory://",
        *,
        work: Iterable[AnyType | ModuleType] = (),
        schedules: Iterable[Schedule] = (),
        tenant: str | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        core = build_core(backend, settings, type(self).__init__.__kwdefaults__ or ())
        super().__init__(core, None if tenant is None else check_tenant(tenant))
        core.learn(*check_list(work, "work", "add"))
        self.dead = DeadLetters(self)
        self.bulk = Bulk(self)
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

    def _like(self, tenant: str | None, note: AuditNote | None) -> Client:
        client = Client.__new__(Client)
        Operator.__init__(client, self._core, tenant, note)
        client.dead = DeadLetters(client)
        client.bulk = Bulk(client)
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
            work, checked = named(work, check_options(options, "enqueue", ENQUEUE_OPTIONS))
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
        await self._begin_change("claim_one")
        names = None if types is None else self._core.registry.all_names(names_of(types, aliases=True))
        return await claim_one(
            self._core,
            tenant=self._tenant,
            types=names,
            queues=None if queues is None else tuple(check_name(queue, "queues") for queue in queues),
            lease=seconds(lease, field="lease"),
        )

    def handle(self, id: str) -> Handle[Any, Any]:
        """Return a handle for an item that was submitted before, by any process. `InputError` if this cannot
        be an id."""
        return Handle(self._core, check_id(id), None, tenant=self._tenant, note=self._note)

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
