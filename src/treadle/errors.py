"""Every exception of treadle, in one tree.

::

    TreadleError
    ├── DefinitionError             a work type is declared or looked up wrongly
    │   ├── DuplicateWorkError        two types with one name
    │   └── UnknownWorkError          no such type (also LookupError)
    ├── InputError                  a value the caller gave is refused (also ValueError)
    │   ├── CronError                 a cron expression, and which field of it
    │   ├── ScheduleError             a schedule that says when twice, or not at all
    │   └── CycleError                items that wait for each other
    ├── PayloadError                arguments or results on the wire (also ValueError)
    │   ├── EncodeError               cannot be written, and where in the value
    │   ├── DecodeError               cannot be read, and where in the value
    │   └── PayloadTooLarge           over `max_payload`
    ├── HandlerError                the handler broke its contract: dead at once, never retried
    │   ├── StrictReturnError         a Result was made and not returned
    │   └── BadResultError            what was returned is not a result
    ├── NotFound                    no such item, group or schedule here (also LookupError)
    ├── ConflictError               the item is not in a state that allows this
    │   ├── DuplicateIdError          the id is taken
    │   ├── AlreadyEnded              success, dead and cancelled are final
    │   ├── NotTriggerable            only scheduled items can be triggered
    │   ├── ReferencedError           an item outside still waits on it
    │   └── LeaseLost                 another worker, or an operator, owns the item now
    ├── WorkFailed                  the awaited item ended without a value
    │   ├── GroupFailed               the awaited group did
    │   └── WorkCancelled             somebody cancelled it
    ├── RemoteError                 an exception of another process, read back without its class
    ├── WaitTimeout                 the wait was too long, the work goes on (also TimeoutError)
    ├── AttemptTimeout              one attempt ran longer than `timeout` (also TimeoutError)
    ├── ProcessDied                 the process that ran a handler crashed
    ├── DeadlineExceeded            the item's whole life ran longer than `deadline`
    ├── BackendError                the store could not do it
    │   ├── StoreUnavailable          transient: the engine tries again by itself
    │   ├── StoreFull                 no room for new work; work in hand can still be settled
    │   ├── SchemaError               the store's schema is missing, older or newer
    │   ├── LongTransaction           somebody's open transaction keeps the store from cleaning up
    │   └── UnsupportedError          this backend does not have that capability
    ├── LifecycleError              used before it was started, or after it was stopped
    │   ├── NotStarted
    │   └── Stopped
    └── Directive                   raised *by* handlers, to say what should happen next
        ├── Abort                     dead now
        └── Defer                     run again later, this attempt given back

Data is in attributes; the message says what to do next. All of them pickle, since handlers may run
in other processes.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from .timing import Duration, Instant


class TreadleError(Exception):
    """The root of the tree."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own way, cls(*args), fits only constructors that take nothing but the message.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[TreadleError], args: tuple[Any, ...], state: Mapping[str, Any]) -> TreadleError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class DefinitionError(TreadleError):
    """A work type is declared or looked up wrongly: a mistake in code."""


class DuplicateWorkError(DefinitionError):
    def __init__(self, name: str) -> None:
        super().__init__(
            f"two work types are named {name!r}: give one of them another name with @work(name=...)"
        )
        self.name = name


class UnknownWorkError(DefinitionError, LookupError):
    """No type of that name is registered; `close` holds the registered names that resemble it."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        self.close = tuple(difflib.get_close_matches(name, list(known), n=3, cutoff=0.6))
        likely = " or ".join(repr(each) for each in self.close)
        hint = f"did you mean {likely}?" if likely else "register it with app.register(...)"
        super().__init__(f"no work type is named {name!r}: {hint}")


class InputError(TreadleError, ValueError):
    """A value the caller gave is refused before anything is stored.

    `parameters` names the arguments or options at fault; `work_type` the type called, if any.
    """

    def __init__(self, message: str, *, parameters: Sequence[str] = (), work_type: str | None = None) -> None:
        super().__init__(message)
        self.parameters = tuple(parameters)
        self.work_type = work_type

    @classmethod
    def of(cls, field: str, value: object, problem: str) -> InputError:
        """`field=value problem`, the value shown short."""
        return InputError(f"{field}={shown(value)} {problem}", parameters=(field,))


def shown(value: object) -> str:
    """`repr` for messages: never long, and never raising (`repr` of a 5,000-digit int does)."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  a user's class may raise anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


class CronError(InputError):
    """A cron expression cannot be read, or never comes due; `field` says which part is wrong."""

    def __init__(self, expression: str, field: str, problem: str) -> None:
        super().__init__(f"cron {expression!r}: {field}: {problem}", parameters=("cron",))
        self.expression = expression
        self.field = field


class ScheduleError(InputError):
    """A schedule must say when it fires in exactly one way."""


class CycleError(InputError):
    """Items that wait for each other would wait for ever; `ids` is the cycle, in order."""

    def __init__(self, ids: Sequence[str]) -> None:
        chain = " -> ".join([*ids, *ids[:1]])
        message = f"these items wait for each other: {chain}: remove one of the `after`"
        super().__init__(message, parameters=("after",))
        self.ids = tuple(ids)


class PayloadError(TreadleError, ValueError):
    """Arguments, results or group values that cannot cross the wire."""


class EncodeError(PayloadError):
    """The value at `path` cannot be written. A path reads like Python: `$.orders[2].total`."""

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(f"cannot encode {path}: {message}")
        self.path = path


class DecodeError(PayloadError):
    """The stored bytes are not what the codec, or the declared type, says they are."""

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(f"cannot decode {path}: {message}")
        self.path = path


class PayloadTooLarge(PayloadError):
    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"{what} takes {size} bytes, the limit is {limit}: store it elsewhere and pass a "
            "reference, or raise max_payload"
        )
        self.what = what
        self.size = size
        self.limit = limit


class HandlerError(TreadleError):
    """The handler broke its contract: running it again would not help, so the item is dead."""


class StrictReturnError(HandlerError):
    """The handler made a Result and returned something else: work it asked for would be lost."""

    def __init__(self, work_type: str, made: int = 1) -> None:
        super().__init__(
            f"{work_type!r} made {made} Result(s) that it did not return: return them "
            "(ctx.queue(a, b) combines several), or set strict_return=False to drop them"
        )
        self.work_type = work_type
        self.made = made


class BadResultError(HandlerError):
    """What the handler returned is not a result: a bare Work, or a value that cannot be encoded."""

    def __init__(self, work_type: str, problem: str) -> None:
        super().__init__(f"{work_type!r} returned a bad result: {problem}")
        self.work_type = work_type


class NotFound(TreadleError, LookupError):
    """Nothing of that id is visible here: it never was, was cleaned up, or is another tenant's."""

    def __init__(self, id: str, what: str = "item") -> None:
        super().__init__(f"no {what} {id!r} here: never submitted, or cleaned up after `keep`")
        self.id = id
        self.what = what


class ConflictError(TreadleError):
    """The state of the item does not allow this. Nothing was changed."""


class DuplicateIdError(ConflictError):
    def __init__(self, id: str) -> None:
        super().__init__(
            f"an item with id {id!r} was already submitted: call the work type again for a new Work"
        )
        self.id = id


class AlreadyEnded(ConflictError):
    def __init__(self, id: str, status: str) -> None:
        super().__init__(f"item {id!r} has ended ({status}): requeue it to run it again")
        self.id = id
        self.status = status


class NotTriggerable(ConflictError):
    """Only scheduled items can be run early; none of the ids given with this one was triggered."""

    def __init__(self, id: str, status: str) -> None:
        super().__init__(f"item {id!r} is {status}: only scheduled items can be triggered, and nothing was")
        self.id = id
        self.status = status


class ReferencedError(ConflictError):
    """Deleting would strand items elsewhere: `references` holds (id, id of a waiting item)."""

    def __init__(self, references: Iterable[tuple[str, str]]) -> None:
        self.references = list(references)
        shown = ", ".join(f"{waiter!r} waits on {on!r}" for on, waiter in self.references[:3])
        more = f" and {len(self.references) - 3} more" if len(self.references) > 3 else ""
        super().__init__(f"still referenced: {shown}{more}: delete those too, or pass cascade=True")


class LeaseLost(ConflictError):
    """This attempt no longer owns its item, so nothing it says takes effect.

    `reason` is that of `ctx.interrupt`: `taken`, `completed`, `cancelled`, `not_found`, ...
    """

    def __init__(self, id: str, reason: str = "taken") -> None:
        super().__init__(
            f"the lease on item {id!r} is lost ({reason}): what this attempt did was not recorded"
        )
        self.id = id
        self.reason = reason


class WorkFailed(TreadleError):
    """The awaited item ended without a value.

    `error` and `error_type` are the last attempt's message and class name (the class itself may not
    exist in this process); `reason` is why the item is dead: `exhausted`, `aborted`, `expired`, ...
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


class GroupFailed(WorkFailed):
    """The group `group_id` ended with no value, and this member of it failed."""


class WorkCancelled(WorkFailed):
    """The awaited item was cancelled."""

    def __init__(self, id: str, type: str, attempts: int = 0, *, group_id: str | None = None) -> None:
        super().__init__(id, type, attempts=attempts, reason="cancelled", group_id=group_id)


class RemoteError(TreadleError):
    """An exception that was stored, and whose class is not built in: its name and its message.

    Code is never imported to read data, so `error_type` is a name: `shop.errors.OutOfStock`.
    """

    def __init__(self, error_type: str, error: str = "") -> None:
        super().__init__(f"{error_type}: {error}" if error else error_type)
        self.error_type = error_type
        self.error = error


class WaitTimeout(TreadleError, TimeoutError):
    """The wait ended; the work did not. Reattach later with `app.handle(id)`."""

    def __init__(self, id: str, timeout: float) -> None:
        super().__init__(f"{id!r} has not ended after {timeout:g} s; app.handle({id!r}) reattaches")
        self.id = id
        self.timeout = timeout


class AttemptTimeout(TreadleError, TimeoutError):
    """One attempt ran longer than its `timeout`: it failed, and is retried as usual."""

    def __init__(self, id: str, timeout: float) -> None:
        super().__init__(f"attempt of {id!r} ran longer than its timeout of {timeout:g} s")
        self.id = id
        self.timeout = timeout


class ProcessDied(TreadleError):
    """The process that ran a handler ended under it: a crash in C code, `os._exit`, no memory left.

    `exitcode` is what it ended with (None: unknown), `signal` the name of the signal that ended it.
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
    """The deadline passed before the item succeeded: it is dead, whatever attempts it had left."""

    def __init__(self, id: str, deadline: float) -> None:
        super().__init__(f"item {id!r} passed its deadline: allow more with deadline= or expires_in=")
        self.id = id
        self.deadline = deadline


class BackendError(TreadleError):
    """The store could not do it. `transient` tells the engine whether to try again by itself."""

    transient: ClassVar[bool] = False


class StoreUnavailable(BackendError):
    """The store did not answer: the outcome of a write is unknown until it is read back."""

    transient = True


class StoreFull(BackendError):
    """No room for new work. Work in hand can still be settled."""


class SchemaError(BackendError):
    """The store's schema is not what this version works with; `found` is None if there is none."""

    def __init__(self, found: int | None, wanted: int) -> None:
        super().__init__(_schema_advice(found, wanted))
        self.found = found
        self.wanted = wanted


def _schema_advice(found: int | None, wanted: int) -> str:
    if found is None:
        return f"the store has no schema (version {wanted} is needed): run `treadle migrate`"
    if found > wanted:
        return f"the store's schema is version {found}, newer than {wanted}: upgrade treadle here"
    return f"the store's schema is version {found}, older than {wanted}: run `treadle migrate`"


class LongTransaction(BackendError):
    """Somebody's transaction, perhaps not ours, has been open for so long that it slows the store down.

    `holder` says who: a session's `pid`, a replication slot, a prepared transaction."""

    def __init__(self, holder: str, seconds: float, advice: str, *, pid: int | None = None) -> None:
        super().__init__(
            f"{holder} has held a transaction open for {seconds:.0f} s: what has ended since cannot be"
            f" cleaned up, and claims get slower: {advice}"
        )
        self.holder = holder
        self.seconds = seconds
        self.pid = pid


class UnsupportedError(BackendError):
    """The backend lacks `capability`: transactions on memory, listing on ports, ..."""

    def __init__(self, capability: str, backend: str = "this backend") -> None:
        super().__init__(f"{backend} does not support {capability}: use a backend that does")
        self.capability = capability
        self.backend = backend


class LifecycleError(TreadleError):
    """Used before it was started, or after it was stopped."""


class NotStarted(LifecycleError):
    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not started: use `async with`, or await start() first")
        self.what = what


class Stopped(LifecycleError):
    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is stopped: start it again, or make a new one")
        self.what = what


class Directive(TreadleError):
    """Raised by a handler to say what should happen next, rather than that something broke."""


class Abort(Directive):
    """The item is dead now, whatever attempts are left. `cause` is what its error will say."""

    def __init__(self, cause: BaseException | str | None = None) -> None:
        super().__init__("aborted" if cause is None else str(cause))
        self.cause = cause
        if isinstance(cause, BaseException):
            self.__cause__ = cause


class Defer(Directive):
    """Run this item again `delay` from now, or at `run_at`; the attempt is given back.

    Both attributes are plain seconds (`run_at` since the epoch); the one not given is None.
    """

    def __init__(self, *, delay: Duration | None = None, run_at: Instant | None = None) -> None:
        # Imported here: timing reports through InputError, so it stands above this module.
        from .timing import instant, seconds

        if (delay is None) == (run_at is None):
            raise InputError("Defer takes either delay= or run_at=", parameters=("delay", "run_at"))
        self.delay = None if delay is None else seconds(delay, field="delay")
        self.run_at = None if run_at is None else instant(run_at, field="run_at")
        super().__init__(f"deferred by {delay}" if run_at is None else f"deferred to {run_at}")
