"""Wrapped backends: faults and counts."""

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


WITHIN = ("settle", "submit", "record", "get", "claim_key")


def test_every_verb_is_wrapped() -> None:
    """A verb that is not wrapped would return None."""
    steps = {"begin", "commit", *(f"{verb}_within" for verb in WITHIN)}
    wrapped = set(vars(WrappedBackend))
    assert wrapped >= VERBS - steps
    assert len(VERBS) > 30


def test_an_unknown_verb_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'setle': did you mean 'settle'\?"):
        Faults().fail("setle")
    with pytest.raises(ValueError, match=r"'save': .*\bclaim\b.*\bsubmit\b"):
        Faults().fail("save")


async def test_fail_before_a_call(backend: FaultyBackend) -> None:
    fault = backend.faults.fail("submit")
    with pytest.raises(StoreUnavailable):
        await backend.submit([submission("a")])
    assert (await stored(backend), fault.hits) == ([], 1)
    await backend.submit([submission("a")])
    assert (await stored(backend), fault.hits) == (["a"], 1)


async def test_fail_after_a_call(backend: FaultyBackend) -> None:
    backend.faults.fail("submit", when="after")
    with pytest.raises(StoreUnavailable):
        await backend.submit([submission("a")])
    assert await stored(backend) == ["a"]


async def test_fail_now_and_carry_out_later(backend: FaultyBackend) -> None:
    fault = backend.faults.fail("submit", when="later")
    with pytest.raises(StoreUnavailable):
        await backend.submit([submission("a")])
    assert await stored(backend) == []
    fault.release()
    await fault.landed()
    assert await stored(backend) == ["a"]


async def test_error_times_skip_and_match(backend: FaultyBackend) -> None:
    """The fault raises the given error, from the second matching call on."""
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
async def test_hold_calls_back(backend: FaultyBackend, when: str, there: list[str]) -> None:
    fault = backend.faults.hold("submit", when=when)  # type: ignore[arg-type]
    call = asyncio.ensure_future(backend.submit([submission("a")]))
    await fault.reached()
    await asyncio.sleep(0)
    assert (await stored(backend), call.done()) == (there, False)
    fault.release()
    await call
    assert await stored(backend) == ["a"]


async def test_repeat_a_call(backend: FaultyBackend) -> None:
    counting = CountingBackend(backend.inner)
    backend = FaultyBackend(counting)
    backend.faults.repeat("beat")
    reply = await backend.beat(Heartbeat(worker="w", lease=10))
    assert (reply.fresh, counting.calls["beat"]) == (False, 2)


async def test_wakeups_are_dropped(backend: FaultyBackend) -> None:
    received: list[Wake] = []
    await backend.subscribe(received.append)
    backend.faults.drop(times=1)
    await backend.publish(Wake(sender="lost"))
    await backend.publish(Wake(sender="kept"))
    await asyncio.sleep(0)
    assert [wake.sender for wake in received] == ["kept"]


async def test_outage_strikes_every_call(backend: FaultyBackend) -> None:
    """It comes before other faults, and it ends with the block."""
    other = backend.faults.fail("now", error=lambda: BackendError("other"))
    with backend.faults.outage() as outage, pytest.raises(StoreUnavailable):
        await backend.now()
    assert (outage.hits, other.hits) == (1, 0)
    backend.faults.clear()
    await backend.now()


async def test_calls_and_sizes_are_counted() -> None:
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
