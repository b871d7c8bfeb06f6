"""WorkerContract: all cases about the engine on a backend, end to end, in one class."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from .engine_fleet import EngineDeadWorkerCases, EngineOperatorCases, EngineSharingCases, EngineStopCases
from .engine_groups import EngineGroupCases
from .engine_items import EngineItemCases
from .engine_mixed_fleet import EngineMixedFleetCases
from .engine_steps import EngineSagaCases, EngineStepCases, EngineStreamCases, EngineWaitCases
from .engine_transactions import EngineTransactionCases
from .fleet import Apps
from .subject import Subject, skip_unless_capable


@pytest.mark.asyncio
class WorkerContract(
    EngineItemCases,
    EngineGroupCases,
    EngineSharingCases,
    EngineMixedFleetCases,
    EngineDeadWorkerCases,
    EngineStopCases,
    EngineOperatorCases,
    EngineTransactionCases,
    EngineStepCases,
    EngineWaitCases,
    EngineSagaCases,
    EngineStreamCases,
):
    """Subclass it with the fixture that `BackendContract` takes, `subject`.

    `BackendContract` tests each verb. This class tests what a user sees: real apps, several on one store,
    run real handlers. The engine runs in real time. The store's clock moves by `Subject.advance`.
    """

    @pytest_asyncio.fixture
    async def fleet(self, subject: Subject) -> AsyncGenerator[Apps]:
        fleet = Apps(subject)
        yield fleet
        await fleet.stop()

    @pytest.fixture(autouse=True)
    def _capable(self, request: pytest.FixtureRequest, subject: Subject) -> None:
        skip_unless_capable(request.function, subject.backend)
