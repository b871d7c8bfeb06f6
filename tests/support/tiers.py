"""Which tests `make quick`, `make test` and `make proof` run. What a test uses decides it.

| tier | a test of it | run by |
| --- | --- | --- |
| quick | uses this process only | `make quick`, `make test` |
| test | uses a server, another process or a browser | `make test` |
| proof | repeats a rule: another form of a store, more seeds, more stores, long loads | `make proof` |

Each test belongs to one tier, and `make test` with `make proof` runs all of them. A test says what it uses by
its fixtures: `postgres`, `processes`, `browser`. One that starts a process without saying so fails.

Tests with random examples run in `make proof` too, with more of them (`examples`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from itertools import permutations
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from zlib import crc32

import pytest

TESTS = Path(__file__).parents[1]

Tier: TypeAlias = Literal["quick", "test", "proof"]
Chosen: TypeAlias = Literal["quick", "test", "proof", "all"]
TIERS: dict[Chosen, tuple[Tier, ...]] = {
    "quick": ("quick",),
    "test": ("quick", "test"),
    "proof": ("proof",),
    "all": get_args(Tier),
}
"""The tiers that each choice runs."""

STARTING = frozenset({"postgres", "valkey", "valkey_home", "nats_url", "processes", "browser"})
"""Fixtures that start a server or a process."""
SERVERS = frozenset({"postgres", "redis", "nats", "pgbouncer"})
"""Parameters of fixtures that choose a store on a server."""
REPEATING = frozenset({"another_form", "checks_tests", "cluster", "deployment", "long_load", "type_checkers"})
"""Fixtures of tests that repeat a rule, or check the tests."""
QUICK_ROOMS = ("architecture", "backends", "engine", "simulation", "unit")
"""Directories that `make quick` runs."""
PROOF_ROOMS = frozenset({"chaos", "deploy", "moving", "mutants", "packaging", "support"})
"""Directories whose tests repeat with more of everything what other tests check once, or check the tests."""


MANY = 6
"""How many times as many random examples `make proof` has."""
ROUNDS = 4
"""How many times as many rounds of a race `make proof` has."""
BESIDE_MEMORY = 4
"""`make test` runs one of so many tests of the engine on another store too."""
RACES = "treadle.testing.contract.races"
"""The module that counts them, and how those of the cases begin."""


def runs_in(item: pytest.Item, choice: Chosen) -> bool:
    """Whether a choice runs a test."""
    return tier_of(item) in TIERS[choice] or (choice == "proof" and has_examples(item))


def has_examples(item: pytest.Item) -> bool:
    """Whether a test has random examples, of `hypothesis` or of its own, or rounds of a race."""
    function = getattr(item, "function", None)
    return (
        hasattr(function, "hypothesis")
        or "random_examples" in getattr(item, "fixturenames", ())
        or getattr(function, "__module__", "").startswith(RACES)
    )


def race_less(choice: Chosen) -> None:
    """Let the cases of the contract have fewer rounds of their races, where `make proof` has all of them."""
    if choice in ("quick", "test") and RACES in sys.modules:
        vars(sys.modules[RACES])["FEWER"] = ROUNDS


def examples(count: int, few: int | None = None) -> int:
    """How many random examples a test has: this many in `make proof`, fewer elsewhere."""
    if os.environ.get("TREADLE_TEST_CHOICE") == "proof":
        return count
    return max(2, count // MANY) if few is None else few


def tier_of(item: pytest.Item) -> Tier:
    """The tier of a test."""
    uses = uses_of(item)
    if uses & REPEATING or room_of(item) in PROOF_ROOMS or is_repeated(item):
        return "proof"
    return "test" if uses & STARTING else "quick"


def uses_of(item: pytest.Item) -> set[str]:
    """The fixtures of a test. A store on a server that a parameter chooses counts as `processes`."""
    uses = set(getattr(item, "fixturenames", ()))
    callspec: Any = getattr(item, "callspec", None)
    if callspec is not None and not SERVERS.isdisjoint(texts_of(callspec)):
        uses.add("processes")
    return uses


def texts_of(callspec: Any) -> set[str]:
    """The parameters of a case that are texts."""
    return {value for value in callspec.params.values() if isinstance(value, str)}


def room_of(item: pytest.Item) -> str:
    """The directory of a test, directly in `tests`."""
    return item.nodeid.removeprefix("tests/").split("/", 1)[0]


def is_room_left_out(path: Path, choice: Chosen) -> bool:
    """Whether this is a directory of tests that all belong to other tiers."""
    return choice in ("quick", "test") and path.parent == TESTS and path.name in PROOF_ROOMS


def is_class_left_out(cls: type, choice: Chosen) -> bool:
    """Whether all tests of a class belong to other tiers, since the class uses what repeats a rule."""
    marks: list[pytest.Mark] = getattr(cls, "pytestmark", [])
    used = {name for mark in marks if mark.name == "usefixtures" for name in mark.args}
    return choice in ("quick", "test") and not REPEATING.isdisjoint(used)


def one_of(*stores: str) -> list[Any]:
    """Parameters for a test that has the same result on each of these stores: `make test` runs it on one, and
    `make proof` on the others."""
    return [pytest.param(name, marks=pytest.mark.one_of(name, stores)) for name in stores]


def pairs_of(*stores: str) -> list[Any]:
    """Parameters for a test that leads from one store to another. `make test` goes from each to the next, so
    that each is left once and reached once. `make proof` runs the other pairs."""
    ring = list(zip(stores, (*stores[1:], stores[0]), strict=True))
    another = pytest.mark.another_pair
    return [pytest.param(*pair, marks=() if pair in ring else another) for pair in permutations(stores, 2)]


def memory_and_one_of(*stores: str) -> list[Any]:
    """Parameters for a test of the engine, which does the same on every store: `make test` runs it in memory,
    and the first case of one test of four on one of the other stores. A test that starts processes takes
    longer, and is run in memory only. `make proof` runs the rest."""
    mark = pytest.mark.one_of
    others = [pytest.param(name, marks=mark(name, stores, beside_memory=True)) for name in stores]
    return ["memory", *others]


def seeds(count: int, first: int = 1) -> list[Any]:
    """Parameters for a test of random programs: `make test` runs the first, and `make proof` the others."""
    return some_of(range(count), *range(first))


def some_of(numbers: Iterable[int], *few: int) -> list[Any]:
    """Parameters for a test that repeats a rule for each of these numbers, seeds or steps: `make test` runs
    few of them, and `make proof` the others."""
    another = pytest.mark.another_seed
    return [number if number in few else pytest.param(number, marks=another) for number in numbers]


def is_repeated(item: pytest.Item) -> bool:
    """Whether another test checks the same, with another seed or on other stores."""
    if item.get_closest_marker("another_seed") or item.get_closest_marker("another_pair"):
        return True
    sample, choice = item.get_closest_marker("sample"), item.get_closest_marker("one_of")
    if sample is not None and crc32(item.nodeid.encode()) % sample.args[0] != 0:
        return True
    if choice is None or item.get_closest_marker("every_store"):
        return False
    name, stores = choice.args
    number = crc32("".join(item.nodeid.rsplit(name, 1)).encode())
    if choice.kwargs.get("beside_memory") and (
        "processes" in getattr(item, "fixturenames", ())
        or not is_first(item, name)
        or number // len(stores) % BESIDE_MEMORY != 0
    ):
        return True
    return bool(stores[number % len(stores)] != name)


def is_first(item: pytest.Item, store: str) -> bool:
    """Whether this is the first case of a test on this store."""
    callspec: Any = getattr(item, "callspec", None)
    return all(index == 0 for name, index in callspec.indices.items() if callspec.params[name] != store)


def chosen(config: pytest.Config) -> Chosen:
    """The choice of the command line. Without one: all tests of a file that is named, and the quick tests of
    a directory."""
    given: Chosen | None = config.getoption("--tier")
    if given is not None:
        return given
    return "quick" if all(os.path.isdir(each.split("::")[0]) for each in config.args) else "all"  # noqa: PTH112


class NoProcesses:
    """Lets a test fail that starts a process and does not say so."""

    def __init__(self) -> None:
        self.item: pytest.Item | None = None

    def install(self) -> None:
        import _posixsubprocess

        sys.addaudithook(self._audit)
        start: Any = _posixsubprocess.fork_exec

        def fork_exec(*args: Any) -> Any:
            self._refuse()  # multiprocessing raises no audit event
            return start(*args)

        vars(_posixsubprocess)["fork_exec"] = fork_exec

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """A test may ask for a server while it runs: then the fixture starts a process, not the test."""
        item = self.item
        if fixturedef.argname in STARTING:
            self.item = None
        try:
            return (yield)
        finally:
            self.item = item

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"):
            self._refuse()

    def _refuse(self) -> None:
        if self.item is not None and tier_of(self.item) == "quick":
            raise RuntimeError(f"{self.item.nodeid} starts a process: let it use the fixture `processes`")
