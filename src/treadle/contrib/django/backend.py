"""TreadleBackend: the backend for `TASKS` that stores tasks as items of treadle. And `task_schedule`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

from typing_extensions import Unpack

from treadle.app import Treadle
from treadle.base.timing import Duration, Instant
from treadle.define.work import Work
from treadle.errors import InputError
from treadle.options import ENQUEUE_OPTIONS, Options, check_options
from treadle.schedule import CatchUp, NextFn, Schedule
from treadle.sync import SyncHandle

from .django_api import (
    BaseTaskBackend,
    ImproperlyConfigured,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    connections,
    task_backends,
    task_enqueued,
    timezone,
    transaction,
)
from .results import new_result, to_time
from .stores import app_of, in_transaction, is_store, raw_connection
from .task import TreadleTask, item_options, remember
from .task_type import plain_input, read_result, type_of

TransactionMode: TypeAlias = Literal["same", "on_commit", "now"]
"""What an enqueue in a transaction does."""
_MODES: Final = get_args(TransactionMode)


class TreadleBackend(BaseTaskBackend):
    """Tasks as items of treadle. OPTIONS:

    app: the app, as `module:name`. Or its store: `url`, or `database`, an alias of DATABASES (`default`).
    transaction: `same` stores an item in the transaction of the caller, on Django's own connection. That is
        the default where the items are in that database. `on_commit` stores it after the commit. `now` stores
        it at once, also if the transaction is rolled back.

    Without `app`, all other options are settings of the app: `retry`, `keep`, `prefix`, `tenant`.
    """

    task_class = TreadleTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.transaction: TransactionMode | None = self.options.get("transaction")
        if self.transaction is not None and self.transaction not in _MODES:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]: transaction is {self.transaction!r}: it must be one of "
                f"{', '.join(_MODES)}"
            )

    @property
    def app(self) -> Treadle:
        """The app of this backend."""
        return app_of(self.alias, self.options)

    @functools.cached_property
    def database(self) -> str:
        """The database whose transactions count, unless a task names another: the one that has the items."""
        if "database" in self.options:
            return str(self.options["database"])
        backend = self.app.backend
        return next((each for each in connections if is_store(each, backend)), "default")

    # -- storing ---------------------------------------------------------------------------------------

    def enqueue(self, task: Task, args: Iterable[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Store an item. In a transaction, when and if it is stored is as OPTIONS say."""
        self.validate_task(task)
        app = self.app
        input = plain_input(task, args, kwargs)
        remember(task)
        work = type_of(task, app, self.alias).from_input(input)
        result = new_result(task, work.id, input["args"], input["kwargs"], self.alias)
        client = app if (tenant := getattr(task, "tenant", None)) is None else app.tenant(tenant)
        options = item_options(task)
        check_options(options, "enqueue", ENQUEUE_OPTIONS)  # here, and not only after the commit
        alias = getattr(task, "database", None) or self.database
        if self.transaction == "now" or not in_transaction(connections[alias]):
            return self._submitted(result, client.sync.enqueue(work, **options))
        if self._is_same(alias, app):
            tx = raw_connection(connections[alias])
            handle = client.sync.enqueue(work, **options, tx=tx)
            if handle.existing:
                return self._existing(result, handle)
            self._tell_at_commit(alias, functools.partial(self._stored, result, handle))
            return result

        def store() -> None:
            self._submitted(result, client.sync.enqueue(work, **options))

        transaction.on_commit(PendingSubmit(self.alias, store), using=alias)
        return result

    def _is_same(self, alias: str, app: Treadle) -> bool:
        """Whether an item is stored in the transaction that is open on `alias`."""
        if self.transaction == "on_commit":
            return False
        # If it was asked for, a connection to another database is refused by the store itself.
        return self.transaction == "same" or is_store(alias, app.backend)

    def _submitted(self, result: TaskResult, handle: SyncHandle[Any, Any]) -> TaskResult:
        if handle.existing:
            return self._existing(result, handle)
        self._stored(result, handle)
        return result

    def _existing(self, result: TaskResult, handle: SyncHandle[Any, Any]) -> TaskResult:
        """The result of an earlier item with the same key."""
        object.__setattr__(result, "id", handle.id)
        try:
            return self.get_result(handle.id)
        except TaskResultDoesNotExist:
            return result  # it is in this transaction too, which only the caller can see

    def _tell_at_commit(self, alias: str, tell: Callable[[], None]) -> None:
        if connections[alias].in_atomic_block:
            transaction.on_commit(tell, using=alias)
        else:
            tell()  # without autocommit Django makes no call

    def _stored(self, result: TaskResult, handle: SyncHandle[Any, Any]) -> None:
        """Tell the result when it was stored, and send the signal."""
        at = to_time(handle.queued_at) if handle.queued_at else timezone.now()
        object.__setattr__(result, "enqueued_at", at)
        task_enqueued.send_robust(type(self), task_result=result)

    # -- reading ---------------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> TaskResult:
        """Read an item. `TaskResultDoesNotExist` if there is none, or if it is not that of a task."""
        app = self.app
        try:
            (state,) = app.sync.get([result_id])
        except InputError:  # it cannot be an id
            state = None
        result = None if state is None else read_result(app, state, self.alias)
        if result is None:
            raise TaskResultDoesNotExist(result_id)
        return result

    def check(self, **_: object) -> Iterable[Any]:
        """The system checks of this backend: see `checks`."""
        from .checks import check_backend  # it needs this module

        return check_backend(self)


class PendingSubmit:
    """What `transaction.on_commit` calls: an item that is stored after the commit. Tests find it there."""

    def __init__(self, alias: str, store: Any) -> None:
        self.alias = alias
        self._store = store

    def __call__(self) -> None:
        self._store()


def task_schedule(
    name: str,
    task: Task,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    cron: str | None = None,
    tz: str | None = None,
    every: Duration | None = None,
    next: NextFn | None = None,
    start: Instant | None = None,
    end: Instant | None = None,
    catch_up: CatchUp = "none",
    **options: Unpack[Options],
) -> Schedule:
    """Return a `Schedule` that enqueues a task, with the options of its `using(...)`, again and again.

    args, kwargs: what the task is called with. `TypeError` if the function cannot be called with them.
    The others are those of `Schedule`.

    It is for `OPTIONS["schedules"]`, or for the app of the backend that the task names.
    """
    if task.run_after is not None:
        raise TypeError("run_after is for one enqueue: a schedule has its own times")
    input = plain_input(task, args, kwargs or {})
    merged: Any = {**item_options(task), **options}
    return Schedule(
        name,
        run=functools.partial(_work_of, task, input),
        cron=cron,
        tz=tz,
        every=every,
        next=next,
        start=start,
        end=end,
        catch_up=catch_up,
        **merged,
    )


def _work_of(task: Task, input: Mapping[str, Any]) -> Work[Any, Any]:
    backend = task_backends[task.backend]
    if not isinstance(backend, TreadleBackend):
        raise ImproperlyConfigured(f"TASKS[{task.backend!r}] is not a TreadleBackend")
    remember(task)
    return type_of(task, backend.app, task.backend).from_input(input)
