"""Combined writes, with a task and without one."""

from __future__ import annotations

import asyncio
import contextvars

from treadle.engine.tasks import MOST_IN_A_ROW, Combiner, Tasks

seen = contextvars.ContextVar("seen", default="")


class Writes:
    """Takes batches. While `gate` is not set, it waits."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.contexts: list[str] = []
        self.errors: list[BaseException] = []
        self.tasks = Tasks(lambda error, _: self.errors.append(error))
        self.combiner: Combiner[int] = Combiner(self._write, self.tasks, name="write", at_once=True)

    async def _write(self, batch: list[int]) -> None:
        self.contexts.append(seen.get())
        if not self.gate.is_set():
            await self.gate.wait()
        self.batches.append(batch)
        if 13 in batch:
            raise ValueError("13")


async def test_a_write_that_does_not_wait_needs_no_turn_of_the_loop() -> None:
    writes = Writes()
    writes.combiner.add(1)
    writes.combiner.add(2)
    assert writes.batches == [[1], [2]]
    assert not writes.combiner.busy


async def test_the_loop_turns_after_so_many_writes() -> None:
    writes = Writes()
    for n in range(MOST_IN_A_ROW + 3):
        writes.combiner.add(n)
    assert len(writes.batches) == MOST_IN_A_ROW
    await writes.combiner.flush()
    assert writes.batches[MOST_IN_A_ROW:] == [[MOST_IN_A_ROW, MOST_IN_A_ROW + 1, MOST_IN_A_ROW + 2]]
    writes.combiner.add(99)
    assert writes.batches[-1] == [99]


async def test_a_write_that_waits_goes_on_in_a_task_and_the_next_collect() -> None:
    writes = Writes()
    writes.gate.clear()
    for n in range(3):
        writes.combiner.add(n)
    assert writes.combiner.busy
    assert writes.batches == []
    await asyncio.sleep(0)
    writes.gate.set()
    await writes.combiner.flush()
    assert writes.batches == [[0], [1, 2]]


async def test_a_write_does_not_see_the_context_of_its_caller() -> None:
    writes = Writes()
    seen.set("the caller's")
    writes.combiner.add(1)
    assert writes.contexts == [""]


async def test_an_error_of_a_write_is_reported_and_the_next_is_written() -> None:
    writes = Writes()
    writes.combiner.add(13)
    writes.combiner.add(14)
    assert [str(error) for error in writes.errors] == ["13"]
    writes.gate.clear()
    writes.combiner.add(13)
    writes.gate.set()
    await writes.combiner.flush()
    assert [str(error) for error in writes.errors] == ["13", "13"]
    assert writes.batches == [[13], [14], [13]]


async def test_a_write_that_waits_can_be_cancelled() -> None:
    writes = Writes()
    writes.gate.clear()
    writes.combiner.add(1)
    await asyncio.sleep(0)
    await writes.tasks.cancel()
    assert not writes.combiner.busy
    writes.gate.set()
    writes.combiner.add(2)
    assert writes.batches == [[2]]


class LateWrites:
    """Takes batches of up to 3, each when `gate` is set. `may_begin`: in the task of a caller."""

    def __init__(self, *, may_begin: bool) -> None:
        self.begun: list[list[int]] = []
        self.written: list[list[int]] = []
        self.gate = asyncio.Event()
        self.errors: list[BaseException] = []
        self.tasks = Tasks(lambda error, _: self.errors.append(error))
        self.combiner: Combiner[int] = Combiner(
            self._write, self.tasks, name="write", limit=3, may_begin=lambda: may_begin
        )

    async def _write(self, batch: list[int]) -> None:
        self.begun.append(batch)
        await self.gate.wait()
        self.written.append(batch)
        if 13 in batch:
            raise ValueError("13")


async def test_a_full_batch_is_begun_in_the_turn_of_its_callers() -> None:
    """The others follow one after the other, as if the task had begun."""
    writes = LateWrites(may_begin=True)
    for n in range(8):
        writes.combiner.add(n)
    assert writes.begun == [[0, 1, 2]]
    await asyncio.sleep(0)
    assert writes.begun == [[0, 1, 2]]
    assert writes.combiner.busy
    writes.gate.set()
    await writes.combiner.flush()
    assert writes.written == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert not writes.combiner.busy


async def test_a_full_batch_waits_for_the_next_turn_if_it_must_not_begin() -> None:
    writes = LateWrites(may_begin=False)
    for n in range(4):
        writes.combiner.add(n)
    assert writes.begun == []
    writes.gate.set()
    await writes.combiner.flush()
    assert writes.written == [[0, 1, 2], [3]]


async def test_an_error_of_a_batch_that_was_begun_early_is_reported() -> None:
    writes = LateWrites(may_begin=True)
    for n in range(12, 17):
        writes.combiner.add(n)
    writes.gate.set()
    await writes.combiner.flush()
    assert [str(error) for error in writes.errors] == ["13"]
    assert writes.written == [[12, 13, 14], [15, 16]]


async def test_a_batch_that_was_begun_early_is_awaited_although_its_task_was_cancelled() -> None:
    """No two batches are written at a time."""
    writes = LateWrites(may_begin=True)
    for n in range(3):
        writes.combiner.add(n)
    (task,) = [each for each in asyncio.all_tasks() if each.get_coro().__name__ == "_run"]  # type: ignore[union-attr]
    task.cancel()
    await asyncio.wait({task})
    for n in range(3, 7):
        writes.combiner.add(n)
    await asyncio.sleep(0)
    assert writes.begun == [[0, 1, 2]]
    writes.gate.set()
    await writes.combiner.flush()
    assert writes.written == [[0, 1, 2], [3, 4, 5], [6]]
