"""Which tenants should move so that stores have as much as each other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tiers import examples
from treadle.backends.many.rebalance import MOST_EVER, Shift, propose

Loads = dict[str, dict[str, int]]


def loads_of(**stores: list[int]) -> Loads:
    """Stores with tenants of these sizes: the second tenant of store `a` is `a1`."""
    return {store: {f"{store}{n}": size for n, size in enumerate(sizes)} for store, sizes in stores.items()}


def totals(loads: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    return {store: sum(tenants.values()) for store, tenants in loads.items()}


def apply(loads: Loads, moves: list[Shift]) -> Loads:
    after = {store: dict(tenants) for store, tenants in loads.items()}
    for move in moves:
        after[move.to][move.tenant] = after[move.source].pop(move.tenant)
    return after


def short(moves: list[Shift]) -> list[tuple[str, str]]:
    return [(move.tenant, move.to) for move in moves]


class TestProposals:
    def test_the_tenant_nearest_to_half_of_the_difference_goes(self) -> None:
        loads = loads_of(a=[10, 45, 60], b=[20])
        assert short(propose(loads, (), 0.1, 10)) == [("a1", "b")]

    def test_what_brings_most_comes_first(self) -> None:
        loads = loads_of(a=[30, 20, 10, 90], b=[])
        moves = propose(loads, (), 0.0, 10)
        assert totals(apply(loads, moves)) in ({"a": 90, "b": 60}, {"a": 60, "b": 90})
        assert [move.gain for move in moves] == sorted([move.gain for move in moves], reverse=True)

    def test_no_more_moves_than_asked_for(self) -> None:
        loads = loads_of(a=[10] * 20, b=[])
        assert len(propose(loads, (), 0.1, 3)) == 3

    def test_a_small_difference_moves_nothing(self) -> None:
        loads = loads_of(a=[50, 5], b=[50])
        assert propose(loads, (), 0.1, 10) == []
        assert short(propose(loads, (), 0.01, 10)) == []  # five would only change sides
        assert short(propose(loads_of(a=[50, 5, 4], b=[50]), (), 0.01, 10)) == [("a2", "b")]

    def test_a_tenant_alone_in_its_store_stays(self) -> None:
        assert propose(loads_of(a=[1000], b=[]), (), 0.1, 10) == []
        assert propose(loads_of(a=[1000], b=[10]), (), 0.1, 10) == []

    def test_a_large_tenant_is_not_moved_for_little(self) -> None:
        """Its small neighbours leave it instead, if that is worth it."""
        assert propose(loads_of(a=[1000, 1, 1, 1], b=[]), (), 0.1, 10) == []
        moves = propose(loads_of(a=[1000, 100, 100], b=[]), (), 0.1, 10)
        assert short(moves) == [("a2", "b"), ("a1", "b")]

    def test_a_larger_tenant_goes_if_the_small_ones_are_too_many(self) -> None:
        assert short(propose(loads_of(a=[600, *[1] * 400], b=[]), (), 0.1, 10)) == [("a0", "b")]

    def test_many_small_tenants_bring_enough_together(self) -> None:
        loads = loads_of(a=[1] * 1000, b=[])
        assert len(propose(loads, (), 0.1, 10)) == 10
        assert totals(apply(loads, propose(loads, (), 0.1, MOST_EVER))) == {"a": 525, "b": 475}

    def test_very_many_tenants_take_no_time(self) -> None:
        """A plan of many moves takes a fraction of the second that a test has."""
        loads = loads_of(a=[1 + n % 7 for n in range(50_000)], b=[])
        assert len(propose(loads, (), 0.0, MOST_EVER)) == MOST_EVER

    def test_others_are_evened_out_beside_one_that_cannot_be(self) -> None:
        loads = loads_of(a=[1000], b=[100, 100, 100, 100], c=[])
        assert totals(apply(loads, propose(loads, (), 0.1, 10))) == {"a": 1000, "b": 200, "c": 200}

    def test_tenants_that_stay_count_and_do_not_move(self) -> None:
        loads = loads_of(a=[40, 30, 30], b=[])
        assert short(propose(loads, {"a0"}, 0.1, 10)) == [("a2", "b"), ("a1", "b")]
        assert propose(loads, {"a0", "a1", "a2"}, 0.1, 10) == []

    def test_stores_without_anything(self) -> None:
        assert propose({}, (), 0.1, 10) == []
        assert propose({"a": {}, "b": {}}, (), 0.0, 10) == []
        assert propose({"a": {"x": 5}}, (), 0.1, 10) == []


SIZES = st.lists(st.one_of(st.integers(0, 20), st.integers(0, 5000)), max_size=30)
STORES = st.lists(SIZES, min_size=1, max_size=5).map(
    lambda stores: loads_of(**dict(zip("abcde", stores, strict=False)))
)
TOLERANCES = st.sampled_from([0.0, 0.05, 0.1, 0.5])


class TestAnyStores:
    @settings(max_examples=examples(600), deadline=None)
    @given(STORES, TOLERANCES, st.integers(1, 50))
    def test_no_move_makes_it_worse(self, loads: Loads, tolerance: float, most: int) -> None:
        """None makes the fullest store fuller, or the emptiest emptier, and each brings two stores nearer to
        each other. No tenant moves twice."""
        moves = propose(loads, (), tolerance, most)
        assert len(moves) <= most
        assert len({move.tenant for move in moves}) == len(moves)
        for move in moves:
            before = totals(loads)
            assert loads[move.source][move.tenant] == move.weight
            loads = apply(loads, [move])
            after = totals(loads)
            assert max(after.values()) <= max(before.values())
            assert min(after.values()) >= min(before.values())
            was, now = (abs(sums[move.source] - sums[move.to]) for sums in (before, after))
            assert was - now == 2 * move.gain > 0

    @settings(max_examples=examples(600), deadline=None)
    @given(STORES, TOLERANCES)
    def test_stores_that_are_even_enough_stay_as_they_are(self, loads: Loads, tolerance: float) -> None:
        moves = propose(loads, (), tolerance, MOST_EVER)
        sums = totals(loads).values()
        if max(sums) - min(sums) <= tolerance * sum(sums) / len(sums):
            assert moves == []

    @settings(max_examples=examples(300), deadline=None)
    @given(STORES, TOLERANCES, st.integers(1, 10))
    def test_plan_after_plan_ends(self, loads: Loads, tolerance: float, most: int) -> None:
        """What remains to be moved becomes less, and at last nothing is."""
        tenants = sum(len(each) for each in loads.values())
        squares = [sum(total**2 for total in totals(loads).values())]
        for _ in range(20 * (tenants + 1)):
            moves = propose(loads, (), tolerance, most)
            if not moves:
                return
            loads = apply(loads, moves)
            squares.append(sum(total**2 for total in totals(loads).values()))
            assert squares[-1] < squares[-2]
        pytest.fail("it goes on and on")

    @settings(max_examples=examples(100), deadline=None)
    @given(st.integers(2, 5), st.integers(0, 60), st.integers(1, 100))
    def test_equal_tenants_come_as_near_as_they_can(self, stores: int, tenants: int, size: int) -> None:
        """All in one store at first, they are spread until no move helps."""
        names = "abcde"[:stores]
        loads: Loads = {name: {} for name in names}
        loads["a"] = {f"t{n}": size for n in range(tenants)}
        sums = totals(apply(loads, propose(loads, (), 0.0, MOST_EVER))).values()
        assert max(sums) - min(sums) <= size
