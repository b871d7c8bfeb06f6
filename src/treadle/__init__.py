"""treadle: a durable, type-safe work queue and workflow engine.

    from treadle import Treadle, work

    @work
    async def add(a: int, b: int) -> int:
        return a + b

    async with Treadle("sqlite:///work.db", work=[add]) as app:
        assert await app.enqueue(add(1, 2)).result() == 3
"""

from treadle.app import Treadle as Treadle
from treadle.backend import Backend as Backend
from treadle.client import Client as Client
from treadle.clock import Clock as Clock
from treadle.clock import SystemClock as SystemClock
from treadle.codec import Codec as Codec
from treadle.codec import default_codec as default_codec
from treadle.condition import at_least as at_least
from treadle.condition import condition_met as condition_met
from treadle.context import Context as Context
from treadle.cron import next_after as next_after
from treadle.define import work as work
from treadle.errors import Abort as Abort
from treadle.errors import AlreadyEnded as AlreadyEnded
from treadle.errors import AttemptTimeout as AttemptTimeout
from treadle.errors import BackendError as BackendError
from treadle.errors import CronError as CronError
from treadle.errors import CycleError as CycleError
from treadle.errors import DecodeError as DecodeError
from treadle.errors import Defer as Defer
from treadle.errors import DuplicateIdError as DuplicateIdError
from treadle.errors import DuplicateWorkError as DuplicateWorkError
from treadle.errors import EncodeError as EncodeError
from treadle.errors import GroupFailed as GroupFailed
from treadle.errors import InputError as InputError
from treadle.errors import LeaseLost as LeaseLost
from treadle.errors import NotFound as NotFound
from treadle.errors import NotTriggerable as NotTriggerable
from treadle.errors import PayloadTooLarge as PayloadTooLarge
from treadle.errors import ReferencedError as ReferencedError
from treadle.errors import ScheduleError as ScheduleError
from treadle.errors import SchemaError as SchemaError
from treadle.errors import StoreUnavailable as StoreUnavailable
from treadle.errors import StrictReturnError as StrictReturnError
from treadle.errors import TreadleError as TreadleError
from treadle.errors import UnknownWorkError as UnknownWorkError
from treadle.errors import UnsupportedError as UnsupportedError
from treadle.errors import WaitTimeout as WaitTimeout
from treadle.errors import WorkCancelled as WorkCancelled
from treadle.errors import WorkFailed as WorkFailed
from treadle.failure import Failure as Failure
from treadle.handle import Handle as Handle
from treadle.ids import set_id_generator as set_id_generator
from treadle.item import ItemState as ItemState
from treadle.item import Page as Page
from treadle.minted import Work as Work
from treadle.result import Result as Result
from treadle.retry import Retry as Retry
from treadle.retry import retry_call as retry_call
from treadle.schedule import ScheduleHandle as ScheduleHandle
from treadle.schedule import ScheduleState as ScheduleState
from treadle.work import WorkType as WorkType
from treadle.worker import Worker as Worker

__version__ = "0.1.0"
