"""What a backend's own tests provide to the contract suite, and how a case names what it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import pytest

from treadle.backend import Backend

Case = TypeVar("Case", bound=Callable[..., object])


class Subject(Protocol):
    """An empty store that only this case uses."""

    @property
    def backend(self) -> Backend:
        """An open backend. The fixture that yields the subject closes it."""
        ...

    async def advance(self, seconds: float) -> None:
        """Advance the *store's* clock, for every connection to it. Never sleep."""
        ...

    async def another(self) -> Backend:
        """Open a second, independent connection to the same store. May return the same object if the store
        lives in this process. The fixture closes it."""
        ...


async def set_back(subject: Subject, seconds: float) -> None:
    """Set the store's clock back. A subject that cannot, since it has no `set_back`, skips the case."""
    move = getattr(subject, "set_back", None)
    if move is None:
        pytest.skip("the clock of this store cannot be set back")
    await move(seconds)


def needs(*capabilities: str) -> Callable[[Case], Case]:
    """Mark a case that needs these capabilities. Backends without them skip it."""

    def mark(case: Case) -> Case:
        case.__dict__["needs"] = frozenset(capabilities)
        return case

    return mark


def skip_unless_capable(case: object, backend: Backend) -> None:
    """Skip a case that needs capabilities which the backend does not have."""
    wanted: frozenset[str] = getattr(case, "needs", frozenset())
    lacking = ", ".join(sorted(wanted - backend.capabilities))
    if lacking:
        pytest.skip(f"the rule is about {lacking}, which {type(backend).__name__} does not have")
