"""Every exception of treadle, in one tree.

::

    TreadleError
    ├── DefinitionError             a work type is defined or looked up wrongly
    │   ├── DuplicateWorkError        two types have the same name
    │   └── UnknownWorkError          no type has that name (also LookupError)
    ├── InputError                  a value that the caller gave is not allowed (also ValueError)
    │   ├── PlacementError            what must be in one store is in several
    │   ├── CronError                 a field of a cron expression is wrong
    │   ├── ScheduleError             a schedule has no timing, or more than one
    │   └── CycleError                items wait for each other
    ├── PayloadError                arguments or results that cannot be stored (also ValueError)
    │   ├── EncodeError               a part of the value cannot be written
    │   ├── DecodeError               a part of the stored bytes cannot be read
    │   └── PayloadTooLarge           over `max_payload` or `max_submission`
    ├── HandlerError                the handler broke its contract: dead at once, not retried
    │   ├── StrictReturnError         it made a Result and did not return it
    │   ├── BadResultError            it returned something that is not a result
    │   ├── StepError                 a step has a name that was used before, or is inside another one
    │   └── TooManySteps              it recorded too many steps, or too many bytes
    ├── NotFound                    no such item, group or schedule here (also LookupError)
    ├── ConflictError               the state of the item does not allow this
    │   ├── DuplicateIdError          the id is in use
    │   ├── DuplicateKeyError         an earlier item has the key, and key_policy="error"
    │   ├── AlreadyEnded              the item has ended
    │   ├── NotTriggerable            only scheduled items can be triggered
    │   ├── NotHoldable               only ready and scheduled items can be held
    │   ├── NotUpdatable              only items that have not started can be updated
    │   ├── ReferencedError           an item of another group waits for it
    │   ├── MailboxFull               too many signals that the item has not read
    │   └── LeaseLost                 another worker, or an operator, owns the item now
    ├── WorkFailed                  the awaited item ended without a value
    │   ├── GroupFailed               a member of the awaited group died
    │   └── WorkCancelled             the awaited item was cancelled
    ├── StepFailed                  a failure that a step has recorded, whose class is not known here
    ├── RemoteError                 an exception of another process, whose class is not known here
    ├── WaitTimeout                 the wait timed out, the work goes on (also TimeoutError)
    ├── AttemptTimeout              one attempt ran longer than `timeout` (also TimeoutError)
    ├── ProcessDied                 the process that ran a handler crashed
    ├── DeadlineExceeded            the item did not succeed before its `deadline`
    ├── BackendError                the store could not do it
    │   ├── StoreUnavailable          transient: the engine tries again
    │   │   ├── AccessDenied            the role that connects lacks a right in the database
    │   │   └── StoreTooSlow            a statement took longer than it may
    │   ├── StoreFull                 no room for new items; running items can be settled
    │   ├── SchemaError               the store's schema is missing, older or newer
    │   ├── WrongStore                the store at an address is not the one of its name
    │   ├── StoreMoved                it was promoted: another store owns its work now
    │   ├── TenantElsewhere           a tenant has moved to another store
    │   ├── StoreUnfinished           an import into it has begun, and not ended
    │   ├── StoreNotEmpty             records are only imported into an empty store
    │   ├── UntrustedSchema           another role could change what the store does
    │   ├── LongTransaction           an open transaction keeps the store from cleaning up
    │   ├── WakeupsLost               wake-ups do not arrive: work is found by polling
    │   └── UnsupportedError          this backend does not have that capability
    ├── LifecycleError              used before the start, or after the stop
    │   ├── NotStarted
    │   └── Stopped
    └── Directive                   raised *by* handlers, to say what should happen next
        ├── Abort                     the item is dead now
        ├── Defer                     run again later; this attempt is given back
        └── RetryAfter                this attempt failed; run again after this delay

Data is in attributes. The message says what to do next. All of them can be pickled, since handlers may run in
other processes.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .base.wording import close_names

if TYPE_CHECKING:
    from .base.timing import Duration, Instant


class TreadleError(Exception):
    """The base class of every exception of treadle."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The inherited method calls cls(*args), which fits only constructors that take just the message.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[TreadleError], args: tuple[Any, ...], state: Mapping[str, Any]) -> TreadleError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class DefinitionError(TreadleError):
    """A work type is defined or looked up wrongly: a mistake in code."""


class DuplicateWorkError(DefinitionError):
    """Two work types have one name. `alias_of`: it is an alias of the type of that name."""

    def __init__(self, name: str, alias_of: str | None = None) -> None:
        super().__init__(
            f"two work types are named {name!r}: give one of them another name with @work(name=...)"
            if alias_of is None
            else f"{name!r} is an alias of {alias_of!r}, and the name or an alias of another work type: "
            "remove it from one of them"
        )
        self.name = name
        self.alias_of = alias_of


class UnknownWorkError(DefinitionError, LookupError):
    """No type of that name is registered. `close` holds registered names that are similar."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        self.close = tuple(close_names(name, known, 3))
        likely = " or ".join(repr(each) for each in self.close)
        hint = f"did you mean {likely}?" if likely else "register it with app.register(...)"
        super().__init__(f"no work type is named {name!r}: {hint}")


class InputError(TreadleError, ValueError):
    """A value that the caller gave is not allowed. Nothing was stored.

    `parameters` names the arguments or options at fault, `work_type` the type that was called, if any.
    """

    def __init__(self, message: str, *, parameters: Sequence[str] = (), work_type: str | None = None) -> None:
        super().__init__(message)
        self.parameters = tuple(parameters)
        self.work_type = work_type

    @classmethod
    def of(cls, field: str, value: object, problem: str) -> InputError:
        """Make an error that reads `field=value problem`, with the value shortened."""
        return InputError(f"{field}={shown(value)} {problem}", parameters=(field,))


def shown(value: object) -> str:
    """Return a `repr` for messages that is short and never raises (`repr` of a 5,000-digit int does)."""
    try:
        text = repr(value)
    except BaseException:  # noqa: BLE001  a user's class may raise any exception
        text = f"<{class_name(value)}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def message_of(error: BaseException) -> str:
    """Return the message of an exception of the user. It never raises."""
    try:
        return str.__str__(str(error))
    except BaseException:  # noqa: BLE001  `__str__` of the user's exception may raise anything
        return "(its message cannot be shown)"


_class_name = vars(type)["__name__"].__get__


def class_name(value: object) -> str:
    """Return the name of the class of `value`. It never raises (a metaclass may have its own `__name__`)."""
    name: str = _class_name(type(value))
    return name


class PlacementError(InputError):
    """What would have to be one step, or is asked of one store, is in several stores. Nothing was stored. The
    message says what is where."""


class CronError(InputError):
    """A cron expression cannot be read, or never fires. `field` says which part is wrong."""

    def __init__(self, expression: str, field: str, problem: str) -> None:
        super().__init__(f"cron {expression!r}: {field}: {problem}", parameters=("cron",))
        self.expression = expression
        self.field = field


class ScheduleError(InputError):
    """A schedule does not have exactly one of `cron`, `every` and `next`, or its app has one of that name."""


class CycleError(InputError):
    """Items that wait for each other would wait for ever. `ids` is the cycle, in order."""

    def __init__(self, ids: Sequence[str]) -> None:
        chain = " -> ".join([*ids, *ids[:1]])
        message = f"these items wait for each other: {chain}: remove one of them from an `after`"
        super().__init__(message, parameters=("after",))
        self.ids = tuple(ids)


class PayloadError(TreadleError, ValueError):
    """Arguments, results or group values that cannot be stored or read."""


class EncodeError(PayloadError):
    """The value at `path` cannot be written. A path reads like Python, `$` being the whole value:
    `$.orders[2].total`."""

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(f"cannot encode {path_text(path)}: {message}")
        self.problem = message
        self.path = path


class DecodeError(PayloadError):
    """The stored bytes do not fit the codec or the declared type."""

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(f"cannot decode {path_text(path)}: {message}")
        self.problem = message
        self.path = path


def path_text(path: str) -> str:
    """A path for messages: `orders[2].total` for `$.orders[2].total`."""
    text = path.removeprefix("$")
    return (text if text.startswith("...") else text.removeprefix(".")) or "the value"


class PayloadTooLarge(PayloadError):
    """Encoded arguments, a result or a group value are larger than `max_payload`. Or all inputs that are
    stored in one step are larger than `max_submission`."""

    def __init__(self, what: str, size: int, limit: int, advice: str = "") -> None:
        advice = advice or "store it elsewhere and pass a reference, or raise max_payload"
        super().__init__(f"{what} takes {size} bytes, the limit is {limit}: {advice}")
        self.what = what
        self.size = size
        self.limit = limit


class HandlerError(TreadleError):
    """The handler broke its contract. Another attempt would not help, so the item is dead."""


class StrictReturnError(HandlerError):
    """The handler made a Result and did not return it, so the work in it would be lost."""

    def __init__(self, work_type: str, made: int = 1) -> None:
        super().__init__(
            f"{work_type!r} made {made} Result(s) that it did not return: return them "
            "(ctx.queue(a, b) combines several), or set strict_return=False to drop them"
        )
        self.work_type = work_type
        self.made = made


class BadResultError(HandlerError):
    """The handler returned something that is not a result: a Work, or a value that cannot be encoded."""

    def __init__(self, work_type: str, problem: str) -> None:
        super().__init__(f"{work_type!r} returned a bad result: {problem}")
        self.work_type = work_type

    @classmethod
    def of(cls, work_type: str, problem: str) -> BadResultError:
        """Make an error that reads `the result of work_type problem`."""
        error = cls(work_type, problem)
        error.args = (f"the result of {work_type} {problem}",)
        return error


class StepError(HandlerError):
    """A handler uses steps in a way that cannot work."""


class TooManySteps(HandlerError):
    """The item has recorded too much: too many steps, or too many bytes in all."""

    def __init__(self, work_type: str, problem: str) -> None:
        super().__init__(f"{work_type!r} {problem}: queue children for parts of it, or split it")
        self.work_type = work_type


class NotFound(TreadleError, LookupError):
    """No item has that id here: it was never submitted, was removed, or belongs to another tenant.

    away: the stores that do not answer, and may have it."""

    def __init__(self, id: str, what: str = "item", *, away: Collection[str] = ()) -> None:
        where, why = "here", _WHY_NOT_FOUND.get(what, _WHY_NO_ITEM)
        if away:
            where, why = "in the stores that answer", f"{', '.join(sorted(away))} may have it"
        super().__init__(f"no {what} {id!r} {where}: {why}")
        self.id = id
        self.what = what


_WHY_NO_ITEM = "it was never submitted, was removed after `keep`, or is another tenant's"
_WHY_NOT_FOUND = {
    "workflow": "no item has it, or they were removed after `keep`, or are another tenant's",
    "schedule": "no process that has it has been started, or it was cancelled",
    "bulk action": "it was never started, was removed seven days after its end, or is another tenant's",
    "mark": "no dead item has it; `treadle dead` lists the marks",
}
"""By what was not found. Others are as for items."""


class ConflictError(TreadleError):
    """The state of the item does not allow this. Nothing changed."""


class DuplicateIdError(ConflictError):
    """An item with this id exists, or one Work was given twice."""

    def __init__(self, id: str) -> None:
        super().__init__(
            f"an item with id {id!r} was already submitted: call the work type again for a new Work, or give "
            "another id="
        )
        self.id = id


class DuplicateKeyError(ConflictError):
    """An earlier item has the key, and `key_policy="error"`. Nothing was stored. `id` is the earlier item."""

    def __init__(self, id: str, key: str) -> None:
        super().__init__(
            f"item {id!r} has the key {key!r}: wait for it with app.handle({id!r}), or choose another "
            "key_policy"
        )
        self.id = id
        self.key = key


class AlreadyEnded(ConflictError):
    """The item has ended, so it cannot be completed."""

    def __init__(self, id: str, status: str) -> None:
        again = "enqueue the work again" if status == "success" else "requeue it"
        super().__init__(f"item {id!r} has ended ({status}): {again} to run it again")
        self.id = id
        self.status = status


class NotTriggerable(ConflictError):
    """Only scheduled items can be triggered. None of the given items was."""

    def __init__(self, id: str, status: str, held: bool = False) -> None:
        if held:
            self.alone = f"item {id!r} is held: unhold it first"
        elif status == "scheduled":  # and suspended: only the end of what it waits for wakes it
            self.alone = f"item {id!r} waits for a signal or for its children, and does not sleep"
        else:
            self.alone = f"item {id!r} is {status}: only scheduled items can be triggered"
        """What is said of this item alone."""
        super().__init__(f"{self.alone}. No item was triggered")
        self.id = id
        self.status = status


class NotHoldable(ConflictError):
    """Only ready and scheduled items can be held. None of the given items was."""

    def __init__(self, id: str, status: str) -> None:
        match status:
            case "running":
                instead = "cancel it, or pause its type or queue before its next attempt"
            case "blocked":
                instead = "hold what it waits for"
            case "ready" | "scheduled":
                instead = "it is about to end dead"
            case _:
                instead = "it has ended"
        self.alone = f"item {id!r} is {status}, and only ready and scheduled items can be held: {instead}"
        """What is said of this item alone."""
        super().__init__(f"{self.alone}. No item was held")
        self.id = id
        self.status = status


class NotUpdatable(ConflictError):
    """Only items that have not started can be updated. None of the given items was."""

    def __init__(self, id: str, status: str) -> None:
        waiting = status in ("blocked", "scheduled", "ready")
        why = f"{status}, but an attempt was made or it can only end" if waiting else status
        self.alone = f"item {id!r} is {why}: only items that have not started can be updated"
        """What is said of this item alone."""
        super().__init__(f"{self.alone}. No item was updated")
        self.id = id
        self.status = status


class ReferencedError(ConflictError):
    """Items of other groups wait for items to be deleted: `references` holds (id, id of the waiting item)."""

    def __init__(self, references: Iterable[tuple[str, str]]) -> None:
        self.references = list(references)
        shown = ", ".join(f"{waiter!r} waits on {on!r}" for on, waiter in self.references[:3])
        more = f" and {len(self.references) - 3} more" if len(self.references) > 3 else ""
        super().__init__(f"still referenced: {shown}{more}: delete those too, or pass cascade=True")


class MailboxFull(ConflictError):
    """Too many signals wait for the item that it has not read."""

    def __init__(self, id: str, most: int) -> None:
        super().__init__(f"{id} has {most} signals that it has not read: does its handler wait for them?")
        self.id = id
        self.most = most


class LeaseLost(ConflictError):
    """This attempt no longer owns its item, so its result was not stored.

    `reason` is as in `ctx.interrupt`: `taken`, `completed`, `cancelled`, `not_found`, ...
    """

    def __init__(self, id: str, reason: str = "taken") -> None:
        super().__init__(
            f"the lease of item {id!r} is lost ({reason}): the result of this attempt was not stored"
        )
        self.id = id
        self.reason = reason


class WorkFailed(TreadleError):
    """The awaited item ended without a value.

    `error` and `error_type` are the message and the class name of the last attempt's exception. The class may
    not exist in this process. `reason` is why the item is dead: `exhausted`, `aborted`, `expired`, ...
    """

    def __init__(
        self,
        id: str,
        type: str,
        error: str = "",
        error_type: str = "",
        attempts: int = 0,
        reason: str = "exhausted",
        *,
        group_id: str | None = None,
    ) -> None:
        cause = "".join(f": {part}" for part in (error_type, error) if part)
        why = "expired: its deadline passed" if reason == "expired" else reason
        super().__init__(f"{type} {id} failed ({why}, attempt {attempts}){cause}")
        self.id = id
        self.type = type
        self.error = error
        self.error_type = error_type
        self.attempts = attempts
        self.reason = reason
        self.group_id = id if group_id is None else group_id


class Death(NamedTuple):
    """A member of a group that died, in `GroupFailed.failed`."""

    id: str
    type: str
    reason: str
    """As in `WorkFailed`. `unsatisfiable`: it did not run, because an item that it waited for failed."""
    error: str
    """The last failure, as `type: message`."""


class GroupFailed(WorkFailed):
    """Members of the group `group_id` died, and no item that tolerates that waited for them.

    `failed` holds the first deaths: the causes, then the items that could not run because of them. `value` is
    the group's value so far. `id`, `type`, `error`, `error_type`, `attempts` and `reason` are those of the
    first death.
    """

    def __init__(
        self,
        id: str,
        type: str,
        error: str = "",
        error_type: str = "",
        attempts: int = 0,
        reason: str = "exhausted",
        *,
        group_id: str | None = None,
        value: Any = None,
        failed: Sequence[Death] = (),
        count: int = 1,
    ) -> None:
        super().__init__(id, type, error, error_type, attempts, reason, group_id=group_id)
        self.value = value
        self.failed = tuple(failed)
        self.count = max(count, len(self.failed))
        """How many items died in all."""
        self.args = (self._advice(str(self)),)

    def _advice(self, first: str) -> str:
        """Say which item died and why, what else did not run, and what to do."""
        skipped = sum(death.reason == "unsatisfiable" for death in self.failed[1:])
        more = self.count - 1 - skipped
        also = [
            *([f"{more} more died"] if more > 0 else []),
            *([f"{skipped} that waited for {'them' if more > 0 else 'it'} did not run"] if skipped else []),
        ]
        text = f"{first} ({', '.join(also)})" if also else first
        whole = "" if self.group_id == self.id else f"the group {self.group_id} failed: "
        if self.reason == "unsatisfiable":  # the cause is not a death of this group
            return (
                f"{whole}{text}. What it waited for was cancelled, or died in another group: see `after` of "
                f"app.get({self.id!r}), and run that again with app.requeue(ids, cancelled=True); or take "
                "the value so far with group(partial=True)"
            )
        return (
            f"{whole}{text}. Remove the cause, then run it again with app.repair({self.group_id!r}); or take "
            "the value so far with group(partial=True)"
        )


class WorkCancelled(WorkFailed):
    """The awaited item was cancelled."""

    def __init__(
        self, id: str, type: str, attempts: int = 0, *, error: str = "", group_id: str | None = None
    ) -> None:
        """error: why, if it was not cancelled by an operator."""
        super().__init__(id, type, error, attempts=attempts, reason="cancelled", group_id=group_id)


class StepFailed(TreadleError):
    """A step has recorded a failure (`Step(catch=...)`) whose class is not known here, or cannot be made."""

    def __init__(self, type: str, message: str) -> None:
        super().__init__(f"{type}: {message}" if message else type)
        self.type = type
        self.message = message


class RemoteError(TreadleError):
    """A stored exception whose class is not built in: its name and its message.

    Reading data never imports code, so `error_type` is a name: `shop.errors.OutOfStock`.
    """

    def __init__(self, error_type: str, error: str = "") -> None:
        super().__init__(f"{error_type}: {error}" if error else error_type)
        self.error_type = error_type
        self.error = error


class WaitTimeout(TreadleError, TimeoutError):
    """The wait timed out. The work goes on: wait again with `app.handle(id)`. `treadle why` says what it
    waits for."""

    def __init__(self, id: str, timeout: float) -> None:
        super().__init__(
            f"{id!r} has not ended after {timeout:g} s: `treadle why {id}`, or app.why({id!r}), says what it "
            f"waits for; wait again with app.handle({id!r})"
        )
        self.id = id
        self.timeout = timeout


class AttemptTimeout(TreadleError, TimeoutError):
    """One attempt ran longer than its `timeout`. It failed, and is retried as usual.

    `stopped_by`: the item of the same batch whose timeout it was. None: its own.
    """

    def __init__(self, id: str, timeout: float, stopped_by: str | None = None) -> None:
        super().__init__(
            f"attempt of {id!r} ran longer than its timeout of {timeout:g} s"
            if stopped_by is None
            else f"attempt of {id!r} ended with its batch, at the timeout of {timeout:g} s of {stopped_by!r}"
        )
        self.id = id
        self.timeout = timeout
        self.stopped_by = stopped_by


class ProcessDied(TreadleError):
    """The process that ran a handler ended: a crash in C code, `os._exit`, out of memory.

    `exitcode` is its exit code (None: unknown), `signal` the name of the signal that killed it, if any.
    """

    def __init__(self, name: str, exitcode: int | None = None) -> None:
        self.name = name
        self.exitcode = exitcode
        self.signal = _signal_name(exitcode)
        how = f"killed by {self.signal}" if self.signal else f"exit code {exitcode}"
        super().__init__(f"the process that ran {name} died ({how})")


def _signal_name(exitcode: int | None) -> str | None:
    if exitcode is None or exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


class DeadlineExceeded(TreadleError):
    """The deadline passed before the item succeeded. It is dead, even if it had attempts left."""

    def __init__(self, id: str, deadline: float) -> None:
        super().__init__(f"item {id!r} passed its deadline: allow more with deadline= or expires_in=")
        self.id = id
        self.deadline = deadline


class BackendError(TreadleError):
    """The store could not do it. `transient` tells the engine whether to try again."""

    transient: ClassVar[bool] = False


class StoreUnavailable(BackendError):
    """The store did not answer. Whether a write happened is unknown until it is read back. `store`: its name,
    if the app has several."""

    transient = True
    store: str = ""


class AccessDenied(StoreUnavailable):
    """The role that connects to the database lacks a right. Transient, since it may be granted meanwhile."""


class StoreTooSlow(StoreUnavailable):
    """The store answers, but this took longer than it may, and was stopped."""


class StoreFull(BackendError):
    """The store has no room for new items. Running items can still be settled."""


class SchemaError(BackendError):
    """The store's schema is not of the version that this library needs. `found` is None if it has none.

    missing: the file that does not exist, if that is why.
    converts: whether an older schema can be brought to this version."""

    def __init__(self, found: int | None, wanted: int, missing: str = "", *, converts: bool = True) -> None:
        super().__init__(_schema_advice(found, wanted, missing, converts))
        self.found = found
        self.wanted = wanted


def _schema_advice(found: int | None, wanted: int, missing: str, converts: bool) -> str:
    if missing:
        return f"there is no file {missing}: check the path, or make the store with `treadle migrate`"
    if found is None:
        return f"the store has no schema (version {wanted} is needed): run `treadle migrate`"
    if found > wanted:
        return f"the store's schema is version {found}, newer than {wanted}: upgrade treadle here"
    if not converts:
        return (
            f"the store's layout is version {found}, older than {wanted}, and is not converted: let the "
            "earlier version of treadle work off what is queued, then remove its keys, or use another prefix"
        )
    return f"the store's schema is version {found}, older than {wanted}: run `treadle migrate`"


class WrongStore(BackendError):
    """The store behind an address is not the one that has its name: two addresses were swapped, one of them
    belongs to another app, or one that the others know of is not named."""


class StoreMoved(BackendError):
    """The store was promoted: another one owns its work now. `address`: that of the other, without a
    password. Nothing was stored."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"the work of this store was moved to {address}: give clients and workers that address"
        )
        self.address = address


class TenantElsewhere(BackendError):
    """A tenant has moved to another store, or is on its way into this one. Nothing was stored, unless a call
    had several submissions: `answers` has those of the first ones, if they were stored before. An app that
    names all stores follows by itself."""

    answers: tuple[Any, ...] = ()

    def __init__(self, where: str) -> None:
        super().__init__(
            f"a tenant of this call is not in {where} any more, or not yet: `treadle stores place TENANT` "
            "says where it is. Name all stores in the app, or begin the transaction in that store"
        )


class StoreUnfinished(BackendError):
    """An import into the store has begun, and has not ended: it owns nothing yet. `move`: the id of the
    import; `source`: the address of the store whose work it is, without a password, or "" for a file."""

    def __init__(self, move: str, source: str = "") -> None:
        super().__init__(
            f"a promotion of {source} to this store was not finished ({move}), which may hold the only copy: "
            "run the same `treadle promote` again, or empty this store by the same with --give-up"
            if source
            else f"an import into this store was not finished ({move}): run `treadle import` again"
        )
        self.move = move
        self.source = source


class StoreNotEmpty(BackendError):
    """A store takes records only while it is empty. `found`: what is in it."""

    def __init__(self, address: str, found: str) -> None:
        super().__init__(
            f"{address} is not empty, it has {found}: give a new database, or another schema or prefix"
        )
        self.address = address
        self.found = found


class UntrustedSchema(BackendError):
    """Another role could change what the store's functions and tables do, so this process does not use them.

    `role` is that role ("every role" for all), and `power` what it can do, as in "owns it"."""

    def __init__(self, schema: str, role: str, power: str) -> None:
        if power == "owns it":
            advice = f"connect as {role}, or trust it: PostgresBackend(..., schema_owner={role!r})"
        else:
            advice = "see SECURITY.md for the grants that are needed"
        super().__init__(
            f"the schema {schema} is not safe to use: {role} {power}, and could run code as the role that "
            f"connects: {advice}"
        )
        self.schema = schema
        self.role = role
        self.power = power


class LongTransaction(BackendError):
    """A transaction, of treadle or of another program, has been open so long that it slows the store down.

    `holder` names it: a session and its `pid`, a replication slot, or a prepared transaction."""

    def __init__(self, holder: str, seconds: float, advice: str, *, pid: int | None = None) -> None:
        super().__init__(
            f"{holder} has held a transaction open for {seconds:.0f} s, so the database cannot clean up rows "
            f"that were removed since, and claims get slower: {advice}"
        )
        self.holder = holder
        self.seconds = seconds
        self.pid = pid


class WakeupsLost(BackendError):
    """Wake-ups do not arrive, so processes find work by polling. Nothing is lost.

    `carrier` names what should carry them, and `cause` says why it does not."""

    def __init__(self, carrier: str, seconds: float, cause: str) -> None:
        super().__init__(
            f"wake-ups have not arrived by {carrier} for {seconds:.0f} s, so work is found by polling "
            f"({cause}): is that server running, and may this process publish and subscribe there?"
        )
        self.carrier = carrier
        self.seconds = seconds
        self.cause = cause


class UnsupportedError(BackendError):
    """The backend does not have `capability`, as transactions on memory or listing on ports."""

    def __init__(
        self, capability: str, backend: str = "this backend", what: str | None = None, *, advice: str = ""
    ) -> None:
        advice = advice or "use a backend that does"
        super().__init__(f"{backend} does not support {what or capability}: {advice}")
        self.capability = capability
        self.backend = backend


class LifecycleError(TreadleError):
    """Used before it was started, or after it was stopped."""


class NotStarted(LifecycleError):
    """It is used before it was started."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not started: use `async with`, or await start() first")
        self.what = what


class Stopped(LifecycleError):
    """It is used after it was stopped."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is stopped: start it again, or make a new one")
        self.what = what


class Directive(TreadleError):
    """Raised by a handler to say what should happen next."""


class Abort(Directive):
    """The item is dead now, even if it has attempts left. `cause` becomes its error."""

    cause: BaseException | str | None = None  # for a subclass whose constructor does not call `super()`

    def __init__(self, cause: BaseException | str | None = None) -> None:
        super().__init__("aborted" if cause is None else str(cause))
        self.cause = cause
        if isinstance(cause, BaseException):
            self.__cause__ = cause


class Defer(Directive):
    """Run this item again after `delay`, or at `run_at`. The attempt is given back.

    Both attributes are seconds (`run_at` since the epoch). The one not given is None.
    """

    delay: float | None = None  # for a subclass whose constructor does not call `super()`
    run_at: float | None = None

    def __init__(self, *, delay: Duration | None = None, run_at: Instant | None = None) -> None:
        # Imported here, since timing imports InputError from this module.
        from .base.timing import instant, seconds

        if (delay is None) == (run_at is None):
            raise InputError("Defer takes either delay= or run_at=", parameters=("delay", "run_at"))
        self.delay = None if delay is None else seconds(delay, field="delay")
        self.run_at = None if run_at is None else instant(run_at, field="run_at")
        super().__init__(f"deferred by {delay}" if run_at is None else f"deferred to {run_at}")


class RetryAfter(Directive):
    """This attempt failed, and the next one begins after `delay`, instead of after the wait of the retry
    policy. It counts: after `attempts` of them the item is dead. `cause` becomes its error.

    For a service that says when to come back, as HTTP 429 does: `raise RetryAfter(30)`.
    """

    delay: float | None = None  # for a subclass whose constructor does not call `super()`
    cause: BaseException | str | None = None

    def __init__(self, delay: Duration, cause: BaseException | str | None = None) -> None:
        # Imported here, since timing imports InputError from this module.
        from .base.timing import seconds

        self.delay = seconds(delay, field="delay")
        self.cause = cause
        super().__init__(f"to be tried again after {self.delay:g} s" if cause is None else str(cause))
        if isinstance(cause, BaseException):
            self.__cause__ = cause
