"""Wake-ups that treadle did not write: any role that may write to the channel can send them."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable, Iterator

import pytest

from treadle.backends.postgres.pubsub_wakeups import PubSubWakeups
from treadle.backends.postgres.sealing import UNSEALED_WAKE, WakeSeal
from treadle.backends.postgres.wakeups import PostgresListener
from treadle.backends.sqlite.wakeups import _wakes  # pyright: ignore[reportPrivateUsage]
from treadle.engine.run.built_in import met_dependency
from treadle.errors import DecodeError
from treadle.item import Lease, Wake, WakeResult
from treadle.ports import memory_pubsub
from treadle.ports.pointers import read_pointer
from treadle.ports.wakeups import PortsSubscription
from treadle.testing.contract.wakeups import WakeRecorder

HOSTILE = {
    "arrays": "[" * 7900,
    "objects": '{"a":' * 1500,
    "deep field": '{"other":' + "[" * 3900 + "]" * 3900 + "}",
    "deep ref": '{"items":[' + "[" * 3900 + "]" * 3900 + "]}",
    "wrong type": '{"items":7}',
    "no JSON": "\x00",
}


@pytest.fixture(params=HOSTILE.values(), ids=HOSTILE.keys())
def hostile(request: pytest.FixtureRequest) -> str:
    text: str = request.param
    return text


async def test_a_hostile_notification_is_ignored(hostile: str) -> None:
    """The listener goes on, and delivers what was sealed with the key of the schema."""
    received: list[Wake] = []
    seal = WakeSeal()
    seal.use("key")
    listener = PostgresListener(_no_connection, _send_nothing, "treadle", seal)
    listener._receivers.add(received.append)  # pyright: ignore[reportPrivateUsage]
    notify: Callable[[object, int, str, object], None] = listener._on_notify  # pyright: ignore[reportPrivateUsage]
    notify(None, 1, "treadle", hostile)
    assert received == []
    notify(None, 1, "treadle", UNSEALED_WAKE)
    notify(None, 1, "treadle", seal.sealed(Wake(items=(("t", "a"),))))
    assert received == [Wake(ready=True), Wake(items=(("t", "a"),))]


def test_a_payload_that_is_too_long_has_no_results() -> None:
    """The ids go without them. Nothing of a result can be seen in a payload."""
    seal, reader, other = WakeSeal(), WakeSeal(), WakeSeal()
    seal.use("key")
    reader.use("key")
    other.use("other key")
    ids = tuple(("t", f"{n:x}") for n in range(150))
    result = WakeResult("w", 1.5, b"secret", ends_group=False)
    short, long = (
        Wake(items=ids, results=(result,) * 150),
        Wake(items=ids, results=tuple(_random_results(150))),
    )
    assert reader.opened(seal.sealed(short)) == short
    assert reader.opened(seal.sealed(long)) == Wake(items=ids)
    assert other.opened(seal.sealed(short)) is None
    lone = seal.sealed(Wake(items=ids[:1], results=(result,)))
    assert b"secret" not in base64.b64decode(lone)
    assert b"c2VjcmV0" not in base64.b64decode(lone)


def test_a_wake_up_with_many_ids_is_several_payloads() -> None:
    seal, reader = WakeSeal(), WakeSeal()
    seal.use("key")
    reader.use("key")
    ids = tuple(("t", f"{n:x}") for n in range(400))
    results = tuple(WakeResult("w", float(n), b"1", ends_group=True) for n in range(200))
    sent = Wake(sender="s", ready=True, items=ids, results=results, groups=ids[:151], awaited=ids[:1])
    payloads = seal.payloads(sent)
    received = [wake for text in payloads if (wake := reader.opened(text)) is not None]
    assert [len(wake.items) for wake in received] == [150, 150, 100]
    assert [wake.ready for wake in received] == [True, False, False]
    assert tuple(ref for wake in received for ref in wake.items) == ids
    assert tuple(result for wake in received for result in wake.results) == results
    assert tuple(ref for wake in received for ref in wake.groups) == ids[:151]
    assert [len(wake.awaited) for wake in received] == [1, 0, 0]
    assert {wake.sender for wake in received} == {"s"}


def test_a_payload_of_this_process_is_known_once() -> None:
    """When it comes back. Sent again by a stranger, it is opened like any other."""
    seal = WakeSeal()
    seal.use("key")
    sent = Wake(sender="s", items=(("t", "a"),))
    text = seal.sealed(sent)
    assert seal.opened(text) is sent
    assert seal.opened(text) == sent
    assert seal.opened(text) is not sent
    for _ in range(200):
        seal.sealed(sent)
    assert len(seal._own) <= 64  # pyright: ignore[reportPrivateUsage]


def _random_results(count: int) -> Iterator[WakeResult]:
    return (WakeResult("w", 1.5, os.urandom(100), ends_group=False) for _ in range(count))


async def test_a_hostile_message_of_another_server_is_ignored(hostile: str) -> None:
    """Nobody but treadle sends wake-ups there, so not even an unsealed one is read."""
    seal, pubsub = WakeSeal(), memory_pubsub()
    seal.use("key")
    wakeups = PubSubWakeups(pubsub, seal, owned=False)
    recorder = WakeRecorder()
    await wakeups.subscribe(recorder)
    for text in (hostile, UNSEALED_WAKE, "x" * 10_000_000):
        pubsub.publish(text)
    await wakeups.publish(Wake(items=(("t", "a"),)))
    await recorder.wait_for({("t", "a")})
    assert recorder.wakes == [Wake(items=(("t", "a"),))]
    await wakeups.close()


async def _send_nothing(payloads: list[str]) -> None: ...


async def _no_connection() -> None:  # type: ignore[misc]
    raise AssertionError("it does not listen")


def test_a_hostile_message_in_a_pipe_is_ignored(hostile: str) -> None:
    assert without_empty(_wakes([hostile.encode(), b'{"ready":true}'])) == [Wake(ready=True)]


def without_empty(wakes: list[Wake]) -> list[Wake]:
    """Python 3.13 reads the deep field, and leaves it out. An empty wake-up wakes nobody."""
    return [wake for wake in wakes if wake != Wake()]


async def test_a_hostile_message_of_a_port_is_ignored(hostile: str) -> None:
    received: list[Wake] = []
    subscription = PortsSubscription(received.append)
    subscription.receive(hostile)
    subscription.receive('{"ready":true}')
    await asyncio.sleep(0)
    assert without_empty(received) == [Wake(ready=True)]
    assert read_pointer(hostile) is None


def test_a_hostile_dependency_cannot_be_decoded(hostile: str) -> None:
    """A worker settles it as undecodable. It used to stop the claims of the worker."""
    lease = Lease("a", "default", 1, "treadle.dependency", hostile.encode(), 1, "a")
    with pytest.raises(DecodeError):
        met_dependency(lease)
