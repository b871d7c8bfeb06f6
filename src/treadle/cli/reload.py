"""Reload: notice that a file of the project has changed. For development; it looks twice a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

INTERVAL = 0.5
SKIPPED = frozenset({".venv", "venv", "node_modules", "__pycache__", ".git"})


class Watcher:
    def __init__(self, root: Path | None = None) -> None:
        self._root = root or Path.cwd()
        self._seen = self._look()

    async def run(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a Python file was changed, added or removed, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            if self.run_once():
                changed()

    def run_once(self) -> bool:
        seen, self._seen = self._seen, self._look()
        return seen != self._seen

    def _look(self) -> dict[Path, float]:
        files = (path for path in self._root.rglob("*.py") if not SKIPPED.intersection(path.parts))
        return {path: path.stat().st_mtime for path in files if path.exists()}
