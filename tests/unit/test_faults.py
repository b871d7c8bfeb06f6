"""Backends around a backend: what they make of its calls."""

from __future__ import annotations

import asyncio

import pytest

from treadle.backends.memory import MemoryBackend
from treadle.errors import BackendError, StoreUnavailable
from treadle.item import Demand, Heartbeat, Item, Submission, Wake
from treadle.testing.counting import CountingBackend
from treadle.testing.faults import Faults, FaultyBackend
from treadle.testing.wrap import VERBS, WrappedBackend


def submission(*ids: str) -> Submission:
    return Submission(tuple(Item(id=id, type="t", input=b"{}") for id in ids))


async def stored(backend: WrappedBackend) -> list[str]:
    items = await backend.inner.get(["a", "b"])
    return [item.id for item in items if item is not None]


@pytest.fixture
def backend() -> FaultyBackend:
    return FaultyBackend(MemoryBackend())


def test_every_verb_is_wrapped() -> None:
    """One that is not would answer None."""
    steps = {"begin", "settle_within", "commit"}
    assert vars(WrappedBackend).keys() >= VERBS - steps
    assert len(VERBS) > 30


def test_a_verb_that_no_backend_has() -> None:
    with pytest.raises(ValueError, match="setle"):
        Faults().fail("setle")


async def test_before_it_happened(backend: FaultyBackend) -> None:
    fault = backend.faults.fail("submit")
    with pytest.raises(StoreUnavailable):
        await backend.submit([submission("a")])
    assert (await stored(backend), fault.hits) == ([], 1)
    await backend.submit([submission("a")])
    assert (await stored(backend), fault.hits) == (["a"], 1)


async def test_after_it_happened(backend: FaultyBackend) -> None:
    backend.faults.fail("submit", when="after")
    with pytest.raises(StoreUnavailable):
        await backend.submit([submission("a")])
    assert await stored(backend) == ["a"]


async def test_later(backend: FaultyBackend) -> None:
    fault = backend.faults.fail("submit", when="later")
    with pytest.raises(StoreUnavailable):
        await backend.submit([submission("a")])
    assert await stored(backend) == []
    fault.release()
    await fault.landed()
    assert await stored(backend) == ["a"]


async def test_which_calls(backend: FaultyBackend) -> None:
    """An error of one's own, the second call on, and only those that match."""
    fault = backend.faults.fail(
        "submit",
        times=None,
        skip=1,
        error=lambda: BackendError("no"),
        match=lambda submissions: submissions[0].items[0].id == "a",
    )
    await backend.submit([submission("b")])
    await backend.submit([submission("a")])
    for _ in range(2):
        with pytest.raises(BackendError, match="no"):
            await backend.submit([submission("a")])
    assert fault.hits == 2
    fault.end()
    await backend.submit([submission("a")])


@pytest.mark.parametrize(("when", "there"), [("before", []), ("after", ["a"])])
async def test_hold(backend: FaultyBackend, when: str, there: list[str]) -> None:
    fault = backend.faults.hold("submit", when=when)  # type: ignore[arg-type]
    call = asyncio.ensure_future(backend.submit([submission("a")]))
    await fault.reached()
    await asyncio.sleep(0)
    assert (await stored(backend), call.done()) == (there, False)
    fault.release()
    await call
    assert await stored(backend) == ["a"]


async def test_repeat(backend: FaultyBackend) -> None:
    counting = CountingBackend(backend.inner)
    backend = FaultyBackend(counting)
    backend.faults.repeat("beat")
    pulse = await backend.beat(Heartbeat(worker="w", lease=10))
    assert (pulse.fresh, counting.calls["beat"]) == (False, 2)


async def test_signals_are_dropped(backend: FaultyBackend) -> None:
    heard: list[Wake] = []
    await backend.subscribe(heard.append)
    backend.faults.drop(times=1)
    await backend.publish(Wake(sender="lost"))
    await backend.publish(Wake(sender="kept"))
    await asyncio.sleep(0)
    assert [wake.sender for wake in heard] == ["kept"]


async def test_outage(backend: FaultyBackend) -> None:
    """It comes before every other fault, and it ends."""
    other = backend.faults.fail("now", error=lambda: BackendError("other"))
    with backend.faults.outage() as outage, pytest.raises(StoreUnavailable):
        await backend.now()
    assert (outage.hits, other.hits) == (1, 0)
    backend.faults.clear()
    await backend.now()


async def test_counts() -> None:
    backend = CountingBackend(MemoryBackend())
    await backend.beat(Heartbeat(worker="w", lease=10))
    await backend.submit([submission("a"), submission("b")])
    for _ in range(2):
        await backend.claim(Demand(worker="w", limit=10))
    await backend.ended([("default", "a")], [("default", "b")])
    assert backend.sizes == {"beat": [1], "submit": [2], "claim": [2, 0], "ended": [2]}
    assert (backend.useful("claim"), backend.total("claim", "beat"), backend.total()) == (1, 3, 5)
    backend.reset()
    assert backend.total() == 0
