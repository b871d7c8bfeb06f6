"""Nested groups: an item of the outer group closes them, waits for them and takes their value over."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from treadle.backend import Backend
from treadle.item import GROUP_MARK, GROUP_TYPE, Contribution, Filter, Item, Lease
from treadle.store.rules.settlement import next_version

from .build import (
    apply,
    by_id,
    claim,
    claim_one,
    contribute,
    dependent,
    die,
    group,
    item,
    only,
    settle,
    settle_one,
    start_one,
    state,
    statuses,
    submit,
    succeed,
    whole,
)
from .check import consistent, open_members
from .repair import kill, run
from .subject import needs


def closing(id: str, **fields: Any) -> Item:
    """The item that closes the nested group `id`."""
    return dependent(GROUP_MARK + id, id=id, type=GROUP_TYPE, closes_group=True, **fields)


def nested(id: str, *members: Item, **fields: Any) -> tuple[Item, ...]:
    """A nested group: its members, and the item that closes it."""
    return (*(replace(member, group_id=member.group_id or id) for member in members), closing(id, **fields))


def keyed(id: str, *members: Item) -> tuple[Item, ...]:
    """As `nested`. The closing item waits for each member with a key too, as the engine stores it."""
    *inside, last = nested(id, *members)
    names = tuple(member.id for member in members if member.key is not None)
    return (*inside, replace(last, after=(*last.after, *names), need=1 + len(names)))


async def start_nested(backend: Backend, *members: Item) -> dict[str, Lease]:
    """Start the members of the group `g`, which is nested in `root`. `next` waits for `g`."""
    root = await start_one(backend, item("root", "flow"))
    await apply(backend, succeed(root, *nested("g", *members), dependent("g", id="next")))
    return by_id(await claim(backend))


async def open_counts(backend: Backend, *ids: str) -> list[int]:
    return [await open_members(backend, id) for id in ids]


def group_ids(settled: Any) -> list[str]:
    return [one.id for one in settled.effects.ended_groups]


class NestedGroupCases:
    @needs("nested")
    async def test_children_form_a_group_of_their_own(self, backend: Backend) -> None:
        """The closing item is a member of the outer group, and waits for the nested group."""
        leases = await start_nested(backend, item("a"), item("b"))
        assert {id: lease.group_id for id, lease in leases.items()} == {"a": "g", "b": "g"}
        close = await state(backend, "g")
        assert (close.status, close.group_id, close.type) == ("blocked", "root", GROUP_TYPE)
        assert (close.after, close.parent, close.waiting_for) == ((whole("g"),), "root", ())
        found = await group(backend, "g")
        assert (found.id, found.open, found.outer, found.type) == ("g", 2, "root", GROUP_TYPE)
        assert (found.ended_at, found.value, found.version, found.failed) == (None, None, 0, 0)
        assert (await group(backend, "root")).outer is None
        assert await open_counts(backend, "g", "root") == [2, 2]
        await consistent(backend)

    @needs("nested")
    async def test_the_closing_item_is_released_when_the_nested_group_ends(self, backend: Backend) -> None:
        """With everything that its members queued. The outer group stays open until the end."""
        leases = await start_nested(backend, item("a"), item("b"))
        settled = await apply(backend, succeed(leases["a"], item("deeper")))
        assert (await state(backend, "deeper")).group_id == "g"
        settled = await apply(backend, succeed(leases["b"]))
        assert (settled.effects.released, group_ids(settled)) == ((), [])
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert [one.id for one in settled.effects.released] == ["g"]
        assert only(settled.effects.ended_groups).type == GROUP_TYPE
        assert group_ids(settled) == ["g"]
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert ([one.id for one in settled.effects.released], group_ids(settled)) == (["next"], [])
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert group_ids(settled) == ["root"]
        await consistent(backend)

    @needs("nested")
    async def test_a_nested_group_holds_the_outer_group_open(self, backend: Backend) -> None:
        """All that is left of the outer group is the closing item."""
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, *nested("g", item("a"))))
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert group_ids(settled) == ["g"]
        assert (await group(backend, "root")).ended_at is None
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert group_ids(settled) == ["root"]

    @needs("nested")
    async def test_a_nested_group_has_its_own_value(self, backend: Backend) -> None:
        """Its members contribute to it and not to the outer group. The closing item takes it over."""
        leases = await start_nested(backend, item("a"), item("b"))
        await apply(backend, contribute(leases["b"], b"first"))
        settled = await apply(backend, contribute(leases["a"], b"value"))
        assert only(settled.effects.ended_groups).value == b"value"
        found = await group(backend, "g")
        assert (found.value, found.contributed) == (b"value", True)
        assert not (await group(backend, "root")).contributed
        lease = await claim_one(backend)
        await apply(backend, succeed(lease, result=b"value", contribution=Contribution()))
        assert (await state(backend, "g")).result == b"value"
        assert (await group(backend, "root")).value == b"value"

    @needs("nested", "folds")
    async def test_folds_of_a_nested_group_are_exact(self, backend: Backend) -> None:
        """The version is that of the nested group. A refused fold there refuses none of the outer group."""
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, *nested("g", item("a"), item("b")), item("c")))
        leases = by_id(await claim(backend))
        await apply(backend, contribute(leases["a"], b"1", version=0))
        settled = await settle(
            backend, contribute(leases["b"], b"x", version=0), contribute(leases["c"], b"c", version=0)
        )
        assert [outcome.verb for outcome in settled.outcomes] == ["moved", "applied"]
        moved = settled.outcomes[0]
        assert (moved.version, moved.value) == (next_version(leases["a"].token, 0), b"1")
        await apply(backend, contribute(leases["b"], b"2", version=moved.version, final=True))
        found = await group(backend, "g")
        assert (found.value, found.final) == (b"2", True)
        assert found.version == next_version(leases["b"].token, moved.version)
        found = await group(backend, "root")
        assert (found.value, found.final) == (b"c", False)
        assert found.version == next_version(leases["c"].token, 0)

    @needs("nested")
    async def test_a_nested_group_without_members_has_ended_at_once(self, backend: Backend) -> None:
        """All its children had keys that earlier items answer for. The closing item can run."""
        await submit(backend, item("old", key="k"))
        root = await start_one(backend, item("root"))
        settled = await apply(backend, succeed(root, *nested("g", item("a", key="k"))))
        assert only(settled.outcomes).existing == {"a": "old"}
        found = await group(backend, "g")
        assert (found.open, found.value, found.failed, found.outer) == (0, None, 0, "root")
        assert found.ended_at is not None
        assert await statuses(backend, "g", "a") == ["ready", None]
        assert (await state(backend, "old")).group_id == "old"
        assert await run(backend) == ["old", "g"]
        await consistent(backend)

    @needs("nested")
    async def test_a_nested_group_without_members_releases_those_that_wait_for_it(
        self, backend: Backend
    ) -> None:
        """An item may wait for a group that is not there yet. The call says that it has ended."""
        await submit(backend, dependent(whole("g"), id="early"), dependent(whole("g"), "more", id="later"))
        root = await start_one(backend, item("root"))
        settled = await apply(backend, succeed(root, *nested("g"), dependent(whole("g"), id="child")))
        assert [one.id for one in settled.effects.released] == ["early"]
        ended = only(settled.effects.ended_groups)
        assert (ended.id, ended.tenant, ended.value, ended.type) == ("g", "default", None, GROUP_TYPE)
        assert not ended.failed
        assert await statuses(backend, "early", "g", "child") == ["ready"] * 3
        assert (await state(backend, "later")).waiting_for == ("more",)
        assert sorted(await run(backend)) == ["child", "early", "g"]
        await consistent(backend)

    @needs("nested")
    async def test_keyed_children_that_are_new_join_the_nested_group(self, backend: Backend) -> None:
        """One of two had an earlier item. It does not hold the group open."""
        await submit(backend, item("old", key="k", delay=1000))
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, *nested("g", item("a", key="k"), item("b", key="new"))))
        assert (await group(backend, "g")).open == 1
        assert await run(backend) == ["b", "g"]

    @needs("nested")
    async def test_the_closing_item_may_come_first(self, backend: Backend) -> None:
        """The order of the children does not matter for what it waits for."""
        root = await start_one(backend, item("root"))
        members = nested("g", item("a"))
        await apply(backend, succeed(root, *reversed(members), dependent(whole("g"), id="early")))
        assert await statuses(backend, "g", "early") == ["blocked", "blocked"]
        assert sorted(await run(backend)) == ["a", "early", "g"]

    @needs("nested")
    async def test_several_nested_groups_of_one_settlement_are_apart(self, backend: Backend) -> None:
        """Each has its own members, and each closing item waits for its own."""
        root = await start_one(backend, item("root"))
        await apply(
            backend,
            succeed(root, *nested("g", item("a")), *nested("h", item("b")), dependent("g", "h", id="both")),
        )
        leases = by_id(await claim(backend))
        assert {id: lease.group_id for id, lease in leases.items()} == {"a": "g", "b": "h"}
        settled = await apply(backend, succeed(leases["a"]))
        assert [one.id for one in settled.effects.released] == ["g"]
        assert await statuses(backend, "g", "h") == ["ready", "blocked"]
        await apply(backend, succeed(leases["b"]))
        assert (await run(backend))[-1] == "both"
        await consistent(backend)

    @needs("nested")
    async def test_a_nested_group_may_contain_another_of_the_same_settlement(self, backend: Backend) -> None:
        """The inner closing item is a member of the group in between."""
        root = await start_one(backend, item("root"))
        inner = nested("inner", item("a"))
        children = nested("outer", *inner)
        await apply(backend, succeed(root, *children))
        assert (await state(backend, "inner")).group_id == "outer"
        assert (await group(backend, "inner")).outer == "outer"
        assert (await group(backend, "outer")).outer == "root"
        assert await open_counts(backend, "inner", "outer", "root") == [1, 1, 1]
        assert await run(backend) == ["a", "inner", "outer"]
        await consistent(backend)

    @needs("nested")
    async def test_groups_are_nested_six_deep(self, backend: Backend) -> None:
        """Each level ends before the one around it, and its value goes up."""
        lease = await start_one(backend, item("n0"))
        for depth in range(1, 7):
            await apply(backend, succeed(lease, *nested(f"g{depth}", item(f"n{depth}"))))
            lease = await claim_one(backend)
            assert lease.group_id == f"g{depth}"
            assert (await group(backend, f"g{depth}")).outer == ("n0" if depth == 1 else f"g{depth - 1}")
        settled = await apply(backend, contribute(lease, b"deep"))
        for depth in range(6, 0, -1):
            assert group_ids(settled) == [f"g{depth}"]
            lease = await claim_one(backend)
            assert lease.id == f"g{depth}"
            settled = await apply(backend, contribute(lease, (await group(backend, lease.id)).value))  # type: ignore[arg-type]
        assert [(one.id, one.value) for one in settled.effects.ended_groups] == [("n0", b"deep")]
        await consistent(backend)

    @needs("nested")
    async def test_a_dead_member_may_queue_a_nested_group(self, backend: Backend) -> None:
        """Compensation that needs several steps."""
        root = await start_one(backend, item("root"))
        await apply(backend, die(root, *nested("g", item("undo", contributes=False))))
        assert await run(backend) == ["undo", "g"]
        assert (await group(backend, "root")).failed == 1

    @needs("nested")
    async def test_a_nested_group_is_found_among_ended_groups(self, backend: Backend) -> None:
        """By its id. The item that closes it is another thing."""
        leases = await start_nested(backend, item("a"))
        refs = [("default", "g"), ("default", "a"), ("default", "root")]
        found = await backend.ended([], refs)
        assert (dict(found.groups), [*found.missing]) == ({}, [("default", "a")])
        await apply(backend, contribute(leases["a"], b"value"))
        found = await backend.ended([("default", "g")], refs)
        assert (found.items, {*found.groups}) == ({}, {("default", "g")})
        assert found.groups["default", "g"].value == b"value"

    @needs("nested", "listing")
    async def test_lists_show_the_members_of_a_nested_group(self, backend: Backend) -> None:
        """By its id, and not under the outer group."""
        await start_nested(backend, item("a"), item("b"))
        page = await backend.list(Filter(group_id="g"), oldest_first=True)
        assert [one.id for one in page.items] == ["a", "b"]
        page = await backend.list(Filter(group_id="root"), oldest_first=True)
        assert [one.id for one in page.items] == ["root", "g", "next"]

    @needs("nested")
    async def test_nested_groups_belong_to_their_tenant(self, backend: Backend) -> None:
        """Two tenants use the same ids."""
        for tenant in ("one", "two"):
            root = await start_one(backend, item("root", tenant=tenant))
            await apply(backend, succeed(root, *nested("g", item("a"))))
        one, two = await claim(backend)
        settled = await apply(backend, succeed(one))
        assert [(done.id, done.tenant) for done in settled.effects.ended_groups] == [("g", one.tenant)]
        assert (await group(backend, "g", two.tenant)).open == 1
        assert list(await backend.group(["g"], tenant="three")) == [None]
        await consistent(backend)

    @needs("nested", "batches")
    async def test_a_member_that_waits_for_the_closing_item_is_refused(self, backend: Backend) -> None:
        """By its id, by the nested group, or by a group around it."""
        root = await start_one(backend, item("root"))
        for name in ("g", whole("g"), whole("root")):
            outcome = await settle_one(backend, succeed(root, *nested("g", dependent(name, id="a"))))
            assert outcome.rejected is not None, name
            assert (outcome.rejected.why, "a" in outcome.rejected.ids) == ("cycle", True)
        await apply(backend, succeed(root, *nested("g", item("a"))))
        lease = await claim_one(backend)
        for name in ("g", whole("g"), whole("root")):
            outcome = await settle_one(backend, succeed(lease, dependent(name, id="deeper")))
            assert outcome.rejected is not None, name
            assert (outcome.rejected.why, "deeper" in outcome.rejected.ids) == ("cycle", True)
        await apply(backend, succeed(lease, item("deeper")))
        assert await run(backend) == ["deeper", "g"]

    @needs("nested")
    async def test_another_item_may_wait_for_a_nested_group(self, backend: Backend) -> None:
        """By its name. It is released with the closing item."""
        leases = await start_nested(backend, item("a"))
        await submit(backend, dependent(whole("g"), id="outside", must_exist=(whole("g"),)))
        settled = await apply(backend, succeed(leases["a"]))
        assert sorted(one.id for one in settled.effects.released) == ["g", "outside"]


class NestedKeyCases:
    @needs("nested")
    async def test_a_closing_item_does_not_wait_for_members_by_name(self, backend: Backend) -> None:
        """Their group is enough. A death that is tolerated in the group does not doom the closing item."""
        root = await start_one(backend, item("root"))
        members = (item("a", key="k"), item("b", key="l"), dependent("a", "b", id="any", counting="done"))
        await apply(backend, succeed(root, *keyed("g", *members), dependent("g", id="next")))
        assert (await state(backend, "g")).after == (whole("g"),)
        leases = by_id(await claim(backend))
        await apply(backend, die(leases["a"]), succeed(leases["b"]))
        assert await run(backend) == ["any", "g", "next"]
        assert ((await group(backend, "g")).failed, (await group(backend, "root")).failed) == (0, 0)
        await consistent(backend)

    @needs("nested")
    async def test_a_keyed_member_that_fails_the_group_dooms_the_closing_item(self, backend: Backend) -> None:
        """By the nested group."""
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, *keyed("g", item("a", key="k")), dependent("g", id="next")))
        assert await kill(backend, "a") == []
        assert await statuses(backend, "a", "g", "next") == ["dead"] * 3

    @needs("nested")
    async def test_a_closing_item_waits_for_an_earlier_item_with_the_key(self, backend: Backend) -> None:
        """It is no member of the nested group. The members that are stored are not waited for by name."""
        old = await start_one(backend, item("old", key="k"))
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, *keyed("g", item("a", key="k"), item("b", key="new"))))
        assert (await state(backend, "g")).after == (whole("g"), "old")
        assert await run(backend) == ["b"]
        assert ((await group(backend, "g")).open, (await state(backend, "g")).status) == (0, "blocked")
        settled = await apply(backend, succeed(old))
        assert [one.id for one in settled.effects.released] == ["g"]
        assert await run(backend) == ["g"]
        await consistent(backend)

    @needs("nested")
    async def test_an_earlier_item_that_has_ended_counts_at_once(self, backend: Backend) -> None:
        """A success is met. A death dooms the closing item, though no death failed the nested group."""
        for id, how, wanted in (("good", succeed, "success"), ("bad", die, "dead")):
            await apply(backend, how(await start_one(backend, item(id, key=id))))
            root = await start_one(backend, item(f"root-{id}"))
            child = item(f"a-{id}", key=id, key_scope="any")
            await apply(backend, succeed(root, *keyed(f"g-{id}", child, item(f"b-{id}", key=f"new-{id}"))))
            ran = await kill(backend)
            assert ran == [f"b-{id}", *([f"g-{id}"] if wanted == "success" else [])]
            close = await state(backend, f"g-{id}")
            assert (close.status, close.after) == (wanted, (whole(f"g-{id}"), id))
            assert (await group(backend, f"g-{id}")).failed == 0
        await consistent(backend)

    @needs("nested")
    async def test_two_members_with_one_key_are_one_member(self, backend: Backend) -> None:
        """The first answers for the second, and is a member. One of another group is waited for."""
        root = await start_one(backend, item("root"))
        first = nested("g", item("a", key="k"))
        twice = (item("b", key="l"), item("c", key="l"), item("d", key="k"))
        await apply(backend, succeed(root, *first, *keyed("h", *twice)))
        assert (await state(backend, "h")).after == (whole("h"), "a")
        leases = by_id(await claim(backend))
        await apply(backend, succeed(leases["b"]))
        assert await statuses(backend, "g", "h") == ["blocked", "blocked"]
        await apply(backend, succeed(leases["a"]))
        assert sorted(await run(backend)) == ["g", "h"]
        await consistent(backend)

    @needs("nested", "operating")
    async def test_a_requeue_does_not_wait_for_members_by_name(self, backend: Backend) -> None:
        """The closing item comes back with the nested group, and with no more than that."""
        root = await start_one(backend, item("root"))
        members = (item("a", key="k"), item("b"), dependent("a", id="any", counting="done"))
        await apply(backend, succeed(root, *keyed("g", *members)))
        assert await kill(backend, "a", "b") == ["any"]
        assert (await state(backend, "g")).status == "dead"
        assert sorted(changed.id for changed in (await backend.requeue(["b"])).items) == ["b", "g"]
        assert await run(backend) == ["b", "g"]
        await consistent(backend)
