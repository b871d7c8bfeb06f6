"""The class tree equals its drawing, every error pickles, and messages say what to do next."""

import asyncio
import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from treadle import errors
from treadle.errors import TreadleError

EXAMPLES: list[TreadleError] = [
    TreadleError("plain"),
    errors.DefinitionError("plain"),
    errors.DuplicateWorkError("mail.send"),
    errors.UnknownWorkError("mail.sent", ["mail.send", "math.add"]),
    errors.InputError("bad", parameters=["a"], work_type="math.add"),
    errors.PlacementError("'acme' is in 'eu', 'zenith' is in 'us'", parameters=["tenant"]),
    errors.CronError("61 * * * *", "minute", "61 is out of range"),
    errors.ScheduleError("give one of cron, every, next"),
    errors.CycleError(["a", "b"]),
    errors.PayloadError("plain"),
    errors.EncodeError("not JSON", path="$.orders[2]"),
    errors.DecodeError("not JSON", path="$.orders[2]"),
    errors.PayloadTooLarge("input of 'mail.send'", 2_000_000, 1_048_576),
    errors.HandlerError("plain"),
    errors.StrictReturnError("mail.send", 2),
    errors.BadResultError("mail.send", "a bare Work: return ctx.queue(work)"),
    errors.StepError("the step 'pay' has run in this attempt already"),
    errors.TooManySteps("agent", "has recorded 1,000 steps"),
    errors.NotFound("id-1"),
    errors.ConflictError("plain"),
    errors.DuplicateIdError("id-1"),
    errors.AlreadyEnded("id-1", "success"),
    errors.NotTriggerable("id-1", "running"),
    errors.NotTriggerable("id-1", "scheduled", True),
    *(errors.NotHoldable("id-1", status) for status in ("running", "blocked", "ready", "dead")),
    errors.NotUpdatable("id-1", "running"),
    errors.DuplicateKeyError("id-1", "order-42"),
    errors.ReferencedError([("a", "b"), ("a", "c"), ("a", "d"), ("a", "e")]),
    errors.MailboxFull("id-1", 1000),
    errors.LeaseLost("id-1", "completed"),
    errors.WorkFailed("id-1", "mail.send", "no route", "OSError", 3, "exhausted"),
    errors.GroupFailed("id-2", "mail.send", "no route", "OSError", 3, group_id="id-1"),
    errors.WorkCancelled("id-1", "mail.send", 1),
    errors.StepFailed("shop.Declined", "no money"),
    errors.RemoteError("shop.OutOfStock", "no tea"),
    errors.WaitTimeout("id-1", 0.5),
    errors.AttemptTimeout("id-1", 30),
    errors.ProcessDied("media.resize", -11),
    errors.DeadlineExceeded("id-1", 1_700_000_000.0),
    errors.BackendError("plain"),
    errors.StoreUnavailable("connection refused"),
    errors.AccessDenied("permission denied for table item"),
    errors.StoreTooSlow("took too long"),
    errors.WrongStore("the store named 'eu' here is 'us'"),
    errors.StoreMoved("postgresql://db/shop"),
    errors.TenantElsewhere("sqlite:////shop.db"),
    errors.StoreUnfinished("m1", "sqlite:////shop.db"),
    errors.StoreNotEmpty("sqlite:////shop.db", "items"),
    errors.StoreFull("disk full"),
    errors.SchemaError(None, 3),
    errors.UntrustedSchema("treadle", "mallory", "owns it"),
    errors.LongTransaction("pid 7", 301.5, "end it", pid=7),
    errors.WakeupsLost("redis://host", 61.5, "connection refused"),
    errors.UnsupportedError("transactions", "memory"),
    errors.LifecycleError("plain"),
    errors.NotStarted("the worker"),
    errors.Stopped("the worker"),
    errors.Directive("plain"),
    errors.Abort(KeyError("k")),
    errors.Defer(delay=5),
    errors.RetryAfter(5),
    errors.RetryAfter(5, KeyError("k")),
]


def all_errors(root: type[TreadleError] = TreadleError) -> list[type[TreadleError]]:
    own = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return [root, *(found for child in own for found in all_errors(child))]


def drawn_parents() -> dict[str, str | None]:
    """Each name in the drawing of the module docstring, with its parent."""
    parents: dict[str, str | None] = {"TreadleError": None}
    path: list[str] = ["TreadleError"]
    for indent, name in re.findall(r"^    ([│ ├└─]+) (\w+)", errors.__doc__ or "", re.M):
        depth = (len(indent) + 1) // 4
        parents[name] = path[depth - 1]
        path[depth:] = [name]
    return parents


def test_the_drawing_equals_the_class_tree() -> None:
    actual = {error.__name__: error.__bases__[0].__name__ for error in all_errors()[1:]}
    assert drawn_parents() == {"TreadleError": None, **actual}


def test_every_error_has_an_example_here() -> None:
    assert {type(example) for example in EXAMPLES} == set(all_errors())


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_pickling_keeps_class_message_and_attributes(error: TreadleError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.args == error.args
    assert {k: repr(v) for k, v in vars(copy).items()} == {k: repr(v) for k, v in vars(error).items()}


class Unusual(errors.WorkFailed):
    """A subclass of a user, whose constructor differs from its parent's."""

    def __init__(self, *, extra: int) -> None:
        super().__init__("id", "type")
        self.extra = extra


def test_a_subclass_with_another_constructor_pickles() -> None:
    error = Unusual(extra=7)
    error.add_note("seen on Tuesday")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.extra, copy.id, copy.__notes__) == (Unusual, 7, "id", ["seen on Tuesday"])


def raise_group_failed() -> None:
    raise errors.GroupFailed("b", "math.add", "boom", "ValueError", 3, group_id="a")


@pytest.mark.usefixtures("processes")
def test_an_error_crosses_a_process_pool() -> None:
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(errors.GroupFailed) as caught,
    ):
        pool.submit(raise_group_failed).result(timeout=50)
    assert (caught.value.id, caught.value.group_id, caught.value.attempts) == ("b", "a", 3)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.UnknownWorkError, LookupError),
        (errors.NotFound, LookupError),
        (errors.InputError, ValueError),
        (errors.CronError, ValueError),
        (errors.EncodeError, ValueError),
        (errors.DecodeError, ValueError),
        (errors.WaitTimeout, TimeoutError),
        (errors.WaitTimeout, asyncio.TimeoutError),
        (errors.AttemptTimeout, TimeoutError),
    ],
)
def test_errors_with_a_builtin_meaning_are_subclasses_of_it(
    error: type[TreadleError], builtin: type[Exception]
) -> None:
    assert issubclass(error, builtin)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (errors.DuplicateWorkError("a.b"), "@work(name=...)"),
        (errors.UnknownWorkError("mail.sent", ["mail.send", "math.add"]), "did you mean 'mail.send'?"),
        (errors.UnknownWorkError("zzz", ["mail.send"]), "app.register"),
        (errors.CycleError(["a", "b"]), "a -> b -> a"),
        (errors.PayloadTooLarge("result", 11, 10), "max_payload"),
        (errors.EncodeError("no", path="$.a[0]"), "cannot encode a[0]: no"),
        (errors.DecodeError("no", path="$[0]"), "cannot decode [0]: no"),
        (errors.DecodeError("no"), "cannot decode the value: no"),
        (errors.ReferencedError([("a", str(n)) for n in range(5)]), "and 2 more"),
        (errors.SchemaError(None, 3), "treadle migrate"),
        (errors.SchemaError(2, 3), "treadle migrate"),
        (errors.SchemaError(4, 3), "upgrade treadle"),
        (errors.WaitTimeout("x1", 2.0), "app.handle('x1')"),
        (
            errors.WorkFailed("i", "t", "boom", "ValueError", 2),
            "t i failed (exhausted, attempt 2): ValueError: boom",
        ),
        (errors.WorkFailed("i", "t"), "t i failed (exhausted, attempt 0)"),
    ],
)
def test_the_message_says_what_to_do_next(error: TreadleError, hint: str) -> None:
    assert hint in str(error)


def test_unknown_work_lists_the_close_names() -> None:
    assert errors.UnknownWorkError("math.ad", ["math.add", "mail.send"]).close == ("math.add",)


def test_work_failed_carries_the_last_attempt() -> None:
    error = errors.WorkFailed("i", "t", "boom", "ValueError", 2, "aborted")
    assert (error.id, error.type, error.error, error.error_type) == ("i", "t", "boom", "ValueError")
    assert (error.attempts, error.reason, error.group_id) == (2, "aborted", "i")


def test_cancelled_is_a_failure_with_its_own_reason() -> None:
    error = errors.WorkCancelled("i", "t", group_id="g")
    assert isinstance(error, errors.WorkFailed)
    assert (error.reason, error.group_id) == ("cancelled", "g")


def test_only_unavailability_is_transient() -> None:
    transient = {error for error in all_errors(errors.BackendError) if error.transient}  # type: ignore[attr-defined]
    assert transient == {errors.StoreUnavailable, errors.AccessDenied, errors.StoreTooSlow}


def test_abort_carries_its_cause() -> None:
    cause = KeyError("k")
    assert errors.Abort(cause).cause is cause
    assert errors.Abort(cause).__cause__ is cause
    assert str(errors.Abort("no such user")) == "no such user"
    assert (str(errors.Abort()), errors.Abort().cause) == ("aborted", None)


def test_defer_holds_plain_seconds() -> None:
    assert (errors.Defer(delay=5).delay, errors.Defer(delay=5).run_at) == (5.0, None)
    assert errors.Defer(run_at=1_700_000_000).run_at == 1_700_000_000.0


@pytest.mark.parametrize("given", [{}, {"delay": 1, "run_at": 1}, {"delay": -1}, {"delay": float("nan")}])
def test_defer_needs_exactly_one_valid_time(given: dict[str, float]) -> None:
    with pytest.raises(errors.InputError, match="delay"):
        errors.Defer(**given)
