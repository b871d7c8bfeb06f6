"""Plans: what a returned Result means for the store."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.works import make_context, make_work
from treadle.define.condition import at_least
from treadle.errors import DuplicateIdError
from treadle.handler.result_plan import ResultPlan, fold, needs_old, plan, unreturned

a, b, c, d, e = (make_work(letter) for letter in "abcde")


def waits(planned: ResultPlan) -> dict[str, tuple[tuple[str, ...], Any]]:
    return {child.work.id: (child.after, child.when) for child in planned.children}


def values(planned: ResultPlan) -> list[Any]:
    return [contribution.value for contribution in planned.contributions]


class TestValues:
    def test_a_plain_value_is_a_result(self) -> None:
        planned = plan(5, "self")
        assert (planned.value, values(planned), planned.children) == (5, [5], ())

    @pytest.mark.parametrize("falsy", [0, "", [], False])
    def test_a_falsy_value_is_a_value(self, falsy: Any) -> None:
        assert values(plan(falsy, "self")) == [falsy]

    def test_none_is_the_same_as_void(self) -> None:
        for returned in (None, make_context().void()):
            planned = plan(returned, "self")
            assert (planned.value, planned.contributions, planned.children) == (None, (), ())

    def test_an_explicit_none_contributes(self) -> None:
        assert values(plan(make_context().result(None), "self")) == [None]

    def test_a_queue_has_no_value_of_its_own(self) -> None:
        ctx = make_context()
        planned = plan(ctx.queue(a, ctx.result("done", final=True)), "self")
        assert planned.value is None
        assert [(x.value, x.final) for x in planned.contributions] == [("done", True)]

    def test_a_value_with_next_works_is_still_the_value(self) -> None:
        planned = plan(make_context().result(5).next(a), "self")
        assert (planned.value, values(planned)) == (5, [5])

    def test_contributions_keep_their_order(self) -> None:
        ctx = make_context()
        root = ctx.queue(ctx.result(1), ctx.queue(ctx.result(2)), ctx.result(3))
        assert values(plan(root, "self")) == [1, 2, 3]


class TestFold:
    def test_the_last_contribution_wins(self) -> None:
        ctx = make_context()
        contributions = plan(ctx.queue(ctx.result(1), ctx.result(2)), "self").contributions
        assert not needs_old(contributions)
        assert fold(contributions, 9) == (2, False)

    def test_append_gets_the_old_value(self) -> None:
        ctx = make_context()
        contributions = plan(ctx.result(4, append=lambda old: (old or 0) + 4), "self").contributions
        assert needs_old(contributions)
        assert fold(contributions, None) == (4, False)
        assert fold(contributions, 6) == (10, False)

    def test_append_after_a_value_starts_from_it(self) -> None:
        ctx = make_context()
        root = ctx.queue(ctx.result(1), ctx.result(2, append=lambda old: (old or 0) + 2))
        contributions = plan(root, "self").contributions
        assert not needs_old(contributions)
        assert fold(contributions, 100) == (3, False)

    def test_final_appends_and_then_locks(self) -> None:
        ctx = make_context()
        root = ctx.queue(ctx.result(1, final=True, append=lambda old: (old or 0) + 1), ctx.result(7))
        assert fold(plan(root, "self").contributions, 5) == (6, True)

    def test_without_contributions_the_value_stays(self) -> None:
        assert not needs_old(())
        assert fold((), 5) == (5, False)


class TestDependencies:
    def test_children_wait_for_nothing(self) -> None:
        planned = plan(make_context().queue(b, [a]), "self")
        assert waits(planned) == {"b": ((), "all_success"), "a": ((), "all_success")}
        assert [child.work.id for child in planned.children] == ["b", "a"], "in the order written"

    def test_next_works_wait_for_the_works_before_them(self) -> None:
        planned = plan(make_context().queue(a, b).next(c, when="all_done").next(d, e), "self")
        assert waits(planned) == {
            "a": ((), "all_success"),
            "b": ((), "all_success"),
            "c": (("a", "b"), "all_done"),
            "d": (("c",), "all_success"),
            "e": (("c",), "all_success"),
        }

    def test_nested_results_and_their_next_works_belong_to_the_cohort(self) -> None:
        ctx = make_context()
        planned = plan(ctx.queue(a, ctx.queue(b).next(c)).next(d, when=at_least(2)), "self")
        assert waits(planned) == {
            "a": ((), "all_success"),
            "b": ((), "all_success"),
            "c": (("b",), "all_success"),
            "d": (("a", "b", "c"), at_least(2)),
        }

    @pytest.mark.parametrize("kind", ["result", "void"])
    def test_after_a_value_or_void_the_cohort_is_this_item(self, kind: str) -> None:
        ctx = make_context()
        root = ctx.result(5) if kind == "result" else ctx.void()
        planned = plan(root.next(a).next(b), "self")
        assert waits(planned) == {"a": (("self",), "all_success"), "b": (("a",), "all_success")}

    def test_an_empty_cohort_is_met_at_once(self) -> None:
        ctx = make_context()
        assert waits(plan(ctx.queue().next(a), "self")) == {"a": ((), "all_success")}
        assert waits(plan(ctx.queue([]).next(a, when=at_least(1)), "self")) == {"a": ((), "all_success")}

    def test_an_empty_next_is_skipped(self) -> None:
        planned = plan(make_context().queue(a).next([]).next(b, when="all_done"), "self")
        assert waits(planned)["b"] == (("a",), "all_done")

    def test_a_nested_queue_waits_for_the_works_before_it(self) -> None:
        ctx = make_context()
        planned = plan(ctx.queue(a).next(ctx.queue(b).next(c), when="all_done"), "self")
        assert waits(planned)["b"] == (("a",), "all_done")
        assert waits(planned)["c"] == (("b",), "all_success")

    def test_an_empty_nested_queue_does_not_release_its_next_works(self) -> None:
        ctx = make_context()
        planned = plan(ctx.queue(a).next(ctx.queue().next(b), when="all_done"), "self")
        assert waits(planned)["b"] == (("a",), "all_done")

    def test_next_works_of_nested_values_wait_for_this_item(self) -> None:
        ctx = make_context()
        planned = plan(ctx.queue(a, ctx.result(1).next(b)).next(c), "self")
        assert waits(planned)["b"] == (("self",), "all_success")
        assert waits(planned)["c"] == (("a", "b"), "all_success")


class TestOptions:
    def test_options_apply_only_to_the_works_of_their_call(self) -> None:
        ctx = make_context()
        root = ctx.queue(a, ctx.queue(b, priority=2), priority=1).next(c, priority=3)
        options = {child.work.id: child.options["priority"] for child in plan(root, "self").children}
        assert options == {"a": 1, "b": 2, "c": 3}

    def test_after_of_a_queue_gives_the_dependencies(self) -> None:
        planned = plan(make_context().queue(a, after=[b, "x"], when="all_done"), "self")
        assert waits(planned) == {"a": (("b", "x"), "all_done")}

    def test_dependencies_are_among_the_options(self) -> None:
        planned = plan(make_context().queue(a).next(b, delay=5), "self")
        assert planned.children[1].options == {"delay": 5.0, "after": ("a",), "when": "all_success"}


class TestBadTrees:
    @pytest.mark.parametrize("where", ["same call", "nested", "link"])
    def test_one_work_in_two_places_is_refused(self, where: str) -> None:
        ctx = make_context()
        root = {
            "same call": lambda: ctx.queue(a, a),
            "nested": lambda: ctx.queue(a, ctx.queue(a)),
            "link": lambda: ctx.queue(a).next(a),
        }[where]()
        with pytest.raises(DuplicateIdError, match="'a' was already submitted"):
            plan(root, "self")

    def test_one_result_in_two_places_is_refused(self) -> None:
        ctx = make_context()
        shared = ctx.queue(a)
        with pytest.raises(DuplicateIdError):
            plan(ctx.queue(shared, shared), "self")

    def test_results_may_nest_deeper_than_the_recursion_limit(self) -> None:
        ctx = make_context()
        root = ctx.queue(a)
        for n in range(3000):
            root = ctx.queue(make_work(str(n)), root)
        assert len(plan(root, "self").children) == 3001
        assert unreturned(ctx._created, root) == []


class TestUnreturned:
    def test_every_part_of_the_returned_result_counts_as_returned(self) -> None:
        ctx = make_context()
        nested, linked = ctx.queue(b), ctx.queue(c)
        root = ctx.queue(a, [nested]).next(linked).next(d)
        assert unreturned(ctx._created, root) == []

    def test_returning_the_result_before_next_returns_the_next_works(self) -> None:
        ctx = make_context()
        root = ctx.queue(a)
        root.next(b)
        assert unreturned(ctx._created, root) == []
        assert waits(plan(root, "self"))["b"] == (("a",), "all_success")

    def test_a_result_that_was_not_returned_is_found(self) -> None:
        ctx = make_context()
        forgotten, root = ctx.queue(a), ctx.queue(b)
        assert unreturned(ctx._created, root) == [forgotten]

    def test_a_plain_value_returns_no_result(self) -> None:
        ctx = make_context()
        forgotten = ctx.queue(a)
        assert unreturned(ctx._created, 5) == [forgotten]

    def test_without_results_nothing_is_unreturned(self) -> None:
        assert unreturned([], 5) == []


def groups(planned: ResultPlan) -> dict[str, str | None]:
    return {child.work.id: child.group_id for child in planned.children}


class TestGroups:
    def test_the_works_of_a_group_belong_to_it(self) -> None:
        ctx = make_context()
        group = ctx.group(a, ctx.queue(b).next(c), priority=3)
        planned = plan(group.next(d), "self")
        assert groups(planned) == {"a": group.id, "b": group.id, "c": group.id, "d": None}
        assert waits(planned) == {
            "a": ((), "all_success"),
            "b": ((), "all_success"),
            "c": (("b",), "all_success"),
            "d": ((group.id,), "all_success"),
        }
        assert [(each.id, each.group_id, each.followed) for each in planned.groups] == [
            (group.id, None, True)
        ]
        assert [child.options.get("priority") for child in planned.children] == [3, None, None, None]
        assert (planned.value, planned.contributions) == (None, ())

    def test_groups_nest(self) -> None:
        ctx = make_context()
        inner = ctx.group(a)
        outer = ctx.group(inner.next(b), c)
        planned = plan(ctx.queue(outer, d).next(e), "self")
        assert groups(planned) == {"a": inner.id, "b": outer.id, "c": outer.id, "d": None, "e": None}
        assert [(each.id, each.group_id, each.followed) for each in planned.groups] == [
            (outer.id, None, False),
            (inner.id, outer.id, True),
        ]
        assert waits(planned)["b"][0] == (inner.id,)
        assert waits(planned)["e"][0] == (outer.id, "d")

    def test_a_group_can_follow(self) -> None:
        ctx = make_context()
        group = ctx.group(b, c)
        planned = plan(ctx.queue(a).next(group).next(d), "self")
        assert waits(planned) == {
            "a": ((), "all_success"),
            "b": (("a",), "all_success"),
            "c": (("a",), "all_success"),
            "d": ((group.id,), "all_success"),
        }

    @pytest.mark.parametrize("nested", [False, True])
    def test_an_empty_group_is_met_at_once(self, nested: bool) -> None:
        ctx = make_context()
        empty = ctx.group(ctx.group(), ctx.queue()) if nested else ctx.group([])
        planned = plan(empty.next(a), "self")
        assert (waits(planned), planned.groups) == ({"a": ((), "all_success")}, ())

    def test_a_group_that_occurs_twice_is_refused(self) -> None:
        ctx = make_context()
        group = ctx.group(a)
        with pytest.raises(DuplicateIdError):
            plan(ctx.queue(group, group), "self")

    def test_a_group_that_is_not_returned_is_found(self) -> None:
        ctx = make_context()
        lost, kept = ctx.group(a), ctx.group(b)
        assert unreturned([lost, kept], ctx.queue(kept)) == [lost]
