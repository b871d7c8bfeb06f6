"""Whatever a handler raises or returns, its item is settled, and so are its neighbours in a batch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.kit import PATIENCE, Errors, MakeApp, Seen, failure, until, until_status
from tests.support.tiers import examples
from treadle import Abort, Defer, Retry, Treadle, work
from treadle.backends.memory import MemoryBackend


class CardDeclined(Abort):
    """Its constructor does not call `super()`."""

    def __init__(self, card: str) -> None:
        self.card = card


class Busy(Defer):
    """As CardDeclined: when to run again is not known."""

    def __init__(self, host: str) -> None:
        self.host = host


class DeferTo(Defer):
    """A Defer with attributes that its constructor did not check."""

    def __init__(self, delay: Any, run_at: Any) -> None:
        self.delay = delay
        self.run_at = run_at


class NamelessMeta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit("no name")


class Nameless(Exception, metaclass=NamelessMeta):
    pass


class Classless(Exception):
    @property
    def __class__(self) -> Any:
        raise KeyboardInterrupt

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise KeyboardInterrupt


class Trap(str):
    """Text that cannot be encoded."""

    __slots__ = ()

    def encode(self, *_: Any, **__: Any) -> bytes:
        raise SystemExit("no bytes")


class Trapped(Exception):
    def __str__(self) -> str:
        return Trap("trapped")


class NoTrace(Exception):
    @property
    def __traceback__(self) -> Any:
        raise KeyboardInterrupt

    @property
    def __cause__(self) -> Any:
        raise KeyboardInterrupt


RETRY = Retry(attempts=2, base=0)

ENDED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "an Abort without super()": (lambda: CardDeclined("x"), "aborted"),
    "a Defer without super()": (lambda: Busy("x"), "bad_result"),
    "a Defer without a time": (lambda: DeferTo(None, None), "bad_result"),
    "a Defer by text": (lambda: DeferTo("soon", None), "bad_result"),
    "a Defer by NaN": (lambda: DeferTo(math.nan, None), "bad_result"),
    "a Defer by an eternity": (lambda: DeferTo(math.inf, None), "bad_result"),
    "a Defer to no instant": (lambda: DeferTo(None, 1e300), "bad_result"),
    "a class without a name": (Nameless, "exhausted"),
    "an error without a class": (Classless, "bad_result"),
    "a text that cannot be encoded": (Trapped, "exhausted"),
    "an error without a traceback": (NoTrace, "exhausted"),
    "an Abort caused by a class without a name": (lambda: Abort(Nameless("x")), "aborted"),
}


@work(name="on the loop", retry=RETRY)
async def on_loop(case: str) -> None:
    raise ENDED[case][0]()


@work(name="in a thread", retry=RETRY)
def in_thread(case: str) -> None:
    raise ENDED[case][0]()


@work.batch(name="in a batch", size=3, retry=RETRY)
async def in_batch(cases: list[str]) -> Sequence[int | BaseException]:
    return [ENDED[case][0]() if case in ENDED else 1 for case in cases]


@pytest.mark.parametrize("store", ["memory"], indirect=True)  # the store is not involved
@pytest.mark.parametrize("case", ENDED)
async def test_an_error_of_any_class_ends_its_item(make_app: MakeApp, sound: None, case: str) -> None:
    errors = Errors()
    async with make_app(on_loop, in_thread, in_batch, on_error=errors) as app:
        handles = [await app.enqueue(each(case)) for each in (on_loop, in_thread)]
        batch = await app.enqueue_many([in_batch("good"), in_batch(case), in_batch("good as well")])
        for handle in (*handles, batch[1]):
            died = await failure(handle.result(PATIENCE))
            assert died.reason == ENDED[case][1], died
        assert [await batch[0].result(PATIENCE), await batch[2].result(PATIENCE)] == [1, 1]


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_defer_says_what_it_lacks(make_app: MakeApp) -> None:
    async with make_app(on_loop) as app:
        died = await failure(app.enqueue(on_loop("a Defer without super()")).result(PATIENCE))
        assert "Busy" in str(died)
        assert "super().__init__(delay=...)" in str(died)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_defer_may_set_its_own_delay(make_app: MakeApp) -> None:
    @work(name="later")
    async def later() -> None:
        raise DeferTo(timedelta(hours=1), None)

    async with make_app(later) as app:
        handle = await app.enqueue(later())
        state = await until_status(app, handle.id, "scheduled")
        assert (state.attempt, state.failures) == (0, 0)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_bad_defer_of_on_failure_means_retry(make_app: MakeApp) -> None:
    errors = Errors()

    @work(name="asked", retry=RETRY, on_failure=lambda *_: Busy("x"))
    async def asked() -> None:
        raise ValueError

    async with make_app(asked, on_error=errors) as app:
        died = await failure(app.enqueue(asked()).result(PATIENCE))
        assert (died.reason, died.attempts) == ("exhausted", 2)
        assert errors.phases() == ["hook", "hook"]


class Short(list[int]):
    """A list that is shorter than it says."""

    def __len__(self) -> int:
        return 3


class Unshown:
    def __repr__(self) -> str:
        raise SystemExit("no text")


class Unread(list[int]):
    def __iter__(self) -> Any:
        raise KeyboardInterrupt


@pytest.mark.parametrize("store", ["memory"], indirect=True)
@pytest.mark.parametrize("answer", [Short, Unshown, Unread, Classless])
async def test_a_batch_that_returns_a_broken_list_ends_each_item(
    make_app: MakeApp, sound: None, answer: type[Any]
) -> None:
    @work.batch(name="broken", size=3, retry=Retry(attempts=1))
    async def broken(ns: list[int]) -> list[int]:
        return answer()  # type: ignore[no-any-return]

    async with make_app(broken) as app:
        for handle in await app.enqueue_many([broken(n) for n in range(3)]):
            await failure(handle.result(PATIENCE))


def _raising(error: BaseException) -> property:
    def read(_: Any) -> Any:
        raise error

    return property(read)


_TRAPS = (
    "__class__",
    "__traceback__",
    "__cause__",
    "__context__",
    "__notes__",
    "__suppress_context__",
    "cause",
)
_METHODS = ("__str__", "__repr__", "__eq__", "__hash__", "__bool__", "__len__", "__iter__", "__reduce_ex__")


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    base=st.sampled_from(
        [Exception, BaseException, Abort, Defer, ExceptionGroup, OSError, asyncio.CancelledError]
    ),
    traps=st.sets(st.sampled_from(_TRAPS)),
    methods=st.sets(st.sampled_from(_METHODS)),
    own=st.sampled_from([ValueError("own"), SystemExit(3), KeyboardInterrupt()]),
    state=st.dictionaries(
        st.sampled_from(["delay", "run_at", "cause"]),
        st.one_of(st.none(), st.text(), st.floats(), st.integers()),
    ),
)
def test_whatever_is_raised_the_item_is_settled(
    base: type[BaseException], traps: set[str], methods: set[str], own: BaseException, state: dict[str, Any]
) -> None:
    def fail(*_: Any) -> Any:
        raise own

    body: dict[str, Any] = {"__init__": lambda self: None, "__new__": lambda cls: _new(base, cls)}
    body.update(dict.fromkeys(traps, _raising(own)))
    body.update(dict.fromkeys(methods, fail))
    cls = type("Hostile", (base,), body)

    @work(name="hostile", retry=Retry(attempts=1))
    async def hostile() -> None:
        error = cls()
        error.__dict__.update(state)
        raise error

    async def run() -> None:
        seen = Seen()
        async with Treadle(MemoryBackend(), work=[hostile], on_event=seen) as app:
            await app.enqueue(hostile())
            await until(lambda: {"Dead", "Deferred"} & set(seen.names()))

    asyncio.run(run())


def _new(base: type[BaseException], cls: type[BaseException]) -> BaseException:
    return base.__new__(cls, "g", [ValueError(1)]) if issubclass(base, ExceptionGroup) else base.__new__(cls)
