"""The files for Alembic in docs/sqlalchemy.md: upgrade, check that nothing is left to change, downgrade."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Column, Integer, MetaData, Table

PAGE = Path(__file__).parents[2] / "docs" / "sqlalchemy.md"
TABLES = "select count(*) from pg_tables where schemaname = 'treadle'"


def file(name: str) -> str:
    """The block of the page that begins with the name of this file."""
    return block(f"# {re.escape(name)}\n")


def block(begin: str) -> str:
    (found,) = re.findall(rf"^```\n({begin}.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_revision_creates_the_tables(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    pytest.importorskip("alembic")
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    models = types.ModuleType("shop.models")
    metadata = MetaData()
    models.Base = types.SimpleNamespace(metadata=metadata)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop", types.ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.models", models)
    (tmp_path / "versions").mkdir()
    revision, env = file("versions/0001_treadle.py"), file("env.py")
    driver = "psycopg"
    if is_async:
        driver = "asyncpg"
        revision, env = with_run_async(revision), on_a_loop(env)
    (tmp_path / "versions" / "0001_treadle.py").write_text(revision)
    (tmp_path / "env.py").write_text(env)
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", "os")
    url = postgres_url.replace("postgresql://", f"postgresql+{driver}://")
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        command.upgrade(config, "head")
        assert connection.execute(TABLES).fetchone() > (5,)  # type: ignore[operator]
        command.check(config)  # autogenerate finds nothing to change
        Table("orders", metadata, Column("id", Integer, primary_key=True))
        with pytest.raises(CommandError, match="orders"):
            command.check(config)
        command.downgrade(config, "base")
        assert connection.execute(TABLES).fetchone() == (0,)


def with_run_async(revision: str) -> str:
    """The revision with the `upgrade` for the async template."""
    upgrade = block("async def create_tables")
    return re.sub(r"^def upgrade.*?\n\n\n", upgrade + "\n\n", revision, flags=re.MULTILINE | re.DOTALL)


def on_a_loop(env: str) -> str:
    """An env.py as in the async template, with the settings of that of the page."""
    begin, _, rest = env.partition("engine = ")
    _, _, body = rest.partition("with engine.connect() as connection:\n")
    body = body.removesuffix("engine.dispose()\n")
    return f"""import asyncio
from sqlalchemy.ext.asyncio import async_engine_from_config
{begin}
def run(connection):
{body}

async def main():
    engine = async_engine_from_config(context.config.get_section("alembic"))
    async with engine.connect() as connection:
        await connection.run_sync(run)
        await connection.commit()
    await engine.dispose()

asyncio.run(main())
"""
