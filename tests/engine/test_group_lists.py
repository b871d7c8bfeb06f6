"""Lists of groups and workflows: `app.groups` and `app.workflows`."""

from __future__ import annotations

import pytest

from tests.engine.kit import MakeApp
from treadle import Abort, Context, Result, Treadle, work
from treadle.errors import InputError, WorkFailed


@work
async def leaf(number: int) -> int:
    if number < 0:
        raise Abort(f"{number} is negative")
    return number


@work
async def tree(ctx: Context, numbers: list[int]) -> Result[int]:
    return ctx.queue(*(leaf(each) for each in numbers))


async def test_groups_and_workflows_are_listed_for_each_tenant(make_app: MakeApp) -> None:
    async with make_app(leaf, tree) as app:
        good = await app.enqueue(tree([1, 2]), workflow="w")
        bad = await app.tenant("acme").enqueue(tree([1, -1]), workflow="w")
        await good.group()
        with pytest.raises(WorkFailed):
            await bad.group()
        assert [one.id for one in (await app.groups()).items] == [bad.id, good.id]
        (failed,) = (await app.groups("failed")).items
        assert (failed.id, failed.tenant, failed.done, failed.total) == (bad.id, "acme", 3, 3)
        assert failed.death is not None
        assert (failed.death.type, failed.death.error) == (leaf.name, "Abort: -1 is negative")
        acme = app.tenant("acme")
        assert [one.id for one in (await acme.groups()).items] == [bad.id]
        for read in (acme.groups, acme.workflows):
            with pytest.raises(
                InputError, match="tenant='default' is refused: this client is bound to 'acme'"
            ):
                await read(tenant="default")
        assert [(one.id, one.outcome) for one in (await acme.workflows()).items] == [("w", "failed")]
        found = (await app.workflows(["succeeded", "running"], type=tree.name)).items
        assert [(one.tenant, one.outcome, one.total) for one in found] == [("default", "succeeded", 3)]


async def test_a_list_of_groups_checks_what_it_is_asked_for() -> None:
    async with Treadle("memory://") as app:
        for where in ({"outcome": "done"}, {"type": ""}, {"limit": 0}, {"cursor": "no"}, {"reach": 0}):
            with pytest.raises(InputError):
                await app.groups(**where)  # type: ignore[arg-type]
            with pytest.raises(InputError):
                await app.workflows(**where)  # type: ignore[arg-type]


def test_groups_are_listed_without_an_event_loop() -> None:
    app = Treadle("memory://", work=[leaf])
    app.sync.enqueue(leaf(1), workflow="w")
    assert app.sync.groups().items == ()
    (found,) = app.sync.workflows("running").items
    assert (found.id, found.open, found.done) == ("w", 1, 0)
    app.sync.close()
