"""PostgreSQL: other roles of the database, hostile or restricted."""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from tests.backends.postgres_store import connected, opened, wake_channel
from tests.support.traps import lay_traps
from treadle import Treadle, work
from treadle.backends.postgres import PostgresBackend, schema_sql
from treadle.errors import UntrustedSchema
from treadle.item import Filter, Submission, Wake, WakeResult
from treadle.testing.contract.build import item, submit

ROOT = Path(__file__).parents[2]
SECURITY = ROOT / "SECURITY.md"
SQL = ROOT / "src" / "treadle" / "backends" / "postgres" / "sql"
BLOCK = re.compile(r"^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"\btreadle\.(\w+)\(")
SHOWN_TO_ALL = """
select query, application_name, pg_listening_channels() from pg_stat_activity
union all select query, application_name, null from pg_stat_activity
"""
"""What the server tells any role of the sessions of others, and of its own channels."""
SENT = Wake(
    sender="s",
    items=(("acme", "invoice-42"),),
    results=(WakeResult("bill", 1.5, b'"iban 7"', ends_group=True),),
    asking=(("acme", "invoice-43"),),
)
UNPINNED = """
select proname from pg_proc
where pronamespace = 'treadle'::regnamespace and prosqlbody is null
  and not 'search_path=pg_catalog, pg_temp' = any(coalesce(proconfig, '{}'))
"""


@work
def double(number: int) -> int:
    return number * 2


class Roles(NamedTuple):
    """The URLs of one database for three roles."""

    admin: str
    app: str
    attacker: str

    @property
    def app_name(self) -> str:
        return urlsplit(self.app).username or ""

    @property
    def attacker_name(self) -> str:
        return urlsplit(self.attacker).username or ""


@pytest.fixture
async def roles(postgres_url: str) -> AsyncIterator[Roles]:
    """A database in which two roles may create schemas, and every role may create in `public`."""
    mark = uuid.uuid4().hex[:12]
    names = [f"app_{mark}", f"attacker_{mark}"]
    async with connected(postgres_url) as admin:
        database = urlsplit(postgres_url).path[1:]
        await admin.execute("grant create on schema public to public")
        for name in names:
            await admin.execute(f"create role {name} login; grant create on database {database} to {name}")
        yield Roles(postgres_url, *(_as(postgres_url, name) for name in names))
        for name in names:
            await admin.execute(f"drop owned by {name} cascade; drop role {name}")


def _as(url: str, role: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))


# -- functions and operators in the search path --------------------------------------------------------


@pytest.mark.parametrize("path", ["", "public,pg_catalog"])
async def test_traps_in_public_catch_no_app(roles: Roles, path: str) -> None:
    """Also if the search path of the app's role begins with `public`. The contract runs every verb so."""
    async with connected(roles.attacker) as attacker:
        await attacker.execute(lay_traps())
    url = f"{roles.app}{'&' if '?' in roles.app else '?'}search_path={path}" if path else roles.app
    app = Treadle(PostgresBackend(url, long_transaction=0), work=[double])
    async with app:
        assert await app.enqueue(double(2)).result(timeout=60) == 4
        many = await app.enqueue_many([double(n) for n in range(20)])
        assert [await handle.result(timeout=60) for handle in many] == [2 * n for n in range(20)]
        assert len((await app.list(status="success")).items) == 21
        assert not await app.backend.inspect()


async def test_traps_in_public_catch_no_transaction_of_a_user(roles: Roles) -> None:
    async with connected(roles.attacker) as attacker:
        await attacker.execute(lay_traps())
    async with opened(roles.app) as backend:
        tx = await asyncpg.connect(roles.app)
        async with tx.transaction():
            await backend.submit([Submission((item("a"),))], tx=tx)
        await tx.close()
        assert len((await backend.list(Filter(status=("ready",)))).items) == 1


async def test_every_function_that_a_statement_calls_is_safe(prepared_url: str) -> None:
    """It pins its search path, or is bound to what it calls, or is `spread`, whose names are qualified."""
    called = set(CALL.findall("".join(file.read_text() for file in (SQL / "statements").iterdir())))
    async with connected(prepared_url) as admin:
        unsafe = await admin.fetch(UNPINNED)
    assert {name for (name,) in unsafe} & called == {"spread"}


# -- schemas of other roles ----------------------------------------------------------------------------


@pytest.mark.parametrize("apply_schema", [True, False])
async def test_a_schema_that_another_role_owns_is_refused(roles: Roles, apply_schema: bool) -> None:
    """Its owner could replace the functions. That is worst for a superuser, who counts as member of all."""
    async with connected(roles.attacker) as attacker:
        await attacker.execute(schema_sql())
    for url in (roles.app, roles.admin):
        with pytest.raises(UntrustedSchema, match="owns it") as refusal:
            await PostgresBackend(url, apply_schema=apply_schema).open()
        assert refusal.value.role == roles.attacker_name
    async with connected(roles.app) as app:
        with pytest.raises(asyncpg.PostgresError):
            await app.execute(schema_sql())


async def test_a_schema_in_which_others_may_create_is_refused(roles: Roles) -> None:
    async with connected(roles.app) as app, opened(roles.app):
        await app.execute("grant usage, create on schema treadle to public")
        with pytest.raises(UntrustedSchema, match="every role may create in it"):
            await PostgresBackend(roles.app).open()
        async with connected(roles.attacker) as attacker:
            await attacker.execute(
                "create function treadle.names(varchar) returns text[] language sql as 'select array[$1]'"
            )
        await app.execute("revoke create on schema treadle from public")
        with pytest.raises(UntrustedSchema, match="owns the function names in it"):
            await PostgresBackend(roles.app).open()
    with pytest.raises(UntrustedSchema):
        await PostgresBackend(roles.app, schema="public").open()


async def test_tables_to_which_others_may_attach_triggers_are_refused(roles: Roles) -> None:
    """A trigger runs as the role that writes. To grant `all` on a table includes it."""
    async with connected(roles.app) as app, opened(roles.app):
        await app.execute(f"grant all on treadle.item to {roles.attacker_name}")
        with pytest.raises(UntrustedSchema, match="may attach triggers to item in it"):
            await PostgresBackend(roles.app).open()
        await app.execute(f"revoke trigger on treadle.item from {roles.attacker_name}")
        async with opened(roles.app):
            pass


async def test_a_schema_of_a_role_that_is_inherited_from_is_accepted(roles: Roles) -> None:
    """A group of roles may own it together. So may a superuser."""
    async with connected(roles.admin) as admin:
        group = f"{roles.app_name}_group"
        await admin.execute(f"create role {group}; grant {group} to {roles.app_name}")
        await admin.execute(f"create schema treadle authorization {group}")
        async with opened(roles.app) as backend:
            await submit(backend, item("a"))
        await admin.execute(f"drop schema treadle cascade; drop role {group}")
        await admin.execute(schema_sql())
        await admin.execute(f"grant usage on schema treadle to {roles.app_name}")
        await admin.execute(f"grant select on all tables in schema treadle to {roles.app_name}")
        async with opened(roles.app, apply_schema=False) as backend:
            assert not (await backend.list(Filter())).items


async def test_the_grants_of_the_security_page_suffice(roles: Roles) -> None:
    """A role with these grants runs an app and its worker, and cannot change the functions."""
    owner, app = roles.attacker_name, roles.app_name
    grants = BLOCK.findall(SECURITY.read_text())[1].replace("to shop;", f"to {app};")
    async with opened(roles.attacker), connected(roles.attacker) as admin:
        await admin.execute(grants.replace("from shop;", f"from {app};"))
    backend = PostgresBackend(roles.app, schema_owner=owner, apply_schema=False)
    async with Treadle(backend, work=[double], heartbeat=0.5) as shop:
        assert await shop.enqueue(double(2)).result(timeout=60) == 4
        late = await shop.enqueue(double(3), delay=3600)
        await late.cancel()
        assert len((await shop.list()).items) == 2
        assert await shop.backend.prune() == 0
    async with connected(roles.app) as restricted:
        for forbidden in (
            "drop function treadle.clock()",
            "alter table treadle.item add x int",
            "delete from treadle.meta",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await restricted.execute(forbidden)


# -- wake-ups ------------------------------------------------------------------------------------------


@pytest.fixture
async def monitor(roles: Roles) -> str:
    """The URL of a role that may see what others do, and nothing of the schema."""
    async with connected(roles.admin) as admin:
        await admin.execute(f"grant pg_monitor to {roles.attacker_name}")
    return roles.attacker


async def test_another_role_cannot_name_the_channel(roles: Roles) -> None:
    """Every role of the database can listen to a channel that it can name, and send to it."""
    heard: list[object] = []
    async with (
        opened(roles.app) as sender,
        opened(roles.app) as receiver,
        connected(roles.app) as app,
        connected(roles.attacker) as attacker,
    ):
        wakes: asyncio.Queue[Wake] = asyncio.Queue()
        await receiver.subscribe(wakes.put_nowait)
        for guess in ("treadle", "treadle.treadle", "treadle_"):
            await attacker.add_listener(guess, lambda *got: heard.append(got))
            await attacker.execute("select pg_notify($1, $2)", guess, '{"everything":true}')
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await attacker.fetch("select * from treadle.meta")
        shown = str(await attacker.fetch(SHOWN_TO_ALL))
        await sender.publish(SENT)
        async with asyncio.timeout(20):
            assert await wakes.get() == SENT
        await attacker.fetchval("select 1")
        heard = [got for got in heard if "everything" not in str(got)]
        channel = await wake_channel(app)
    assert heard == []
    assert wakes.empty()
    assert channel not in shown
    assert "pg_notify" not in shown


async def test_a_role_that_monitors_does_not_see_the_channel(roles: Roles, monitor: str) -> None:
    """It sees the last statement of each connection, but not its parameters."""
    async with (
        opened(roles.app) as backend,
        connected(roles.app) as user,
        connected(monitor) as watching,
    ):
        await backend.subscribe(lambda _: None)
        await backend.publish(SENT)
        async with user.transaction():
            await backend.submit([Submission((item("a"),))], tx=user)
            shown = str(await watching.fetch(SHOWN_TO_ALL))
        channel = await wake_channel(user)
    assert "pg_notify" in shown
    assert channel not in shown


async def test_hostile_wake_ups_are_ignored(roles: Roles) -> None:
    """Of a role that knows the channel: they are no wake-ups, stop no listener, and cost no read."""
    hostile = ["", "x", "[" * 7000, '{"items":' * 800, '{"everything":true}', "A" * 7996, "é" * 3900]
    hostile += ['{"items":[["acme","a"]]}', '{"ready":true,"everything":true}', '{"times":1e308}', "echo x"]
    async with opened(roles.app) as backend, connected(roles.app) as other:
        channel = await wake_channel(other)
        wakes: asyncio.Queue[Wake] = asyncio.Queue()
        await backend.subscribe(wakes.put_nowait)
        for payload in hostile:
            await other.execute("select pg_notify($1, $2)", channel, payload)
        await backend.publish(Wake(ready=True, sender="s"))
        async with asyncio.timeout(20):
            assert await wakes.get() == Wake(ready=True, sender="s")


async def test_a_schema_has_a_channel_of_its_own(roles: Roles) -> None:
    """Another one of the same database has another. A process of an older version uses neither, and polls."""
    async with (
        opened(roles.app) as one,
        opened(roles.app, schema="other") as other,
        connected(roles.app) as old,
    ):
        wakes: asyncio.Queue[Wake] = asyncio.Queue()
        await one.subscribe(wakes.put_nowait)
        await other.publish(Wake(ready=True, sender="other"))
        await old.execute("select pg_notify('treadle.treadle', 'c2VhbGVk')")
        await one.publish(Wake(ready=True, sender="one"))
        async with asyncio.timeout(20):
            assert (await wakes.get()).sender == "one"
