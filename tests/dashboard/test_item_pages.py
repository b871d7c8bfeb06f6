"""Items, an item and dead letters, as visitors see them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any

import httpx
import pytest

from tests.dashboard.conftest import AS_JSON, MakeApp, Visitor
from treadle import Client, Context, Defer, Retry, Secret, Treadle, WorkFailed, work
from treadle.backend import Backend
from treadle.dashboard.addresses import segment
from treadle.dashboard.views import items as items_view

HOSTILE = "<img src=x onerror=alert(1)>é/../%2F \"q'"
"""A name of a queue, a lane, a tenant, a key and a workflow."""
PAYLOAD = "</script><script>alert(1)</script>\u202e\x1b[31m"
"""A text in inputs, results, headers and errors."""


class Refused(Exception):
    """How the work of this file fails."""


@work(name="mail.send", retry=Retry(attempts=2, base=0.001, jitter=0))
async def send(
    order: int, text: str = PAYLOAD, code: Annotated[str, Secret] = "s3cret-code"
) -> dict[str, Any]:
    if order < 0:
        raise Refused(f"order {order} quoted-message {PAYLOAD}\nsecond line")
    return {"order": 2**60 + order, "text": text, "password": "s3cret-word"}


class Mails:
    """An app with items in many states."""

    def __init__(self, store: Callable[[], Backend], make_app: MakeApp) -> None:
        self.worker = make_app(store, send)
        self.app = Treadle(store(), work=[send])
        """What the dashboard shows."""

    async def open(self) -> None:
        app = self.worker
        await app.start()
        self.good = await app.enqueue(
            send(1, PAYLOAD, "s3cret-code"),
            headers={"request": PAYLOAD, "x-api-key": "s3cret-key"},
            key=HOSTILE,
            workflow=HOSTILE,
        )
        self.bad = [await app.enqueue(send(-n, f"t{n}{PAYLOAD}", f"s3cret-{n}")) for n in (1, 2, 3)]
        self.theirs = await app.tenant("acme").enqueue(send(-9, "t9"))
        self.odd = await app.tenant(HOSTILE).enqueue(send(7), lane=HOSTILE, queue=HOSTILE)
        for each in (*self.bad, self.theirs):
            with pytest.raises(WorkFailed):
                await each.result()
        for each in (self.good, self.odd):
            await each.result()
        self.later = await app.enqueue(send(4), delay=3600, expires_in=7200)
        self.blocked = await app.enqueue(send(5), after=[self.later, self.good])
        (state,) = await app.get(self.bad[0].id)
        assert state is not None
        self.mark = state.mark

    @property
    def paths(self) -> list[str]:
        ids = (self.good, *self.bad[:1], self.later, self.blocked)
        return [
            "/items",
            "/items?q=status:dead",
            "/items?q=input.order:-2",
            "/dead",
            f"/dead/{segment(self.mark)}",
            *(f"/items/{each.id}" for each in ids),
            f"/items/{self.odd.id}?{httpx.QueryParams(of=HOSTILE)}",
        ]


@pytest.fixture
async def mails(store: Callable[[], Backend], make_app: MakeApp) -> Any:
    mails = Mails(store, make_app)
    await mails.open()
    yield mails
    await mails.app.close()


@pytest.fixture
async def mails_in_memory(memory_store: Callable[[], Backend], make_app: MakeApp) -> Any:
    mails = Mails(memory_store, make_app)
    await mails.open()
    return mails


async def json_of(client: httpx.AsyncClient, path: str, **query: str) -> Any:
    answer = await client.get(path, headers=AS_JSON, params=query or None)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_every_page_for_every_visitor(mails: Mails, visitor: Visitor) -> None:
    operator, reader = visitor(mails.app), visitor(mails.app, "read")
    tenant, nobody = visitor(mails.app, tenants=["acme"]), visitor(mails.app, access=lambda request: None)
    for path in mails.paths:
        shown = await operator.get(path)
        assert shown.status_code == 200, shown.text
        for text in (shown.text, (await reader.get(path)).text):
            assert "<img" not in text
            assert "<script>alert" not in text
            assert "\x1b" not in text
            assert "\u202e" not in text
            assert "s3cret" not in text
        assert "s3cret" not in json.dumps(await json_of(operator, path))
        assert (await nobody.get(path)).status_code == 403
        other = await tenant.get(path)
        assert other.status_code in ((404,) if "/items/" in path else (200,)), path
        for each in (mails.good, *mails.bad, mails.later, mails.blocked):
            assert each.id not in other.text or each.id in path
    assert mails.theirs.id in (await tenant.get("/items")).text
    assert "act/requeue" in (await operator.get("/items")).text
    assert "/act/" not in (await reader.get("/items")).text
    assert "/act/" not in (await reader.get(f"/items/{mails.bad[0].id}")).text
    await _items_are_found(mails, operator)
    await _an_item_says_all(mails, operator)
    await _the_dead_are_grouped(mails, operator)


async def test_the_list_has_a_line_of_each_input(mails_in_memory: Mails, visitor: Visitor) -> None:
    mails = mails_in_memory
    await mails.worker.enqueue(send(8, "x" * 20_000), delay=3600)
    text = (await visitor(mails.app).get("/items")).text
    assert ">order: 4<" in text
    assert "code: &#34;***&#34;" in text
    assert re.search(r">20,\d\d\d bytes<", text)
    assert f">…{mails.later.id[-8:]}</a>" in text
    assert "order: 4" not in (await visitor(mails.app, payloads=False).get("/items")).text


async def test_the_pages_of_a_mark_and_the_command_count_alike(
    memory_store: Callable[[], Backend], make_app: MakeApp, visitor: Visitor
) -> None:
    app = make_app(memory_store, send)
    async with app:
        await app.enqueue_many([send(-1) for _ in range(1_500)], expires_in=0.001)
        await app.worker.drain()
    (mark,) = (await json_of(visitor(app), "/dead"))["marks"]
    assert (mark["count"], mark["capped"]) == (1_500, False)
    assert [each.count for each in await app.dead.marks()] == [1_500]


async def test_pages_say_with_which_release_deaths_began(
    memory_store: Callable[[], Backend], visitor: Visitor
) -> None:
    async with Treadle(memory_store(), work=[send], release="v2", log_failures=False) as app:
        handle = await app.enqueue(send(-1))
        await handle.wait()
        client = visitor(app)
        (mark,) = (await json_of(client, "/dead"))["marks"]
        assert [(each["release"], each["count"]) for each in mark["releases"]] == [("v2", 1)]
        for path in ("/dead", f"/dead/{mark['mark']}"):
            assert "the only death of this mark began with v2, " in (await client.get(path)).text
        assert ", release v2</p>" in (await client.get(f"/items/{handle.id}")).text
        assert "v2<br>" in (await client.get("/workers")).text
        (found,) = (await json_of(client, "/items", q="release:v2"))["items"]
        assert (found["id"], found["release"]) == (handle.id, "v2")
        assert (await json_of(client, "/items", q="release:v1"))["items"] == []


async def test_without_the_code_of_a_type_no_payload_is_shown(
    mails_in_memory: Mails, visitor: Visitor
) -> None:
    mails = mails_in_memory
    async with Client(mails.app.backend) as bare:
        shown = visitor(bare)
        for path in (f"/items/{mails.good.id}", f"/groups/{mails.good.id}"):
            for text in ((await shown.get(path)).text, json.dumps(await json_of(shown, path))):
                assert "s3cret" not in text
                assert str(2**60 + 1) not in text
                assert "masked" in text
        good = await json_of(shown, f"/items/{mails.good.id}")
        assert (good["input"], good["result"]) == ("***", "***")
        for what in ("input", "result"):
            assert (await shown.get(f"/items/{mails.good.id}/{what}")).text == '"***"'
        assert (await json_of(shown, "/items", q="input.order:1"))["items"] == []
    known = visitor(mails.app)
    group = await json_of(known, f"/groups/{mails.good.id}")
    assert group["value"] == {"order": str(2**60 + 1), "text": PAYLOAD, "password": "***"}


async def _items_are_found(mails: Mails, client: httpx.AsyncClient) -> None:
    async def ids(q: str) -> set[str]:
        return {each["id"] for each in (await json_of(client, "/items", q=q))["items"]}

    dead = {each.id for each in mails.bad}
    assert await ids("status:dead tenant:default") == dead
    assert await ids(f"mark:{mails.mark} since:1h") == {*dead, mails.theirs.id}
    assert await ids("input.order:-2") == {mails.bad[1].id}
    assert await ids("input.code:s3cret-code") == set()
    assert await ids(f'key:"{HOSTILE.replace(chr(34), chr(92) + chr(34))}"') == {mails.good.id}
    assert await ids("status:scheduled,blocked") == {mails.later.id, mails.blocked.id}
    assert await ids(f"{mails.good.id} {mails.later.id} nope") == {mails.good.id, mails.later.id}


async def _an_item_says_all(mails: Mails, client: httpx.AsyncClient) -> None:
    good = await json_of(client, f"/items/{mails.good.id}")
    assert good["result"]["order"] == str(2**60 + 1)
    assert good["result"]["password"] == "***"
    assert good["input"] == {"order": 1, "text": PAYLOAD, "code": "***"}
    assert good["headers"] == {"request": PAYLOAD, "x-api-key": "***"}
    assert [each["id"] for each in good["dependents"]] == [mails.blocked.id]
    blocked = await json_of(client, f"/items/{mails.blocked.id}")
    assert {each["id"]: each["status"] for each in blocked["prerequisites"]} == {
        mails.later.id: "scheduled",
        mails.good.id: "success",
    }
    assert blocked["reasons"][0]["kind"] == "dependency"
    bad = await client.get(f"/items/{mails.bad[0].id}")
    assert "attempt 2 failed" in bad.text
    assert "in send" in bad.text
    assert f"/dead/{mails.mark}" in bad.text


async def _the_dead_are_grouped(mails: Mails, client: httpx.AsyncClient) -> None:
    (mark,) = (await json_of(client, "/dead"))["marks"]
    assert (mark["mark"], mark["count"], mark["error_type"].rpartition(".")[2]) == (mails.mark, 4, "Refused")
    page = await json_of(client, f"/dead/{mark['mark']}", a=mails.bad[0].id, b=mails.bad[2].id)
    assert [row["path"] for row in page["diff"]["differs"]] == ["order", "text"]
    assert page["diff"]["differs"][0] == {"path": "order", "left": "-1", "right": "-3"}
    assert (page["diff"]["hidden"], page["diff"]["same"]) == (["code"], [])
    text = (
        await client.get(f"/dead/{mark['mark']}", params={"a": mails.bad[0].id, "b": mails.bad[2].id})
    ).text
    assert 'Hidden, and not compared: <span class="mono">code</span>' in text
    assert "The same in both" not in text
    newest = await json_of(client, f"/dead/{mark['mark']}")
    assert newest["compared"] == [mails.bad[0].id, mails.theirs.id]
    assert (await client.get("/dead/never")).status_code == 404


@work(name="mail.archive")
async def archive(order: int) -> None: ...


async def test_marks_that_only_follow_from_another_are_folded_under_it(
    store: Callable[[], Backend], make_app: MakeApp, visitor: Visitor
) -> None:
    app = make_app(store, send, archive)
    await app.start()
    first = await app.enqueue(send(-1))
    second = await app.enqueue(archive(1), after=first)
    third = await app.enqueue(send(2), after=second)
    for each in (first, second, third):
        with pytest.raises(WorkFailed):
            await each.result(10)
    marks = {each.sample: each.mark for each in await app.dead.marks()}
    assert await app.dead.causes(await app.dead.marks()) == {
        marks[second.id]: marks[first.id],
        marks[third.id]: marks[first.id],
    }
    page = (await visitor(app).get("/dead")).text
    assert page.count("<tr data-row") == 1
    assert "+2 types that waited" in page
    assert {each["mark"] for each in (await json_of(visitor(app), "/dead"))["marks"]} == set(marks.values())
    await app.dead.delete(ids=first.id)  # the cause is not there any more: each stands for itself
    assert (await visitor(app).get("/dead")).text.count("<tr data-row") == 2


async def test_ids_and_mistakes_in_the_filter(mails_in_memory: Mails, visitor: Visitor) -> None:
    client = visitor(mails_in_memory.app)
    plain = (await client.get("/items", params={"q": "since:1h"})).text
    for hint in ("status:dead", "type:mail.send", "queue:default"):
        assert f'<option value="since:1h {hint}">' in plain
    good = mails_in_memory.good.id
    led = await client.get("/items", params={"q": good})
    assert (led.status_code, led.headers["location"]) == (303, f"/items/{good}")
    theirs = await client.get("/items", params={"q": mails_in_memory.theirs.id})
    assert theirs.headers["location"] == f"/items/{mails_in_memory.theirs.id}?of=acme"
    unknown = await client.get("/items", params={"q": "mail.send"})
    assert "No item has the id" in unknown.text
    assert "q=type%3Amail.send" in unknown.text
    for headers in (None, AS_JSON):
        wrong = await client.get("/items", params={"q": "stauts:dead"}, headers=headers)
        assert wrong.status_code == 400
        assert "did you mean" in wrong.text
    assert 'value="stauts:dead"' in (await client.get("/items", params={"q": "stauts:dead"})).text
    assert (await client.get("/items", params={"cursor": "nonsense"})).status_code == 400


async def test_hidden_payloads_are_nowhere(mails_in_memory: Mails, visitor: Visitor) -> None:
    mails = mails_in_memory
    client = visitor(mails.app, payloads=False)
    for path in mails.paths:
        if "input.order" in path:
            assert (await client.get(path)).status_code == 400
            continue
        for headers in (None, AS_JSON):
            text = (await client.get(path, headers=headers)).text
            assert "quoted-message" not in text, path
            assert "script&gt;alert" not in text, path
            assert "script>alert" not in text, path
    for what in ("input", "result"):
        assert (await client.get(f"/items/{mails.good.id}/{what}")).status_code == 403
        assert (await visitor(mails.app).get(f"/items/nope/{what}")).status_code == 404


async def test_long_payloads_are_cut_and_downloaded(mails_in_memory: Mails, visitor: Visitor) -> None:
    long = await mails_in_memory.app.enqueue(send(8, "x" * 100_000, "s3cret-code"), delay=60)
    client = visitor(mails_in_memory.app)
    shown = await client.get(f"/items/{long.id}")
    assert len(shown.text) < 100_000
    assert "download all of it" in shown.text
    assert (await json_of(client, f"/items/{long.id}"))["cut"] == ["input"]
    whole = await client.get(f"/items/{long.id}/input")
    assert whole.json() == {"order": 8, "text": "x" * 100_000, "code": "***"}
    assert "attachment" in whole.headers["content-disposition"]


async def test_an_item_says_how_often_it_was_deferred(
    memory_store: Callable[[], Backend], make_app: MakeApp, visitor: Visitor
) -> None:
    @work(name="busy")
    async def busy(ctx: Context, times: int) -> None:
        if ctx.deferrals < times:
            raise Defer(delay=0)

    app = make_app(memory_store, busy)
    await app.start()
    for times, words in ((0, "failed</dd>"), (1, "failed, deferred once<"), (2, "failed, deferred 2 times<")):
        handle = await app.enqueue(busy(times))
        await handle.result(5)
        assert f"1 begun, 0 of 3 {words}" in (await visitor(app).get(f"/items/{handle.id}")).text
        assert (await json_of(visitor(app), f"/items/{handle.id}"))["deferrals"] == times
    await app.stop()


async def test_pages_go_on_where_they_ended(
    memory_store: Callable[[], Backend], make_app: MakeApp, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(memory_store, send)
    handles = await app.enqueue_many([send(n % 3) for n in range(120)], delay=60)
    client = visitor(app)

    async def all_of(q: str) -> tuple[list[str], list[Any]]:
        found: list[str] = []
        pages: list[Any] = []
        cursor = None
        while cursor is not None or not pages:
            pages.append(await json_of(client, "/items", q=q, **({"cursor": cursor} if cursor else {})))
            found += [each["id"] for each in pages[-1]["items"]]
            cursor = pages[-1]["cursor"]
        return found, pages

    newest = [handle.id for handle in reversed(handles)]
    assert (await all_of("type:mail.send"))[0] == newest
    monkeypatch.setattr(items_view, "ROWS", 7)
    monkeypatch.setattr(items_view, "PORTION", 10)
    monkeypatch.setattr(items_view, "MOST_LOOKED_AT", 40)
    monkeypatch.setattr(items_view, "LOOK_SECONDS", 60)
    found, pages = await all_of("input.order:1")
    assert found == [
        id for id, handle_no in zip(newest, reversed(range(120)), strict=True) if handle_no % 3 == 1
    ]
    assert {len(page["items"]) for page in pages} == {7, 40 - 7 * 5}
    found, pages = await all_of("input.order:17")
    assert found == []
    assert [page["looked_at"] for page in pages] == [40, 40, 40]
    assert pages[0]["reached_at"] is not None
    text = (await client.get("/items", params={"q": "input.order:17"})).text
    assert "looked into 40 items" in text
    assert "go on" in text


async def test_parts_of_bulk_actions_are_not_listed_and_lead_to_their_action(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(memory_store, send)
    for tenant in ("a", "b"):
        await app.tenant(tenant).enqueue(send(1))
    bulk = await app.bulk.start("cancel", status="ready")
    own = await app.tenant("a").bulk.start("cancel", status="ready")
    ann = visitor(app, "read")
    listed = (await ann.get("/items", headers=AS_JSON)).json()["items"]
    assert {each["type"] for each in listed} == {"mail.send"}
    parts = (await ann.get("/items?q=type:treadle.bulk", headers=AS_JSON)).json()["items"]
    assert {each["id"] for each in parts} == {bulk.id, own.id}
    for id, of in ((bulk.id, "treadle.operators"), (own.id, "a")):
        answer = await ann.get(f"/items/{id}", params={"of": of})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/bulk/{id}")
        assert (await ann.get(f"/bulk/{id}")).status_code == 200
    of_b = visitor(app, "read", tenants=("b",))
    assert (await of_b.get(f"/items/{bulk.id}", params={"of": "treadle.operators"})).status_code == 404
