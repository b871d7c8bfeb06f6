"""Wake-ups that treadle did not write: any role that may write to the channel can send them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from treadle.backends.postgres.schema import Connection
from treadle.backends.postgres.wakeups import NotifyWakeups, PubSubWakeups, WakeSignature, payloads
from treadle.backends.sqlite.wakeups import _wakes  # pyright: ignore[reportPrivateUsage]
from treadle.engine.run.built_in import met_dependency
from treadle.errors import DecodeError
from treadle.item import Lease, Wake, WakeResult
from treadle.ports import memory_pubsub
from treadle.ports.async_ports import read_pointer
from treadle.ports.wakeups import PortsSubscription
from treadle.store.wakeups import decode_wake
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
    """The listener goes on. It believes what is signed, and that there may be something to claim."""
    received: list[Wake] = []
    signature = WakeSignature()
    wakeups = NotifyWakeups(_no_connection, _no_channel, _send_nothing, signature)
    wakeups._receivers.add(received.append)  # pyright: ignore[reportPrivateUsage]
    notify: Callable[[str], None] = wakeups._on_notify  # pyright: ignore[reportPrivateUsage]
    for text in (hostile, '{"items":[["t","b"]]}', signature.signed(hostile)):
        notify(text)
    notify('{"ready":true}')
    notify(signature.signed('{"items":[["t","a"]]}'))
    assert received == [Wake(ready=True), Wake(items=(("t", "a"),))]


def test_a_wake_up_with_many_ids_is_several_payloads() -> None:
    ids = tuple(("t", f"{n:032x}") for n in range(400))
    results = tuple(WakeResult("w", float(n), b"1", ends_group=True) for n in range(200))
    sent = Wake(sender="s", ready=True, items=ids, results=results, groups=ids[:151], awaited=ids[:1])
    texts = payloads(sent)
    received = [wake for text in texts if (wake := decode_wake(text)) is not None]
    assert all(len(text) <= 7900 for text in texts)
    assert 4 <= len(received) == len(texts) <= 8
    assert [wake.ready for wake in received] == [True] + [False] * (len(texts) - 1)
    assert tuple(ref for wake in received for ref in wake.items) == ids
    assert tuple(result for wake in received for result in wake.results) == results
    assert [len(wake.items) >= len(wake.results) for wake in received]
    assert tuple(ref for wake in received for ref in wake.groups) == ids[:151]
    assert sum(len(wake.awaited) for wake in received) == 1
    assert {wake.sender for wake in received} == {"s"}


def test_a_payload_that_is_too_long_says_less() -> None:
    """A lone item goes without its result; what cannot be named is everything."""
    result = WakeResult("w", 1.5, b"x" * 8000, ends_group=False)
    (text,) = payloads(Wake(sender="s", items=(("t", "a"),), results=(result,)))
    assert decode_wake(text) == Wake(sender="s", items=(("t", "a"),))
    (text,) = payloads(Wake(sender="s", items=(("é" * 8000, "a"),)))
    assert decode_wake(text) == Wake(sender="s", ready=True, everything=True)


async def test_a_hostile_message_of_another_server_is_ignored(hostile: str) -> None:
    """One without a signature too."""
    pubsub = memory_pubsub()
    wakeups = PubSubWakeups(pubsub, WakeSignature(), owned=False)
    recorder = WakeRecorder()
    await wakeups.subscribe(recorder)
    for text in (hostile, '{"ready":true}', "x" * 10_000_000):
        pubsub.publish(text)
    await wakeups.publish(Wake(items=(("t", "a"),)))
    await recorder.wait_for({("t", "a")})
    assert recorder.wakes == [Wake(items=(("t", "a"),))]
    await wakeups.close()


async def _send_nothing(payloads: list[str]) -> None: ...


async def _no_connection() -> Connection:
    raise AssertionError("it does not listen")


async def _no_channel(connection: Connection) -> str:
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
