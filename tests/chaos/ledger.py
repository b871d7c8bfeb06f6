"""A file beside the store, with lines that survive the process that wrote them.

effect ID, pair ID     the submission was acknowledged
ready PID              this process is up
run ID PID SECONDS N   attempt N began, by the clock that all processes of a machine share
done ID                the success of the item was announced
closed ID              the end of its group was announced
"""

from __future__ import annotations

import os
from pathlib import Path

WEIGHTS = {"effect": 1, "pair": 4}
"""The number of items that each acknowledged submission makes."""


class Ledger:
    """Each line is one write to a file opened for appending: it is there completely or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._read = 0
        self._words: dict[str, list[list[str]]] = {}

    def write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())

    def lines(self, *kinds: str) -> list[list[str]]:
        """The lines of these kinds, each as its words."""
        self._catch_up()
        return [line for kind in kinds for line in self._words.get(kind, ())]

    def _catch_up(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            words = line.split()
            self._words.setdefault(words[0], []).append(words)

    def items(self) -> int:
        """The number of items that the acknowledged submissions make."""
        return sum(WEIGHTS[kind] for kind, _ in self.lines(*WEIGHTS))

    def ready(self) -> set[int]:
        return {int(pid) for _, pid in self.lines("ready")}
