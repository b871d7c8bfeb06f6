"""A ledger beside the store: lines that survive the process that wrote them."""

from __future__ import annotations

import os
from pathlib import Path


class Ledger:
    """Each line is one write to a file opened for appending: whole, or not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()
