"""The contract that every backend passes: subclass it and yield your store from one fixture.

    class TestMine(BackendContract):
        @pytest.fixture
        async def subject(self):
            async with MySubject() as subject:      # see `Subject`
                yield subject

`WorkerContract` uses the same fixture. It tests the engine on the backend, end to end.

Each case states the rule it checks. The rules are those of `treadle.backend`. Cases that need a capability
which the backend does not have are skipped. Time moves by `Subject.advance`, never by sleeping.

The classes to subclass are in `backend_contract`, `worker_contract` and `port_contracts`. The cases of
`BackendContract` are in files named after a verb or a feature, as in the backends. `batched_calls`, `races_*`
and `load` are about large, concurrent and repeated calls. The cases of `WorkerContract` are in `engine_*`.
`subject` says what a backend's tests provide. `build`, `check`, `races` and `fleet` are helpers of the cases.
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
