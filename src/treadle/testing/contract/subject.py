"""What a backend's own tests hand to the contract suite, and how a case says what it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from treadle.backend import Backend

Case = TypeVar("Case", bound=Callable[..., object])


class Subject(Protocol):
    """A store that is empty, and this case's own."""

    @property
    def backend(self) -> Backend:
        """An open backend. The fixture that yields the subject closes it."""
        ...

    async def advance(self, seconds: float) -> None:
        """Move the *store's* clock on, for every connection to it. Never by sleeping."""
        ...

    async def another(self) -> Backend:
        """A second, independent connection to the same store, open. May be the same object where a store
        lives in its process. The fixture closes it."""
        ...


def needs(*capabilities: str) -> Callable[[Case], Case]:
    """Mark a case that only a backend with these capabilities can pass; others skip it."""

    def mark(case: Case) -> Case:
        case.__dict__["needs"] = frozenset(capabilities)
        return case

    return mark


def missing(case: object, backend: Backend) -> frozenset[str]:
    """The capabilities that a case needs and the backend does not have."""
    wanted: frozenset[str] = getattr(case, "needs", frozenset())
    return wanted - backend.capabilities
