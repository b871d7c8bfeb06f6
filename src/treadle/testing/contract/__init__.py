"""The contract that every backend passes, unchanged: subclass, and yield your store from one fixture.

    class TestMine(BackendContract):
        @pytest.fixture
        async def subject(self):
            async with MySubject() as subject:      # see `Subject`
                yield subject

`WorkerContract` takes the same fixture, and proves that the engine works on it, from end to end.

Each case states the rule it checks; the rules are those of `treadle.backend`. Cases that need a capability
which the backend does not have are skipped, with its name. Time moves by `Subject.advance`, never by waiting.
"""

from __future__ import annotations

import pkgutil

import pytest

# Plain `assert` in the cases shows its values only if pytest rewrites the modules, before they are imported.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

from .backend_contract import BackendContract  # noqa: E402
from .port_contracts import PubSubContract, QueueContract, StoreContract  # noqa: E402
from .subject import Subject, needs  # noqa: E402
from .worker_contract import WorkerContract  # noqa: E402

__all__ = [
    "BackendContract",
    "PubSubContract",
    "QueueContract",
    "StoreContract",
    "Subject",
    "WorkerContract",
    "needs",
]
