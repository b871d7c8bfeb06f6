"""What reasons, problems and types name is shown where an operator looks."""

from __future__ import annotations

import re
from typing import Any

from tests.dashboard.jobs import die, send
from treadle import Treadle, work
from treadle.item import Demand, Heartbeat
from treadle.records import Stat
from treadle.worker_info import UndecodableType, WorkerInfo, encode_worker_info


async def test_what_is_named_can_be_opened(memory_store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(memory_store, send)
    acme = app.tenant("acme")
    first = await acme.enqueue(send("x"))
    waits = await acme.enqueue(send("y"), after=[first])
    alone = await app.enqueue(send("z"), queue="far/away")
    await app.pause("far/away")
    ann, payloadless = visitor(app), visitor(app, payloads=False)

    assert (
        f'<a class="about mono" href="/items/{first.id}?of=acme">'
        in (await ann.get(f"/items/{waits.id}?of=acme")).text
    )
    assert (
        '<a class="about mono" href="/queues/far~2Faway">far/away</a>'
        in (await ann.get(f"/items/{alone.id}")).text
    )
    assert 'href="/queues/far~2Faway">far' not in (await ann.get("/queues/far~2Faway")).text

    said = {"mail.send": UndecodableType(count=1, error="no field <hue>", until=2e9)}
    info = encode_worker_info(WorkerInfo(undecodable=said))
    await app.backend.beat(Heartbeat(worker="old", lease=60, info=info))
    page = (await ann.get("/types/mail.send")).text
    assert "the arguments of items of this type do not fit the code of" in page
    assert "no field &lt;hue&gt;" in page
    assert "hue" not in (await payloadless.get("/types/mail.send")).text

    await app.resume("far/away")
    await die(app)
    page = (await visitor(app).get(f"/groups/{first.id}?of=acme")).text
    assert '<span class="status failed">' in page


async def test_a_large_input_has_no_form(memory_store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(memory_store, send)
    item = await app.enqueue(send("x" * 70_000))
    await app.cancel(item)
    page = await visitor(app).get(f"/items/{item.id}/edit")
    assert "too much for a form" in page.text
    assert f'href="/items/{item.id}/input" download' in page.text
    assert "<textarea" not in page.text


async def test_a_problem_has_a_button_for_those_who_may(store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(store, send)
    await app.enqueue(send("a@b.example"))
    await die(app)
    await app.pause("mail")
    await app.pause("mail", tenant="acme")
    ann = visitor(app)
    page = (await ann.get("/")).text
    assert 'href="/act/requeue?q=status%3Adead&amp;back=%2F">Requeue all…' in page
    assert page.count("<button>Resume</button>") == 2
    assert (await ann.get("/menu")).json() == {"overview": "3", "dead": "1"}
    assert "<button>Resume" not in (await visitor(app, "read").get("/")).text
    fields = re.findall(r'name="(queue|tenant)" value="(\w+)"', page)
    assert fields == [("queue", "mail"), ("queue", "mail"), ("tenant", "acme")]
    await ann.post("/orders/resume", data={"queue": "mail", "tenant": "acme"})
    assert (await ann.get("/")).text.count("<button>Resume</button>") == 1
    acme = visitor(app, tenants=["acme"])
    assert (await acme.get("/menu")).json() == {"overview": "1"}
    assert "<button>Resume" not in (await acme.get("/")).text


async def test_dead_items_of_several_causes_are_not_requeued_at_once(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    """The button leads to what they died of. A type that dies has its own."""

    @work(name="other")
    async def other() -> None: ...

    app: Treadle = make_app(memory_store, send, other)
    await app.enqueue(send("a@b.example"))
    await die(app)
    await app.enqueue(other())
    await die(app)
    page = (await visitor(app).get("/")).text
    assert "Requeue all…" not in page
    assert '<a class="button" href="/dead">See what they died of</a>' in page
    minute = await app.backend.now() // 60 * 60
    await app.backend.add_stats([Stat(at=minute, type="other", dead=40)])
    (mark,) = [each for each in await app.dead.marks() if each.type == "other"]
    page = (await visitor(app, "read").get("/")).text
    assert f'<a href="/dead/{mark.mark}">other dies: 4' in page
    assert 'href="/items?q=status%3Adead+type%3Aother">See its dead items</a>' in page
    hidden = (await visitor(app, "read", payloads=False).get("/")).text
    assert "items of a type die now (what was said is hidden)" in hidden


async def test_dead_items_that_somebody_requeues_are_not_offered_again(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    @work(name="other")
    async def other() -> None: ...

    app: Treadle = make_app(memory_store, send, other)
    for each in (send("a@b.example"), other()):
        await app.enqueue(each)
        await die(app)
    (mark,) = [each for each in await app.dead.marks() if each.type == "other"]
    action = await app.by("bob").bulk.start("requeue", mark=mark.mark)
    said = "bob runs some of them again now: 0 of 1 looked at"
    (dead,) = [each for each in await app.problems() if each.kind == "dead"]
    assert dead.text.endswith(f"; {said}")
    assert dead.fix == f"wait for it: treadle bulk show {action.id}; then treadle dead"
    page = (await visitor(app).get("/")).text
    assert said in page
    assert f'<a class="button" href="/bulk/{action.id}">See who runs them again</a>' in page
    page = (await visitor(app).get("/dead")).text
    assert said in page
    assert page.count("Requeue all…") == 1
    assert "Requeue all…" not in (await visitor(app).get(f"/dead/{mark.mark}")).text
    await app.bulk.stop(action.id)
    page = (await visitor(app).get("/dead")).text
    assert (said in page, page.count("Requeue all…")) == (False, 2)


async def test_an_item_that_ends_workers_can_be_held_at_once(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(memory_store, send)
    await app.tenant("acme").enqueue(send("x"), id="killer")
    for n in range(3):
        await app.backend.beat(Heartbeat(worker="mortal", lease=60))
        await app.backend.begin((await app.backend.claim(Demand(worker="mortal", limit=1))).leases)
        await app.backend.remove_worker("mortal")
        await app.tenant("acme").trigger(["killer"] if n else [])
    whose = 'href="/act/hold?id=killer+acme&amp;back=%2F">Hold it…'
    assert whose in (await visitor(app).get("/")).text
    assert "Hold it…" not in (await visitor(app, "read").get("/")).text
    page = (await visitor(app, tenants=["acme"]).get("/")).text
    assert 'href="/act/hold?id=killer&amp;back=%2F">Hold it…' in page
    await app.tenant("acme").hold(["killer"])
    assert "Hold it…" not in (await visitor(app).get("/")).text
