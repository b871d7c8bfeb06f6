"""What visitors see of steps, progress and streams. They send signals, and requeue from a step."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.dashboard.conftest import AS_JSON
from tests.dashboard.jobs import said
from tests.engine.kit import PATIENCE, until_status
from treadle import Abort, Context, Treadle, work
from treadle.dashboard import steps
from treadle.dashboard.charts import share_bar
from treadle.dashboard.steps import MOST_CHUNKS, MOST_STEPS
from treadle.dashboard.template_filters import exact, when
from treadle.dashboard.timeline import timeline_of, timeline_svg
from treadle.handler.steps import Step
from treadle.item import NEVER, ItemState
from treadle.retry import Retry

DAY = 86_400.0


class Declined(Exception):
    """A failure that the handler keeps."""


async def charge(card: str) -> dict[str, object]:
    return {"id": "ch_17", "card": card, "password": "hunter2"}


async def decline(card: str) -> None:
    raise Declined(f"{card} is too old")


@work(name="label.print")
async def label(order: int) -> int:
    await asyncio.sleep(PATIENCE)
    return order


@work(name="order.fulfil", retry=Retry(attempts=1))
async def fulfil(ctx: Context, order: int, then: str) -> str:
    await ctx.step("charge", charge, "card 7")
    try:
        await ctx.step(Step("check", catch=(Declined,)), decline, "card 7")
    except Declined:
        await ctx.progress(2, 5, "checked card 7")
    match then:
        case "signal":
            approval = await ctx.signal("approval", dict[str, bool])
            return f"approved: {approval}"
        case "limited":
            await ctx.signal("approval", bool, timeout=DAY, step="second approval")
        case "sleep":
            await ctx.sleep("cool-off", DAY)
        case "children":
            await ctx.run("papers", label(order))
        case "stream":
            for n in range(30):
                await ctx.emit({"n": n, "password": "hunter2"})
        case _:
            raise Abort("out of stock")
    return "done"


async def suspended(app: Treadle, then: str, **options: Any) -> str:
    handle = await app.enqueue(fulfil(17, then), **options)
    await until_status(app, handle.id, "scheduled")
    return handle.id


@pytest.fixture
async def app(store: Any, make_app: Any) -> Treadle:
    app: Treadle = make_app(store, fulfil, label, log_failures=False)
    await app.start()
    return app


# -- pages ---------------------------------------------------------------------------------------------------


async def test_a_page_shows_steps_and_what_the_item_waits_for(app: Treadle, visitor: Any) -> None:
    id = await suspended(app, "signal")
    page = (await visitor(app).get(f"/items/{id}")).text
    for text in (
        "step charge took",
        "{&#34;id&#34;:&#34;ch_17&#34;,&#34;card&#34;:&#34;card 7&#34;,&#34;password&#34;:&#34;***&#34;}",
        "step check failed after",
        "Declined: card 7 is too old",
        "waits for the signal approval",
        "without a limit",
        "now: suspended",
        "when the signal comes",
        "2 of 5, 40.0 %",
        "checked card 7",
        f'href="/items/{id}/signal?name=approval">Send…',
        ">Signal…</a>",
    ):
        assert text in page, text
    assert "hunter2" not in page
    assert "9999" not in page
    assert ">Trigger</button>" not in page  # a signal wakes it
    assert ">Change…</a>" not in page  # it has started


async def test_lists_and_the_overview_say_that_items_are_suspended_or_held(
    app: Treadle, visitor: Any
) -> None:
    await suspended(app, "signal")
    await app.hold(await app.enqueue(label(1), delay=60))
    ann = visitor(app)
    page = (await ann.get("/items?q=status:scheduled")).text
    assert ">suspended</span>" in page
    assert "when the signal comes" in page
    overview = (await ann.get("/")).text
    assert "no problems" in overview
    assert "1 suspended</small>" in overview
    assert (await ann.get("/", headers=AS_JSON)).json()["suspended"] == {"count": 1, "more": False}
    assert "9999" not in page + overview
    assert "1 held</small>" in overview
    assert (await ann.get("/", headers=AS_JSON)).json()["held"] == {"count": 1, "more": False}
    listed = (await ann.get("/items", headers=AS_JSON)).json()["items"][-1]
    assert (listed["suspended"], listed["due_at"]) == (True, None)


@pytest.mark.parametrize(
    ("then", "texts", "trigger"),
    [
        ("limited", ("waits for the signal approval (step second approval)", "at the latest"), False),
        ("sleep", ("sleeps for 1 d (step cool-off)", "goes on"), True),
        ("children", ("waits for its children (step papers)", "when its children have ended"), False),
    ],
)
async def test_each_wait_has_its_words(
    app: Treadle, visitor: Any, then: str, texts: tuple[str, ...], trigger: bool
) -> None:
    id = await suspended(app, then)
    page = (await visitor(app).get(f"/items/{id}")).text
    for text in texts:
        assert text in page, text
    assert (">Trigger</button>" in page) is trigger
    assert "9999" not in page


async def test_the_mailbox_is_shown_with_the_names_of_signals(app: Treadle, visitor: Any) -> None:
    id = await suspended(app, "signal")
    for name in ("aproval", "<b>", "<b>"):
        await app.signal(id, name, True)
    ann = visitor(app)
    page, form = (await ann.get(f"/items/{id}")).text, (await ann.get(f"/items/{id}/signal")).text
    assert "<dd>&lt;b&gt; (2), aproval <span" in page
    assert "under other names: &lt;b&gt; (2), aproval" in page
    assert "until one does: &lt;b&gt; (2), aproval there." in form


async def test_waits_that_are_over_say_how_they_ended(app: Treadle, visitor: Any) -> None:
    signalled, slept = await suspended(app, "limited"), await suspended(app, "sleep")
    await app.signal(signalled, "approval", True)
    await app.trigger(slept)
    for id, text in (
        (signalled, "waited for the signal approval (step second approval), which came"),
        (slept, "slept for 1 d (step cool-off)"),
    ):
        await until_status(app, id, "success")
        assert text in (await visitor(app).get(f"/items/{id}")).text


async def test_a_visitor_without_payloads_sees_no_values(app: Treadle, visitor: Any) -> None:
    handle = await app.enqueue(fulfil(1, "stream"))
    await handle.result(PATIENCE)
    bob = visitor(app, payloads=False)
    page = (await bob.get(f"/items/{handle.id}")).text
    assert "step charge took" in page
    assert "30 chunks" in page
    found = (await bob.get(f"/items/{handle.id}", headers=AS_JSON)).json()
    assert [step["value"] for step in found["steps"]] == [None, None]
    assert found["progress"]["message"] is None
    for text in ("ch_17", "card 7", "&#34;n&#34;", "hunter2"):
        assert text not in page + str(found)


async def test_values_are_masked_as_a_whole_without_the_code_of_the_type(
    app: Treadle, store: Any, make_app: Any, visitor: Any
) -> None:
    id = await suspended(app, "signal")
    page = (await visitor(make_app(store)).get(f"/items/{id}")).text
    assert "step charge took" in page
    assert "ch_17" not in page


async def test_the_last_chunks_are_shown_with_their_numbers(app: Treadle, visitor: Any) -> None:
    handle = await app.enqueue(fulfil(1, "stream"))
    await handle.result(PATIENCE)
    ann = visitor(app)
    page = (await ann.get(f"/items/{handle.id}")).text
    assert f"the last {MOST_CHUNKS} of 30 chunks" in page
    assert page.count('<li id="chunk-') == MOST_CHUNKS
    assert '<li id="chunk-30" value="30"><span class="mono">{&#34;n&#34;:29,' in page
    assert "hunter2" not in page
    found = (await ann.get(f"/items/{handle.id}", headers=AS_JSON)).json()
    assert (found["chunks"], found["mailbox"], found["progress"]["done"]) == (30, {}, 2)
    assert found["stream"][-1]["value"] == {"n": 29, "password": "***"}
    assert [step["name"] for step in found["steps"]] == ["charge", "check"]


@work(name="many", retry=Retry(attempts=1))
async def many(ctx: Context, count: int) -> str:
    for n in range(count):
        await ctx.step(f"page:{n}", charge, "x" * (100_000 if n == count - 1 else 1))
    return "done"


async def test_many_steps_and_large_values_are_cut(
    memory_store: Any, make_app: Any, visitor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Treadle = make_app(memory_store, many)
    await app.start()
    handle = await app.enqueue(many(MOST_STEPS + 5))
    await handle.result(PATIENCE)
    page = (await visitor(app).get(f"/items/{handle.id}")).text
    assert page.count("step page:") == MOST_STEPS * 2  # the picture says it too
    assert "and 5 earlier steps" in page
    assert "bytes: too large to be shown here" in page
    assert "xxxx" not in page
    monkeypatch.setattr(steps, "MOST_CHARACTERS", 10)
    page = (await visitor(app).get(f"/items/{handle.id}?again")).text
    assert "{&#34;id&#34;:&#34;ch_ …" in page


# -- parts ---------------------------------------------------------------------------------------------------


def test_a_wait_without_a_limit_has_no_place_in_the_picture() -> None:
    state = ItemState(
        id="a", type="t", status="scheduled", queued_at=100.0, due_at=NEVER, suspended=True, has_steps=True
    )
    found = timeline_of(state, now=160.0)
    assert (found.since, found.until) == (100.0, 160.0)
    assert [moment.text for moment in found.moments] == ["queued", "now: suspended"]
    assert "9999" not in timeline_svg(found)


def test_never_has_words() -> None:
    assert (exact(NEVER), when(NEVER, now=lambda: 0.0)) == ("when the signal comes",) * 2


def test_a_share_is_drawn_between_none_and_all() -> None:
    assert 'class="fill " width="0"' in share_bar(-1, 5)
    assert 'class="fill " width="100"' in share_bar(7, 5)


# -- signals -------------------------------------------------------------------------------------------------


async def test_a_signal_is_sent_once_and_noted(app: Treadle, visitor: Any) -> None:
    id = await suspended(app, "signal")
    ann, url = visitor(app), f"/items/{id}/signal"
    asked = (await ann.get(url)).text
    assert 'name="name" value="approval"' in asked
    assert 'value="other"' in (await ann.get(f"{url}?name=other")).text
    form = {"name": "approval", "value": "{", "key": "click-7", "reason": "the boss said yes"}
    refused = await ann.post(url, data=form)
    assert refused.status_code == 400
    assert "value is no JSON" in refused.text
    assert 'value="the boss said yes"' in refused.text  # the fields keep what was typed
    assert (await ann.post(url, data={"value": "1"})).status_code == 400  # it needs a name
    answer = await ann.post(url, data={**form, "value": '{"ok": true}'})
    assert said(answer) == (303, f"/items/{id}?done=signal.1")
    assert await app.handle(id).result(PATIENCE) == "approved: {'ok': True}"
    page = (await ann.get(answer.headers["location"])).text
    assert "sent the signal" in page
    assert "{&#34;ok&#34;:true}" in page
    (entry,) = [each for each in (await app.audits()).entries if each.count]
    assert (entry.actor, entry.verb, entry.ids, entry.reason) == (
        "ann",
        "signal",
        (id,),
        "the boss said yes",
    )
    assert (await ann.get(url)).status_code == 409  # it has ended
    assert (await ann.post(url, data=form | {"value": "1", "key": ""})).status_code == 409


async def test_a_key_is_told_to_browsers_and_programs(app: Treadle, visitor: Any) -> None:
    id = await suspended(app, "sleep")
    ann, form = visitor(app), {"name": "later", "value": "1", "key": "k"}
    for count in (1, 0):
        answer = await ann.post(f"/items/{id}/signal", json=form, headers=AS_JSON)
        assert answer.json() == {"done": "signal", "count": count, "refused": 0}
    answer = await ann.post(f"/items/{id}/signal", data=form)
    assert answer.status_code == 409
    assert "was sent before" in answer.text
    assert "<dd>later <span" in (await ann.get(f"/items/{id}")).text


async def test_a_signal_needs_its_right(app: Treadle, visitor: Any) -> None:
    id = await suspended(app, "signal")
    form = {"name": "approval", "value": "{}"}
    for can, status in (("read", 403), ({"requeue"}, 403), ({"signal"}, 303)):
        bob = visitor(app, can=can)
        shown = (await bob.get(f"/items/{id}")).text
        assert (">Send…</a>" in shown) is (status == 303)
        assert (await bob.post(f"/items/{id}/signal", data=form)).status_code == status
    stranger = visitor(app, tenants=["other"])
    assert (await stranger.post(f"/items/{id}/signal", data=form)).status_code == 404
    elsewhere = visitor(app, headers={"sec-fetch-site": "cross-site"})
    assert (await elsewhere.post(f"/items/{id}/signal", data=form)).status_code == 403


# -- requeue from a step -------------------------------------------------------------------------------------


async def test_a_dead_item_is_requeued_from_a_step(app: Treadle, visitor: Any) -> None:
    handle = await app.enqueue(fulfil(1, "die"))
    await until_status(app, handle.id, "dead")
    ann, url = visitor(app), f"/items/{handle.id}/requeue"
    page = (await ann.get(f"/items/{handle.id}")).text
    assert 'name="from_step" value="check"' in page
    assert "Requeue from here" not in (await visitor(app, can="read").get(f"/items/{handle.id}")).text
    refused = await ann.post(url, data={"from_step": "unknown"})
    assert refused.status_code == 409
    assert "no step" in refused.text
    await app.pause("default")
    answer = await ann.post(url, data={"from_step": "check", "reason": "a new card"})
    assert said(answer) == (303, f"/items/{handle.id}?done=requeue.1")
    assert [step.name for step in await app.steps(handle.id)] == ["charge"]
    (entry,) = [each for each in (await app.audits()).entries if each.verb == "requeue" and each.count]
    assert (entry.actor, entry.about, entry.reason) == ("ann", "from_step=check", "a new card")


async def test_an_item_that_was_cancelled_waits_no_longer(app: Treadle, visitor: Any) -> None:
    id = await suspended(app, "signal")
    await app.cancel(id)
    page = (await visitor(app).get(f"/items/{id}")).text
    assert "waited for the signal approval" in page
    for text in ("waits for", "Send…", "Signal…", "which came"):
        assert text not in page, text


# -- logs ----------------------------------------------------------------------------------------------------


@work(name="noisy", retry=Retry(attempts=2, base=0, jitter=0))
async def noisy(ctx: Context, card: str) -> None:
    logging.getLogger("shop").error("<b>attempt %s</b> \x1b[31m card=%s", ctx.attempt, card)
    raise ValueError("no")


async def test_a_page_shows_logs_by_attempt(store: Any, make_app: Any, visitor: Any) -> None:
    """Nothing in them is obeyed by a browser, and what the dashboard hides is hidden."""
    app: Treadle = make_app(store, noisy, log_failures=False)
    await app.start()
    handle = await app.enqueue(noisy("card-17"))
    await until_status(app, handle.id, "dead")
    page = (await visitor(app, mask=["card"]).get(f"/items/{handle.id}")).text
    assert page.index("&lt;b&gt;attempt 2&lt;/b&gt;") < page.index("&lt;b&gt;attempt 1&lt;/b&gt;")
    assert "\x1b" not in page
    assert "<b>attempt 1</b> <span" in page  # the title
    assert page.count("card=***") == 2
    shown = (await visitor(app).get(f"/items/{handle.id}", headers=AS_JSON)).json()["logs"]
    assert [(each["attempt"], each["left_out"], len(each["lines"])) for each in shown] == [
        (1, 0, 1),
        (2, 0, 1),
    ]
    hidden = visitor(app, payloads=False)
    assert "attempt 2&lt;" not in (await hidden.get(f"/items/{handle.id}")).text
    assert (await hidden.get(f"/items/{handle.id}", headers=AS_JSON)).json()["logs"] is None
