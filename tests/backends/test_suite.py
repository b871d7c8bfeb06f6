"""The contract suite itself: no case hides another, each says its rule, each names known capabilities."""

from collections import Counter
from collections.abc import Callable, Iterator

from treadle.backend import CAPABILITIES
from treadle.testing import BackendContract


def cases() -> Iterator[tuple[type, str, Callable[..., object]]]:
    for part in BackendContract.__mro__:
        for name, case in vars(part).items():
            if name.startswith("test_"):
                yield part, name, case


def test_no_case_hides_another() -> None:
    names = Counter(name for _, name, _ in cases())
    assert [name for name, times in names.items() if times > 1] == []
    assert len(names) >= 120


def test_each_case_states_its_rule() -> None:
    assert [f"{part.__name__}.{name}" for part, name, case in cases() if not case.__doc__] == []


def test_each_capability_is_known() -> None:
    needed = {name for _, _, case in cases() for name in getattr(case, "needs", ())}
    assert needed <= CAPABILITIES | {"transactions"}
