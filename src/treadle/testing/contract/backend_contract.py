"""BackendContract: all cases about the verbs of a backend in one class."""

from __future__ import annotations

import pytest

from treadle.backend import Backend

from .audits import AuditCases, DrainCases
from .avoid import AvoidedLaneCases
from .batched_calls import BatchedSettleCases, BatchedSubmitCases, LargeCallCases
from .bounded_reads import LineCases, ReachCases, RelatedCases
from .cancelled_groups import CancelledGroupCases
from .children import ChildCases, KeyedChildCases, RefusedChildCases
from .claim import ClaimCases
from .clock_steps import ClockStepCases
from .debounce import KeyDebounceCases
from .delete import DeleteCases
from .dependencies import DependencyCases
from .doomed import DoomedCases, VerdictCases
from .explain import ExplainBlockedCases, ExplainDoomedCases
from .explain_waiting import ExplainRunningCases, ExplainWaitingCases
from .failed_groups import ContributesCases, FailedGroupCases
from .fairness import ClaimOrderCases, FairnessCases, NestedFairnessCases
from .group_dependencies import GroupCycleCases, GroupDependencyCases
from .group_lists import GroupListCases, WorkflowListCases
from .groups import FoldCases, GroupEndCases, GroupValueCases
from .hold import HeldItemCases, HoldCases
from .key_policies import KeyErrorCases, KeyReplaceCases
from .key_repeats import KeyRepeatCases
from .keys import KeyCases
from .lifecycle import LifecycleCases
from .limit_use import KeptPermitCases, LimitUseCases
from .limits import ClaimedKeyCases, ConcurrencyLimitCases, LeasePermitCases, RateLimitCases
from .load import LoadCases
from .logs import LogCases
from .losses import BeginCases, LostLeaseCases
from .marks import DeadMarkCases, ItemMarkCases
from .moving import ExportCases, ImportCases, MovedCases
from .must_exist import MustExistCases
from .nested_failures import NestedFailureCases, NestedLoadCases, NestedRemovalCases
from .nested_groups import NestedGroupCases, NestedKeyCases
from .operate import CancelCases, CompleteCases
from .orders import OrderCases, PauseCases
from .overview import OverviewCases, QueueAgeCases, UnservedTypeCases
from .parked import ParkedCases
from .races_claim import ClaimRaceCases
from .races_dependencies import DependencyRaceCases, SubmitRaceCases
from .races_operate import OperatorRaceCases
from .races_settle import LostAnswerCases, SettleRaceCases
from .read import CountCases, ListCases, ReadCases
from .releases import ReleaseCases
from .repair import RepairCases
from .repair_reach import RepairReachCases
from .requeue import RequeueCases, TriggerCases
from .retention import RetentionCases
from .reused_ids import ReusedIdCases
from .schedules import ScheduleCases
from .settle import FencingCases, SettleIsolationCases, SettleKindCases
from .statistics import ScheduleRunCases, StatisticsCases
from .steps import RecordCases, SignalCases, StepRequeueCases, StreamCases, SuspendCases
from .strict_lanes import StrictLaneCases
from .subject import Subject, skip_unless_capable
from .submit import DueTimeCases, RefusedSubmitCases, SubmitCases
from .tenancy import TenantCases
from .tenant_moves import TenantMoveCases
from .times import TimeCases
from .update import UpdateCases
from .wakeups import WakeupCases
from .workers import HeartbeatCases, LeaseAtSubmitCases, UnknownLeaseCases


@pytest.mark.asyncio
class BackendContract(
    SubmitCases,
    DueTimeCases,
    RefusedSubmitCases,
    KeyCases,
    KeyErrorCases,
    KeyReplaceCases,
    KeyDebounceCases,
    KeyRepeatCases,
    SettleKindCases,
    FencingCases,
    SettleIsolationCases,
    DependencyCases,
    MustExistCases,
    DoomedCases,
    ChildCases,
    RefusedChildCases,
    KeyedChildCases,
    GroupValueCases,
    GroupEndCases,
    FoldCases,
    FailedGroupCases,
    ContributesCases,
    ClaimCases,
    VerdictCases,
    PauseCases,
    OrderCases,
    ClaimOrderCases,
    FairnessCases,
    NestedFairnessCases,
    ParkedCases,
    AvoidedLaneCases,
    StrictLaneCases,
    RecordCases,
    LogCases,
    SuspendCases,
    SignalCases,
    StepRequeueCases,
    StreamCases,
    HeartbeatCases,
    LostLeaseCases,
    BeginCases,
    UnknownLeaseCases,
    LeaseAtSubmitCases,
    CancelCases,
    CompleteCases,
    RequeueCases,
    RepairCases,
    RepairReachCases,
    GroupDependencyCases,
    GroupCycleCases,
    CancelledGroupCases,
    NestedGroupCases,
    NestedFailureCases,
    NestedKeyCases,
    NestedRemovalCases,
    ReachCases,
    LineCases,
    RelatedCases,
    GroupListCases,
    WorkflowListCases,
    NestedLoadCases,
    TriggerCases,
    HoldCases,
    HeldItemCases,
    UpdateCases,
    TimeCases,
    DeleteCases,
    RetentionCases,
    ReusedIdCases,
    ReadCases,
    ListCases,
    CountCases,
    ExplainBlockedCases,
    ExplainDoomedCases,
    ExplainWaitingCases,
    ExplainRunningCases,
    OverviewCases,
    QueueAgeCases,
    UnservedTypeCases,
    ItemMarkCases,
    DeadMarkCases,
    ReleaseCases,
    LimitUseCases,
    KeptPermitCases,
    AuditCases,
    DrainCases,
    ClaimedKeyCases,
    RateLimitCases,
    ClockStepCases,
    ConcurrencyLimitCases,
    LeasePermitCases,
    ScheduleCases,
    ScheduleRunCases,
    StatisticsCases,
    WakeupCases,
    LifecycleCases,
    TenantCases,
    DependencyRaceCases,
    SubmitRaceCases,
    SettleRaceCases,
    LostAnswerCases,
    ClaimRaceCases,
    OperatorRaceCases,
    ExportCases,
    ImportCases,
    MovedCases,
    TenantMoveCases,
    LoadCases,
    BatchedSettleCases,
    BatchedSubmitCases,
    LargeCallCases,
):
    """Subclass it with one fixture, `subject`, that yields a `Subject`: an empty store for each case."""

    @pytest.fixture
    def backend(self, subject: Subject) -> Backend:
        return subject.backend

    @pytest.fixture(autouse=True)
    def _capable(self, request: pytest.FixtureRequest, subject: Subject) -> None:
        skip_unless_capable(request.function, subject.backend)
