"""The pages that list groups and workflows."""

from __future__ import annotations

from collections.abc import Callable

from tests.dashboard.conftest import AS_JSON, MakeApp, Visitor
from treadle import Abort, Context, Result, Treadle, work
from treadle.backend import Backend


@work(name="leaf")
async def leaf(number: int) -> int:
    if number < 0:
        raise Abort("quoted-message")
    return number


@work(name="tree")
async def tree(ctx: Context, numbers: list[int]) -> Result[int]:
    return ctx.queue(*(leaf(each) for each in numbers))


async def _fill(app: Treadle) -> None:
    await app.start()
    await app.enqueue(tree([1, 2]), id="good", workflow="w").group()
    await app.tenant("acme").enqueue(tree([1, -1]), id="bad", workflow="v").group(partial=True)
    await app.enqueue(leaf(1), id="alone")
    await app.enqueue(leaf(1), id="later", workflow="later", delay=3600)


async def test_groups_and_workflows_are_listed_with_what_can_be_done(
    memory_store: Callable[[], Backend], make_app: MakeApp, visitor: Visitor
) -> None:
    app = make_app(memory_store, leaf, tree)
    await _fill(app)
    client = visitor(app)
    found = (await client.get("/groups", headers=AS_JSON)).json()["groups"]
    assert [(each["id"], each["outcome"], each["done"], each["total"]) for each in found] == [
        ("bad", "failed", 3, 3),
        ("good", "succeeded", 3, 3),
    ]
    assert found[0]["death"]["error"] == "Abort: quoted-message"
    page = (await client.get("/groups?outcome=failed")).text
    assert 'href="/groups/bad?of=acme"' in page
    assert 'action="/groups/bad/repair?of=acme"' in page
    assert "3 of 3" in page
    assert "quoted-message" in page
    assert "good" not in page
    flows = (await client.get("/workflows", headers=AS_JSON)).json()["workflows"]
    assert [(each["id"], each["outcome"]) for each in flows] == [
        ("later", "running"),
        ("v", "failed"),
        ("w", "succeeded"),
    ]
    page = (await client.get("/workflows")).text
    assert "/act/cancel?q=status%3Aopen+workflow%3Alater" in page
    assert "/act/delete?q=status%3Aended+workflow%3Aw" in page
    assert (await client.get("/groups?outcome=done")).status_code == 400
    assert (await client.get("/groups?type=none", headers=AS_JSON)).json()["groups"] == []
    assert "good" not in (await client.get("/groups?tenant=acme")).text


async def test_a_visitor_without_payloads_sees_no_errors(
    memory_store: Callable[[], Backend], make_app: MakeApp, visitor: Visitor
) -> None:
    app = make_app(memory_store, leaf, tree)
    await _fill(app)
    careful = visitor(app, payloads=False)
    for path in ("/groups", "/workflows"):
        assert "quoted-message" not in (await careful.get(path)).text
        assert "quoted-message" not in (await careful.get(path, headers=AS_JSON)).text
