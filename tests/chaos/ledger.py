"""A ledger beside the store: lines that survive the process that wrote them.

effect ID, pair ID     acknowledged to the process that submitted it
ready PID              this process is up
run ID PID SECONDS     an attempt began, by the clock that all processes of a machine share
done ID                it was announced as a success
closed ID              its group was announced as done
"""

from __future__ import annotations

import os
from pathlib import Path

WEIGHTS = {"effect": 1, "pair": 4}
"""How many items come of what was acknowledged."""


class Ledger:
    """Each line is one write to a file opened for appending: whole, or not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())

    def lines(self, *kinds: str) -> list[list[str]]:
        """The lines of these kinds, each as its words."""
        words = (line.split() for line in self.path.read_text().splitlines())
        return [line for line in words if line[0] in kinds]

    def items(self) -> int:
        """How many items the acknowledged submissions make."""
        return sum(WEIGHTS[kind] for kind, _ in self.lines(*WEIGHTS))

    def ready(self) -> set[int]:
        return {int(pid) for _, pid in self.lines("ready")}
