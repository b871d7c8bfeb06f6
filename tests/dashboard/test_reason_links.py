"""What reasons, problems and types name is shown where an operator looks."""

from __future__ import annotations

import re
from typing import Any

from tests.dashboard.jobs import die, send
from treadle import Treadle
from treadle.item import Demand, Heartbeat
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
