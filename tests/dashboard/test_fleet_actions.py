"""What a visitor can do to queues, schedules and workers."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

from tests.dashboard.conftest import AS_JSON
from tests.dashboard.jobs import report, said
from treadle import Treadle


async def test_queues_are_paused_for_all_or_for_one_tenant(store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(store, report)
    ann, of_a = visitor(app), visitor(app, tenants=["a"])
    name, path = "mails/~urgent ü", "/queues/mails~2F~7Eurgent%20%C3%BC"
    assert said(await ann.post(f"{path}/pause")) == (303, f"{path}?done=pause.1")
    assert (await of_a.post(f"{path}/pause")).status_code == 303
    assert {(each.queue, each.tenant) for each in await app.orders()} == {(name, None), (name, "a")}
    assert (await of_a.post(f"{path}/resume", headers=AS_JSON)).json()["done"] == "resume"
    assert {(each.queue, each.tenant) for each in await app.orders()} == {(name, None)}
    assert (await ann.post("/queues/~0A/pause")).status_code == 400


async def test_a_problem_leads_to_what_is_paused(memory_store: Any, make_app: Any, visitor: Any) -> None:
    """A queue, a type or a tenant. A visitor of one tenant has no page of tenants."""
    app: Treadle = make_app(memory_store, report)
    await app.pause("mails")
    await app.pause(type="report.make", tenant="a")
    await app.pause(tenant="a")

    async def links(**access: Any) -> dict[str, str]:
        page = (await visitor(app, **access).get("/")).text
        found = re.findall(r'<a href="([^"?]*)[^"]*">(\w+) \S+ is paused', page)
        return {what: path for path, what in found}

    assert await links() == {"queue": "/queues/mails", "type": "/types/report.make", "tenant": "/tenants"}
    assert await links(tenants=["a"]) == {"queue": "/queues/mails", "type": "/types/report.make"}


async def test_schedules_are_paused_triggered_and_removed(store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(store, report)
    app.schedule("nightly/run", every=3600, run=lambda: report(date(2030, 1, 31), 1))
    ann, path = visitor(app), "/schedules/nightly~2Frun"
    assert said(await ann.post(f"{path}/pause")) == (303, "/schedules?done=pause_schedule.1")
    (schedule,) = await app.schedules.list()
    assert schedule.paused
    assert (await ann.post(f"{path}/resume", data={"back": path})).headers["location"].startswith(path)
    assert (await ann.post(f"{path}/trigger", headers=AS_JSON)).json()["count"] == 1
    assert [each.type for each in (await app.list()).items] == ["report.make"]
    assert "brings it back" in (await ann.get(f"{path}/cancel")).text
    elsewhere = visitor(make_app(store, report))
    answer = await elsewhere.post(f"{path}/trigger")
    assert answer.status_code == 409  # its code is not there
    assert said(await ann.post(f"{path}/cancel")) == (303, "/schedules?done=cancel_schedule.1")
    assert await app.schedules.list() == []
    assert (await ann.get(f"{path}/cancel")).status_code == 404
    assert (await ann.post(f"{path}/pause")).status_code == 404


async def test_a_schedule_whose_run_raises_is_told_and_logged(
    memory_store: Any, make_app: Any, visitor: Any, caplog: Any
) -> None:
    def prices() -> None:
        raise LookupError("no rate for EUR")

    app: Treadle = make_app(memory_store, report)
    app.schedule("prices", every=3600, run=prices)
    answer = await visitor(app).post("/schedules/prices/trigger")
    assert answer.status_code == 409
    assert "run of schedule &#39;prices&#39; failed: LookupError: no rate for EUR" in answer.text
    (record,) = caplog.records
    assert (record.levelname, record.exc_info[0]) == ("WARNING", LookupError)
    hidden = await visitor(app, payloads=False).post("/schedules/prices/trigger", headers=AS_JSON)
    assert hidden.status_code == 409
    assert hidden.json()["message"] == "run of schedule 'prices' failed: the log of the server says why"


async def test_a_worker_is_asked_to_stop(store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(store, report)
    await app.start()
    (worker,) = await app.workers()
    ann, path = visitor(make_app(store, report)), f"/workers/{worker.id}/drain"
    assert (await visitor(app, tenants=["a"]).post(path)).status_code == 409  # it serves others too
    asked = (await ann.get(path)).text
    assert "next heartbeat" in asked
    assert "Then no other worker takes items: what it would run waits until another is started." in asked
    assert said(await ann.post(path, data={"reason": "move"})) == (303, "/workers?done=drain_worker.1")
    (entry,) = (await app.audits()).entries
    assert (entry.verb, entry.ids, entry.reason) == ("drain_worker", (worker.id,), "move")
    assert (await ann.get("/workers/unknown/drain")).status_code == 404
    assert re.search('title="ann">asked to stop ', (await ann.get("/workers")).text)


async def test_orders_are_given_and_withdrawn(store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(store, report)
    await app.enqueue(report(date(2030, 1, 31), 1), delay=60)
    ann, of_a, reader = visitor(app), visitor(app, tenants=["a"]), visitor(app, can="read")
    told = {"name": "mail", "limit": "50/1m", "until": "2h", "reason": "they asked"}
    assert said(await ann.post("/orders/set_limit", data=told)) == (303, "/limits?done=set_limit.1")
    assert said(await ann.post("/orders/set_limit", data={"type": "report.make", "limit": "4"}))[0] == 303
    assert said(await ann.post("/orders/pause", data={"type": "report", "until": "1h"}))[0] == 303
    assert said(await of_a.post("/orders/pause", data={}))[0] == 303
    orders = await app.orders()
    assert [(each.about, each.tenant, each.limit, each.window) for each in orders] == [
        ("mail", None, 50, 60.0),
        ("report.make", None, 4, None),
        ("a", "a", None, None),
        ("report", None, None, None),
    ]
    assert (orders[0].actor, orders[0].reason) == ("ann", "they asked")
    queue = (await ann.get("/queues/reports", headers=AS_JSON)).json()
    assert [each["name"] for each in queue["limits"]] == ["type:report.make:slots:all"]
    page = (await ann.get("/limits")).text
    assert "they asked" in page
    assert page.count("no such limit is known: it changes nothing") == 1
    wrong_kind = await ann.post("/orders/set_limit", data={"name": "report.make", "limit": "4"})
    assert (wrong_kind.status_code, "without a limit" in wrong_kind.text) == (400, True)
    assert "tenant a" in page
    assert "they asked" not in (await of_a.get("/limits")).text
    for wrong in ({"limit": "x", "name": "mail"}, {"limit": "4"}, {"limit": "4", "name": "m", "until": "x"}):
        assert (await ann.post("/orders/set_limit", data=wrong)).status_code == 400
    assert (await of_a.post("/orders/set_limit", data=told)).status_code == 400
    assert (await of_a.post("/orders/pause", data={"tenant": "b"})).status_code == 400
    for verb in ("pause", "resume", "set_limit", "clear_limit"):
        assert (await reader.post(f"/orders/{verb}", data=told)).status_code == 403
    assert said(await ann.post("/orders/clear_limit", data={"name": "mail"}))[0] == 303
    assert said(await ann.post("/orders/clear_limit", data={"type": "report.make"}))[0] == 303
    assert said(await ann.post("/orders/resume", data={"type": "report"}))[0] == 303
    assert said(await of_a.post("/orders/resume", data={}))[0] == 303
    assert await app.orders() == []
    verbs = [entry.verb for entry in (await app.audits()).entries if entry.count]
    assert verbs == ["resume", "resume", *["clear_limit"] * 2, "pause", "pause", "set_limit", "set_limit"]


async def test_a_type_is_paused_and_resumed_on_its_page(store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(store, report)
    ann, of_a = visitor(app), visitor(app, tenants=["a"])
    await app.tenant("a").enqueue(report(date(2030, 1, 31), 3))
    path = f"/types/{report.name}"

    async def offered(visitor: Any) -> list[str]:
        return re.findall(r'action="/orders/(\w+)', (await visitor.get(path)).text)

    assert await offered(ann) == ["pause"]
    told = {"type": report.name, "back": path}
    assert said(await ann.post("/orders/pause", data=told)) == (303, f"{path}?done=pause.1")
    assert re.search(r"Paused\s+by ann", (await ann.get(path)).text)
    assert await offered(ann) == ["resume"]
    assert await offered(of_a) == []
    assert (await ann.get(path, headers=AS_JSON)).json()["paused"][0]["type"] == report.name
    await ann.post("/orders/resume", data=told)
    assert await offered(ann) == ["pause"]
