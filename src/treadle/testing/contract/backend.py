"""BackendContract: all the cases in one class."""

from __future__ import annotations

import pytest

from treadle.backend import Backend

from .batches import Meetings, Sizes, SubmissionsTogether
from .children import Children, KeyedChildren, RefusedChildren
from .claiming import Eligibility, Pauses, Verdicts
from .contests import LostAnswers, SettleRaces
from .crowds import Crowds
from .folding import Endings, Folds, Values
from .gates import Doom, Gates
from .hammering import Endurance
from .keys import Keys
from .leasing import Beats, Freed, Orphans, Skipping
from .life import Refusals, Scheduling, Submitting
from .limiting import ClaimedKeys, Rates, Slots
from .listing import Counting, Listing, Reading
from .operating import Cancelling, Completing
from .races import Finishers, SubmitRaces
from .removing import Deleting, Pruning
from .requeuing import Requeuing, Triggering
from .schedules import Schedules
from .settling import Fencing, Kinds, Poison
from .signals import Lifecycle, Signals
from .subject import Subject, missing
from .tenancy import Tenants
from .turns import Levels, Order, Parking, Turns


@pytest.mark.asyncio
class BackendContract(
    Submitting,
    Scheduling,
    Refusals,
    Keys,
    Kinds,
    Fencing,
    Poison,
    Gates,
    Doom,
    Children,
    RefusedChildren,
    KeyedChildren,
    Values,
    Endings,
    Folds,
    Eligibility,
    Verdicts,
    Pauses,
    Order,
    Levels,
    Turns,
    Parking,
    Beats,
    Freed,
    Orphans,
    Skipping,
    Cancelling,
    Completing,
    Requeuing,
    Triggering,
    Deleting,
    Pruning,
    Reading,
    Listing,
    Counting,
    ClaimedKeys,
    Rates,
    Slots,
    Schedules,
    Signals,
    Lifecycle,
    Tenants,
    Finishers,
    SubmitRaces,
    SettleRaces,
    LostAnswers,
    Crowds,
    Endurance,
    Meetings,
    SubmissionsTogether,
    Sizes,
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
