"""Runs the tests in several processes: `pytest --jobs 6`.

The tests are collected once. Then the process forks, and each child takes tests from a queue until it is
empty. To collect 18,000 tests takes 10 s of processor time, which pytest-xdist spends in each of its workers.

A queue is a pipe that is filled before the fork: a read of one number is atomic. A number is the place of a
chunk, a few tests of one module. Long chunks come first, then those with servers and processes.
Tests that share what is set up once stay together: those of a module with a fixture of its own, and all that
use the browser. Tests with PostgreSQL have a queue of their own, from which half of the processes take: each
of these has its own databases, and their new sessions, which have planned nothing yet, take most of the
server's time.
"""

from __future__ import annotations

import os
import pickle
import random
import select
import signal
import struct
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

import pytest

from tests.support.budget import Budget
from tests.support.tiers import texts_of, tier_of, uses_of

NUMBER = struct.Struct("<I")
CHUNK = {"quick": 16, "test": 4, "proof": 4}
"""The most tests of a chunk."""
SHARING = 500
"""The most tests of a chunk that share what is set up once: several processes set it up for more."""
LOOK = 0.5
"""Seconds between two looks for children that died."""

Chunk = list[pytest.Item]


def run(session: pytest.Session, budget: Budget | None = None) -> bool | None:
    """Run the tests of a session, as the hook `pytest_runtestloop` does, if it has several jobs."""
    if session.config.option.jobs < 2 or session.config.option.collectonly or session.testsfailed:
        return None
    if any(hasattr(getattr(item, "function", None), "hypothesis") for item in session.items):
        draw_once()
    jobs = Jobs(session)
    jobs.run(session.config.option.jobs)
    if budget is not None and (overruns := budget.overruns()):
        budget.measure_again()
        jobs.measure({overrun.test for overrun in overruns})
    return True


def chunks_of(items: list[pytest.Item]) -> list[Chunk]:
    """Divide tests into chunks, the slow ones first. No chunk has tests with and without PostgreSQL."""
    chunks: list[Chunk] = []
    for item in sorted(items, key=uses_sessions):
        last = chunks[-1] if chunks else []
        if last and fits(item, last):
            last.append(item)
        else:
            chunks.append([item])
    return sorted(chunks, key=order)


def order(chunk: Chunk) -> tuple[bool, int, bool]:
    """Where a chunk belongs: those with a browser first, then the long ones. One that begins last would keep
    its process busy when the others have nothing left."""
    long = len(chunk) if len(chunk) > CHUNK[tier_of(chunk[0])] else 0
    return not uses_browser(chunk[0]), -long, tier_of(chunk[0]) == "quick"


def fits(item: pytest.Item, chunk: Chunk) -> bool:
    """Whether a test belongs to the chunk of the tests before it."""
    first = chunk[0]
    if uses_browser(item) or uses_browser(first):
        return uses_browser(item) and uses_browser(first)
    is_short = len(chunk) < CHUNK[tier_of(item)]
    shares = len(chunk) < SHARING and shares_fixture(item) and shares_fixture(first)
    is_alike = first.path == item.path and uses_sessions(first) == uses_sessions(item)
    return is_alike and (is_short or shares)


def uses_browser(item: pytest.Item) -> bool:
    """Whether a test opens pages. To start a browser takes longer than most of these tests."""
    return "browser" in uses_of(item)


def uses_sessions(item: pytest.Item) -> bool:
    """Whether a test uses PostgreSQL, and no browser."""
    callspec: Any = getattr(item, "callspec", None)
    is_chosen = callspec is not None and "postgres" in texts_of(callspec)
    return (is_chosen or "postgres" in uses_of(item)) and not uses_browser(item)


def shares_fixture(item: pytest.Item) -> bool:
    """Whether a test uses a fixture of its module, which each process would set up anew."""
    found: Any = getattr(item, "_fixtureinfo", None)
    return found is not None and any(
        each[-1].scope == "module" for each in found.name2fixturedefs.values() if each
    )


def draw_once() -> None:
    """Let hypothesis read its tables of characters and the constants of all modules, once for all processes.
    In a fresh clone that takes 3 s."""
    from hypothesis import given, settings
    from hypothesis import strategies as st

    @settings(max_examples=1, database=None)
    @given(st.text())
    def draw(text: str) -> None:
        """It checks nothing."""

    draw()


class Queue:
    """The places of chunks. The parent and its children take them until there are none."""

    def __init__(self, places: Iterable[int]) -> None:
        self._read, write = os.pipe()
        for place in places:
            os.write(write, NUMBER.pack(place))
        os.close(write)

    def take(self) -> int | None:
        taken = os.read(self._read, NUMBER.size)
        return NUMBER.unpack(taken)[0] if taken else None

    def clear(self) -> None:
        while self.take() is not None:
            pass


class Child:
    """What the parent knows of a child."""

    def __init__(self, pid: int, messages: int, items: Chunk, queues: list[Queue]) -> None:
        self.pid = pid
        self.messages = messages
        self.queues = queues
        self.left = {item.nodeid: item for item in items}
        """The tests that it has taken and not ended."""
        self.running: tuple[str, Any] | None = None
        """The test that runs now, with its location."""
        self.silent = False
        """Whether it has closed its pipe."""
        self._unread = bytearray()

    def heard(self) -> Iterator[list[Any]]:
        """The messages that have arrived."""
        arrived = os.read(self.messages, 1 << 20)
        self.silent = not arrived
        self._unread += arrived
        while len(self._unread) >= NUMBER.size:
            end = NUMBER.size + NUMBER.unpack_from(self._unread)[0]
            if len(self._unread) < end:
                return
            message = bytes(self._unread[NUMBER.size : end])
            del self._unread[:end]
            yield pickle.loads(message)


class Jobs:
    """The parent of the processes. It shows what they report."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._chunks = chunks_of(session.items)
        places = range(len(self._chunks))
        self._with_sessions = Queue(n for n in places if uses_sessions(self._chunks[n][0]))
        self._without = Queue(n for n in places if not uses_sessions(self._chunks[n][0]))
        self._children: list[Child] = []

    def run(self, count: int) -> None:
        reporter: Any = self._session.config.pluginmanager.get_plugin("terminalreporter")
        reporter.showfspath = False
        both = [self._with_sessions, self._without]
        for n in range(count):
            self._start([], both if n % 2 == 0 else [self._without])
        try:
            while self._children:
                self._hear_all(LOOK)
                for child in tuple(self._children):
                    self._reap(child)
        finally:
            for child in self._children:
                os.kill(child.pid, signal.SIGKILL)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def measure(self, nodeids: set[str]) -> None:
        """Run these tests again, one after another and with nothing beside them, and report nothing."""
        items = [item for item in self._session.items if item.nodeid in nodeids]
        pid = os.fork()
        if pid == 0:
            with Path(os.devnull).open("wb") as nowhere:
                Worker(self._session, self._chunks, [], nowhere).main(items)
        os.waitpid(pid, 0)

    def _start(self, items: Chunk, queues: list[Queue]) -> None:
        """Start a child. It runs these tests first, then those of the queues, one after the other."""
        sys.stdout.flush()
        sys.stderr.flush()
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            for fd in (read, *(other.messages for other in self._children)):
                os.close(fd)  # so that it notices if its parent dies
            Worker(self._session, self._chunks, queues, os.fdopen(write, "wb")).main(items)
        os.close(write)
        self._children.append(Child(pid, read, items, queues))

    def _hear_all(self, timeout: float) -> None:
        by_fd = {child.messages: child for child in self._children if not child.silent}
        for fd in select.select([*by_fd], [], [], timeout)[0]:
            self._hear(by_fd[fd])

    def _hear(self, child: Child) -> None:
        """Show what a child reports."""
        config, hook = self._session.config, self._session.config.hook
        for kind, *content in child.heard():
            match kind:
                case "took":
                    child.left |= {item.nodeid: item for item in self._chunks[content[0]]}
                case "started":
                    child.running = (content[0], content[1])
                    hook.pytest_runtest_logstart(nodeid=content[0], location=content[1])
                case "report":
                    report = hook.pytest_report_from_serializable(config=config, data=content[0])
                    hook.pytest_runtest_logreport(report=report)
                case _:
                    child.running = None
                    child.left.pop(content[0], None)
                    hook.pytest_runtest_logfinish(nodeid=content[0], location=content[1])
        if self._session.shouldfail or self._session.shouldstop:
            self._without.clear()
            self._with_sessions.clear()

    def _reap(self, child: Child) -> None:
        """If a child died, its test has failed, and another child runs what it had taken."""
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid == 0:
            return
        # A process that it left behind may keep the pipe open: do not wait for its end.
        while not child.silent and select.select([child.messages], [], [], 0)[0]:
            self._hear(child)
        self._children.remove(child)
        os.close(child.messages)
        if child.running is not None:
            nodeid, location = child.running
            child.left.pop(nodeid, None)
            why = f"the process of this test ended with {os.waitstatus_to_exitcode(status)}"
            died = pytest.TestReport(nodeid, location, {}, "failed", why, "call")
            self._session.config.hook.pytest_runtest_logreport(report=died)
        if child.left and not self._session.shouldfail:
            self._start([*child.left.values()], child.queues)


class Worker:
    """A child. It runs chunks, and reports to its parent."""

    def __init__(
        self, session: pytest.Session, chunks: list[Chunk], queues: list[Queue], messages: IO[bytes]
    ) -> None:
        self._session = session
        self._chunks = chunks
        self._queues = queues
        self._messages = messages

    def main(self, items: Chunk) -> NoReturn:
        """Run these tests, then those of the queues."""
        status = 1
        try:
            self._prepare()
            self._run(items)
            status = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _prepare(self) -> None:
        """Share nothing with other children: no random numbers, files of captured output, or terminal."""
        random.seed()
        plugins = self._session.config.pluginmanager
        capture: Any = plugins.get_plugin("capturemanager")
        if capture is not None:
            capture.stop_global_capturing()
            capture.start_global_capturing()
            capture.suspend_global_capture()
        reporter: Any = plugins.get_plugin("terminalreporter")
        reporter._tw._file = Path(os.devnull).open("w")  # noqa: SIM115  until the process ends
        plugins.unregister(reporter)
        plugins.register(Silent(reporter), "terminalreporter")
        plugins.register(self)

    def _run(self, first: Chunk) -> None:
        items = self._items(first)
        item = next(items, None)
        while item is not None:
            following = next(items, None)  # fixtures that it uses too are kept
            self._session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following

    def _items(self, first: Chunk) -> Iterator[pytest.Item]:
        yield from first
        for queue in self._queues:
            while (place := queue.take()) is not None:
                self._send("took", place)
                yield from self._chunks[place]

    def _send(self, *message: object) -> None:
        content = pickle.dumps(message)
        self._messages.write(NUMBER.pack(len(content)) + content)
        self._messages.flush()

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._send("started", nodeid, location)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Report what the parent shows. Of a set-up or a tear-down that passed that is at most its time."""
        config = self._session.config
        options = config.option
        is_timed = options.durations is not None or getattr(options, "xmlpath", None)
        if report.passed and report.when != "call" and not is_timed:
            return
        self._send("report", config.hook.pytest_report_to_serializable(config=config, report=report))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._send("finished", nodeid, location)


class Silent:
    """The terminal of a child: it has no hooks, so it shows nothing, and other plugins find it."""

    def __init__(self, reporter: Any) -> None:
        self._reporter = reporter

    def __getattr__(self, name: str) -> Any:
        if name.startswith("pytest_"):
            raise AttributeError(name)
        return getattr(self._reporter, name)
