"""The contract suites themselves: every case runs, states its rule and names known capabilities."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from treadle.backend import CAPABILITIES
from treadle.testing import BackendContract, WorkerContract

LEAST = {BackendContract: 400, WorkerContract: 35}
"""The least number of cases of each suite. It shows when a class of cases is left out."""
SUITES = pytest.mark.parametrize("suite", LEAST, ids=lambda suite: suite.__name__)


def cases(suite: type) -> Iterator[tuple[type, str, Callable[..., object]]]:
    for part in suite.__mro__:
        for name, case in vars(part).items():
            if name.startswith("test_"):
                yield part, name, case


@SUITES
def test_no_case_overrides_another(suite: type) -> None:
    names = Counter(name for _, name, _ in cases(suite))
    assert [name for name, times in names.items() if times > 1] == []
    assert len(names) >= LEAST[suite]


@SUITES
def test_each_case_has_a_docstring(suite: type) -> None:
    assert [f"{part.__name__}.{name}" for part, name, case in cases(suite) if not case.__doc__] == []


@SUITES
def test_each_case_needs_only_known_capabilities(suite: type) -> None:
    needed = {name for _, _, case in cases(suite) for name in getattr(case, "needs", ())}
    assert needed <= CAPABILITIES | {"transactions", "parts", "tenant_moves"}
