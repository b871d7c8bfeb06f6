"""Fresh databases on a PostgreSQL server, whoever started it."""

import uuid
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql


class Postgres:
    """A server, and fresh databases on it."""

    def __init__(self, url: str, *, strategy: str = "WAL_LOG") -> None:
        self.url = url
        self._strategy = sql.Identifier(strategy)
        self._admin = psycopg.connect(url, autocommit=True)

    @classmethod
    def throwaway(cls, url: str) -> "Postgres":
        """A server without fsync, where copying the files is the faster way to a new database."""
        return cls(url, strategy="FILE_COPY")

    def __enter__(self) -> "Postgres":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._admin.close()

    @contextmanager
    def database(self, template: str = "template0") -> Generator[str]:
        """The URL of a new database, dropped at the end, whoever is still connected to it."""
        name = f"treadle_{uuid.uuid4().hex[:16]}"
        self._create(name, template)
        try:
            yield urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))
        finally:
            self._drop(name)

    def _create(self, name: str, template: str) -> None:
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY {}")
        names = (sql.Identifier(name), sql.Identifier(template), self._strategy)
        self._admin.execute(create.format(*names))

    def _drop(self, name: str) -> None:
        drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
        self._admin.execute(drop.format(sql.Identifier(name)))
