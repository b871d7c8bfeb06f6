"""ManyStores by root: both contracts over several stores, and what has to be in one place."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.backends.test_many import StoresSubject, in_files, in_memory
from treadle import Treadle, work
from treadle.backend import Backend
from treadle.backends.many import ManyStores
from treadle.backends.memory import MemoryBackend
from treadle.base.ids import SLOTS, slot_of, slot_of_text
from treadle.base.timing import Clock
from treadle.errors import InputError, PlacementError, WorkFailed, WrongStore
from treadle.handler.context import Context
from treadle.handler.result import Result
from treadle.item import (
    GROUP_MARK,
    Claim,
    Demand,
    Fire,
    Item,
    ItemState,
    Rejected,
    Settled,
    Settlement,
    Submission,
    Submitted,
)
from treadle.retry import Retry
from treadle.testing import BackendContract, WorkerContract, WrappedBackend
from treadle.testing.contract.build import item, submit

APART = 1367
"""Slots between roots that follow each other: they are in different stores."""


class Named(WrappedBackend):
    """The ids of the contract are names, which say no slot. This gives them slots as the engine gives ids:
    those of a submission, of a group, and of what items wait for agree. slots: by id, of all processes.
    together: all have the same `place=`."""

    def __init__(self, inner: Backend, slots: dict[str, int], *, together: bool) -> None:
        super().__init__(inner)
        self._slots = slots
        self._together = together

    async def claim(self, demand: Demand) -> Claim:
        return await self.inner.claim(replace(demand, thorough=True))

    async def submit(
        self, submissions: Sequence[Submission], *, tx: object = None
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        for each in submissions:
            if each.items:
                self._place(each.items, self._slot(each.items))
        return await self.inner.submit(submissions, tx=tx)

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        for each in settlements:
            self._place(each.children, self._slots.get(each.lease.group_id, slot_of(each.lease.group_id)))
        return await self.inner.settle(settlements)

    async def fire(self, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
        self._place(fire.items, slot_of_text(fire.name))
        return await self.inner.fire(fire)

    def _slot(self, items: Sequence[Item]) -> int:
        if self._together:
            return 0
        known = [self._slots[name] for name in _names(items) if name in self._slots]
        keys = [slot_of_text(each.tenant, each.type, each.key) for each in items if each.key is not None]
        lanes = [slot_of_text(each.tenant, each.lane) for each in items if each.lane]
        chance = len(self._slots) * APART % SLOTS
        return next(iter((*keys, *known, *lanes)), chance)

    def _place(self, items: Sequence[Item], slot: int) -> None:
        for name in _names(items):
            self._slots.setdefault(name, slot)


def _names(items: Iterable[Item]) -> list[str]:
    named = (name for each in items for name in (each.id, each.parent, *each.after))
    return [name.removeprefix(GROUP_MARK) for name in named if name is not None]


class RootsSubject(StoresSubject):
    """Several stores by root, with one clock."""

    def __init__(
        self,
        make: Callable[[Clock], Mapping[str, Backend]],
        *,
        engine: bool = False,
        together: bool = False,
    ) -> None:
        self._slots: dict[str, int] = {}
        self._is_together = together
        super().__init__(make, engine=engine)

    def _new(self) -> Backend:
        stores = self._make(self.clock)
        if self._engine:
            return ManyStores(stores, by="root")
        many = ManyStores(
            stores, by="root", idle_leases=1, slot=lambda name: self._slots.get(name, slot_of(name))
        )
        return Named(many, self._slots, together=self._is_together)


_WAIT = "roots that wait for each other, or have each other's ids, need the same place="
_TURNS = "priority, age and turns hold within a store; stores take turns claim by claim"
_LISTS = "at one instant, lists are in the order of stores"
_STEPS = "a change of items in several stores is one step in each"
_KEYS = "the key of a child belongs to the place of its root: another one is refused"
_LANES = "what is in one strict lane has to be in one place"
_SCHEDULES = "what a schedule submits is in the place of its name, with its keys"

TOGETHER = {
    "test_a_child_changes_the_earlier_item": _KEYS,
    "test_a_child_takes_over_the_key_of_an_ended_item": _KEYS,
    "test_a_child_with_a_key_that_is_taken_refuses_the_settlement": _KEYS,
    "test_a_child_with_a_known_key_is_not_stored": _KEYS,
    "test_a_closing_item_waits_for_an_earlier_item_with_the_key": _KEYS,
    "test_a_dependency_on_a_keyed_child_means_the_existing_item": _KEYS,
    "test_a_nested_group_without_members_has_ended_at_once": _KEYS,
    "test_an_existing_item_is_not_a_descendant": _KEYS,
    "test_children_of_other_settlements_wait_for_the_id_as_written": _KEYS,
    "test_keyed_children_that_are_new_join_the_nested_group": _KEYS,
    "test_other_submissions_wait_for_the_id_as_written": _KEYS,
    "test_a_key_that_answers_means_the_group_of_the_earlier_item": _KEYS,
    "test_an_ended_child_holds_its_key_while_its_group_is_open": _KEYS,
    "test_a_holder_that_is_moved_holds_no_lane": _LANES,
    "test_a_lane_stays_held_when_a_lease_has_not_begun": _LANES,
    "test_a_released_holder_is_handed_out_again_at_once": _LANES,
    "test_an_item_that_waits_for_its_retry_holds_its_lane": _LANES,
    "test_a_list_of_groups_looks_no_further_than_its_reach": _LISTS,
    "test_a_rare_item_is_reached_by_going_on": _LISTS,
    "test_a_tenant_sees_its_own_entries": _LISTS,
    "test_a_workflow_stands_where_its_newest_root_is": _LISTS,
    "test_deaths_without_a_mark_are_counted_together": _LISTS,
    "test_groups_come_in_pages": _LISTS,
    "test_list_is_newest_first_by_default": _LISTS,
    "test_a_claim_skips_paused_queues": _TURNS,
    "test_a_claim_skips_queues_with_only_other_tenants_items": _TURNS,
    "test_a_lost_attempt_has_the_release_of_its_worker": _TURNS,
    "test_a_triggered_item_goes_behind_ready_items": _TURNS,
    "test_a_woken_item_goes_to_the_end_of_its_line": _TURNS,
    "test_an_item_released_with_a_delay_keeps_its_place": _TURNS,
    "test_it_goes_to_the_end_of_its_line": _TURNS,
    "test_items_found_due_together_become_ready_in_due_order": _TURNS,
    "test_only_the_refused_submission_of_a_call_is_left_out": _TURNS,
    "test_the_empty_lane_is_served_like_any_other": _TURNS,
    "test_what_became_due_while_it_was_held_is_ready_when_it_is_let_go": _TURNS,
    "test_the_newest_items_of_a_large_workflow_are_counted": "a workflow is what has its name in one place",
    "test_permits_of_leases_and_others_count_together": "permits of leases are where the leases are",
    "test_the_lines_of_its_queue_are_counted": "why counts the lines of the store of the item",
    "test_a_submission_with_a_note_stores_one_entry": _LISTS,
    "test_outcomes_of_groups": _LISTS,
    "test_outcomes_of_workflows": _LISTS,
    "test_a_refused_change_stores_no_entry": _STEPS,
    "test_a_due_item_goes_behind_items_that_are_already_ready": _TURNS,
    "test_a_long_backlog_does_not_delay_others": _TURNS,
    "test_a_queue_or_tenant_that_a_demand_repeats_gets_no_larger_share": _TURNS,
    "test_a_queue_with_many_tenants_gets_one_share": _TURNS,
    "test_a_released_item_goes_behind_ready_items": _TURNS,
    "test_a_run_at_in_the_past_gives_no_precedence": _TURNS,
    "test_a_tenant_with_many_lanes_gets_one_share": _TURNS,
    "test_an_urgent_item_overtakes_its_lane": _TURNS,
    "test_claims_of_one_item_are_fair": _TURNS,
    "test_equal_priorities_are_claimed_by_age": _TURNS,
    "test_fairness_continues_across_claims": _TURNS,
    "test_fairness_continues_behind_the_lane_served_last": _TURNS,
    "test_fairness_is_kept_per_worker": _TURNS,
    "test_freed_items_keep_their_place": _TURNS,
    "test_higher_priority_is_claimed_first": _TURNS,
    "test_holders_count_against_limit_and_room": _TURNS,
    "test_many_parked_items_do_not_delay_others": _TURNS,
    "test_more_lanes_than_the_limit_are_all_served": _TURNS,
    "test_newcomers_are_served_within_one_round": _TURNS,
    "test_one_claim_is_fair": _TURNS,
    "test_priority_does_not_cross_lanes": _TURNS,
    "test_queues_tenants_and_lanes_are_served_fairly_together": _TURNS,
    "test_the_empty_ones_are_skipped": _TURNS,
    "test_a_blocked_item_is_put_off_while_it_waits": _WAIT,
    "test_a_blocked_item_says_what_it_needs": _WAIT,
    "test_a_blocked_item_shows_each_status_of_a_prerequisite": _WAIT,
    "test_a_child_with_a_taken_id_is_rejected": _WAIT,
    "test_a_doomed_item_closes_no_cycle": _WAIT,
    "test_a_group_that_has_ended_with_a_cancelled_member_dooms_at_once": _WAIT,
    "test_a_nested_group_without_members_releases_those_that_wait_for_it": _WAIT,
    "test_a_prerequisite_may_be_submitted_as_a_child": _WAIT,
    "test_a_refused_submission_takes_no_key": _WAIT,
    "test_a_refused_submission_takes_no_key_from_the_next_one": _WAIT,
    "test_a_rejected_settlement_contributes_nothing": _WAIT,
    "test_a_rejected_settlement_leaves_the_others_of_the_call_alone": _WAIT,
    "test_a_repeated_id_is_refused_when_other_items_wait_for_it": _WAIT,
    "test_a_requeue_of_the_cancelled_member_brings_back_what_waited": _WAIT,
    "test_an_earlier_item_that_has_ended_counts_at_once": _WAIT,
    "test_an_item_that_cannot_be_released_is_doomed": _WAIT,
    "test_an_item_waits_only_for_items_of_its_tenant": _WAIT,
    "test_any_end_may_count": _WAIT,
    "test_children_in_a_cycle_are_rejected": _WAIT,
    "test_ids_and_keys_of_a_rejected_settlement_are_free": _WAIT,
    "test_prerequisites_of_every_status_are_counted": _WAIT,
    "test_stale_rejected_and_repeated_settlements_share_a_call": _WAIT,
    "test_the_group_may_have_ended": _WAIT,
}
"""Cases of the contracts that hold with the same `place=` for all, with the rules that users are told."""

DIFFERENT = {
    "test_a_change_of_items_stores_who_made_it": "a change over several stores has an entry in each",
    "test_a_change_of_a_queue_schedule_or_worker_stores_who_made_it": _LISTS,
    "test_a_tenant_reads_what_actions_of_all_tenants_did": _LISTS,
    "test_entries_are_read_in_pages": _LISTS,
    "test_a_run_whose_item_is_gone_has_no_status": _SCHEDULES,
    "test_an_occurrence_changes_the_earlier_item": _SCHEDULES,
    "test_fire_accepts_only_the_next_occurrence": _SCHEDULES,
    "test_fire_reports_refused_items": _SCHEDULES,
    "test_fire_returns_the_existing_item_of_a_key": _SCHEDULES,
    "test_only_what_was_fired_leaves_a_run": _SCHEDULES,
    "test_after_releases_an_item_when_its_condition_is_met": _WAIT,
}
"""Those that differ also then."""


def _name_of(request: pytest.FixtureRequest) -> str:
    return getattr(request.node, "originalname", request.node.name)


@pytest.fixture(autouse=True)
def as_by_root(request: pytest.FixtureRequest) -> None:
    rule = DIFFERENT.get(_name_of(request))
    if rule is not None:
        pytest.skip(f"by root {rule}")


@pytest.fixture
def is_together(request: pytest.FixtureRequest) -> bool:
    return _name_of(request) in TOGETHER


@pytest.mark.usefixtures("another_form")
class TestThreeInMemory(BackendContract):
    @pytest.fixture
    async def subject(self, is_together: bool) -> AsyncIterator[StoresSubject]:
        async with RootsSubject(in_memory(), together=is_together) as subject:
            yield subject


@pytest.mark.usefixtures("another_form")
class TestWorkersOfThreeInMemory(WorkerContract):
    @pytest.fixture
    async def subject(self) -> AsyncIterator[StoresSubject]:
        async with RootsSubject(in_memory(), engine=True) as subject:
            yield subject


@pytest.mark.usefixtures("another_form")
class TestThreeFiles(BackendContract):
    @pytest.fixture
    async def subject(self, quick_directory: Path, is_together: bool) -> AsyncIterator[StoresSubject]:
        directory = Path(tempfile.mkdtemp(dir=quick_directory))
        async with RootsSubject(in_files(directory), together=is_together) as subject:
            yield subject
        shutil.rmtree(directory)


@pytest.mark.usefixtures("another_form")
class TestWorkersOfThreeFiles(WorkerContract):
    @pytest.fixture
    async def subject(self, quick_directory: Path) -> AsyncIterator[StoresSubject]:
        directory = Path(tempfile.mkdtemp(dir=quick_directory))
        async with RootsSubject(in_files(directory), engine=True) as subject:
            yield subject
        shutil.rmtree(directory)


# -- what has to be in one place ------------------------------------------------------------------------


NAMES = ("eu", "us", "asia")


def stores_by_root() -> dict[str, MemoryBackend]:
    return {name: MemoryBackend() for name in NAMES}


@work(name="note")
async def note(what: str) -> str:
    return what


@work(name="fan")
async def fan(ctx: Context, count: int) -> Result[None, str | list[str]]:
    return ctx.queue(*(note(str(n)) for n in range(count))).next(collect())


@work(name="collect")
async def collect(ctx: Context) -> list[str]:
    return sorted(await ctx.results(note))


@work(name="once", unique=True)
async def once(what: str) -> str:
    return what


@pytest.fixture
async def app(processes: None) -> AsyncIterator[Treadle]:
    async with Treadle(
        dict(stores_by_root()),
        by="root",
        work=[note, fan, collect, once],
        poll_interval=0.1,
        statistics=False,
    ) as app:
        yield app


async def where(app: Treadle, *ids: str) -> tuple[str | None, ...]:
    return tuple([(await app.handle(id).state()).store for id in ids])


async def members(app: Treadle, group: str) -> list[ItemState]:
    return [each for each in (await app.list()).items if each.group_id == group]


async def test_roots_are_in_all_stores_and_run(app: Treadle) -> None:
    handles = [await app.enqueue(note(str(n))) for n in range(30)]
    assert [await handle.result(5) for handle in handles] == [str(n) for n in range(30)]
    assert set(await where(app, *(handle.id for handle in handles))) == set(NAMES)


async def test_all_that_follows_from_a_root_is_where_it_is(app: Treadle) -> None:
    """The group, its members, and what comes after it."""
    for _ in range(6):
        handle = await app.enqueue(fan(5))
        assert await handle.group(5) == [str(n) for n in range(5)]
        items = await members(app, handle.id)
        assert len(items) == 7
        assert len({item.store for item in items}) == 1
        assert len({slot_of(item.id) for item in items}) == 1


async def test_a_line_of_several_stores_is_one_line(processes: None) -> None:
    async with opened(stores_by_root()) as many:
        for n in range(8):
            await submit(many, item(f"{n:029}{n * SLOTS // 8:03x}", lane="a"))
        (line,) = await many.lines("default")
        assert (line.count, line.capped) == (8, False)
        (line,) = await many.lines("default", cap=5)
        assert (line.count, line.capped) == (5, True)


async def test_a_key_is_unique_in_all_stores(app: Treadle) -> None:
    handles = [await app.enqueue(note(str(n)), key="bill-7", key_scope="any") for n in range(8)]
    assert len({handle.id for handle in handles}) == 1


async def test_what_would_be_in_different_places_is_refused(app: Treadle) -> None:
    """With the same `place=` it is not."""
    with pytest.raises(PlacementError, match=r"are in different places: give all of them the same place="):
        await app.enqueue_many([once("a"), once("b")])
    first, second = [await app.enqueue(note(str(n)), id=f"order-{n}") for n in range(2)]
    with pytest.raises(PlacementError, match=r"after='order-0' and after='order-1' are in different places"):
        await app.enqueue(note("after"), after=[first, second])
    with pytest.raises(
        PlacementError, match=r"place='x' and id='order-2' are in different places: .* leave the other out"
    ):
        await app.enqueue(note("2"), id="order-2", place="x")
    assert {item.id for item in (await app.list()).items} == {"order-0", "order-1"}
    await app.enqueue_many([once("a"), once("b")], place="x")
    both = [await app.enqueue(note(str(n)), place="x") for n in range(2)]
    after = await app.enqueue(note("after"), after=both)
    assert await after.result(5) == "after"
    assert len({await where(app, handle.id) for handle in (*both, after)}) == 1


async def test_a_work_that_waits_names_one_that_was_enqueued_with_a_key(app: Treadle) -> None:
    """The Work has the id that its key gave it."""
    first, then = note("first"), note("then")
    handle = await app.enqueue(first, key="k")
    assert first.id == handle.id
    assert await app.enqueue(then, after=first).result(5) == "then"


async def test_an_own_id_says_where_its_item_is(app: Treadle) -> None:
    for n in range(10):
        handle = await app.enqueue(fan(2), id=f"order-{n}")
        assert await handle.group(5) == ["0", "1"]
        assert {slot_of(item.id) for item in await members(app, handle.id)} == {slot_of(f"order-{n}")}


async def test_a_child_with_a_key_of_another_place_kills_its_parent(app: Treadle) -> None:
    @work(name="queues_once")
    async def queues_once(ctx: Context) -> Result[None, str]:
        return ctx.queue(once("a"))

    app.register(queues_once)
    handle = await app.enqueue(queues_once(), retry=Retry(attempts=1))
    with pytest.raises(WorkFailed, match="belongs to another place than the group"):
        await handle.result(5)


async def test_a_claimed_key_and_a_schedule_have_one_store(app: Treadle) -> None:
    backend = app.backend
    for n in range(10):
        assert await backend.claim_key(f"k{n}", "a", 60, tenant="default")
        assert await backend.key_owner(f"k{n}", tenant="default") == "a"
        assert not await backend.claim_key(f"k{n}", "b", 60, tenant="default")
    fired = asyncio.Event()

    @work(name="tick")
    async def tick() -> None:
        fired.set()

    app.register(tick)
    app.schedule("often", every=0.1, run=tick)
    async with asyncio.timeout(5):
        await fired.wait()
    assert [row.name for row in await app.schedules.list()] == ["often"]


async def test_the_number_of_stores_stays(processes: None) -> None:
    stores = stores_by_root()
    async with opened(stores):
        pass
    with pytest.raises(WrongStore, match="these are 3 stores by root, and the app names 4"):
        async with opened({**stores, "more": MemoryBackend()}):
            pass
    with pytest.raises(WrongStore, match="these are 3 stores by root, and the app names 2"):
        async with opened({name: stores[name] for name in ("eu", "us")}):
            pass
    with pytest.raises(WrongStore, match="by root, not by tenant: give by='root'"):
        await ManyStores(stores).open()
    tenants = stores_by_root()
    await ManyStores(tenants).open()
    with pytest.raises(WrongStore, match="these stores are by tenant: leave by='root' out"):
        await ManyStores(tenants, by="root").open()


async def test_an_empty_store_is_accepted_for_one_that_has_lost_its_data(processes: None) -> None:
    """But not for home, which knows which ids belong to which store."""
    stores = stores_by_root()
    async with opened(stores) as many:
        numbers = {name: member.number for name, member in many.places.by_name.items()}
    kept = dict(stores)
    stores["us"] = MemoryBackend()
    many = ManyStores(stores, by="root")
    await many.accept_store("us")
    assert {name: member.number for name, member in many.places.by_name.items()} == numbers
    await many.close()
    async with opened(stores):
        pass
    with pytest.raises(InputError, match="'eu' is home, and knows the order of the stores"):
        await ManyStores({**kept, "eu": MemoryBackend()}, by="root").accept_store("eu")


async def test_a_store_with_items_cannot_join(processes: None) -> None:
    stores = stores_by_root()
    await submit(stores["us"], item("old"))
    with pytest.raises(PlacementError, match="the store 'us' has items"):
        async with opened(stores):
            pass


async def test_transactions_and_places_of_tenants_are_refused(app: Treadle) -> None:
    assert "transactions" not in app.backend.capabilities
    with pytest.raises(InputError, match="give place= to what has to be together"):
        await app.place("acme", "us")


@asynccontextmanager
async def opened(stores: Mapping[str, Backend]) -> AsyncGenerator[ManyStores]:
    many = ManyStores(stores, by="root")
    await many.open()
    try:
        yield many
    finally:
        await many.close()
