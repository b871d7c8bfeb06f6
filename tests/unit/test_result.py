"""Results: what a handler may write, and what is refused at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.works import make_context, make_work
from treadle.define.condition import at_least
from treadle.define.decorators import work
from treadle.errors import InputError

a, b, c = make_work("a"), make_work("b"), make_work("c")


def test_a_result_is_a_value_a_queue_or_void() -> None:
    ctx = make_context()
    value, queue, void = ctx.result(5, final=True), ctx.queue(a, [b, (c,)], delay=2), ctx.void()
    assert (value.kind, value.value, value.final, value.append) == ("value", 5, True, None)
    assert (queue.kind, queue.items, queue.options) == ("queue", (a, b, c), {"delay": 2.0})
    assert (void.kind, void.items, void.links) == ("void", (), ())
    assert ctx._created == [value, queue, void]


def test_next_extends_the_result_it_is_called_on() -> None:
    result = make_context().queue(a)
    assert result.next(b) is result
    result.next(c, when="all_done", priority=3)
    first, second = result.links
    assert (first.items, first.when, first.options) == ((b,), "all_success", {})
    assert (second.items, second.when, second.options) == ((c,), "all_done", {"priority": 3})


def test_two_results_are_never_equal() -> None:
    ctx = make_context()
    assert ctx.void() != ctx.void()


def test_repr_reads_like_the_code() -> None:
    ctx = make_context()
    assert repr(ctx.result(5)) == "ctx.result(5)"
    assert repr(ctx.void()) == "ctx.void()"
    assert repr(ctx.queue(a, ctx.result(1)).next(b)) == (
        "ctx.queue(<Work test.work() a>, ctx.result(1)).next(<Work test.work() b>)"
    )


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (5, "ctx.queue takes works, Results and sequences of them, not int: 5"),
        ("abc", "not str: 'abc'"),
        ({"a": 1}, "not dict: {'a': 1}"),
        (None, "not NoneType: None"),
        ([a, [5]], "not int: 5"),
    ],
)
def test_queue_takes_works(item: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        make_context().queue(item)
    assert message in str(caught.value)


def test_a_type_that_was_not_called_is_refused() -> None:
    @work(name="math.add")
    def add(a: int, b: int) -> int:
        return a + b

    with pytest.raises(TypeError) as caught:
        make_context().queue(a).next(add)  # type: ignore[call-overload]
    assert "not the work type 'math.add' itself: call it, as in add(...)" in str(caught.value)


def test_bad_options_are_refused_at_once() -> None:
    ctx = make_context()
    with pytest.raises(InputError, match="delay=nan must be finite"):
        ctx.queue(a, delay=float("nan"))
    with pytest.raises(InputError, match=r"priority=0\.5 must be a whole number"):
        ctx.queue(a).next(b, priority=0.5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"ctx\.queue has no option 'prio': did you mean 'priority'\?"):
        ctx.queue(a, prio=1)  # type: ignore[call-overload]
    with pytest.raises(InputError, match="append=5 must be a function"):
        ctx.result(1, append=5)  # type: ignore[call-overload]
    assert ctx._created == [ctx._created[0]], "what was refused was not made"


def test_next_refuses_a_condition_that_can_never_be_met() -> None:
    ctx = make_context()
    with pytest.raises(ValueError, match=r"at_least\(3\) of 2 can never be met"):
        ctx.queue(a, b).next(c, when=at_least(3))
    with pytest.raises(ValueError, match=r"at_least\(2\) of 1 can never be met"):
        ctx.result(1).next(c, when=at_least(2))
    with pytest.raises(ValueError, match=r"at_least\(2\) of 1 can never be met"):
        ctx.queue(a, b).next(c).next(make_work("d"), when=at_least(2))
    with pytest.raises(ValueError, match="when='some': must be 'all_success'"):
        ctx.queue(a).next(b, when="some")  # type: ignore[call-overload]


def test_the_condition_counts_nested_results_and_their_next_works() -> None:
    ctx = make_context()
    ctx.queue(a, ctx.queue(b).next(c)).next(make_work("d"), when=at_least(3))


def test_a_value_cannot_wait() -> None:
    ctx = make_context()
    with pytest.raises(InputError, match=r"not ctx\.result: return that from the handler of a work"):
        ctx.queue(a).next(ctx.result(1))
    with pytest.raises(InputError, match=r"\.next takes works, queues and groups of works, not ctx\.void"):
        ctx.queue(a).next(ctx.queue(b, ctx.void()))
    with pytest.raises(InputError, match=r"\.next takes no queue that has after="):
        ctx.queue(a).next(ctx.queue(b, after=["x"]))


def test_a_group_takes_works_and_has_an_id() -> None:
    ctx = make_context()
    group = ctx.group(a, [b, (c,)], ctx.queue(), delay=2)
    assert (group.kind, group.items[:3], group.options) == ("group", (a, b, c), {"delay": 2.0})
    assert group.id != ctx.group(a).id
    assert repr(group.next(b)).startswith("ctx.group(<Work test.work() a>, ")
    with pytest.raises(TypeError, match=r"ctx\.group takes works, Results and sequences of them, not int: 5"):
        ctx.group(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"ctx\.group takes works, .*not ctx\.result"):
        ctx.group(a, ctx.queue(ctx.result(1)))
    with pytest.raises(InputError, match=r"\.next takes no group that has after="):
        ctx.queue(a).next(ctx.group(b, after=["x"]))


def test_a_group_counts_as_one_for_at_least() -> None:
    ctx = make_context()
    ctx.group(a, b).next(c, when=at_least(1))
    with pytest.raises(InputError, match="at_least"):
        ctx.group(a, b).next(c, when=at_least(2))
    ctx.queue(ctx.group(a), b).next(c, when=at_least(2))


def test_a_result_cannot_follow_itself() -> None:
    ctx = make_context()
    result = ctx.queue(a)
    with pytest.raises(InputError, match="a Result cannot follow itself"):
        result.next(result)
    with pytest.raises(InputError, match="a Result cannot follow itself"):
        result.next(ctx.queue(b, ctx.queue(result)))
    assert result.links == ()
