"""The table of what was found, one row for each file. To save a file twice is to save it once."""

import json
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from pipeline.logs import Summary

TABLE = "CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, summary TEXT NOT NULL)"


@contextmanager
def _opened(directory: Path) -> Generator[sqlite3.Connection]:
    with closing(sqlite3.connect(directory / "results.db")) as db, db:
        db.execute(TABLE)
        yield db


def save_all(directory: Path, found: list[tuple[str, Summary]]) -> None:
    """Save what was found in some files, in one transaction."""
    rows = [(path, json.dumps(asdict(summary))) for path, summary in found]
    with _opened(directory) as db:
        db.executemany("INSERT OR REPLACE INTO files VALUES (?, ?)", rows)


def read_all(directory: Path) -> list[Summary]:
    with _opened(directory) as db:
        return [Summary(**json.loads(text)) for (text,) in db.execute("SELECT summary FROM files")]


def clear(directory: Path) -> None:
    with _opened(directory) as db:
        db.execute("DELETE FROM files")
