"""The plan of a list: where it looks, and how its pages go on."""

from __future__ import annotations

import pytest

from treadle.errors import InputError
from treadle.item import Filter, ItemState, Page
from treadle.store.rules.listing import (
    LARGEST_PAGE,
    Bounds,
    Source,
    WalkEnd,
    cursor_of,
    narrowed_filter,
    number_of,
    plan_list,
)
from treadle.store.rules.records import number_of_audit


def sources(**where: object) -> tuple[Source, ...]:
    return plan_list("memory", Filter(**where), limit=10).sources  # type: ignore[arg-type]


def test_the_narrowest_source_is_first() -> None:
    """All of them hold every item that is asked for."""
    assert sources() == ("all",)
    assert sources(type="mail", tenant="acme") == ("all",)
    assert sources(status=("ready",)) == ("ready", "open", "all")
    assert sources(status=("ready", "running")) == ("open", "all")
    assert sources(status=("dead", "success")) == ("ended", "all")
    assert sources(status=("dead", "running")) == ("all",)
    assert sources(reason="expired") == ("dead", "ended", "all")
    assert sources(failed_group=True, status=("dead", "ready")) == ("dead", "ended", "all")
    assert sources(mark="m", workflow="w") == ("workflow", "mark", "dead", "ended", "all")
    assert sources(key="k", group_id="g", killing=True) == ("group", "key", "killing", "open", "all")


def test_no_source_holds_what_cannot_be() -> None:
    """Only dead items have a reason or a mark, and only open ones end workers."""
    assert sources(reason="expired", status=("success", "ready")) == ()
    assert sources(killing=True, status=("dead",)) == ()
    assert sources(killing=True, mark="") == ()
    assert sources(held=True) == ("held", "scheduled", "open", "all")
    assert sources(held=True, status=("ready",)) == ()
    assert plan_list("memory", Filter(killing=True, mark=""), limit=1).narrowest({"all": 1}) is None


def test_a_store_takes_the_narrowest_source_that_it_knows() -> None:
    plan = plan_list("memory", Filter(key="k", status=("dead",)), limit=1)
    assert plan.narrowest({"all": 1}) == 1
    assert plan.narrowest({"all": 1, "dead": 2}) == 2
    assert plan.narrowest({"dead": 2, "all": 1, "key": 3}) == 3


def test_conditions_are_what_the_filter_asks_for() -> None:
    plan = plan_list("memory", Filter(mark="", type="mail", status=("dead",), failed_group=True), limit=1)
    assert plan.conditions == {"mark": "", "type": "mail", "failed_group": True}


def test_a_cursor_bounds_the_numbers_on_the_side_where_the_list_began() -> None:
    """The order of instants may differ from that of numbers by a minute."""
    cursor, where = cursor_of("memory", 7), Filter(since=100.0, until=200.0)
    newest = plan_list("memory", where, limit=1, cursor=cursor)
    assert newest.bounds == Bounds(None, 7, 40.0, 260.0)
    oldest = plan_list("memory", Filter(), limit=1, cursor=cursor, oldest_first=True)
    assert oldest.bounds == Bounds(7, None, None, None)


def test_a_page_has_a_cursor_if_there_is_more() -> None:
    """`reached_at` says that a page is short because of its reach."""
    plan = plan_list("memory", Filter(), limit=2)
    states = [ItemState(id=str(no), type="t", status="ready", tenant="") for no in range(3)]
    two = tuple(states[:2])
    assert plan.page([1, 2], states[:2]) == Page(two)
    assert plan.page([1, 2, 3], states) == Page(two, cursor_of("memory", 2))
    assert plan.page([1, 2], states[:2], WalkEnd(5, 9.0)) == Page(two, cursor_of("memory", 5))
    assert plan.page([1], states[:1], WalkEnd(5, 9.0)) == Page(two[:1], cursor_of("memory", 5), 9.0)


@pytest.mark.parametrize("limit", [-1, 0, 1, LARGEST_PAGE, LARGEST_PAGE + 1])
def test_pages_have_one_to_a_thousand_items(limit: int) -> None:
    assert plan_list("memory", Filter(), limit=limit).most == min(max(limit, 1), 1000)


def test_a_cursor_stands_for_a_number() -> None:
    for number in (0, 1, 255, 2**48, 2**63 - 1):
        assert number_of("redis", cursor_of("redis", number), "list") == number


def test_a_cursor_of_another_list_is_refused() -> None:
    """That of another store, of audits, of an older release, a number, and one with a typing error."""
    for wrong in (cursor_of("sqlite", 7), cursor_of("audits", 7), "n7", "m7", "r7", "7", "8.7f2bbd67"):
        with pytest.raises(InputError, match="is not one that list\\(\\) of this store returned"):
            plan_list("memory", Filter(), limit=1, cursor=wrong)
    with pytest.raises(InputError, match="is not one that audits\\(\\)"):
        number_of_audit(cursor_of("memory", 7))
    with pytest.raises(InputError):
        number_of("memory", cursor_of("memory", 2**63), "list")


def test_a_filter_is_narrowed_to_a_tenant_and_statuses() -> None:
    """None: no item can match."""
    assert narrowed_filter(Filter(type="t"), None, ("dead",)) == Filter(type="t", status=("dead",))
    both = Filter(status=("dead", "ready"))
    assert narrowed_filter(both, "a", ("dead", "cancelled")) == Filter(status=("dead",), tenant="a")
    assert narrowed_filter(Filter(status=("ready",)), None, ("dead",)) is None
    assert narrowed_filter(Filter(tenant="b"), "a", ("dead",)) is None
