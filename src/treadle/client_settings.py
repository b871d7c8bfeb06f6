"""ClientSettings: the settings of a client or an app, and the engine that is made of them."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import TypedDict

from treadle.backend import Backend, store_name
from treadle.bulk_portion import run_portion
from treadle.callables import check_callable, check_list, check_plain
from treadle.clock import Clock
from treadle.codec import Codec
from treadle.connect import check_backend, connect
from treadle.engine.core import Core
from treadle.engine.hooks import Hooks, OnError, OnEvent
from treadle.engine.settings import Settings
from treadle.engine.telemetry import Telemetry
from treadle.errors import InputError
from treadle.flow_control import OnUnhandledGroup
from treadle.ids import IdGenerator, checked_generator
from treadle.metrics import Metrics
from treadle.pubsub import PubSub
from treadle.retry import Retry
from treadle.secret_values import check_mask
from treadle.submit_middleware import SubmitMiddleware
from treadle.timing import Duration, seconds
from treadle.wording import did_you_mean


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
    statistics: bool
    """Add what workers count to the statistics in the store: `app.statistics()`."""
    mask: Iterable[str]
    """More names of values that are not shown to operators, besides `treadle.secret_values.SECRET_NAMES`."""
    on_unhandled_group: OnUnhandledGroup | None
    """Called once for a group that ends with a value while no process waits for it."""
    submit_middleware: Sequence[SubmitMiddleware]
    """`async def m(items, call_next)`, around each submit; the first is the outermost."""
    telemetry: Telemetry | None
    """Traces: `treadle.contrib.otel.OpenTelemetry()`."""
    registry: Any
    """A prometheus-client registry to export metrics on."""
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


def build_core(backend: str | Backend, given: ClientSettings, others: Iterable[str]) -> Core:
    """others: names of the settings that the caller takes besides these, for messages."""
    values: dict[str, Any] = dict(given)
    _check_names(values, others)
    _check_functions(values)
    on_event, on_error = values.pop("on_event", None), values.pop("on_error", None)
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
    middlewares = check_list(values.pop("submit_middleware", ()), "submit_middleware", "with_user")
    telemetry = _check_telemetry(values.pop("telemetry", None))
    if "generate_id" in values:
        values["generate_id"] = checked_generator(values["generate_id"])
    if "mask" in values:
        values["mask"] = check_mask(values["mask"])
    settings = Settings(**values)
    metrics = Metrics(now=settings.clock.now, registry=registry)
    check_backend(backend)
    if isinstance(backend, str):
        backend = connect(backend, prefix=prefix, notify=notify, clock=settings.clock)
    elif not isinstance(notify, bool) and notify is not None:
        raise InputError("notify= belongs to a URL: give it to the backend itself", parameters=("notify",))
    core = Core(
        backend,
        settings,
        Hooks(on_event, on_error, settings.clock.monotonic),
        metrics,
        submit_middleware=[check_callable(each, "submit_middleware") for each in middlewares],
        telemetry=telemetry,
        run_portion=run_portion,
    )
    if core.telemetry is not None:
        core.telemetry.use_store(store_name(backend))
    if unhandled is not None:
        core.watch_groups(unhandled)
    return core
