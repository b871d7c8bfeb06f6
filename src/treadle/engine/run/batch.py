"""Batch: items of one type that share a call of its handler.

Flushed at `size`, or `max_wait` after the first. Outputs align with inputs by index; an exception in the list
of outputs fails only its item; a wrong length, or a raise, fails them all, each down its own retry.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, cast

from treadle.engine.submit.build_item import PLAIN
from treadle.errors import BadResultError

from .attempt import AttemptRunner, outcome
from .desk import Desk
from .held import BoundType, HeldLease

Start: TypeAlias = Callable[[BoundType, HeldLease, Callable[[], Coroutine[Any, Any, None]]], None]


class WrongLength(ValueError):
    """A batch handler must return one output for each input."""

    def __init__(self, name: str, outputs: int, inputs: int) -> None:
        super().__init__(f'batch "{name}" returned {outputs} outputs for {inputs} inputs')


class Batches:
    """The buffers of a worker, one per batch type. The type's doer bounds batches in flight."""

    def __init__(self, runner: AttemptRunner, desk: Desk, start: Start) -> None:
        self._runner = runner
        self._desk = desk
        self._start = start
        self._buffers: dict[str, list[HeldLease]] = {}

    def room(self, bound: BoundType, batches: int) -> int:
        """How many more items to claim, given how many batches may start now."""
        batch = bound.type.batch
        assert batch is not None
        return max(0, batches * batch.size - len(self._buffers.get(bound.name, ())))

    def add(self, active: HeldLease) -> None:
        bound = active.bound
        batch = bound.type.batch
        assert batch is not None
        buffer = self._buffers.setdefault(bound.name, [])
        buffer.append(active)
        if len(buffer) >= batch.size:
            buffer[:] = _live(buffer)
        if len(buffer) >= batch.size:
            self._flush(bound, buffer)
        elif len(buffer) == 1:
            self._runner.alarm.after(batch.max_wait, functools.partial(self._flush, bound, buffer))

    def flush(self) -> None:
        """Run what has been collected, full or not."""
        for buffer in list(self._buffers.values()):
            if buffer:
                self._flush(buffer[0].bound, buffer)

    def drop(self) -> list[HeldLease]:
        """Forget what has been collected, and give it back."""
        actives = [active for buffer in self._buffers.values() for active in buffer]
        self._buffers.clear()
        return actives

    def _flush(self, bound: BoundType, buffer: list[HeldLease]) -> None:
        if self._buffers.get(bound.name) is not buffer:
            return  # it was full before its time was up
        del self._buffers[bound.name]
        actives = _live(buffer)
        buffer.clear()  # its alarm may hold it for a while
        if actives:
            self._start(bound, actives[0], functools.partial(self._run, bound, actives))

    async def _run(self, bound: BoundType, collected: list[HeldLease]) -> None:
        actives = _live([active for active in _live(collected) if await self._runner.accepted(active)])
        if not actives:
            return
        # The call is one attempt for all of them. It can be stopped as a whole only: by its timeout, or when
        # the worker stops. What stops one item (a cancel, a deadline) takes its share of the outcome away.
        carrier = HeldLease(actives[0].lease, bound, {}, PLAIN, actives[0].received)
        carrier.task = asyncio.current_task()
        carrier.members = actives
        for active in actives:
            self._runner.begin(active)
            active.carrier = carrier
        inputs = [next(iter(active.input.values())) for active in actives]
        value, error = await outcome(self._runner.call(carrier, (inputs,), {}))
        carrier.over = True
        for active, output in zip(actives, _outputs(bound, len(actives), value, error), strict=True):
            self._decide(active, carrier, output)

    def _decide(self, active: HeldLease, carrier: HeldLease, output: object) -> None:
        active.stop = active.stop or carrier.stop
        error = output if isinstance(output, BaseException) else None
        decision = self._runner.verdict(active, None if error is not None else output, error)
        if decision is not None:
            active.over = True
            self._desk.decided(active, decision)


def _live(actives: list[HeldLease]) -> list[HeldLease]:
    """Those that nobody has settled, or taken away, while they waited."""
    return [active for active in actives if not active.over]


def _outputs(bound: BoundType, count: int, value: object, error: BaseException | None) -> Sequence[object]:
    """An output or an error for each of `count` inputs."""
    if error is not None:
        return [error] * count
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return [BadResultError(bound.name, f"a batch returns a list of outputs, not {value!r:.80}")] * count
    outputs = cast("Sequence[object]", value)
    if len(outputs) != count:
        return [WrongLength(bound.name, len(outputs), count)] * count
    return outputs
