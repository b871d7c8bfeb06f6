"""Task types: a task of Django as a work type.

The name of the type is the path of the function. Its input is what `TaskResult` has too: the positional
arguments and the others, as JSON.
"""

from __future__ import annotations

import functools
import inspect
import json
import threading
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakSet

from treadle.app import Treadle
from treadle.define.decorators import work
from treadle.define.work_type import AnyWorkType
from treadle.errors import Abort, TreadleError
from treadle.events import Cancelled, Dead, Event, Queued, Released, Started, Succeeded, WorkerEvent
from treadle.handler.context import Context
from treadle.item import ItemState

from .connections import fresh_async_connections, fresh_connections
from .django_api import Task, TaskContext, TaskResult, normalize_json, task_started
from .results import end_result, result_of, running_result, send_finished, send_later, sender_of
from .task import find_task

_made: Final[WeakSet[AnyWorkType]] = WeakSet()
"""The types of tasks."""
_making: Final = threading.Lock()
"""Held while a type is made and registered: the first calls of a web server come in several threads."""
_running: Final[dict[str, TaskResult]] = {}
"""The results of the items that run in this process, by id."""


def type_of(task: Task, app: Treadle, alias: str) -> AnyWorkType:
    """The type of a task in an app. It is registered when it is first asked for. `DuplicateWorkError` if the
    app has another type of that name."""
    with _making:
        known = app.types.get(task.module_path)
        if known is not None and known in _made:
            return known
        type = _make_type(task, app, alias)
        app.register(type)
        _made.add(type)
        return type


def is_task_type(app: Treadle, name: str) -> bool:
    """Whether the items of this type are those of a task."""
    known = app.types.get(name)
    return find_task(name) is not None if known is None else known in _made


def _make_type(task: Task, app: Treadle, alias: str) -> AnyWorkType:
    handler = _async_handler(task, alias) if inspect.iscoroutinefunction(task.func) else _handler(task, alias)
    return work(name=task.module_path, on_event=functools.partial(_announce, app, alias))(handler)


def plain_input(task: Task, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments as they are stored: by Django's rule, what JSON can hold. `TypeError` if the function
    cannot be called with them."""
    first = (None,) if task.takes_context else ()
    inspect.signature(task.func).bind(*first, *args, **kwargs)
    plain = normalize_json({"args": list(args), "kwargs": dict(kwargs)})
    stored: dict[str, Any] = json.loads(json.dumps(plain))  # keys of objects become texts
    return stored


# -- running -------------------------------------------------------------------------------------------


def _handler(task: Task, alias: str) -> Any:
    def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        states = ctx.sync.states([ctx.id]) if ctx.attempt > 1 else ()
        with fresh_connections():
            result = _begun(ctx, states, task, {"args": args, "kwargs": kwargs}, alias)
            return run_task(task, result)

    return run


def _async_handler(task: Task, alias: str) -> Any:
    async def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        states = await ctx.states([ctx.id]) if ctx.attempt > 1 else ()
        async with fresh_async_connections():
            result = _begun(ctx, states, task, {"args": args, "kwargs": kwargs}, alias)
            await task_started.asend_robust(sender_of(alias), task_result=result)
            value = await task.func(*_arguments(task, result), **result.kwargs)
            return plain_value(value)

    return run


def run_task(task: Task, result: TaskResult) -> Any:
    """Run a task in this thread, and return its value as it is stored."""
    task_started.send_robust(sender_of(result.backend), task_result=result)
    call = task.call if inspect.iscoroutinefunction(task.func) else task.func
    return plain_value(call(*_arguments(task, result), **result.kwargs))


def _arguments(task: Task, result: TaskResult) -> list[Any]:
    return [*([TaskContext(task_result=result)] if task.takes_context else ()), *result.args]


def plain_value(value: Any) -> Any:
    """A return value as JSON. Another attempt would not make it so."""
    try:
        return normalize_json(value)
    except (TypeError, ValueError) as error:
        raise Abort(error) from error


def _begun(ctx: Context, states: Any, task: Task, input: Mapping[str, Any], alias: str) -> TaskResult:
    """The result of the item whose attempt has just begun."""
    state = next(iter(states), None)
    if state is None:
        lease = ctx._lease  # pyright: ignore[reportPrivateUsage]
        result = running_result(lease, ctx.worker_id, task, input, alias)
    else:
        result = result_of(state, task, input, alias)
    _running[ctx.id] = result
    return result


# -- reading -------------------------------------------------------------------------------------------


def read_result(app: Treadle, state: ItemState, alias: str) -> TaskResult | None:
    """The item as a result. None if it is not that of a task, or cannot be read."""
    task = find_task(state.type) if is_task_type(app, state.type) else None
    if task is None:
        return None
    type_of(task, app, alias)
    try:
        input: Mapping[str, Any] = app.values.arguments(state)
    except TreadleError:
        input = {"args": [], "kwargs": {}}
    return result_of(state, task, input, alias)


def _announce(app: Treadle, alias: str, event: Event) -> None:
    """Send Django's signal about a task that has ended."""
    if isinstance(event, Started | Queued | Released | WorkerEvent):
        return
    begun = _running.pop(event.id, None)
    if isinstance(event, Succeeded) and begun is not None:
        end_result(begun, event.result, event.at)
        send_later(functools.partial(send_finished, begun, None))
    elif isinstance(event, Succeeded | Dead | Cancelled):
        error = event.error if isinstance(event, Dead) else None
        send_later(functools.partial(_send_finished, app, alias, event.id, error))


def _send_finished(app: Treadle, alias: str, id: str, error: BaseException | None) -> None:
    (state,) = app.sync.get([id])
    result = None if state is None else read_result(app, state, alias)
    if result is not None:
        cause = error.cause if isinstance(error, Abort) else error
        send_finished(result, cause if isinstance(cause, BaseException) else error)
