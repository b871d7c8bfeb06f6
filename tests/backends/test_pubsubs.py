"""RedisPubSub and NatsPubSub on real servers: the contract, and servers that go away."""

from __future__ import annotations

import asyncio
import builtins
import gc
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.backends.test_redis_life import certificate
from tests.support.nats import NatsServer
from tests.support.redis_proxy import RedisProxy
from tests.support.valkey import ValkeyServer, free_ports
from treadle import Treadle, work
from treadle.errors import InputError, StoreUnavailable
from treadle.ports import NatsPubSub, PortsBackend, RedisPubSub, memory_queue, memory_store
from treadle.testing import PubSubContract
from treadle.testing.contract.port_contracts import MessageRecorder

AnyPubSub = RedisPubSub | NatsPubSub
Make = Callable[[], AnyPubSub]
Server = ValkeyServer | NatsServer

_names = (f"test.{os.getpid()}.{n}" for n in count())


class TestRedisPubSub(PubSubContract):
    @pytest.fixture
    async def pubsub(self, valkey: str) -> AsyncIterator[RedisPubSub]:
        pubsub = RedisPubSub(valkey, channel=next(_names))
        yield pubsub
        await pubsub.close()


class TestNatsPubSub(PubSubContract):
    @pytest.fixture
    async def pubsub(self, nats_url: str) -> AsyncIterator[NatsPubSub]:
        pubsub = NatsPubSub(nats_url, subject=next(_names))
        yield pubsub
        await pubsub.close()


@pytest.fixture(params=["redis", "nats"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make(kind: str, request: pytest.FixtureRequest) -> Make:
    """Makes PubSubs on the server of the run, all with the same channel."""
    url, name = request.getfixturevalue("valkey" if kind == "redis" else "nats_url"), next(_names)
    return (
        (lambda: RedisPubSub(url, channel=name)) if kind == "redis" else lambda: NatsPubSub(url, subject=name)
    )


@pytest.fixture
def server(kind: str, run_directory: Path) -> Iterator[Server]:
    """A server of this test only. Not started."""
    home = run_directory / f"{'valkey' if kind == 'redis' else 'nats'}-{next(_names)}"
    made: Server = ValkeyServer(home) if kind == "redis" else NatsServer(home)
    yield made
    made.remove()


def pubsub_of(server: Server) -> AnyPubSub:
    return RedisPubSub(server.url) if isinstance(server, ValkeyServer) else NatsPubSub(server.url)


async def publish_when_possible(pubsub: AnyPubSub, message: str) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                return await pubsub.publish(message)
            except StoreUnavailable:
                await asyncio.sleep(0.02)


async def publish_until_it_fails(pubsub: AnyPubSub) -> None:
    async with asyncio.timeout(10):
        while True:
            await pubsub.publish("meanwhile")
            await asyncio.sleep(0.001)


async def test_messages_of_another_process_arrive(make: Make) -> None:
    """Another object with other connections is the same as another process."""
    one, two = make(), make()
    recorder = MessageRecorder()
    await one.subscribe(recorder)
    await two.publish("x")
    await recorder.wait_for("x")
    await one.close()
    await two.close()


async def test_a_message_right_after_the_subscription_arrives(make: Make) -> None:
    """The server knows of the subscription when `subscribe` returns. With one PING the driver of NATS could
    send the subscription after it."""
    other = make()
    await other.publish("connect")
    for n in range(30):
        one, recorder = make(), MessageRecorder()
        await one.subscribe(recorder)
        await other.publish(f"{n}")
        async with asyncio.timeout(2):
            await recorder.wait_for(f"{n}")
        await one.close()
    await other.close()


async def test_other_channels_are_not_heard(valkey: str, nats_url: str) -> None:
    for one, other in (
        (RedisPubSub(valkey, channel="treadle.a"), RedisPubSub(valkey, channel="treadle.b")),
        (NatsPubSub(nats_url, subject="treadle.a"), NatsPubSub(nats_url, subject="treadle.b")),
    ):
        recorder = MessageRecorder()
        await one.subscribe(recorder)
        await other.publish("other")
        await one.publish("mine")
        await recorder.wait_for("mine")
        assert recorder.messages == ["mine"]
        await one.close()
        await other.close()


async def test_an_empty_message_of_a_stranger_is_dropped(make: Make) -> None:
    """An empty text tells receivers that messages may have been lost: only the port itself says that."""
    pubsub = make()
    recorder = MessageRecorder()
    await pubsub.subscribe(recorder)
    await pubsub.publish("")
    await pubsub.publish("x")
    await recorder.wait_for("x")
    assert recorder.messages == ["x"]
    await pubsub.close()


async def test_a_receiver_that_raises_does_not_affect_others(make: Make) -> None:
    def broken(message: str) -> None:
        raise ValueError(message)

    pubsub, recorder = make(), MessageRecorder()
    await pubsub.subscribe(broken)
    await pubsub.subscribe(recorder)
    await pubsub.publish("x")
    await recorder.wait_for("x")
    await pubsub.close()


async def test_a_server_that_is_killed_and_comes_back(server: Server) -> None:
    """Publishing raises meanwhile. The subscription is made again, and the receiver learns of the gap."""
    server.start()
    pubsub, recorder = pubsub_of(server), MessageRecorder()
    await pubsub.subscribe(recorder)
    await pubsub.publish("before")
    await recorder.wait_for("before")
    server.kill()
    with pytest.raises(StoreUnavailable):
        await publish_until_it_fails(pubsub)
    server.start()
    await recorder.wait_for("before", "")
    await publish_when_possible(pubsub, "after")
    await recorder.wait_for("before", "", "after")
    await pubsub.close()


async def test_a_server_that_is_not_there(server: Server) -> None:
    """Publishing and subscribing raise at once, and work when it is there."""
    server.start()
    server.kill()
    pubsub, recorder = pubsub_of(server), MessageRecorder()
    with pytest.raises(StoreUnavailable):
        await pubsub.publish("x")
    with pytest.raises(StoreUnavailable):
        await pubsub.subscribe(recorder)
    server.start()
    await publish_when_possible(pubsub, "x")
    await pubsub.subscribe(recorder)
    await pubsub.publish("y")
    await recorder.wait_for("y")
    await pubsub.close()


async def test_it_is_usable_after_it_was_closed(make: Make) -> None:
    pubsub, recorder = make(), MessageRecorder()
    await pubsub.subscribe(recorder)
    await pubsub.close()
    await pubsub.close()
    await pubsub.publish("to no one")
    again = MessageRecorder()
    await pubsub.subscribe(again)
    await pubsub.publish("x")
    await again.wait_for("x")
    assert recorder.messages == []
    await pubsub.close()


def test_event_loops_one_after_the_other(make: Make) -> None:
    """The first is closed without a word. Its connection is closed, and no warning is raised."""
    pubsub = make()

    async def use() -> None:
        recorder = MessageRecorder()
        await pubsub.subscribe(recorder)
        await pubsub.publish("x")
        await recorder.wait_for("x")

    asyncio.run(use())
    asyncio.run(use())
    pubsub.abandon()
    gc.collect()


async def test_event_loops_at_the_same_time(make: Make) -> None:
    pubsub, recorder = make(), MessageRecorder()
    await pubsub.subscribe(recorder)

    def other() -> None:
        async def use() -> None:
            await pubsub.publish("from another thread")
            await pubsub.close()

        asyncio.run(use())

    thread = threading.Thread(target=other)
    thread.start()
    await recorder.wait_for("from another thread")
    thread.join()
    await pubsub.publish("from here")
    await recorder.wait_for("from another thread", "from here")
    await pubsub.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_connections_of_its_own(kind: str, make: Make) -> None:
    program = f"""
import asyncio, os, sys
from treadle.ports import NatsPubSub, RedisPubSub
from treadle.testing.contract.port_contracts import MessageRecorder
pubsub = {make()!r}
async def use(text):
    recorder = MessageRecorder()
    await pubsub.subscribe(recorder)
    await pubsub.publish(text)
    await recorder.wait_for(text)
    return recorder
async def main():
    recorder = await use("parent")
    child = os.fork()
    if child == 0:
        return True
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        await asyncio.sleep(0.005)
    await pubsub.publish("after")
    async with asyncio.timeout(5):
        while "after" not in recorder.messages:
            await asyncio.sleep(0.005)
    await pubsub.close()
loop = asyncio.new_event_loop()
if loop.run_until_complete(main()):
    async def child():
        await use("child")
        await pubsub.close()
    asyncio.set_event_loop(None)
    from asyncio import events
    asyncio.run(child())
    os._exit(0)
loop.close()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("processes")
async def test_a_redis_user_who_may_not_subscribe(run_directory: Path) -> None:
    """The error says what is missing, and not the password."""
    server = ValkeyServer(run_directory / f"valkey-{next(_names)}", free_ports(1)[0])
    server.start()
    try:
        rules = ("on", ">secret", "resetchannels", "&other", "+@all", "~*")
        server.call("ACL", "SETUSER", "app", *rules)
        pubsub = RedisPubSub(f"redis://app:secret@127.0.0.1:{server.port}")
        with pytest.raises(StoreUnavailable, match="channel") as caught:
            await pubsub.subscribe(print)
        assert "secret" not in str(caught.value)
        await pubsub.close()
    finally:
        server.remove()


@pytest.mark.usefixtures("processes")
async def test_a_nats_user_who_may_not_subscribe(run_directory: Path) -> None:
    """The same."""
    users = 'authorization { users = [{ user: app, password: secret, permissions: { subscribe: "other" } }] }'
    server = NatsServer(run_directory / f"nats-{next(_names)}", users)
    server.start()
    try:
        pubsub = NatsPubSub(server.url.replace("//", "//app:secret@"))
        with pytest.raises(StoreUnavailable, match=r"(?i)permissions violation for subscription") as caught:
            await pubsub.subscribe(print)
        assert "secret" not in str(caught.value)
        await pubsub.close()
        stranger = NatsPubSub(server.url)
        with pytest.raises(StoreUnavailable, match=r"(?i)authorization"):
            await stranger.publish("x")
        await stranger.close()
    finally:
        server.remove()


def rights() -> list[str]:
    """What SECURITY.md grants."""
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text().partition("### Wake-ups by another")[2]
    return text.split("```")[1].strip().splitlines()


@pytest.mark.usefixtures("processes")
async def test_the_rights_of_the_documentation_are_enough(run_directory: Path) -> None:
    acl, permissions = rights()
    users = f"authorization {{ users = [{{ user: treadle, password: password, {permissions} }}] }}"
    nats = NatsServer(run_directory / f"nats-{next(_names)}", users)
    valkey = ValkeyServer(run_directory / f"valkey-{next(_names)}", free_ports(1)[0])
    try:
        nats.start()
        valkey.start()
        valkey.call(*acl.split())
        for pubsub in (
            RedisPubSub(f"redis://treadle:password@127.0.0.1:{valkey.port}/1", channel="treadle.shop"),
            NatsPubSub(nats.url.replace("//", "//treadle:password@"), subject="treadle.shop"),
        ):
            recorder = MessageRecorder()
            await pubsub.subscribe(recorder)
            await pubsub.publish("x")
            await recorder.wait_for("x")
            await pubsub.close()
    finally:
        nats.remove()
        valkey.remove()


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed, which makes the certificate"
)
async def test_tls(run_directory: Path, tmp_path: Path, valkey: str) -> None:
    """The certificate of the server is checked."""
    pem = certificate(tmp_path)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(pem)
    # Without a timeout, the server resets a connection whose handshake takes a busy machine two seconds.
    nats = NatsServer(
        run_directory / f"nats-{next(_names)}",
        f'tls {{ cert_file: "{pem}", key_file: "{pem}", timeout: 60 }}',
    )
    try:
        nats.start()
        async with RedisProxy(Path(valkey.partition("//")[2]), serving) as proxy:
            redis_url, nats_url = f"rediss://127.0.0.1:{proxy.port}", nats.url.replace("nats", "tls", 1)
            for pubsub in (RedisPubSub(redis_url), NatsPubSub(nats_url)):
                with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
                    await pubsub.publish("x")
                await pubsub.close()
            for pubsub in (
                RedisPubSub(f"{redis_url}?ca={pem}", channel=next(_names)),
                NatsPubSub(nats_url, tls=ssl.create_default_context(cafile=str(pem))),
            ):
                recorder = MessageRecorder()
                await pubsub.subscribe(recorder)
                await pubsub.publish("x")
                await recorder.wait_for("x")
                await pubsub.close()
    finally:
        nats.remove()


async def test_servers_of_a_cluster_that_are_away(nats_url: str) -> None:
    """One that answers is enough."""
    pubsub = NatsPubSub(f"nats://127.0.0.1:9,{nats_url}", subject=next(_names))
    recorder = MessageRecorder()
    await pubsub.subscribe(recorder)
    await pubsub.publish("x")
    await recorder.wait_for("x")
    await pubsub.close()


# ------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("subject", ["", "a b", "a..b", "a.*", "a.>", ".a"])
def test_subjects_that_are_refused(subject: str) -> None:
    with pytest.raises(InputError, match="subject"):
        NatsPubSub("nats://localhost", subject=subject)


def test_urls_that_are_refused() -> None:
    with pytest.raises(InputError, match="not a URL of NATS") as caught:
        NatsPubSub("http://app:secret@host")
    assert "secret" not in str(caught.value)
    with pytest.raises(InputError):
        RedisPubSub("http://app:secret@host")


def test_passwords_are_hidden() -> None:
    for pubsub in (
        RedisPubSub("redis://app:secret@host"),
        NatsPubSub("nats://app:secret@one,nats://app:secret@two"),
    ):
        assert "secret" not in f"{pubsub!r} {pubsub.address} {vars(pubsub)}"


@pytest.mark.parametrize(("module", "driver"), [("redis_pubsub", "hiredis"), ("nats_pubsub", "nats")])
def test_a_missing_driver_names_the_extra(module: str, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == driver:
            raise ModuleNotFoundError(f"No module named {driver!r}", name=driver)
        return real(name, *rest)

    for name in [each for each in sys.modules if each.startswith("treadle.backends.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"treadle.ports.{module}")
    monkeypatch.setattr(builtins, "__import__", without)
    extra = {"hiredis": "redis", "nats": "nats"}[driver]
    scheme = f"{extra}://host"
    with pytest.raises(InputError, match=rf"pip install 'treadle\[{extra}\]'"):
        Treadle("postgresql://host/db", notify=scheme)


# ------------------------------------------------------------------------------------------- PortsBackend


@work(name="pubsub.double")
async def double(n: int) -> int:
    return 2 * n


async def test_a_backend_of_ports_on_it(make: Make) -> None:
    pubsub = make()
    app = Treadle(PortsBackend(memory_queue(), pubsub, memory_store()), work=[double])
    async with app:
        assert await (await app.enqueue(double(4))).result(10) == 8
    await pubsub.close()
