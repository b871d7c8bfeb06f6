"""The demo in a terminal: it ends without input, and it continues after Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.forks import Forked, common_server

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
PATIENCE = 40

pytestmark = pytest.mark.timeout(2 * PATIENCE + 20)


class Terminal:
    """A program in a pseudo-terminal, and its output."""

    def __init__(self, process: Forked, screen: int) -> None:
        self.process = process
        self.shown = ""
        self._screen = screen
        self._end = time.monotonic() + PATIENCE

    def until(self, pattern: str) -> re.Match[str]:
        """Return when the output contains this text."""
        while (found := re.search(pattern, self.shown)) is None:
            assert self._read(), f"ended without {pattern!r}: {self.shown}"
        return found

    def ended(self) -> int:
        """Wait for the end, and return the exit code."""
        while self._read():
            pass
        return self.process.wait(timeout=PATIENCE)

    def _read(self) -> bool:
        left = self._end - time.monotonic()
        ready, _, _ = select.select([self._screen], [], [], max(0.0, left))
        assert ready, f"nothing more after {PATIENCE} s: {self.shown}"
        try:
            data = os.read(self._screen, 65536)
        except OSError:  # Linux raises this when the other end is closed
            return False
        self.shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))
        return bool(data)


@contextmanager
def demo(directory: Path) -> Iterator[Terminal]:
    screen, inside = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    command = ["python", "-W", "error", str(DEMO)]
    process = common_server().start(command, directory, env, input=inside, output=inside, errors=inside)
    os.close(inside)
    try:
        yield Terminal(process, screen)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(screen)


@pytest.mark.usefixtures("processes")
def test_the_demo_continues_after_an_interrupt(tmp_path: Path) -> None:
    """One interrupt lets it end in order, several end it at once. Then it runs to its end."""
    with demo(tmp_path) as terminal:
        terminal.until(r"read .* [1-9]\d*/40")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ended() == 130, terminal.shown
        assert "Nothing is lost" in terminal.shown
    done = re.findall(r"read .*? +(\d+)/40", terminal.shown)[-1]
    assert 0 < int(done) < 40

    with demo(tmp_path) as terminal:
        first = terminal.until(r"read .*? +(\d+)/40")[1]
        assert int(first) >= int(done), "what was done is not done again"
        for _ in range(3):
            terminal.process.send_signal(signal.SIGINT)
        terminal.ended()
    with demo(tmp_path) as terminal:
        assert terminal.ended() == 0, terminal.shown
    assert "goes on where it was" in terminal.shown
    assert re.search(r"Done: 40 documents, [\d,]+ words, 40 vectors", terminal.shown)


@pytest.mark.usefixtures("processes")
def test_the_demo_without_a_terminal_prints_only_the_result(tmp_path: Path) -> None:
    done = common_server().run(["python", "-W", "error", str(DEMO)], tmp_path, os.environ, PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"Done: 40 documents, [\d,]+ words, 40 vectors", done.stdout)
    assert "\x1b" not in done.stdout
