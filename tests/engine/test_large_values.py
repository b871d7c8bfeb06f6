"""Large inputs and results are decoded in a thread, small ones on the event loop."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, failure, until
from treadle import Context, default_codec, work
from treadle.codec.json_codec import LARGE

memory_only = pytest.mark.parametrize("store", ["memory"], indirect=True)  # the store is not involved


class Recording:
    """A codec that notes on which threads it decodes. Data that says `broken` cannot be decoded."""

    def __init__(self) -> None:
        self.decoded: list[bool] = []
        """Whether each value was decoded on the thread of the event loop."""
        self.error: BaseException = ValueError("broken")

    def encode(self, value: Any) -> bytes:
        return default_codec.encode(value)

    def decode(self, data: bytes) -> Any:
        self.decoded.append(threading.current_thread() is threading.main_thread())
        if b"broken" in data:
            raise self.error
        return default_codec.decode(data)


@work(name="same")
async def same(text: str) -> str:
    return text


@work.batch(name="several", size=2, max_wait=0.01)
async def several(texts: list[str]) -> list[str]:
    return texts


@memory_only
@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batch"])
async def test_only_large_values_are_decoded_in_a_thread(
    make_app: MakeApp, sound: None, size: int, batched: bool
) -> None:
    """The input for the handler; the result for every way to read it; the group's value."""
    codec, text = Recording(), "x" * size
    type_ = several if batched else same
    async with make_app(same, several, codec=codec) as app:
        assert await app.enqueue(type_(text)).result(PATIENCE) == text
        handle = await app.enqueue(type_(text))
        assert (await handle.result(PATIENCE), await handle.group(PATIENCE)) == (text, text)
        assert ((await handle.state()).result, (await app.list()).items[0].result) == (text, text)
        assert await app.enqueue(type_(text)).group(PATIENCE) == text
    assert set(codec.decoded) == {size < LARGE}


@memory_only
@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(1), StopIteration()], ids=repr)
async def test_a_large_input_that_cannot_be_decoded_is_dead(
    make_app: MakeApp, sound: None, error: BaseException
) -> None:
    codec = Recording()
    codec.error = error
    async with make_app(same, several, codec=codec, undecodable_grace=0) as app:
        for type_ in (same, several):
            died = await failure(app.enqueue(type_("broken" + "x" * LARGE)).result(PATIENCE))
            assert (died.reason, died.attempts) == ("undecodable", 1)


@memory_only
async def test_an_item_that_is_cancelled_while_it_is_decoded_does_not_run(
    make_app: MakeApp, sound: None
) -> None:
    begun, go, ran = threading.Event(), threading.Event(), Barrier()

    class Slow(Recording):
        def decode(self, data: bytes) -> Any:
            begun.set()
            go.wait(PATIENCE)
            return super().decode(data)

    @work(name="slow", codec=Slow())
    async def slow(ctx: Context, text: str) -> None:
        ran.count += 1

    async with make_app(slow, same) as app:
        handle = await app.enqueue(slow("x" * LARGE))
        await until(begun.is_set)
        # The loop is free meanwhile.
        assert await app.enqueue(same("small")).result(PATIENCE) == "small"
        await handle.cancel()
        await until(lambda: app.active() == [])
        go.set()
    assert ran.count == 0
