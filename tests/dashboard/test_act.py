"""What a visitor can do to several items: those that are chosen, or all that match a filter."""

from __future__ import annotations

import asyncio
import html
import re
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dashboard.conftest import AS_JSON
from tests.dashboard.jobs import die, report, said, send, state_of
from treadle import MemoryBackend, Treadle
from treadle.dashboard import site
from treadle.dashboard.actions.act import MOST_AT_ONCE
from treadle.dashboard.live import KeptReads
from treadle.testing import CountingBackend

DAY = date(2030, 1, 31)


@pytest.fixture(autouse=True)
def fresh_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are read anew, and not kept for a second: tests wait for what they show."""
    monkeypatch.setattr(site, "KeptReads", partial(KeptReads, seconds=0.02))


async def ended(visitor: httpx.AsyncClient, bulk: str) -> Any:
    """The page of a bulk action, when it has ended."""
    async with asyncio.timeout(20):
        while True:
            shown = (await visitor.get(bulk, headers=AS_JSON)).json()
            if shown["ended_at"]:
                return shown
            await asyncio.sleep(0.02)


async def test_chosen_items_are_changed_and_those_that_cannot_be_are_told(
    store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(store, send, report)
    ids = [(await app.tenant(tenant).enqueue(send("x"))).id for tenant in ("a", "a", "b")]
    await die(app)
    open_id = (await app.tenant("a").enqueue(report(DAY, 1))).id
    chosen = [f"{ids[0]} a", f"{ids[1]} a", f"{ids[2]} b", f"{open_id} a", "unknown"]
    ann = visitor(app)

    answer = await ann.post("/act/requeue", data={"id": chosen, "back": "/dead"})
    assert answer.status_code == 200
    assert "3 items changed" in answer.text
    assert "only dead or cancelled items" in answer.text
    assert "unknown" in answer.text
    assert 'href="/dead"' in answer.text
    assert {each.status for each in (await app.list()).items} == {"ready"}
    assert {each.tenant: each.count for each in (await app.audits()).entries} == {"a": 2, "b": 1}

    # A few are cancelled only after a question.
    main = {"x-fragment": "main"}
    page = await ann.post("/act/cancel", data={"id": chosen[:2], "back": "/items?q=x"}, headers=main)
    assert page.status_code == 200
    assert "Cancel 2 items" in page.text
    sent = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.text)
    assert {each.status for each in (await app.list()).items} == {"ready"}
    answer = await ann.post("/act/cancel", data={name: [v for n, v in sent if n == name] for name, _ in sent})
    assert said(answer) == (303, "/items?q=x&done=cancel.2")
    answer = await ann.post("/act/cancel", json={"id": [chosen[0]], "confirmed": True}, headers=AS_JSON)
    assert answer.json()["refused"] == 1
    assert answer.json()["not_changed"][0]["id"] == ids[0]

    answer = await ann.post("/act/delete", data={"id": chosen[:1], "confirmed": "1"})
    assert answer.status_code == 400
    assert "needs a reason" in answer.text
    answer = await ann.post("/act/delete", data={"id": chosen[:1], "confirmed": "1", "reason": "old"})
    assert said(answer) == (303, "/items?done=delete.1")
    assert (await ann.get("/act/explode", params={"id": "x"})).status_code == 404
    assert (await ann.post("/act/cancel", data={"confirmed": "1"})).status_code == 400


async def test_a_filter_becomes_a_bulk_action_that_goes_on_here_without_a_worker(
    store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(store, send, report)
    await app.enqueue_many([send(f"{at}") for at in range(120)])
    await app.enqueue(report(DAY, 1))
    ann = visitor(app)

    page = await ann.get("/act/cancel", params={"q": "type:mail.send"})
    assert "Cancel 120 items" in page.text
    assert len(re.findall(r'class="id"', page.text)) == 5
    first = (await app.list(oldest_first=True, limit=5)).items
    assert "The oldest 5" in page.text
    assert all(each.id in page.text for each in first)
    form = {"q": "type:mail.send", "confirmed": "1"}
    answer = await ann.post("/act/cancel", data=form)
    assert answer.status_code == 400
    assert "needs a reason" in answer.text
    assert 'value="type:mail.send"' in answer.text
    answer = await ann.post("/act/cancel", data={**form, "reason": "flood", "rate": "fast"})
    assert answer.status_code == 400
    answer = await ann.post("/act/cancel", data={**form, "reason": "flood"})
    assert answer.status_code == 303
    bulk = answer.headers["location"].partition("?")[0]
    assert re.fullmatch(r"/bulk/[0-9a-f]+", bulk)

    shown = await ended(ann, bulk)
    assert (shown["changed"], shown["actor"], shown["reason"]) == (
        120,
        "ann",
        "flood",
    )
    assert sum(each["count"] for each in shown["portions"]) == 120
    page = (await ann.get(bulk)).text
    assert "120" in page
    assert "Stop" not in page
    assert "flood" in (await ann.get("/bulk")).text
    left = (await app.list("ready")).items
    assert [each.type for each in left] == ["report.make"]

    for wrong in ("status:success type:mail.send", "input.to:7", "nonsense:1", ""):
        answer = await ann.post("/act/cancel", data={"q": wrong, "confirmed": "1", "reason": "x"})
        assert answer.status_code == 400, wrong


async def test_one_bulk_action_per_actor_and_it_can_be_stopped(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(memory_store, send)
    await app.enqueue_many([send(f"{at}") for at in range(10)])
    ann, bob = visitor(app), visitor(app, actor="bob")
    form = {"q": "type:mail.send", "confirmed": "1", "rate": "0.1"}
    first = await ann.post("/act/cancel", data=form)
    assert first.status_code == 303
    again = await ann.post("/act/cancel", data=form)
    assert again.status_code == 409
    assert "has another bulk action" in again.text
    assert 'name="rate" value="0.1"' in again.text
    asked = await bob.get("/act/cancel", params={"q": "type:mail.send"})
    assert re.search(r"Another bulk action runs: .* by ann, started", asked.text)
    bulk = first.headers["location"].partition("?")[0]
    assert "Stop" in (await ann.get(bulk)).text
    assert "Stop" not in (await visitor(app, "read").get(bulk)).text
    answer = await bob.post(f"{bulk}/stop", headers=AS_JSON)
    assert answer.json()["state"] == "stopped"
    page = (await bob.get(bulk)).text
    assert re.search("stopped</dt><dd>.* by bob, after", page)
    assert "/act/cancel?q=type%3Amail.send" in page  # start again
    assert re.search(r">bulk cancel</td>.*>–</span>", (await ann.get("/audit")).text, re.DOTALL)
    assert (await ann.post("/act/cancel", data=form)).status_code == 303
    assert (await visitor(app, tenants=["a"]).get(bulk)).status_code == 404


async def test_the_audit_says_who_did_what(store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(store, report)
    late = await app.tenant("a").enqueue(report(DAY, 1), delay=3600)
    ann, bob = visitor(app), visitor(app, actor="<b>bob</b>")
    await ann.post(f"/items/{late.id}/update?of=a", data={"priority": "4", "reason": "urgent <i>"})
    await bob.post("/queues/mails/pause")
    page = (await ann.get("/audit")).text
    for expected in (
        "priority=4",
        "urgent &lt;i&gt;",
        "127.0.0.1",
        "&lt;b&gt;bob&lt;/b&gt;",
        f"/items/{late.id}?of=a",
    ):
        assert expected in page
    entries = (await ann.get("/audit", params={"actor": "ann"}, headers=AS_JSON)).json()["entries"]
    assert [(each["actor"], each["verb"], each["tenant"]) for each in entries] == [("ann", "update", "a")]
    of_b = (await visitor(app, tenants=["b"]).get("/audit", headers=AS_JSON)).json()
    assert of_b["entries"] == []
    for _ in range(101):
        await ann.post("/queues/mails/resume")
    first = (await ann.get("/audit", headers=AS_JSON)).json()
    assert len(first["entries"]) == 100
    rest = (await ann.get("/audit", params={"cursor": first["cursor"]}, headers=AS_JSON)).json()
    assert len(rest["entries"]) == 3
    assert rest["cursor"] is None
    assert (await state_of(app.tenant("a"), late.id)).priority == 4


async def test_a_bulk_action_says_what_others_took_and_what_held_it_back(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(memory_store, send)
    await app.enqueue_many([send(f"{at}") for at in range(210)])
    await die(app)
    ann = visitor(app)
    page = await ann.get("/act/requeue", params={"q": "status:dead"})
    assert "Requeue 210 items" in page.text
    form = {"q": "status:dead", "confirmed": "1", "reason": "x", "canary": "2"}
    bulk = (await ann.post("/act/requeue", data=form)).headers["location"].partition("?")[0]
    while (await ann.get(bulk, headers=AS_JSON)).json()["state"] != "canary":  # noqa: ASYNC110  it has no event
        await asyncio.sleep(0.05)
    await die(app, [send])
    assert (await ended(ann, bulk))["state"] == "held_back"
    page = (await ann.get(bulk)).text
    assert page.count("</span> Abort: no route</li>") == 2
    assert "waited for up to 5 min" in page
    assert "Start again…" in page

    rated = {**form, "rate": "100", "canary": ""}
    bulk = (await ann.post("/act/requeue", data=rated)).headers["location"].partition("?")[0]
    taken = (await app.list("dead", limit=100)).items
    await app.delete(taken)
    shown = await ended(ann, bulk)
    assert (shown["total"], shown["matched"]) == (210, 110)
    page = (await ann.get(bulk)).text
    assert 'class="fill " width="100"' in page
    assert "100 items did not match any more" in page


async def test_a_bulk_action_that_changed_nothing_is_not_green(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(memory_store, send)
    await app.enqueue_many([send(f"{at}") for at in range(3)])
    await die(app)
    action = await app.bulk.start("requeue", type="mail.send")
    await app.delete((await app.list("dead")).items)
    ann = visitor(app)
    assert (await ended(ann, f"/bulk/{action.id}"))["state"] == "done"
    for path in ("/bulk", f"/bulk/{action.id}"):
        page = (await ann.get(path)).text
        assert '<span class="status nothing_changed">' in page
        assert "status done" not in page
        assert 'class="fill "' not in page


async def test_chosen_items_of_many_tenants_are_not_read_one_by_one(make_app: Any, visitor: Any) -> None:
    backend = CountingBackend(MemoryBackend())
    app: Treadle = make_app(lambda: backend, send)
    tenants = [f"t{at}" for at in range(MOST_AT_ONCE + 1)]
    for tenant in tenants:
        await app.tenant(tenant).enqueue(send("x"), id="same")
    form = {"id": [f"same {tenant}" for tenant in tenants], "confirmed": "1", "reason": "flood", "rate": "1"}
    backend.reset()
    answer = await visitor(app).post("/act/cancel", data=form)
    assert answer.status_code == 303
    assert backend.calls["get"] < 20
    (action,) = await app.bulk.list()
    assert action.total == len(tenants)


async def test_a_bulk_action_is_started_again_as_it_was(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(memory_store, send)
    await app.enqueue_many([send(f"{at}") for at in range(3)], delay=3600)
    ann = visitor(app)
    form = {"q": "type:mail.send", "confirmed": "1", "rate": "30/min", "canary": "2", "reason": "a & b"}
    started = await ann.post("/act/trigger", data=form)
    bulk = started.headers["location"].partition("?")[0]
    assert (await ann.get(bulk, headers=AS_JSON)).json()["rate"] == 0.5
    await ann.post(f"{bulk}/stop")
    (link,) = re.findall(r'href="(/act/trigger[^"]+)"', (await ann.get(bulk)).text)
    asked = (await ann.get(html.unescape(link))).text
    for name, value in (("rate", "0.5"), ("canary", "2"), ("reason", "a &amp; b")):
        assert re.search(rf'name="{name}"[^>]*value="{value}"', asked), name
    said = re.sub(r"\s+", " ", asked)
    assert "Scheduled items run now. " in said
    assert "stay as they are. It becomes a bulk action" in said
    wrong = await ann.post("/act/trigger", data={**form, "rate": "fast"})
    assert "write 50/s, 600/min or 1000/h" in wrong.text


async def test_a_flood_is_parked_in_another_queue(store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(store, send, report)
    await app.enqueue_many([send(f"{at}") for at in range(120)])
    chosen = (await app.enqueue(report(DAY, 1))).id
    ann = visitor(app)
    page = (await ann.get("/items", params={"q": "type:mail.send"})).text
    assert "Update all…" in page
    assert "Requeue all…" in page  # some that are not on the page may have died
    page = (await ann.get("/items", params={"q": "type:report.make"})).text
    assert "Update all…" in page
    assert not re.search("(Requeue|Trigger|Unhold) all…", page)
    page = await ann.get("/act/update", params={"q": "type:mail.send"})
    assert "Update 120 items" in page.text
    assert 'name="queue"' in page.text
    form = {"q": "type:mail.send", "confirmed": "1", "reason": "flood"}
    answer = await ann.post("/act/update", data=form)
    assert (answer.status_code, "nothing to change" in answer.text) == (400, True)
    answer = await ann.post("/act/update", data={**form, "queue": "parked", "priority": "-5"})
    assert answer.status_code == 303
    shown = await ended(ann, answer.headers["location"].partition("?")[0])
    assert (shown["changed"], shown["changes"]) == (120, "priority=-5 queue=parked")
    assert {(each.queue, each.priority) for each in (await app.list(type="mail.send")).items} == {
        ("parked", -5)
    }
    # A few: after a question, at once.
    asked = await ann.post("/act/update", data={"id": chosen})
    assert (asked.status_code, 'name="lane"' in asked.text) == (200, True)
    answer = await ann.post("/act/update", data={"id": chosen, "confirmed": "1"})
    assert answer.status_code == 400
    answer = await ann.post("/act/update", data={"id": chosen, "confirmed": "1", "lane": "x"})
    assert said(answer) == (303, "/items?done=update.1")
    assert (await visitor(app, can={"requeue"}).get("/act/update", params={"id": chosen})).status_code == 403


async def test_the_page_that_asks_says_what_they_died_of_and_proposes_a_canary(
    store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(store, send, report)
    await app.enqueue_many([send("x") for _ in range(6)])
    await app.enqueue(report(DAY, 1))
    await die(app)
    ann = visitor(app)
    page = (await ann.get("/act/requeue", params={"q": "status:dead"})).text
    assert 'name="canary" value="5"' in page
    for cause in ("<b>6</b> mail.send", "<b>1</b> report.make", "no route"):
        assert cause in page
    assert re.search(r"<button[^>]*>Requeue 7 items</button>", page)
    assert ">Leave them as they are</a>" in page
    hidden = (await visitor(app, payloads=False).get("/act/requeue", params={"q": "status:dead"})).text
    assert "<b>6</b> mail.send" in hidden
    assert "no route" not in hidden
    few = (await ann.get("/act/requeue", params={"q": "status:dead type:report.make"})).text
    assert 'name="canary" value=""' in few
    sent = await ann.post(
        "/act/requeue", data={"q": "status:dead", "confirmed": "1", "rate": "x", "canary": ""}
    )
    assert 'name="canary" value=""' in sent.text  # what was typed stays
    one = (await app.list(type="report.make")).items[0].id
    for verb, does, instead in (
        ("delete", "Delete 1 item", "Keep it"),
        ("cancel", "Cancel 1 item", "Keep it"),
    ):
        asked = (await ann.get(f"/act/{verb}", params={"id": one})).text
        assert re.search(rf"<button[^>]*>{does}</button> <a[^>]*>{instead}</a>", asked)


def test_no_button_says_only_that_it_cancels_or_goes_back() -> None:
    templates = Path(site.__file__).parent / "templates"
    bare = re.compile(r">\s*(?:Cancel|Back)…?\s*</(?:button|a)>|f\.send\(\"\w+\",")
    found = {file.name: bare.findall(file.read_text()) for file in templates.glob("*.html")}
    allowed = {"not_changed.html", "error.html", "ask_edit.html", "ask_act.html"}  # nothing is asked there
    assert {name for name, each in found.items() if each} <= allowed
