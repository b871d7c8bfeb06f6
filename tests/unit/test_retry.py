import asyncio
import inspect
import math
import pickle
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from treadle.errors import Abort, InputError, RetryAfter
from treadle.retry import Retry, merge_retry, retry_call, written_fields
from treadle.testing import ManualClock


def test_the_default_policy() -> None:
    retry = Retry()
    assert (retry.attempts, retry.base, retry.factor) == (3, 1.0, 2.0)
    assert (retry.max, retry.jitter, retry.backoff) == (30.0, 0.5, None)


@pytest.mark.parametrize(
    ("retry", "n", "draw", "expected"),
    [
        (Retry(base=100, max=10_000, jitter=0), 1, 0.0, 100),
        (Retry(base=100, max=10_000, jitter=0), 2, 0.0, 200),
        (Retry(base=100, max=10_000, jitter=0), 3, 0.0, 400),
        (Retry(base=100, max=150, jitter=0), 3, 0.0, 150),
        (Retry(base=100, max=10_000, jitter=0.5), 1, 1.0, 50),
        (Retry(base=100, max=10_000, jitter=0.5), 1, 0.5, 75),
        (Retry(base=100, max=10_000, jitter=0.5), 1, 0.0, 100),
        (Retry(base=100, max=10_000, jitter=1), 1, 1.0, 0),
        (Retry(base=timedelta(minutes=1), max=timedelta(hours=1), jitter=0), 2, 0.0, 120),
        (Retry(factor=1, jitter=0), 50, 0.0, 1),
        (Retry(base=0, jitter=0), 10**6, 0.0, 0),
        (Retry(jitter=0), 10**6, 0.0, 30),
        (Retry(factor=0.5, jitter=0), 10**6, 0.0, 0),
        (Retry(factor=0, jitter=0), 2, 0.0, 0),
        (Retry(backoff=lambda n: n * 10), 3, 1.0, 30),
        (Retry(backoff=lambda n: timedelta(minutes=n)), 2, 1.0, 120),
    ],
)
def test_delay_follows_the_policy(retry: Retry, n: int, draw: float, expected: float) -> None:
    assert retry.delay(n, random=lambda: draw) == expected


def test_delay_takes_a_random_source() -> None:
    assert Retry().delay(1, random.Random(4)) == 1 - 0.5 * random.Random(4).random()
    assert 0.5 <= Retry().delay(1) <= 1.0


def test_retries_count_from_one() -> None:
    with pytest.raises(InputError, match="counted from 1"):
        Retry().delay(0)


def test_a_bad_value_of_a_backoff_function_is_refused() -> None:
    with pytest.raises(InputError, match="backoff"):
        Retry(backoff=lambda n: -n).delay(1)


@pytest.mark.parametrize(
    ("attempts", "attempt", "exhausted"),
    [(3, 2, False), (3, 3, True), (3, 4, True), (1, 1, True), (None, 10**9, False)],
)
def test_exhausted_after_the_last_attempt(attempts: int | None, attempt: int, exhausted: bool) -> None:
    assert Retry(attempts=attempts).exhausted(attempt) is exhausted


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("attempts", 0),
        ("attempts", -1),
        ("attempts", 1.5),
        ("attempts", True),
        ("attempts", "3"),
        ("base", -1),
        ("base", math.nan),
        ("base", math.inf),
        ("base", "1"),
        ("base", None),
        ("factor", -1),
        ("factor", math.nan),
        ("factor", math.inf),
        ("factor", True),
        ("factor", None),
        ("max", -1),
        ("max", math.inf),
        ("max", timedelta(-1)),
        ("jitter", -0.1),
        ("jitter", 1.1),
        ("jitter", math.nan),
        ("jitter", "0.5"),
        ("backoff", 5),
    ],
)
def test_a_bad_field_is_refused_by_name(name: str, bad: Any) -> None:
    with pytest.raises(InputError, match=name) as caught:
        Retry(**{name: bad})
    assert caught.value.parameters == (name,)


def test_an_override_changes_only_its_own_fields() -> None:
    type_policy = Retry(attempts=10, base=5, max=60)
    merged = merge_retry(type_policy, Retry(attempts=2))
    assert (merged.attempts, merged.base, merged.max) == (2, 5.0, 60.0)


def test_an_override_may_write_a_default() -> None:
    assert merge_retry(Retry(attempts=10), Retry(attempts=3)).attempts == 3
    assert merge_retry(Retry(attempts=10), Retry(attempts=None)).attempts is None
    curve: Callable[[int], float] = lambda n: 1.0  # noqa: E731
    assert merge_retry(Retry(backoff=curve), Retry(backoff=None)).backoff is None
    assert merge_retry(Retry(backoff=curve), Retry(attempts=2)).backoff is curve


def test_merging_nothing_changes_nothing() -> None:
    policy = Retry(attempts=7)
    assert merge_retry(policy, None) is policy
    assert merge_retry(policy, Retry()) is policy


def test_merges_stack() -> None:
    merged = merge_retry(merge_retry(Retry(attempts=5), Retry(base=2)), Retry(jitter=0))
    assert written_fields(merged) == {"attempts": 5, "base": 2.0, "jitter": 0.0}
    assert Retry(**written_fields(merged)) == merged  # type: ignore[arg-type]


def test_fields_that_were_not_given_show_as_unset() -> None:
    assert "attempts: 'int | UnsetType | None' = UNSET" in str(inspect.signature(Retry))


def test_equal_policies_behave_alike() -> None:
    assert Retry() == Retry(attempts=3)
    assert hash(Retry()) == hash(Retry(attempts=3))
    assert Retry() != Retry(attempts=4)


def test_a_policy_is_frozen_and_pickles() -> None:
    retry = Retry(attempts=4)
    with pytest.raises(AttributeError):
        retry.attempts = 5  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(retry))
    assert (copy, written_fields(copy)) == (retry, {"attempts": 4})


class Flaky:
    """Fails with the given errors, then succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


class RecordingClock(ManualClock):
    """A clock whose sleeps return at once. It records them."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)


async def test_the_first_success_is_returned_without_a_wait() -> None:
    clock = RecordingClock()
    assert await retry_call(Flaky(), clock=clock) == "done"
    assert clock.slept == []


async def test_failures_are_retried_as_the_policy_says() -> None:
    clock, flaky = RecordingClock(), Flaky(OSError("1"), OSError("2"))
    assert await retry_call(flaky, Retry(attempts=3, jitter=0), clock=clock) == "done"
    assert clock.slept == [1.0, 2.0]


async def test_a_retry_after_names_its_wait() -> None:
    clock, flaky = RecordingClock(), Flaky(RetryAfter(30), OSError("2"))
    assert await retry_call(flaky, Retry(attempts=3, jitter=0, max=2), clock=clock) == "done"
    assert clock.slept == [30.0, 2.0]


async def test_the_last_error_is_raised_when_the_attempts_are_spent() -> None:
    clock, flaky = RecordingClock(), Flaky(OSError("1"), OSError("2"))
    with pytest.raises(OSError, match="2"):
        await retry_call(flaky, Retry(attempts=2), clock=clock)
    assert (flaky.calls, len(clock.slept)) == (2, 1)


async def test_jitter_comes_from_the_given_random_source() -> None:
    clock = RecordingClock()
    await retry_call(Flaky(OSError()), Retry(jitter=0.5), clock=clock, random=lambda: 1.0)
    assert clock.slept == [0.5]


async def test_abort_stops_and_raises_its_cause() -> None:
    cause, flaky = KeyError("k"), Flaky(OSError(), Abort(KeyError("k")))
    with pytest.raises(KeyError, match=str(cause)):
        await retry_call(flaky, clock=RecordingClock())
    assert flaky.calls == 2


async def test_an_abort_without_an_exception_is_raised_itself() -> None:
    with pytest.raises(Abort, match="no such user"):
        await retry_call(Flaky(Abort("no such user")), clock=RecordingClock())


async def test_on_may_stop_the_retries() -> None:
    flaky = Flaky(OSError("1"), OSError("2"))
    with pytest.raises(OSError, match="2"):
        await retry_call(flaky, on=lambda error: str(error) != "2", clock=RecordingClock())
    assert flaky.calls == 2


@pytest.mark.parametrize(
    ("answer", "slept"), [(None, 1.0), (True, 1.0), (0, 1.0), (0.2, 1.0), (7, 7.0), ("yes", 1.0)]
)
async def test_on_may_set_a_minimum_delay(answer: object, slept: float) -> None:
    clock = RecordingClock()
    await retry_call(Flaky(OSError()), Retry(jitter=0), on=lambda _: answer, clock=clock)
    assert clock.slept == [slept]


async def test_on_may_be_async() -> None:
    clock = RecordingClock()

    async def wait_longer(error: Exception) -> float:
        return 9

    await retry_call(Flaky(OSError()), on=wait_longer, clock=clock)
    assert clock.slept == [9.0]


async def test_a_bad_delay_of_on_is_refused() -> None:
    with pytest.raises(InputError, match="negative"):
        await retry_call(Flaky(OSError()), on=lambda _: -1, clock=RecordingClock())


async def test_cancellation_is_not_retried() -> None:
    flaky = Flaky(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await retry_call(flaky, clock=RecordingClock())
    assert flaky.calls == 1


async def test_delays_use_the_given_clock() -> None:
    clock = ManualClock()
    call = asyncio.create_task(retry_call(Flaky(OSError()), Retry(jitter=0), clock=clock))
    await clock.wait_for_sleepers()
    assert clock.next_wake == 1.0
    clock.advance(1)
    assert await call == "done"
