"""The grants of SECURITY.md on PostgreSQL: one role owns the schema, another uses it with these grants only.

`make roles` runs the whole contract as the second role.
"""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.backends.test_postgres import PostgresSubject, shared_database, shared_url
from tests.cli.calling import call
from treadle import AccessDenied, Context, Result, Retry, Treadle, WorkFailed, work
from treadle.backends.postgres import PostgresBackend
from treadle.backends.postgres import schema as schema_module
from treadle.doers import concurrency, rate_limited
from treadle.testing.contract import BackendContract

__all__ = ["shared_database", "shared_url"]

SECURITY = Path(__file__).parents[2] / "SECURITY.md"
BLOCK = re.compile(r"^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)
PATIENCE = 30.0
RIGHTS = """
select c.relname, p.privilege
from pg_class c, unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p (privilege)
where c.relnamespace = 'treadle'::regnamespace and c.relkind = 'r' and c.relname <> 'shift'
  and has_table_privilege(%s, c.oid, p.privilege)
"""


def as_role(url: str, role: str) -> str:
    return urlunsplit(urlsplit(url)._replace(netloc=f"{role}@"))


def create_and_rights() -> tuple[str, str]:
    """The statements of the page: those of an administrator, and those of the owner."""
    create, rights = BLOCK.findall(SECURITY.read_text())
    return create, rights


def renamed(sql: str, names: dict[str, str]) -> str:
    for name, other in names.items():
        sql = re.sub(rf"\b{name}\b", other, sql)
    return sql


class Roles:
    """A database with the two roles of the page. The owner has migrated it."""

    def __init__(self, url: str) -> None:
        mark = uuid.uuid4().hex[:12]
        self.url = url
        self.owner, self.shop = f"owner_{mark}", f"shop_{mark}"
        database = urlsplit(url).path.removeprefix("/")
        self.names = {"shop_database": database, "treadle_owner": self.owner, "shop": self.shop}
        create, rights = create_and_rights()
        self.admin = psycopg.connect(url, autocommit=True)
        self.admin.execute(renamed(create, self.names).encode())
        migrated = call("migrate", as_role(url, self.owner))
        assert migrated.code == 0, migrated.err
        with psycopg.connect(as_role(url, self.owner), autocommit=True) as owner:
            owner.execute(renamed(rights, self.names).encode())

    def execute(self, sql: str) -> None:
        self.admin.execute(sql.encode())

    def close(self) -> None:
        for role in (self.shop, self.owner):
            self.execute(f"drop owned by {role} cascade")
            self.execute(f"drop role {role}")
        self.admin.close()

    def backend(self) -> PostgresBackend:
        return PostgresBackend(as_role(self.url, self.shop), schema_owner=self.owner, apply_schema=False)


@pytest.fixture
def roles(postgres_url: str) -> Iterator[Roles]:
    made = Roles(postgres_url)
    yield made
    made.close()


# -- what is granted is enough -------------------------------------------------------------------------


@work(name="part", doer=rate_limited(1000, window=1))
async def part(number: int) -> int:
    return number


@work(name="whole", doer=concurrency(5))
async def whole(ctx: Context, count: int) -> Result[None, int]:
    return ctx.queue([part(number) for number in range(count)]).next(total())


@work(name="total")
async def total(ctx: Context) -> int:
    return sum(await ctx.results(ctx.dependencies))


@work(name="fails", retry=Retry(attempts=2, base=0))
async def fails() -> None:
    raise ValueError("no")


async def test_a_client_and_a_worker_run_with_these_grants(roles: Roles) -> None:
    app = Treadle(roles.backend(), work=[part, whole, total, fails], heartbeat=0.5, log_failures=False)
    app.schedule("nightly", cron="0 3 * * *", run=lambda: part(1))
    async with app:
        assert await app.enqueue(whole(5), key="once").group(timeout=PATIENCE) == 10
        dead = await app.enqueue(fails())
        with pytest.raises(WorkFailed):
            await dead.result(timeout=PATIENCE)
        await app.requeue([dead.id])
        late = await app.enqueue(part(3), delay=3600)
        await late.cancel()
        await app.delete([late.id])
        await app.pause("mail")
        await app.resume("mail")
        await app.schedules.trigger("nightly")
        assert await app.backend.prune() == 0
        assert await app.backend.inspect() == []
    with psycopg.connect(as_role(roles.url, roles.shop), autocommit=True) as shop:
        for forbidden in (
            "drop function treadle.clock()",
            "alter table treadle.item add x int",
            "create table treadle.other (n int)",
            "create trigger t before insert on treadle.item execute function treadle.clock()",
            "truncate treadle.item",
            "update treadle.meta set value = ''",
            "update treadle.audit set actor = 'another'",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                shop.execute(forbidden)


SQL = Path(schema_module.__file__).parent / "sql"
WRITES = {
    "INSERT": [r"insert into treadle\.{}\b"],
    "UPDATE": [
        r"update treadle\.{}\b",
        r"insert into treadle\.{}\b(?:(?!;|-- :name)[\s\S])*?\bdo update\b",
        r"treadle\.{}\b(?:(?!;|-- :name)[\s\S])*?\bfor update\b",
    ],
    "DELETE": [r"delete from treadle\.{}\b"],
}
"""Where the SQL of treadle needs a right to a table."""


def test_each_right_is_needed(roles: Roles) -> None:
    """A statement writes to each table as the role may. The audit is locked, by a right to one column."""
    texts = "".join(file.read_text() for file in sorted(SQL.rglob("*.sql")) if file.name != "schema.sql")
    needed = {
        (table, right)
        for (table,) in roles.admin.execute("select tablename from pg_tables where schemaname = 'treadle'")
        for right, patterns in WRITES.items()
        if any(re.search(pattern.format(table), texts, re.IGNORECASE) for pattern in patterns)
    }
    granted = {pair for pair in roles.admin.execute(RIGHTS.encode(), [roles.shop]) if pair[1] != "SELECT"}
    assert granted - needed == set()
    assert needed - granted == {("audit", "UPDATE")}


# -- what is missing is named --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("revoked", "named"),
    [("insert on treadle.item", "table item"), ("usage on sequence treadle.number", "sequence number")],
)
async def test_a_missing_grant_is_named(roles: Roles, revoked: str, named: str) -> None:
    app = Treadle(roles.backend(), work=[part])
    roles.execute(f"revoke {revoked} from {roles.shop}")
    with pytest.raises(AccessDenied, match=rf"permission denied for {named}: SECURITY\.md has the grants"):
        await app.enqueue(part(1))
    await app.close()


async def test_a_worker_says_what_is_missing_and_goes_on_when_it_is_granted(roles: Roles) -> None:
    missing = asyncio.Event()

    def on_error(error: BaseException, phase: str) -> None:
        if "permission denied for table open_item" in str(error):
            missing.set()

    app = Treadle(roles.backend(), work=[part], on_error=on_error, poll_interval=0.1)
    async with app:
        roles.execute(f"revoke update on treadle.open_item from {roles.shop}")
        handle = await app.enqueue(part(1))
        async with asyncio.timeout(PATIENCE):
            await missing.wait()
        roles.execute(f"grant update on treadle.open_item to {roles.shop}")
        assert await handle.result(timeout=PATIENCE) == 1


async def test_a_role_without_the_schema_is_told_so(roles: Roles) -> None:
    roles.execute(f"revoke usage on schema treadle from {roles.shop}")
    with pytest.raises(
        AccessDenied, match=r"permission denied for schema treadle: SECURITY\.md has the grants"
    ):
        await roles.backend().open()


# -- the whole contract --------------------------------------------------------------------------------


class RoleSubject(PostgresSubject):
    """Connects as the role that uses the schema."""

    def __init__(self, url: str, role: str) -> None:
        super().__init__(url)
        self._role = role

    async def another(self) -> PostgresBackend:
        backend = PostgresBackend(as_role(self._url, self._role), apply_schema=False)
        await backend.open()
        self._stack.push_async_callback(backend.close)
        return backend


if os.environ.get("TREADLE_TEST_ROLES"):

    @pytest.fixture(scope="session")
    def contract_role(shared_database: Any) -> Iterator[str]:
        """A role with the grants of the page, in the database of the contract. At the end: each was used."""
        _, connection = shared_database
        role = f"shop_{uuid.uuid4().hex[:12]}"
        _, rights = create_and_rights()
        connection.execute(f"create role {role} login".encode())
        connection.execute(renamed(rights, {"shop": role}).encode())
        connection.execute(f"grant select on treadle.shift to {role}".encode())
        yield role
        connection.execute(f"drop owned by {role}; drop role {role}".encode())

    class TestRoleContract(BackendContract):
        @pytest.fixture
        async def subject(
            self, shared_database: Any, shared_url: str, contract_role: str
        ) -> AsyncIterator[RoleSubject]:
            async with RoleSubject(shared_database[0], contract_role) as subject:
                yield subject
