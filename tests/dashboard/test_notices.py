"""What a page says about the action that led to it."""

from __future__ import annotations

from typing import Any

from tests.dashboard.jobs import die, said, send
from treadle import Treadle


async def test_a_page_says_what_this_browser_did_and_nothing_else(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(memory_store, send)
    item = await app.enqueue(send("a@b.example"))
    await die(app)
    ann = visitor(app)
    assert "deleted 500 items" not in (await ann.get("/items?done=delete.500")).text
    status, to = said(await ann.post(f"/items/{item.id}/requeue"))
    assert status == 303
    assert "requeued 1 item<" in (await ann.get(to)).text
    assert "requeued 1 item<" in (await ann.get(to, headers={"x-fragment": "main"})).text
    assert "requeued 2 items" not in (await ann.get(to.replace("requeue.1", "requeue.2"))).text
    assert "requeued 1 item<" not in (await ann.get("/items")).text
    ann.cookies.set("treadle_done", 'requeue.1/"><b>/x%0A')
    assert "<b>" not in (await ann.get("/items?done=requeue.1")).text


async def test_the_notice_of_a_schedule_that_ran_links_to_its_item(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(memory_store, send)
    app.schedule("nightly", every=3600, run=lambda: send("a@b.example"))
    async with app:
        ann = visitor(app)
        await ann.get("/schedules")
        page = await ann.post("/schedules/nightly/trigger", follow_redirects=True)
        (item,) = (await app.list()).items
        assert f'the schedule was triggered: 1 item <a class="id" href="/items/{item.id}"' in page.text
        assert f'href="/items/{item.id}" data-id="{item.id}"' in (await ann.get("/audit")).text
