"""Large submissions to Redis: they are written in portions, and no call sees a part of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import msgpack

from tests.backends.random_calls import RandomCalls
from tests.backends.redis_failures import failing
from tests.backends.redis_store import RedisSubject
from tests.backends.redis_twin import TwinCalls
from tests.backends.test_redis_submit import all_keys
from treadle.backends.redis import RedisBackend
from treadle.backends.redis import settle as settle_module
from treadle.backends.redis import stage as stage_module
from treadle.backends.redis import submit as submit_module
from treadle.backends.redis.errors import STAGED
from treadle.backends.redis.scripts import RedisScript
from treadle.item import (
    Contribution,
    Demand,
    Filter,
    Heartbeat,
    Item,
    Lease,
    Rejected,
    Settlement,
    Submission,
)
from treadle.store.rules.settlement import next_version

DECIDE = RedisScript("decide_stage")
KEYS = {"stages", "staged", "stage_rows"}


@pytest.fixture
async def subject(valkey_url: str) -> AsyncIterator[RedisSubject]:
    subject = RedisSubject(valkey_url)
    await subject.backend.open()
    await subject.stand_still()
    await subject.backend.beat(Heartbeat(worker="w", lease=100_000))
    yield subject
    await subject.close()
    assert subject.audit() == []


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three plain items are a large submission, in portions of two."""
    monkeypatch.setattr(stage_module, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(stage_module, "PORTION", 2)
    monkeypatch.setattr(settle_module, "MANY_CHILDREN", 2)


def items(*ids: str, **fields: Any) -> tuple[Item, ...]:
    return tuple(Item(id=id, type="work", input=b"", **fields) for id in ids)


async def staged(subject: RedisSubject, *ids: str) -> bytes:
    """A stage that was not decided."""
    plain = stage_module.plain_items(items(*ids))
    assert plain is not None
    return (await subject.backend._stage(plain)).stage


async def leased(subject: RedisSubject, id: str, **fields: Any) -> Lease:
    await subject.backend.submit([Submission((Item(id=id, type="root", input=b"", **fields),))])
    (lease,) = (await subject.backend.claim(Demand(worker="w", types={"root": 1}, limit=1))).leases
    return lease


def settlement(lease: Lease, children: tuple[Item, ...], **fields: Any) -> Settlement:
    return Settlement(
        lease=lease,
        kind="success",
        result=b"r",
        contribution=Contribution(**fields),
        children=children,
    )


async def states(subject: RedisSubject, *ids: str) -> list[str | None]:
    return [state and state.status for state in await subject.backend.get(ids)]


@pytest.mark.usefixtures("small")
class TestSubmissions:
    async def test_nothing_is_seen_of_a_stage_that_was_not_decided(self, subject: RedisSubject) -> None:
        backend = subject.backend
        stage = await staged(subject, "a", "b", "c")
        assert stage
        assert await states(subject, "a", "b", "c") == [None] * 3
        assert list(await backend.counts()) == []
        assert list((await backend.list(Filter())).items) == []
        assert list((await backend.claim(Demand(worker="w", limit=10))).leases) == []
        assert subject.audit() == []
        await backend._drop_stage(stage)
        assert not KEYS & {*subject.keys()}

    async def test_all_is_seen_once_it_is_decided(self, subject: RedisSubject) -> None:
        """The process that has decided is gone: the next call unfolds the items."""
        backend = subject.backend
        ids = [f"i{number}" for number in range(7)]
        stage = await staged(subject, *ids)
        assert await backend._link.run(DECIDE, [stage, len(ids)]) is not None
        assert await states(subject, *ids) == ["ready"] * 7
        assert not KEYS & {*subject.keys()}

    @pytest.mark.parametrize("unfolded", range(4))
    async def test_each_read_sees_all_or_nothing(self, unfolded: int, subject: RedisSubject) -> None:
        backend = subject.backend
        reads = (
            backend.counts,
            lambda: backend.list(Filter()),
            lambda: backend.group(["i6"]),
            lambda: backend.submit([Submission(items("i6"))]),
            lambda: backend.cancel(["i6"]),
        )
        for number, read in enumerate(reads):
            ids = [f"{number}-{each}" for each in range(6)] + ["i6"]
            assert await backend._link.run(DECIDE, [await staged(subject, *ids), len(ids)]) is not None
            for _ in range(unfolded):
                await backend._link.run(stage_module.UNFOLD_STAGE)
            found = await read()
            if number == 0:
                assert sum(count.count for count in found) == 7
            if number == 1:
                assert len(found.items) == 7
            if number == 2:
                assert found[0] is not None
            if number == 3:
                assert found == [Rejected("duplicate_id", ("i6",))]
            if number == 4:
                assert len(found.items) == 1
            await backend.delete([*ids])

    async def test_claims_go_on_while_it_is_unfolded(self, subject: RedisSubject) -> None:
        backend = subject.backend
        await backend.submit([Submission(items("earlier"))])
        stage = await staged(subject, "a", "b", "c")
        await backend._link.run(DECIDE, [stage, 3])
        (lease,) = (await backend.claim(Demand(worker="w", limit=10))).leases
        assert lease.id == "earlier"
        assert (await backend.settle([Settlement(lease=lease, kind="success")])).outcomes[0].verb == "applied"
        await backend._link.run(stage_module.UNFOLD_STAGE)
        found = (await backend.claim(Demand(worker="w", limit=10))).leases
        assert [lease.id for lease in found] == ["a", "b"]
        assert await states(subject, "a", "c") == ["running", "ready"]

    async def test_an_id_that_is_used_meanwhile_refuses_the_stage(self, subject: RedisSubject) -> None:
        backend = subject.backend
        for number, other in enumerate(
            (items("b"), items("b", key="k"), items("b", "x", "y"), items("b", tenant="other"))
        ):
            stage = await staged(subject, "a", "b", "c")
            (stored,) = await backend.submit([Submission(other)])
            assert isinstance(stored, tuple), number
            assert await backend._decide_stage(stage, 3) is None
            assert not KEYS & {*subject.keys()}
            assert await states(subject, "a", "c") == [None, None]
            await backend.delete([each.id for each in other])

    async def test_ids_that_exist_refuse_it(self, subject: RedisSubject) -> None:
        await subject.backend.submit([Submission(items("e")), Submission(items("b"))])
        (answer,) = await subject.backend.submit([Submission(items("a", "b", "c", "d", "e"))])
        assert answer == Rejected("duplicate_id", ("b", "e"))
        (stored,) = await subject.backend.submit([Submission(items("b", "e", "f", tenant="other"))])
        assert isinstance(stored, tuple)
        assert not KEYS & {*subject.keys()}

    async def test_prune_forgets_stages_that_were_left_behind(self, subject: RedisSubject) -> None:
        await staged(subject, "a", "b", "c")
        await subject.backend.prune()
        assert {*subject.keys()} >= KEYS
        await subject.advance(stage_module.ABANDONED + 1)
        await subject.backend.prune()
        assert not KEYS & {*subject.keys()}


class TestSameKeys:
    """All ways to store plain items leave the same keys."""

    async def test_roots(self, subject: RedisSubject, monkeypatch: pytest.MonkeyPatch) -> None:
        found: list[dict[str, Any]] = []
        together = [
            Item(id=f"i{n}", type=f"t{n % 3}", input=b"x", lane=f"{n % 2}", keep_dead=5.0 if n % 5 else None)
            for n in range(20)
        ]
        for most in (1000, 5):
            monkeypatch.setattr(stage_module, "MOST_AT_ONCE", most)
            monkeypatch.setattr(stage_module, "PORTION", 6)
            (answer,) = await subject.backend.submit([Submission(tuple(together))])
            assert isinstance(answer, tuple)
            found.append(all_keys(subject))
            _clear(subject)
            await subject.backend.beat(Heartbeat(worker="w", lease=100_000))
        assert found[0] == found[1]

    async def test_children(self, subject: RedisSubject, monkeypatch: pytest.MonkeyPatch) -> None:
        found: list[dict[str, Any]] = []
        children = tuple(
            Item(
                id=f"i{n}",
                type=f"t{n % 3}",
                input=b"x",
                keep=100.0 - n,
                workflow="flow" if n % 2 else None,
                contributes=n % 7 > 0,
            )
            for n in range(20)
        )
        monkeypatch.setattr("os.urandom", lambda count: b"\1" * count)
        for many, most in ((1000, 1000), (2, 1000), (2, 5)):
            monkeypatch.setattr(settle_module, "MANY_CHILDREN", many)
            monkeypatch.setattr(stage_module, "MOST_AT_ONCE", most)
            monkeypatch.setattr(stage_module, "PORTION", 6)
            lease = await leased(subject, "root")
            settled = await subject.backend.settle([settlement(lease, children)])
            assert settled.outcomes[0].verb == "applied"
            keys = all_keys(subject)
            extra = {n: msgpack.decode(data) for n, data in keys.pop("extra").items()}
            found.append({**keys, "extra": extra})
            _clear(subject)
            await subject.backend.beat(Heartbeat(worker="w", lease=100_000))
        assert found[0] == found[1]
        assert found[0] == found[2]


def _clear(subject: RedisSubject) -> None:
    with subject.client() as client:
        for name in {*subject.keys()} - {"meta", "shift"}:
            client.call("DEL", f"{{{subject.prefix}}}:{name}")


async def test_others_see_all_or_nothing_at_any_time(
    subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_module, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(stage_module, "PORTION", 20)
    other = await subject.another()
    ids = [f"i{number}" for number in range(600)]
    lease = await leased(subject, "root")
    for call in (
        subject.backend.submit([Submission(items(*ids))]),
        subject.backend.settle([settlement(lease, items(*(f"c{id}" for id in ids)))]),
    ):
        before = sum(count.count for count in await other.counts() if count.type == "work")
        task = asyncio.ensure_future(call)
        seen: set[int] = set()
        while not task.done():
            found = [count.count for count in await other.counts() if count.type == "work"]
            seen.add(sum(found) - before)
            first, last = await other.get([ids[0], ids[-1]])
            assert (first is None) == (last is None)
            (group,) = await other.group(["root"])
            assert group is not None
            assert group.open in (1, 600)
        assert seen <= {0, 600}
        await task


@pytest.mark.usefixtures("small")
class TestChildren:
    async def test_they_are_stored_with_the_end_of_their_parent(self, subject: RedisSubject) -> None:
        lease = await leased(subject, "root")
        found = settlement(lease, items("a", "b", "c", "d", "e"))
        outcome = (await subject.backend.settle([found])).outcomes[0]
        assert outcome.version == next_version(lease.token, None)
        assert await states(subject, "root", "a", "e") == ["success", "ready", "ready"]
        (group,) = await subject.backend.group(["root"])
        assert group is not None
        assert group.open == 5
        assert (await subject.backend.settle([found])).outcomes[0].again
        assert len((await subject.backend.cancel(["root"])).items) == 5
        assert not KEYS & {*subject.keys()}

    async def test_they_belong_to_the_tenant_of_their_parent(self, subject: RedisSubject) -> None:
        for most, tenant in ((2, "x"), (1000, "y")):
            lease = await leased(subject, "root", tenant=tenant)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(stage_module, "MOST_AT_ONCE", most)
                await subject.backend.settle([settlement(lease, items("a", "b", "c"))])
            found = await subject.backend.get(["a", "c"], tenant=tenant)
            assert [state and (state.tenant, state.parent) for state in found] == [(tenant, "root")] * 2

    async def test_a_settlement_that_is_not_applied_stores_none(self, subject: RedisSubject) -> None:
        lease = await leased(subject, "root")
        moved = settlement(lease, items("a", "b", "c"), version=5, value=b"v")
        assert (await subject.backend.settle([moved])).outcomes[0].verb == "moved"
        await subject.backend.submit([Submission(items("b"))])
        (outcome,) = (await subject.backend.settle([settlement(lease, items("a", "b", "c"))])).outcomes
        assert outcome.rejected == Rejected("duplicate_id", ("b",))
        await subject.backend.cancel(["root"])
        (outcome,) = (await subject.backend.settle([settlement(lease, items("a", "d", "c"))])).outcomes
        assert (outcome.verb, outcome.loss) == ("stale", "cancelled")
        assert await states(subject, "a", "c", "d") == [None] * 3
        assert not KEYS & {*subject.keys()}

    async def test_an_id_that_is_used_meanwhile(
        self, subject: RedisSubject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is found when the settlement is staged once more."""
        backend = subject.backend
        lease = await leased(subject, "root")
        stage = backend._stage

        async def used(found: stage_module.PlainItems) -> stage_module.StageAnswer:
            answer = await stage(found)
            await backend.submit([Submission(items("b"))])
            return answer

        monkeypatch.setattr(backend, "_stage", used)
        (outcome,) = (await backend.settle([settlement(lease, items("a", "b", "c"))])).outcomes
        assert outcome.rejected == Rejected("duplicate_id", ("b",))
        assert not KEYS & {*subject.keys()}


@pytest.fixture
def smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    """All plain items are stored in stages."""
    monkeypatch.setattr(stage_module, "MOST_AT_ONCE", 0)
    monkeypatch.setattr(stage_module, "PORTION", 1)
    monkeypatch.setattr(settle_module, "MANY_CHILDREN", 1)
    monkeypatch.setattr(submit_module, "PORTION", 0)


@pytest.mark.usefixtures("smallest")
class TestRandomCalls:
    @pytest.mark.sample(2)
    @pytest.mark.parametrize("seed", range(100, 110))
    async def test_stages_get_the_same_answers_as_memory(self, seed: int, valkey_url: str) -> None:
        backend = RedisBackend(valkey_url, prefix="walk", test_clock=True)
        await backend.open()
        calls = TwinCalls(seed, backend, one_line=True)
        for _ in range(150):
            await calls.step()
        await backend.close()

    async def test_a_script_that_fails_has_done_nothing_by_halves(self, valkey_url: str) -> None:
        subject = RedisSubject(valkey_url)
        await subject.backend.open()
        await subject.stand_still()
        with failing(subject, step=7) as backend:
            calls = RandomCalls(7, backend, subject.advance)
            for _ in range(40):
                await calls.step()
        await subject.close()


async def test_scripts_that_look_at_items_refuse_to_run_meanwhile(subject: RedisSubject) -> None:
    backend = subject.backend
    stage = await staged(subject, "a", "b", "c")
    await backend._link.run(DECIDE, [stage, 3])
    backend._link.unfold = None
    with pytest.raises(Exception, match=STAGED):
        await backend.get(["a"])
    backend._link.unfold = stage_module.UNFOLD_STAGE
    assert await states(subject, "a") == ["ready"]
