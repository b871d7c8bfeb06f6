"""Reload: notice changes of the project's Python files. For development."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

INTERVAL = 0.5
"""Seconds between two scans."""
SKIPPED = frozenset({".venv", "venv", "node_modules", "__pycache__", ".git"})


class FileWatcher:
    def __init__(self, root: Path | None = None) -> None:
        self._root = root or Path.cwd()
        self._seen = self._scan()

    async def run(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a Python file was changed, added or removed, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            if self.run_once():
                changed()

    def run_once(self) -> bool:
        """Whether a file has changed since the last call."""
        seen, self._seen = self._seen, self._scan()
        return seen != self._seen

    def _scan(self) -> dict[Path, float]:
        files = (path for path in self._root.rglob("*.py") if not SKIPPED.intersection(path.parts))
        return {path: path.stat().st_mtime for path in files if path.exists()}
