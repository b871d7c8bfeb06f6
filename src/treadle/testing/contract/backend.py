"""BackendContract: all the cases in one class."""

from __future__ import annotations

import pytest

from treadle.backend import Backend

from .keys import Keys
from .life import Refusals, Scheduling, Submitting
from .settling import Fencing, Kinds, Poison
from .subject import Subject, missing


@pytest.mark.asyncio
class BackendContract(
    Submitting,
    Scheduling,
    Refusals,
    Keys,
    Kinds,
    Fencing,
    Poison,
):
    """Subclass it with one fixture, `subject`, that yields a `Subject`: an empty store for each case."""

    @pytest.fixture
    def backend(self, subject: Subject) -> Backend:
        return subject.backend

    @pytest.fixture(autouse=True)
    def _capable(self, request: pytest.FixtureRequest, subject: Subject) -> None:
        lacking = missing(request.function, subject.backend)
        if lacking:
            pytest.skip(f"needs {', '.join(sorted(lacking))}")
