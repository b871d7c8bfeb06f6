"""The link to one Redis server: calls, lost connections, refusals."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.backends.redis_links import COUNT, ECHO, ScriptOfTest, linked, within
from tests.support.valkey import ValkeyServer
from treadle.backends.redis.connector import check_version_text
from treadle.backends.redis.errors import NotConnected
from treadle.errors import AccessDenied, BackendError, NotStarted, StoreFull, StoreUnavailable

WRONG = ScriptOfTest("wrong", "return redis.call('LPUSH', KEYS[1], 'x')")


@pytest.fixture(scope="module")
def kept_server(valkey_home: Path) -> Generator[ValkeyServer]:
    """A server whose settings the tests of a module change."""
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


# -- calls -----------------------------------------------------------------------------------------------


async def test_a_script_is_sent_with_its_source_once(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        assert await link.run(ECHO, ["a", b"b", 3, 0.5]) == [b"{ns}:mark", b"a", 4]
        assert await link.run(ECHO) == [b"{ns}:mark", b"", 0]
        await link.run(COUNT, [0])
        assert await link.command(b"SCRIPT", b"EXISTS", COUNT.sha) == [1]


async def test_a_script_that_the_server_forgot_is_sent_again(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        assert await link.run(COUNT, [1]) == 1
        await link.command(b"SCRIPT", b"FLUSH")
        assert sorted(await asyncio.gather(*(link.run(COUNT, [1]) for _ in range(5)))) == [2, 3, 4, 5, 6]


async def test_many_calls_are_on_their_way_at_once(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        answers = await asyncio.gather(*(link.run(COUNT, [1]) for _ in range(200)))
        assert sorted(answers) == list(range(1, 201))
        large = b"x" * 5_000_000
        assert (await link.run(ECHO, [large]))[1] == large


async def test_each_kind_of_call_has_its_connection(valkey_url: str) -> None:
    """Opened when first needed, by one caller for all."""
    async with linked(valkey_url) as link:
        ids = [await link.command(b"CLIENT", b"ID", on=on) for on in ("work", "claim", "read")]
        assert len(set(ids)) == 3
        again = await asyncio.gather(*(link.command(b"CLIENT", b"ID", on="read") for _ in range(5)))
        assert set(again) == {ids[2]}
        link.single = True
        assert await link.command(b"CLIENT", b"ID", on="claim") == ids[0]


async def test_a_cancelled_call_leaves_the_others_their_answers(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        calls = [asyncio.create_task(link.command(b"ECHO", n)) for n in range(9)]
        await asyncio.sleep(0)
        calls[3].cancel()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(found.pop(3), asyncio.CancelledError)
        assert found == [b"0", b"1", b"2", b"4", b"5", b"6", b"7", b"8"]
        assert await link.command(b"ECHO", b"next") == b"next"


async def test_a_link_that_is_not_started_is_refused(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        await link.stop()
        with pytest.raises(NotStarted, match="the Redis backend"):
            await link.run(ECHO)


async def test_stopping_ends_the_calls_that_wait(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        call = asyncio.create_task(link.command(b"BLPOP", link.key("list"), 20))
        await asyncio.sleep(0.05)
        await link.stop()
        with pytest.raises(StoreUnavailable, match="may or may not have happened"):
            await call


async def test_stopping_ends_the_calls_that_wait_for_a_connection(server: ValkeyServer) -> None:
    """They were not cancelled, so they are told otherwise."""
    async with linked(server.url) as link:
        server.freeze()
        call, cancelled = (asyncio.create_task(link.run(COUNT, [1], on="claim")) for _ in range(2))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await link.stop()
        server.thaw()
        with pytest.raises(StoreUnavailable, match="the Redis backend was closed"):
            await call
        with pytest.raises(asyncio.CancelledError):
            await cancelled


# -- losses ----------------------------------------------------------------------------------------------


async def test_a_call_without_a_server_raises_soon_and_the_next_connects(server: ValkeyServer) -> None:
    async with linked(server.url) as link:
        await link.run(COUNT, [1])
        server.kill()
        await asyncio.sleep(0.05)  # until the loss is noticed
        with within(2.5), pytest.raises(StoreUnavailable, match="cannot connect to Redis at"):
            await link.run(COUNT, [1])
        calls = [asyncio.create_task(link.run(COUNT, [1])) for _ in range(20)]
        await asyncio.sleep(0.05)
        server.start()
        assert sorted(await asyncio.gather(*calls)) == list(range(2, 22))


async def test_what_is_not_answered_when_the_server_dies_is_unknown(server: ValkeyServer) -> None:
    """It is not sent again, neither here nor on the next connection."""
    async with linked(server.url) as link:
        await link.run(COUNT, [1])
        server.freeze()
        calls = [asyncio.create_task(link.run(COUNT, [1])) for _ in range(3)]
        await asyncio.sleep(0.05)
        server.kill()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(error) for error in found} == {StoreUnavailable}
        assert "may or may not have happened" in str(found[0])
        server.start()
        assert await link.run(COUNT, [1]) == 2


async def test_a_read_without_an_answer_is_sent_again(server: ValkeyServer) -> None:
    """It has changed nothing."""
    async with linked(server.url) as link:
        await link.run(COUNT, [1])
        made = link.reconnected
        server.freeze()
        read = asyncio.create_task(link.run(ECHO, ["a"]))
        command = asyncio.create_task(link.command(b"GET", link.key("mark")))
        await asyncio.sleep(0.05)
        server.kill()
        server.start()
        assert await read == [b"{ns}:mark", b"a", 1]
        assert await command == b"1"
        assert link.reconnected == made + 1, "both by one new connection"


async def test_a_read_without_a_server_raises_soon(server: ValkeyServer) -> None:
    async with linked(server.url) as link:
        server.freeze()
        read = asyncio.create_task(link.run(ECHO, ["a"]))
        await asyncio.sleep(0.05)
        server.kill()
        with within(2.5), pytest.raises(StoreUnavailable, match="cannot connect to Redis at"):
            await read


async def test_a_server_that_does_not_answer_exhausts_the_patience(server: ValkeyServer) -> None:
    async with linked(f"{server.url}?patience=0.3", timeout=0.3) as link:
        await link.run(COUNT, [1])
        server.freeze()
        try:
            with within(2), pytest.raises(StoreUnavailable, match=r"did not answer for 0\.3 s"):
                await link.run(COUNT, [1])
            with within(3), pytest.raises(StoreUnavailable, match="it did not answer in time: does it hang"):
                await link.run(COUNT, [1])
        finally:
            server.thaw()
        assert await link.run(COUNT, [1]) >= 2


async def test_a_slow_call_among_quick_ones_keeps_its_own_patience(valkey_url: str) -> None:
    """A connection is closed when its oldest call waits too long, not when it is old itself."""
    async with linked(f"{valkey_url}&patience=0.4") as link:
        for _ in range(3):
            assert await link.command(b"BLPOP", link.key("none"), 0.2) is None
            await link.command(b"PING")


async def test_another_program_at_the_address_is_recognised() -> None:
    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
            with suppress(OSError):
                await reader.read()
        finally:
            writer.transport.abort()

    other = await asyncio.start_server(hello, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    try:
        with pytest.raises(StoreUnavailable, match="what no Redis sends"):
            async with linked(f"redis://127.0.0.1:{port}"):
                pass
    finally:
        other.close()


# -- refusals --------------------------------------------------------------------------------------------


async def test_an_error_of_a_script_is_not_worth_repeating(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        await link.run(COUNT, [1])
        with pytest.raises(
            BackendError, match="a script failed on what it found in Redis: WRONGTYPE"
        ) as caught:
            await link.run(WRONG)
        assert not caught.value.transient
        assert await link.run(COUNT, [1]) == 2


async def test_a_full_server_refuses_what_needs_room(server: ValkeyServer) -> None:
    async with linked(server.url) as link:
        server.call("CONFIG", "SET", "maxmemory", "1mb")
        with pytest.raises(StoreFull, match="raise maxmemory"):
            await link.run(COUNT, [1])
        server.call("CONFIG", "SET", "maxmemory", "0")
        assert await link.run(COUNT, [1]) == 1


async def test_a_replica_refuses_writes_for_a_while(server: ValkeyServer) -> None:
    """The connection is given up: the address may lead to another server next time."""
    async with linked(server.url) as link:
        before = await link.command(b"CLIENT", b"ID")
        server.call("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StoreUnavailable, match="it is a replica: give the address of the primary"):
            await link.run(COUNT, [1])
        server.call("REPLICAOF", "NO", "ONE")
        assert await link.run(COUNT, [1]) == 1
        assert await link.command(b"CLIENT", b"ID") != before


async def test_too_few_replicas_refuse_writes_for_a_while(server: ValkeyServer) -> None:
    async with linked(server.url) as link:
        server.call("CONFIG", "SET", "min-replicas-to-write", "1")
        with pytest.raises(StoreUnavailable, match="too few replicas are connected"):
            await link.run(COUNT, [1])


async def test_a_long_script_of_another_client_is_waited_for(server: ValkeyServer) -> None:
    server.call("CONFIG", "SET", "busy-reply-threshold", "1")
    async with linked(server.url) as link:
        endless = asyncio.create_task(link.command(b"EVAL", b"while true do end", 0, on="read"))
        await asyncio.sleep(0.1)
        with pytest.raises(StoreUnavailable, match="a script has been running for long"):
            await link.run(COUNT, [1])
        server.call("SCRIPT", "KILL")
        with pytest.raises(BackendError, match="Redis refused"):
            await endless
        assert await link.run(COUNT, [1]) == 1


async def test_a_server_that_reads_its_data_is_waited_for(server: ValkeyServer) -> None:
    with server.client() as client:
        client.call_all([("SET", f"key-{number}", "x") for number in range(4000)])
    again = ValkeyServer(server.home, settings={"key-load-delay": "300"})  # microseconds
    async with linked(server.url) as link:
        await link.run(COUNT, [1])
        server.kill()
        await asyncio.sleep(0.05)  # until the loss is noticed
        starting = asyncio.create_task(asyncio.to_thread(again.start))
        with pytest.raises(StoreUnavailable, match=r"LOADING .*it is reading its data after a start"):
            await unless_connecting_fails(lambda: link.run(COUNT, [1]))
        await starting
        assert await link.run(COUNT, [1]) == 2


async def unless_connecting_fails(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call until it was sent."""
    while True:
        with suppress(NotConnected):
            await call()
            return


async def test_a_server_with_too_many_clients_is_unavailable(server: ValkeyServer) -> None:
    """It says so, and closes the connection. Nothing was sent: it is tried again.

    What it says is lost if it closes before it has read the greeting."""
    async with linked(server.url) as link:
        server.call("CONFIG", "SET", "maxclients", "2")
        with server.client() as other:
            other.call("PING")
            with within(3), pytest.raises(StoreUnavailable, match=r"no more connections.*maxclients"):
                await link.run(COUNT, [1], on="claim")
            assert await link.run(COUNT, [1]) == 1
            call = asyncio.create_task(link.run(COUNT, [1], on="claim"))
            await asyncio.sleep(0.05)
        assert await call == 2


async def test_a_user_that_was_removed_is_refused_until_it_is_there_again(server: ValkeyServer) -> None:
    """The server ends its connections. That is no outage: it is not tried again."""
    rules = ("ACL", "SETUSER", "me", "on", ">secret", "~{ns}:*", "&{ns}:*", "+@all")
    server.call(*rules)
    place = server.url.removeprefix("redis+unix://")
    async with linked(f"redis+unix://me:secret@{place}") as link:
        assert await link.run(COUNT, [1]) == 1
        server.call("ACL", "DELUSER", "me")
        await asyncio.sleep(0.05)  # until the loss is noticed
        with within(1), pytest.raises(AccessDenied, match="refuses the user or the password"):
            await link.run(COUNT, [1])
        server.call(*rules)
        assert await link.run(COUNT, [1]) == 2


async def test_a_login_is_needed(server: ValkeyServer) -> None:
    server.call("CONFIG", "SET", "requirepass", "secret")
    place = server.url.removeprefix("redis+unix://")
    with pytest.raises(AccessDenied, match="write it into the URL"):
        async with linked(server.url):
            pass
    with pytest.raises(AccessDenied, match="refuses the user or the password") as caught:
        async with linked(f"redis+unix://:hunter2@{place}"):
            pass
    assert "hunter2" not in str(caught.value)
    async with linked(f"redis+unix://:secret@{place}") as link:
        assert await link.run(COUNT, [1]) == 1


async def test_a_user_may_lack_rights(server: ValkeyServer) -> None:
    server.call("ACL", "SETUSER", "me", "on", ">secret", "~{ns}:*", "&{ns}:*", "+@all", "-evalsha")
    place = server.url.removeprefix("redis+unix://")
    async with linked(f"redis+unix://me:secret@{place}") as link:
        with pytest.raises(AccessDenied, match="the user lacks a right"):
            await link.run(COUNT, [1])
        server.call("ACL", "SETUSER", "me", "+evalsha", "-incrby")
        with pytest.raises(
            BackendError, match=r"the user lacks a right: .* run the 'incrby' command"
        ) as caught:
            await link.run(COUNT, [1])
        assert not caught.value.transient
        server.call("ACL", "SETUSER", "me", "+incrby")
        assert await link.run(COUNT, [1]) == 1
    async with linked(f"redis+unix://me:secret@{place}", "other") as link:
        with pytest.raises(AccessDenied, match="the user lacks a right"):
            await link.run(COUNT, [1])


def test_an_old_server_is_refused() -> None:
    for version in ("7.0.0", "7.2.4", "8.1.0", "10.0", ""):
        check_version_text(version)
    with pytest.raises(BackendError, match=r"Redis 6\.2\.14: treadle needs Redis 7\.0 or newer"):
        check_version_text("6.2.14")
