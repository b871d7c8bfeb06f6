"""RedisBackend: opening, closing, leaving loops and parents behind, health, TLS."""

import asyncio
import logging
import os
import re
import shutil
import socket
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path

import pytest

from tests.backends.redis_links import COUNT, linked
from tests.support.redis_proxy import RedisProxy, certificate
from tests.support.valkey import Client, ValkeyServer
from treadle import Treadle
from treadle.backends.memory import MemoryBackend
from treadle.backends.redis import RedisBackend
from treadle.backends.redis.address import parse_address
from treadle.backends.redis.connector import RedisConnector, info_fields
from treadle.backends.redis.schema import VERSION
from treadle.errors import AccessDenied, SchemaError, StoreUnavailable, UnsupportedError
from treadle.item import Wake
from treadle.store.portable import encode
from treadle.testing.clock import ManualClock
from treadle.testing.contract.build import item, submit
from treadle.testing.contract.moving import fill, items_of, records


@asynccontextmanager
async def opened(url: str, **options: bool) -> AsyncGenerator[RedisBackend]:
    backend = RedisBackend(url, **options)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


@pytest.fixture(scope="module")
def kept_server(valkey_home: Path) -> Generator[ValkeyServer]:
    server = ValkeyServer(valkey_home / "valkey")
    server.start()
    yield server
    server.remove()


@pytest.fixture
def server(kept_server: ValkeyServer) -> Generator[ValkeyServer]:
    """A running server, empty, with the settings that it had at first."""
    yield kept_server
    kept_server.kill()
    kept_server.start()
    kept_server.call("FLUSHALL")


def connections_of(server: ValkeyServer) -> int:
    """Without the one that asks."""
    return len(server.call("CLIENT", "LIST").splitlines()) - 1


# -- opening ---------------------------------------------------------------------------------------------


async def test_many_processes_open_a_new_store(valkey_url: str) -> None:
    backends = [RedisBackend(valkey_url) for _ in range(10)]
    await asyncio.gather(*(backend.open() for backend in backends * 2))
    meta, version, identity = b"{treadle}:meta", b"version", b"identity"
    assert set(await backends[0]._link.command(b"HKEYS", meta)) == {version, identity}
    assert await backends[0]._link.command(b"HGET", meta, version) == b"%d" % VERSION
    await asyncio.gather(*(backend.close() for backend in backends * 2))


async def test_a_newer_store_is_refused(server: ValkeyServer) -> None:
    """Except for heartbeats: the worker that sends them had the store open before."""
    server.call("HSET", "{treadle}:meta", "version", VERSION + 1)
    backend = RedisBackend(server.url)
    newer = f"version {VERSION + 1}, newer than {VERSION}: upgrade treadle here"
    with pytest.raises(SchemaError, match=newer):
        await backend.open()
    assert connections_of(server) == 0
    heartbeats = backend.heartbeat_connection()
    await heartbeats.open()
    assert connections_of(server) == 1
    await heartbeats.close()


async def test_an_older_store_is_refused(server: ValkeyServer) -> None:
    """Its bytes would be taken for damage."""
    server.call("HSET", "{treadle}:meta", "version", VERSION - 1)
    older = f"layout is version {VERSION - 1}, older than {VERSION}, and is not converted"
    with pytest.raises(SchemaError, match=older):
        await RedisBackend(server.url).open()


async def test_a_store_that_is_away_cannot_be_opened(tmp_path: Path) -> None:
    backend = RedisBackend(f"redis+unix://{tmp_path}/none")
    with pytest.raises(StoreUnavailable, match="cannot connect to Redis at"):
        await backend.open()
    await backend.close()


async def test_a_backend_that_is_closed_can_be_opened_again(server: ValkeyServer) -> None:
    backend = RedisBackend(server.url)
    for _ in range(2):
        await backend.open()
        assert abs(await backend.now() - time.time()) < 5
        await backend.close()
        await backend.close()
    assert connections_of(server) == 0


async def test_the_clock_is_shifted_for_tests_only(valkey_url: str) -> None:
    async with opened(valkey_url, test_clock=True) as shifted, opened(valkey_url) as plain:
        await plain._link.command(b"SET", b"{treadle}:shift", b"1000.5")
        assert 999 < await shifted.now() - await plain.now() < 1001


async def test_there_are_no_transactions(valkey_url: str) -> None:
    with pytest.raises(UnsupportedError, match="RedisBackend does not support transactions"):
        RedisBackend(valkey_url).transaction()


async def test_heartbeats_have_one_connection_in_a_thread_of_their_own(server: ValkeyServer) -> None:
    async with opened(server.url) as backend:
        heartbeats = backend.heartbeat_connection()

        async def beat() -> int:
            await heartbeats.open()
            assert isinstance(heartbeats, RedisBackend)
            for on in ("work", "claim", "read"):
                await heartbeats._link.command(b"PING", on=on)
            found = await heartbeats._link.command(b"CLIENT", b"LIST")
            await heartbeats.close()
            return len(found.splitlines())

        assert await asyncio.to_thread(lambda: asyncio.run(beat())) == 2


# -- loops and forks -------------------------------------------------------------------------------------


def test_a_backend_outlives_its_event_loop(server: ValkeyServer) -> None:
    """The connections of the loop that is gone are ended."""
    backend = RedisBackend(server.url)

    async def use() -> None:
        backend.abandon()
        await backend.open()
        await backend.subscribe(lambda _: None)
        await backend._link.run(COUNT, [1], on="claim")
        assert connections_of(server) == 3

    for _ in range(3):
        asyncio.run(use())
    backend.abandon()
    assert int(server.call("GET", "{treadle}:mark")) == 3
    _wait_until(lambda: connections_of(server) == 0)


async def test_a_forked_process_leaves_the_connections_of_its_parent_alone(server: ValkeyServer) -> None:
    backend = RedisBackend(server.url)
    await backend.open()
    await backend._link.run(COUNT, [1])
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            asyncio.events._set_running_loop(None)
            backend.abandon()
            asyncio.run(_count_in_child(backend))
            code = 0
        finally:
            os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert await backend._link.run(COUNT, [1]) == 3
    await backend.close()


async def _count_in_child(backend: RedisBackend) -> None:
    await backend.open()
    assert await backend._link.run(COUNT, [1]) == 2
    await backend.close()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- rights ----------------------------------------------------------------------------------------------

COMMANDS = {
    command.lower()
    for file in Path(str(files("treadle.backends.redis"))).glob("lua/**/*.lua")
    if file.name != "rights.lua" and file.parent.name != "moving"
    for command in re.findall(r"'([A-Z]{3,})'", file.read_text())
} - {"limit", "withscores", "count"}
"""All that scripts use."""


async def test_a_right_that_an_export_lacks_is_named_before_it_begins(server: ValkeyServer) -> None:
    """Others need not have it. Nothing was renamed."""
    server.call("ACL", "SETUSER", "me", "on", ">secret", "~{treadle}:*", "&{treadle}:*", "+@all", "-rpush")
    place = server.url.removeprefix("redis+unix://")
    async with opened(f"redis+unix://me:secret@{place}") as backend:
        with pytest.raises(AccessDenied, match=r"\+rpush"):
            async with backend.export():
                pytest.fail("it began")
        assert await backend.mark() is None
        assert await backend.counts() == []


async def test_a_right_that_a_script_lacks_is_named_at_the_start(server: ValkeyServer) -> None:
    """Before anything is stored: a script that is refused a write has done its others."""
    rules = ("on", ">secret", "~{treadle}:*", "&{treadle}:*", "+@all")
    server.call("ACL", "SETUSER", "me", *rules)
    place = server.url.removeprefix("redis+unix://")
    url = f"redis+unix://me:secret@{place}"
    async with opened(url):
        pass
    assert {"hset", "zadd", "time"} <= COMMANDS
    for command in sorted(COMMANDS):
        server.call("ACL", "SETUSER", "me", f"-{command}")
        with pytest.raises(AccessDenied, match=rf"SECURITY\.md has the rules .*\(\+{command}\)"):
            await RedisBackend(url).open()
        server.call("ACL", "SETUSER", "me", f"+{command}")
    server.call("ACL", "SETUSER", "me", "-zadd", "-hset")
    with pytest.raises(AccessDenied, match=r"\(\+hset, \+zadd\)"):
        await RedisBackend(url).open()


# -- health ----------------------------------------------------------------------------------------------


async def test_risky_settings_are_logged_once_and_reported_once(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    server.call("CONFIG", "SET", "appendonly", "no")
    async with opened(f"{server.url}?replicas=2") as backend:
        await backend.close()
        await backend.open()
        logged = [each.message for each in caplog.records if each.levelno == logging.WARNING]
        assert len(logged) == 3
        assert "set it to noeviction" in logged[0]
        assert "set appendonly yes" in logged[1]
        assert "Redis has 0 replicas, and replicas=2" in logged[2]
        assert [str(problem) for problem in await backend.inspect()] == logged
        assert await backend.inspect() == []
        server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        server.call("CONFIG", "SET", "appendonly", "yes")
        server.call("CONFIG", "SET", "appendfsync", "no")
        assert ["set appendfsync everysec" in str(problem) for problem in await backend.inspect()] == [True]
        server.call("CONFIG", "SET", "appendfsync", "always")
        assert await backend.inspect() == []
        server.call("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
        assert ["noeviction" in str(problem) for problem in await backend.inspect()] == [True]


async def test_a_server_that_is_almost_full_is_reported(server: ValkeyServer) -> None:
    """At nine tenths, and again when it is full."""
    server.call("SET", "ballast", b"x" * 20_000_000)
    used = int(info_fields(server.call("INFO", "memory"))["used_memory"])
    async with opened(server.url) as backend:
        server.call("CONFIG", "SET", "maxmemory", used * 3)
        assert await backend.inspect() == []
        server.call("CONFIG", "SET", "maxmemory", used * 100 // 95)
        (problem,) = map(str, await backend.inspect())
        assert re.match(
            r"Redis uses 9\d % of its maxmemory: when that is reached, new items are refused", problem
        )
        assert await backend.inspect() == []
        server.call("CONFIG", "SET", "maxmemory", "1mb")
        (problem,) = map(str, await backend.inspect())
        assert "Redis is full, and refuses new items" in problem
        assert "raise maxmemory, or keep items for a shorter time" in problem


async def test_a_good_server_has_no_risks(valkey_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(valkey_url) as backend:
        assert await backend.inspect() == []
    assert caplog.records == []


async def test_what_may_not_be_asked_is_not_reported(server: ValkeyServer) -> None:
    server.call("CONFIG", "SET", "appendfsync", "no")
    server.call("ACL", "SETUSER", "me", "on", ">secret", "~{treadle}:*", "&{treadle}:*", "+@all", "-config")
    place = server.url.removeprefix("redis+unix://")
    async with opened(f"redis+unix://me:secret@{place}") as backend:
        assert await backend.inspect() == []
        server.call("ACL", "SETUSER", "me", "-info")
        assert await backend.inspect() == []
    async with opened(f"redis+unix://me:secret@{place}"):
        pass


async def test_a_user_of_another_namespace_cannot_open_this_one(server: ValkeyServer) -> None:
    server.call("ACL", "SETUSER", "me", "on", ">secret", "~{shop}:*", "&{shop}:*", "+@all")
    place = server.url.removeprefix("redis+unix://")
    backend = RedisBackend(f"redis+unix://me:secret@{place}")
    with pytest.raises(AccessDenied, match="the user lacks a right"):
        await backend.open()
    assert connections_of(server) == 0


def documented_rules() -> str:
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    return next(line for line in text.splitlines() if line.startswith("ACL SETUSER shop"))


async def test_the_documented_rules_are_enough(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A user with the rules of SECURITY.md can do all that a backend does, and nothing elsewhere."""
    server.call(*documented_rules().split())
    place = server.url.removeprefix("redis+unix://")
    received = asyncio.Event()
    async with opened(f"redis+unix://shop:password@{place}?db=1&replicas=0") as backend:
        await backend.subscribe(lambda _: received.set())
        await backend._link.run(COUNT, [1])
        await backend.publish(Wake(ready=True))
        await asyncio.wait_for(received.wait(), 5)
        assert await backend.now() > 0
        assert await backend.inspect() == []
        await backend._link.command(b"WAIT", 0, 1)
        for refused in ((b"FLUSHALL",), (b"GET", b"other"), (b"KEYS", b"*"), (b"SUBSCRIBE", b"other")):
            with pytest.raises(AccessDenied):
                await backend._link.command(*refused, on="read")
    assert caplog.records == []


async def test_the_documented_rules_are_enough_to_promote(server: ValkeyServer) -> None:
    """Into a store, and out of it."""
    server.call(*documented_rules().split())
    place = server.url.removeprefix("redis+unix://")
    model = MemoryBackend(ManualClock(time.time()))
    await submit(model, item("one"), item("two", delay=1000, key="k"))
    found = await records(model)
    async with opened(f"redis+unix://shop:password@{place}") as backend:
        await fill(backend, found)
        await backend.own("m1")
        assert items_of(await records(backend)) == items_of(found)
        async with backend.export(freeze=60) as export:
            assert len(await export.read(1000)) == 3
            await export.move("m2", "postgresql://db/shop")
        mark = await backend.mark()
        assert mark is not None
        assert (mark.state, mark.to) == ("moved", "postgresql://db/shop")


async def _move(url: str) -> None:
    """One into a store, and out of it."""
    async with opened(url) as backend:
        async with backend.import_("m1", "sqlite:////old") as filled:
            await filled.write(
                [encode(one) for one in await records(MemoryBackend(ManualClock(time.time())))]
            )
            await filled.finish()
        await backend.own("m1")
        async with backend.export(freeze=60) as export:
            await export.move("m2", "sqlite:////new")


async def test_marks_are_on_the_disk(server: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    """That an import is whole, and the decision: a server that forgets them leaves two owners, or none."""
    await _move(server.url)
    assert "cmdstat_waitaof:calls=2," in server.call("INFO", "commandstats").decode()
    assert caplog.records == []


async def test_a_server_that_writes_no_file_is_warned_of(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The mark is there all the same."""
    server.call("CONFIG", "SET", "appendonly", "no")
    await _move(server.url)
    found = [one.message for one in caplog.records if "a crash may undo that step" in one.message]
    assert len(found) == 2
    assert "appendonly is disabled" in found[0]


# -- the network -----------------------------------------------------------------------------------------


async def test_a_worker_says_that_the_server_hangs(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Long before its calls give up: the watchdog gets no connection."""
    backend = RedisBackend(server.url, connect_timeout=0.2)
    async with Treadle(backend, heartbeat=0.2, lease=2.0):
        server.freeze()
        try:
            await asyncio.to_thread(_wait_until, lambda: "unavailable" in caplog.text)
        finally:
            server.thaw()
    found = next(each for each in caplog.records if "unavailable" in each.message)
    assert found.levelno == logging.WARNING
    assert "is unavailable, trying again: cannot connect to Redis at" in found.message
    assert "it did not answer in time: does it hang" in found.message


async def test_an_answer_that_is_lost_is_not_asked_for_again(server: ValkeyServer) -> None:
    async with RedisProxy(server.socket) as proxy, linked(f"redis://127.0.0.1:{proxy.port}") as link:
        await link.run(COUNT, [1])
        proxy.lose_answer()
        with pytest.raises(StoreUnavailable, match="may or may not have happened"):
            await link.run(COUNT, [1])
        assert await link.run(COUNT, [1]) == 3


async def test_an_answer_that_breaks_off_is_not_asked_for_again(server: ValkeyServer) -> None:
    """Also if half of it was there."""
    async with RedisProxy(server.socket) as proxy, linked(f"redis://127.0.0.1:{proxy.port}") as link:
        await link.run(COUNT, [10])
        proxy.lose_answer(after=2)
        with pytest.raises(StoreUnavailable, match="may or may not have happened"):
            await link.run(COUNT, [10])
        assert await link.run(COUNT, [10]) == 30


async def test_an_answer_in_pieces_is_put_together(server: ValkeyServer) -> None:
    async with RedisProxy(server.socket) as proxy, linked(f"redis://127.0.0.1:{proxy.port}") as link:
        proxy.in_pieces = True
        assert await asyncio.gather(*(link.run(COUNT, [10]) for _ in range(3))) == [10, 20, 30]
        assert await link.command(b"ECHO", b"x" * 1000) == b"x" * 1000
        assert await link.command(b"GET", link.key("none")) is None


async def test_half_an_answer_exhausts_the_patience(server: ValkeyServer) -> None:
    async with (
        RedisProxy(server.socket) as proxy,
        linked(f"redis://127.0.0.1:{proxy.port}?patience=0.3") as link,
    ):
        await link.run(COUNT, [10])
        proxy.hold(0, after=2)
        with pytest.raises(StoreUnavailable, match=r"did not answer for 0\.3 s"):
            await link.run(COUNT, [10])
        proxy.release()
        assert await link.run(COUNT, [10]) == 30


async def test_calls_on_their_way_are_not_sent_again_after_a_loss(server: ValkeyServer) -> None:
    """All of them were carried out, and none was answered."""
    async with RedisProxy(server.socket) as proxy, linked(f"redis://127.0.0.1:{proxy.port}") as link:
        await link.run(COUNT, [1])
        proxy.hold(0)
        calls = [asyncio.create_task(link.run(COUNT, [1])) for _ in range(5)]
        await proxy.holding.wait()
        await asyncio.to_thread(_wait_until, lambda: server.call("GET", "{ns}:mark") == b"6")
        await proxy.cut()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(error) for error in found} == {StoreUnavailable}
        assert await link.run(COUNT, [1]) == 7


async def test_a_connection_that_is_lost_while_it_is_opened_is_opened_again(server: ValkeyServer) -> None:
    """Nothing was sent on it yet."""
    async with RedisProxy(server.socket) as proxy, linked(f"redis://127.0.0.1:{proxy.port}") as link:
        for after in (0, 3):
            proxy.lose_answer(after)
            assert await link.run(COUNT, [1], on="claim" if after else "read") >= 1
        assert server.call("GET", "{ns}:mark") == b"2"


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed, which makes the certificate"
)
async def test_tls(server: ValkeyServer, tmp_path: Path) -> None:
    """The certificate is checked, unless the URL says otherwise."""
    pem = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    async with RedisProxy(server.socket, context) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}"
        with pytest.raises(StoreUnavailable, match="check the certificate, or ca= in the URL"):
            async with linked(url):
                pass
        for query in (f"ca={pem}", "verify=none"):
            async with linked(f"{url}?{query}") as link:
                assert await link.command(b"ECHO", b"hello") == b"hello"
                assert len(await link.command(b"ECHO", b"x" * 1_000_000)) == 1_000_000


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed, which makes the certificate"
)
async def test_an_answer_that_is_lost_under_tls_is_not_asked_for_again(
    server: ValkeyServer, tmp_path: Path
) -> None:
    pem = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    async with (
        RedisProxy(server.socket, context) as proxy,
        linked(f"rediss://127.0.0.1:{proxy.port}?ca={pem}") as link,
    ):
        await link.run(COUNT, [10])
        for after, count in ((0, 30), (2, 50)):
            proxy.lose_answer(after)
            with pytest.raises(StoreUnavailable, match="may or may not have happened"):
                await link.run(COUNT, [10])
            assert await link.run(COUNT, [10]) == count


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed, which makes the certificate"
)
async def test_a_url_without_tls_for_a_server_with_it(server: ValkeyServer, tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate(tmp_path))
    async with RedisProxy(server.socket, context) as proxy:
        with pytest.raises(StoreUnavailable, match="it answers with TLS: write rediss at the beginning"):
            async with linked(f"redis://127.0.0.1:{proxy.port}"):
                pass


async def test_a_url_with_tls_for_a_server_without_it(server: ValkeyServer) -> None:
    async with RedisProxy(server.socket) as proxy:
        with pytest.raises(StoreUnavailable, match="it answers without TLS: write redis at the beginning"):
            async with linked(f"rediss://127.0.0.1:{proxy.port}", timeout=0.3):
                pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these options of sockets")
async def test_the_system_ends_a_connection_to_a_network_that_drops_everything(server: ValkeyServer) -> None:
    """Within three seconds. That cannot be tried here without rights on the network."""
    async with RedisProxy(server.socket) as proxy:
        address = parse_address(f"redis://127.0.0.1:{proxy.port}")
        connection = await RedisConnector(address, "ns", timeout=3).connect()
        link = connection._transport.get_extra_info("socket")
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3000
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2
        await connection.close()


async def test_each_test_has_an_empty_database(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        assert await link.command(b"DBSIZE") == 0
        await link.run(COUNT, [1])
    place, _, number = valkey_url.partition("?db=")
    with Client(place) as client:
        client.call("SELECT", number)
        assert client.call("DBSIZE") == 1
