"""Batch: items of one type that share one call of its handler.

A batch is called when it has `size` items, or `max_wait` after the first. Outputs align with inputs by index.
An exception in the list of outputs fails its item only. A wrong length, or a raised exception, fails all
items, and each follows its own retry policy.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias, cast

from treadle.errors import BadResultError, shown
from treadle.logs.kept_lines import RUNNING

from .attempt import AttemptRunner
from .handler_pools import POOLS
from .held import BatchCall, BoundType, HeldLease
from .settle import Settler

Start: TypeAlias = Callable[[BoundType, HeldLease, Callable[[], Coroutine[Any, Any, None]]], None]


class WrongLength(ValueError):
    """A batch handler must return one output for each input."""

    def __init__(self, name: str, outputs: int, inputs: int) -> None:
        super().__init__(f'batch "{name}" returned {outputs} outputs for {inputs} inputs')


class Batches:
    """The buffers of a worker, one per batch type. The type's doer limits how many batches run at once.

    start: hands a full batch to its doer.
    """

    def __init__(self, runner: AttemptRunner, settler: Settler, start: Start) -> None:
        self._runner = runner
        self._settler = settler
        self._start = start
        self._buffers: dict[str, list[HeldLease]] = {}

    def room(self, bound: BoundType, batches: int) -> int:
        """How many more items to claim. batches: how many may start now."""
        batch = bound.type.batch
        assert batch is not None
        return max(0, batches * batch.size - len(self._buffers.get(bound.name, ())))

    def pool_rooms(self, types: Iterable[BoundType]) -> dict[str, int]:
        """How many more handlers could begin in threads, and in processes. Handlers whose items are on their
        way there have their places already."""
        rooms = {run_in: self._runner.pools.room(run_in) for run_in in POOLS}
        for bound in types:
            if bound.coming:
                rooms[bound.run_in] = max(0, rooms[bound.run_in] - self._coming_calls(bound))
        return rooms

    def _coming_calls(self, bound: BoundType) -> int:
        batch = bound.type.batch
        if batch is None:
            return bound.coming
        flushed = bound.coming - len(self._buffers.get(bound.name, ()))
        return math.ceil(flushed / batch.size)

    def add(self, held: HeldLease) -> None:
        bound = held.bound
        batch = bound.type.batch
        assert batch is not None
        buffer = self._buffers.setdefault(bound.name, [])
        buffer.append(held)
        if len(buffer) >= batch.size:
            self._flush(bound, buffer)
        elif len(buffer) == 1:
            self._runner.timers.after(batch.max_wait, functools.partial(self._flush, bound, buffer))

    def remove(self, held: HeldLease) -> None:
        """Forget an item that is over."""
        name = held.bound.name
        buffer = self._buffers.get(name, [])
        if held in buffer:
            buffer.remove(held)
            if not buffer:
                del self._buffers[name]  # with its timer: `max_wait` counts from the next item

    def flush(self) -> None:
        """Run what has been collected, full or not."""
        for buffer in list(self._buffers.values()):
            if buffer:
                self._flush(buffer[0].bound, buffer)

    def clear(self) -> list[HeldLease]:
        """Empty the buffers and return what was in them."""
        collected = [held for buffer in self._buffers.values() for held in buffer]
        self._buffers.clear()
        return collected

    def _flush(self, bound: BoundType, buffer: list[HeldLease]) -> None:
        if self._buffers.get(bound.name) is not buffer:
            return  # it was full before `max_wait`
        del self._buffers[bound.name]
        items = _unfinished(buffer)
        buffer.clear()  # its timer may refer to it for a while
        if items:
            self._start(bound, items[0], functools.partial(self._run, bound, items))

    async def _run(self, bound: BoundType, collected: list[HeldLease]) -> None:
        # The call is one attempt for all items. Only its timeout, a stopping worker and a lapsed lease end
        # the whole call. A cancelled or expired item loses its part of the outcome.
        batch = BatchCall(bound, task=asyncio.current_task())
        for held in collected:
            held.batch = batch
            held.arrive()
        async with self._runner.pools.place(bound.run_in):
            await self._call(batch, collected)
        if batch.stop is not None:
            self._runner.on_free()

    async def _call(self, batch: BatchCall, collected: list[HeldLease]) -> None:
        runner, bound = self._runner, batch.bound
        try:
            for held in collected:
                if not held.over:
                    await runner.prepare(held)
            if bound.run_in == "process":
                await runner.pools.processes().ready()
        except Exception as own:  # noqa: BLE001  not of the handler: no thread could be started
            runner.give_back_unbegun(collected, own)
            return
        items = await runner.begin_in_store([held for held in collected if runner.may_begin(held)])
        if not items:
            return
        batch.items = items
        for held in items:
            runner.begin(held)
        running = RUNNING.set(batch) if bound.keeps_logs else None
        with nullcontext() if runner.tracer is None else runner.tracer.start(items, batch=True):
            inputs = [next(iter(held.input.values())) for held in items]
            args: tuple[Any, ...] = (inputs,)
            if bound.wants_contexts:
                args = ([runner.new_context(held) for held in items], inputs)
            value, error = await _outcome(runner.call(batch, args, {}))
        if running is not None:
            RUNNING.reset(running)
        for held, output in zip(items, _outputs(bound, len(items), value, error), strict=True):
            self._settle(held, batch, output)

    def _settle(self, held: HeldLease, batch: BatchCall, output: object) -> None:
        held.stop = held.stop or batch.stop
        # Not isinstance: `__class__` of an output may raise.
        error = cast("BaseException", output) if issubclass(type(output), BaseException) else None
        decision = self._runner.decide(held, None if error is not None else output, error)
        if decision is None:
            self._settler.abandon(held)
        else:
            held.over = True
            self._settler.decided(held, decision)


async def _outcome(call: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What a handler returned or raised. Also SystemExit and the like: the worker goes on."""
    try:
        return await call, None
    except BaseException as error:  # noqa: BLE001
        return None, error


def _unfinished(items: list[HeldLease]) -> list[HeldLease]:
    """Those that were neither settled nor lost while they waited."""
    return [held for held in items if not held.over]


def _outputs(bound: BoundType, count: int, value: object, error: BaseException | None) -> Sequence[object]:
    """An output or an error for each of `count` inputs."""
    if error is not None:
        return [error] * count
    try:
        outputs = _listed(bound, value)
    except BaseException as own:  # noqa: BLE001  a list of the user's own class may raise anything
        return [own] * count
    return outputs if len(outputs) == count else [WrongLength(bound.name, len(outputs), count)] * count


def _listed(bound: BoundType, value: object) -> list[object]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise BadResultError(bound.name, f"a batch returns a list of outputs, not {shown(value)}")
    return list(cast("Sequence[object]", value))
