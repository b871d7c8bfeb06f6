"""`treadle worker --reload` notices changes of Python files, and of nothing else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from treadle.cli import worker
from treadle.cli.worker import FileWatcher


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("jobs.py", "shop/mail.py", "shop/notes.txt", ".venv/lib/library.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("first")
    return tmp_path


def change(path: Path) -> None:
    """Replace a file by a later one, in one step, as editors do."""
    other = path.with_suffix(".saving")
    other.write_text("second")
    later = path.stat().st_mtime + 10
    os.utime(other, (later, later))
    other.replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file is changed": lambda project: change(project / "jobs.py"),
    "a file further down is changed": lambda project: change(project / "shop/mail.py"),
    "a file is added": lambda project: (project / "shop/new.py").write_text(""),
    "a file is removed": lambda project: (project / "jobs.py").unlink(),
    "a file gets another name": lambda project: (project / "jobs.py").rename(project / "work.py"),
    "a directory is removed": lambda project: [
        (project / "shop/mail.py").unlink(),
        (project / "shop/notes.txt").unlink(),
        (project / "shop").rmdir(),
    ],
}
OTHERS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda project: None,
    "a file that is no Python": lambda project: change(project / "shop/notes.txt"),
    "a virtual environment": lambda project: change(project / ".venv/lib/library.py"),
    "a compiled file": lambda project: (project / "__pycache__").mkdir(),
    "a link to nothing": lambda project: (project / "gone.py").symlink_to(project / "nowhere.py"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed_once(project: Path, name: str) -> None:
    watcher = FileWatcher(project)
    CHANGES[name](project)
    assert watcher.run_once()
    assert not watcher.run_once()


@pytest.mark.parametrize("name", OTHERS)
def test_other_changes_are_none(project: Path, name: str) -> None:
    watcher = FileWatcher(project)
    OTHERS[name](project)
    assert not watcher.run_once()


def test_the_current_directory_is_watched(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "shop")
    watcher = FileWatcher()
    change(project / "jobs.py")
    assert not watcher.run_once()
    change(project / "shop/mail.py")
    assert watcher.run_once()


async def test_each_change_is_told(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LOOK_EVERY", 0.001)
    told: asyncio.Queue[None] = asyncio.Queue()
    watching = asyncio.create_task(FileWatcher(project).run(lambda: told.put_nowait(None)))
    try:
        for name in ("jobs.py", "shop/mail.py", "jobs.py"):
            change(project / name)
            await asyncio.wait_for(told.get(), 30)
        assert told.empty()
    finally:
        watching.cancel()
