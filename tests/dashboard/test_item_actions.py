"""What a visitor can do to one item."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from tests.dashboard.conftest import AS_JSON
from tests.dashboard.jobs import die, pay, report, said, send, state_of
from treadle import Abort, Secret, Treadle, work
from treadle.bulk_action import OPERATORS

DAY = date(2030, 1, 31)


async def test_requeue_cancel_and_trigger_change_the_item_and_are_noted(
    store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(store, send, report)
    dead = await app.enqueue(send("a@b.example"))
    await die(app)
    late = await app.enqueue(report(DAY, 1), delay=3600)
    ann = visitor(app)

    answer = await ann.post(f"/items/{dead.id}/requeue", data={"reason": "route is back"})
    assert said(answer) == (303, f"/items/{dead.id}?done=requeue.1")
    assert (await state_of(app, dead.id)).status == "ready"
    answer = await ann.post(f"/items/{late.id}/trigger", headers=AS_JSON)
    assert answer.json() == {"done": "trigger", "count": 1, "refused": 0}
    assert (await state_of(app, late.id)).status == "ready"
    answer = await ann.post(f"/items/{late.id}/cancel", data={"back": "/items?q=status%3Adead&done=edit.7"})
    assert said(answer) == (303, "/items?q=status%3Adead&done=cancel.1")
    assert (await state_of(app, late.id)).status == "cancelled"
    for verb, problem in (("cancel", "ended"), ("trigger", "only scheduled")):
        answer = await ann.post(f"/items/{late.id}/{verb}")
        assert answer.status_code == 409, verb
        assert problem in answer.text

    entries = [each for each in (await app.audits()).entries if each.count]
    assert [(each.actor, each.verb, each.ids, each.reason) for each in entries] == [
        ("ann", "cancel", (late.id,), ""),
        ("ann", "trigger", (late.id,), ""),
        ("ann", "requeue", (dead.id,), "route is back"),
    ]


async def test_an_item_is_held_with_a_reason_and_let_go(store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(store, report)
    item = await app.enqueue(report(DAY, 1))
    ann = visitor(app)
    page = (await ann.get(f"/items/{item.id}")).text
    (link,) = re.findall(r'href="(/act/hold[^"]+)">Hold…', page)
    assert "not handed out until they are let go" in (await ann.get(link.replace("&amp;", "&"))).text
    answer = await ann.post("/act/hold", data={"id": item.id, "reason": "bad card", "confirmed": "1"})
    assert said(answer) == (303, "/items?done=hold.1")
    page = (await ann.get(f"/items/{item.id}")).text
    assert re.search(r'title="it is held, by ann [^"]*: bad card">held<', page)
    assert "/trigger" not in page
    assert ">held<" in (await ann.get("/items?q=held:true")).text
    shown = (await ann.get(f"/items/{item.id}", headers=AS_JSON)).json()
    assert (shown["held"], shown["due_at"], shown["reasons"][0]["kind"]) == (True, None, "held")
    assert (await ann.post(f"/items/{item.id}/hold")).status_code == 409
    answer = await ann.post(f"/items/{item.id}/unhold")
    assert said(answer) == (303, f"/items/{item.id}?done=unhold.1")
    assert (await state_of(app, item.id)).status == "ready"
    assert (await visitor(app, can="read").post(f"/items/{item.id}/hold")).status_code == 403


async def test_an_update_changes_only_what_was_typed(store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(store, report)
    item = await app.enqueue(report(DAY, 1), delay=3600, lane="slow")
    ann = visitor(app)
    assert "reports" in (await ann.get(f"/items/{item.id}/update")).text
    for field, typed, problem in (
        ("run_at", "tomorrow", "must be now, a time from now"),
        ("run_at", "1h30", "must be now, a time from now"),
        ("priority", "high", "whole number"),
        ("run_at", "", "nothing to change"),
    ):
        answer = await ann.post(f"/items/{item.id}/update", data={field: typed, "reason": "why not"})
        assert answer.status_code == 400
        assert problem in answer.text
        assert 'value="why not"' in answer.text  # the fields keep what was typed
        assert f'value="{typed}"' in answer.text
    answer = await ann.post(
        f"/items/{item.id}/update",
        data={"priority": "7", "run_at": "2030-01-31 09:00", "deadline": "2031-01-01"},
    )
    assert said(answer) == (303, f"/items/{item.id}?done=update.1")
    now = await state_of(app, item.id)
    assert (now.priority, now.lane, now.queue) == (7, "slow", "reports")
    assert (now.due_at, now.deadline) == (1_896_080_400.0, 1_924_992_000.0)
    (entry,) = (await app.audits()).entries
    assert entry.about == "run_at=2030-01-31T09:00:00Z priority=7 deadline=2031-01-01T00:00:00Z"
    await app.cancel(item.id)
    answer = await ann.post(f"/items/{item.id}/update", data={"priority": "1"})
    assert answer.status_code == 409


async def test_a_completion_takes_a_value_of_the_type_and_a_reason(
    store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(store, report)
    item = await app.enqueue(report(DAY, 1))
    ann, url = visitor(app), f"/items/{item.id}/complete"
    assert "date" in (await ann.get(url)).text
    for typed, reason, problem in (
        ('"2030-02-01"', "", "needs a reason"),
        ("2030", "by hand", "no result"),
        ("{", "by hand", "no JSON"),
    ):
        answer = await ann.post(url, data={"value": typed, "reason": reason})
        assert answer.status_code == 400
        assert problem in answer.text
        assert typed.replace('"', "&#34;") in answer.text
    answer = await ann.post(url, json={"value": '"2030-02-01"', "reason": "by hand"}, headers=AS_JSON)
    assert answer.json()["done"] == "complete"
    assert (await state_of(app, item.id)).result == date(2030, 2, 1)
    assert (await ann.get(url)).status_code == 409  # it has ended


async def test_an_edited_item_is_a_new_one_and_masked_secrets_are_kept(
    store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(store, send, pay)
    old = await app.enqueue(
        send("a@b.example", password="hunter2"),
        queue="mails",
        lane="new",
        priority=3,
        key="mail-1",
        headers={"team": "red"},
    )
    ann, url = visitor(app), f"/items/{old.id}/edit"
    assert (await ann.get(url)).status_code == 409  # it has not ended
    await die(app)
    before = await state_of(app, old.id)

    page = await ann.get(url)
    assert page.status_code == 200
    assert "a@b.example" in page.text
    assert "***" in page.text
    assert "hunter2" not in page.text
    for typed, problem in (
        ('{"to": 7}', "parameter &#39;to&#39;"),
        ('{"to": "***"}', "stands for no secret"),
        ('{"to": "x", "cc": "y"}', "unknown parameter"),
        ("[]", "JSON object"),
    ):
        answer = await ann.post(url, data={"input": typed})
        assert answer.status_code == 400
        assert problem in answer.text
        assert "hunter2" not in answer.text

    typed = '{"to": "c@d.example", "password": "***"}'
    answer = await ann.post(url, data={"input": typed, "key": "mail-1"}, headers=AS_JSON)
    new = await state_of(app, answer.json()["id"])
    assert msgspec.json.decode(new.input) == {"to": "c@d.example", "password": "hunter2"}
    assert (new.parent, new.type, new.key) == (old.id, "mail.send", "mail-1")
    assert (new.queue, new.lane, new.priority) == ("mails", "new", 3)
    assert (new.attempts, dict(new.headers), new.status) == (1, {"team": "red"}, "ready")
    assert new.group_id == new.id
    assert await state_of(app, old.id) == before
    (entry,) = (await app.audits()).entries
    assert (entry.verb, entry.ids, entry.about) == ("edit", (new.id,), f"edit of {old.id}")

    # The key protects against a second one.
    answer = await ann.post(url, data={"input": typed, "key": "mail-1"})
    assert answer.status_code == 409
    assert new.id in answer.text


async def test_a_deletion_tells_what_goes_and_needs_a_reason(store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(store, send, report)
    item = await app.enqueue(send("a@b.example"))
    waiting = await app.enqueue(report(DAY, 1))
    await die(app, types=[send])
    ann, url = visitor(app), f"/items/{item.id}/delete"
    page = (await ann.get(url)).text
    assert "The item is removed. Nothing of it is kept. It cannot be undone." in page
    assert "checkbox" not in page
    page = (await ann.get(f"/items/{waiting.id}/delete")).text
    assert "also if it is still open" in page
    assert "cascade" not in page
    answer = await ann.post(url)
    assert answer.status_code == 400
    assert "needs a reason" in answer.text
    answer = await ann.post(f"/items/{waiting.id}/delete", data={"reason": "old"})
    assert answer.status_code == 409
    assert "open item" in answer.text
    answer = await ann.post(url, data={"reason": "old"})
    assert said(answer) == (303, "/items?done=delete.1")
    answer = await ann.post(f"/items/{waiting.id}/delete", data={"reason": "old", "open": "1"})
    assert answer.status_code == 303
    assert await app.get([item.id, waiting.id]) == [None, None]
    assert (await ann.post(url, data={"reason": "old"})).status_code == 404


async def test_the_form_to_enqueue_is_made_of_the_signature(store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(store, report, pay)
    ann, url = visitor(app), "/types/report.make/enqueue"
    page = (await ann.get(url)).text
    assert "Make the report of a day." in page
    assert re.findall(r'name="(input\.\w+)"', page) == [
        "input.day",
        "input.pages",
        "input.tags",
        "input.draft",
    ]
    for given, problem in (
        ({"input.day": "2030-01-31"}, "missing parameter"),
        ({"input.day": "soon", "input.pages": "3"}, "parameter &#39;day&#39;"),
        ({"input.day": "", "input.pages": "3"}, "missing parameter"),
        ({"input.day": "2030-01-31", "input.pages": "three"}, "pages=&#39;three&#39; must be a number"),
        ({"input.day": "2030-01-31", "input.pages": "3", "input.tags": "a"}, "tags is no JSON"),
        ({"input.day": "2030-01-31", "input.pages": "3", "delay": "soon"}, "is no duration"),
    ):
        answer = await ann.post(url, data=given)
        assert answer.status_code == 400
        assert problem in answer.text
        assert f'value="{given["input.day"]}"' in answer.text
    assert not (await app.list()).items
    given = {"input.day": "2030-01-31", "input.pages": "3", "input.tags": '["a"]', "input.draft": "true"}
    answer = await ann.post(
        url, data={**given, "key": "r1", "tenant": "acme", "queue": "fast", "delay": "2h"}
    )
    (item,) = (await app.list()).items
    assert said(answer) == (303, f"/items/{item.id}?of=acme&done=enqueue.1")
    assert msgspec.json.decode(item.input) == {"day": "2030-01-31", "pages": 3, "tags": ["a"], "draft": True}
    assert (item.tenant, item.queue, item.key, item.status) == ("acme", "fast", "r1", "scheduled")
    answer = await ann.post(url, data={**given, "key": "r1", "tenant": "acme"})
    assert answer.status_code == 409
    # Secrets are typed blindly, and are not sent back.
    answer = await ann.post("/types/bank.pay/enqueue", data={"input.pin": "4711", "input.amount": ""})
    assert answer.status_code == 400
    assert 'type="password" name="input.pin" value=""' in answer.text
    assert ">str, secret</small>" in answer.text
    assert "4711" not in answer.text
    assert (await ann.get("/types/treadle.bulk/enqueue")).status_code == 404


async def test_two_tenants_with_the_same_id_are_not_mixed_up(store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(store, report)
    for tenant in ("a", "b"):
        await app.tenant(tenant).enqueue(report(DAY, 1), id="same")
    ann, of_a = visitor(app), visitor(app, tenants=["a"])
    assert (await ann.post("/items/same/cancel?of=b")).status_code == 303
    assert (await of_a.post("/items/same/cancel?of=b")).status_code == 404
    assert (await of_a.post("/items/same/cancel", data={"of": "b"})).status_code == 404
    assert (await ann.post("/items/same/cancel?tenant=a&of=b")).status_code == 404
    states = {each.tenant: each.status for each in (await app.list()).items}
    assert states == {"a": "ready", "b": "cancelled"}
    assert (await of_a.post("/items/same/cancel")).status_code == 303
    assert [each.actor for each in (await app.tenant("a").audits()).entries] == ["ann"]


async def test_a_part_of_a_bulk_action_is_changed_with_that_only(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(memory_store, report)
    await app.enqueue(report(DAY, 1), delay=3600)
    action, ann = await app.bulk.start("cancel", everything=True), visitor(app)
    for verb in ("requeue", "cancel", "delete"):
        for of in (f"?of={OPERATORS}", ""):
            answer = await ann.post(f"/items/{action.id}/{verb}{of}", data={"reason": "x"})
            assert (answer.status_code, "stop that, or start another one" in answer.text) == (409, True)
    chosen = f"{action.id} {OPERATORS}"
    for verb in ("requeue", "cancel", "delete"):
        answer = await ann.post(f"/act/{verb}", data={"id": chosen, "confirmed": "1", "reason": "x"})
        assert (answer.status_code, "stop that, or start another one" in answer.text) == (409, True), answer
    assert (await ann.get(f"/items?tenant={OPERATORS}")).status_code == 400


@pytest.mark.parametrize(
    "typed",
    [
        "//evil.example",
        "https://evil.example/",
        "/\\evil.example",
        "/a\r\nSet-Cookie: x=y",
        "/../x",
        "/%2e%2e/x",
    ],
)
async def test_no_form_leads_out_of_the_dashboard(
    memory_store: Any, make_app: Any, visitor: Any, typed: str
) -> None:
    app: Treadle = make_app(memory_store, report)
    ann = visitor(app)
    answer = await ann.post("/queues/mails/pause", data={"back": typed})
    assert said(answer) == (303, "/queues/mails?done=pause.1")
    assert said(await ann.post("/settings", data={"back": typed, "scheme": "dark"})) == (303, "/")


class Card(pydantic.BaseModel):
    owner: str
    pin: Annotated[str, Secret]

    @pydantic.model_validator(mode="after")
    def check_owner(self) -> Card:
        if self.owner == "nobody":
            raise ValueError(f"nobody knows {self.pin}")
        return self


@work(name="card.charge")
async def charge(card: Card, password: Literal["right"] = "right", bank: str = "") -> None: ...


async def test_refusals_do_not_tell_the_secrets_that_an_edit_keeps(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(memory_store, charge)
    old = await app.enqueue(charge(Card(owner="ann", pin="hush"), bank="ftp://me:hush@bank"))
    await app.cancel(old.id)
    ann = visitor(app)
    for headers in ({}, AS_JSON):
        for card in ({"owner": 7, "pin": "***"}, {"owner": "nobody", "pin": "***"}):
            typed = msgspec.json.encode({"card": card}).decode()
            answer = await ann.post(f"/items/{old.id}/edit", data={"input": typed}, headers=headers)
            assert answer.status_code == 400
            assert "Card" in answer.text
            assert "hush" not in answer.text
        typed = '{"card": {"owner": "bob", "pin": "***"}, "bank": "ftp://me:***@other"}'
        answer = await ann.post(f"/items/{old.id}/edit", data={"input": typed}, headers=headers)
        assert answer.status_code == 400
        assert "stands for no secret" in answer.text
        form = {"input.card": '{"owner": "ann", "pin": "1"}', "input.password": "hush"}
        answer = await ann.post("/types/card.charge/enqueue", data=form, headers=headers)
        assert answer.status_code == 400
        assert "hush" not in answer.text
    typed = '{"card": {"owner": "bob", "pin": "***"}, "bank": "ftp://me:***@bank"}'
    answer = await ann.post(f"/items/{old.id}/edit", data={"input": typed}, headers=AS_JSON)
    new = await state_of(app, answer.json()["id"])
    expected = {"card": {"owner": "bob", "pin": "hush"}, "bank": "ftp://me:hush@bank"}
    assert msgspec.json.decode(new.input) == expected


async def test_an_item_offers_what_can_be_done_with_it(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(memory_store, send)
    ann, verbs = visitor(app), ("requeue", "trigger", "cancel", "delete")
    await app.enqueue(send("x"), id="first", delay=3600)
    can: dict[str, list[str]] = {}
    for status in ("blocked", "scheduled", "ready", "running", "success", "dead", "cancelled"):
        ids = [f"{status}-{verb}" for verb in verbs]
        for id in ids:
            later = {"blocked": {"after": ["first"]}, "scheduled": {"delay": 60}}.get(status, {})
            await app.enqueue(send("x"), id=id, queue=status, **later)
        if status in ("running", "dead"):
            leases = [await app.claim_one(queues=[status]) for _ in ids]
            for lease in leases if status == "dead" else ():
                await lease.fail(Abort("no route"))
        for id in ids if status == "cancelled" else ():
            await app.cancel(id)
        for id in ids if status == "success" else ():
            await app.complete(id, "x")
        page = (await ann.get(f"/items/{ids[0]}")).text
        offered = [verb for verb in verbs if re.search(rf'(action|href)="/items/{ids[0]}/{verb}"', page)]
        can[status] = []
        for verb, id in zip(verbs, ids, strict=True):
            assert (await state_of(app, id)).status == status
            answer = await ann.post(f"/items/{id}/{verb}", data={"reason": "a test", "open": "1"})
            can[status] += [verb] if answer.status_code == 303 else []
        assert offered == can[status], status
        listed = (await ann.get("/items", params={"q": f"status:{status}"})).text
        offered = [verb for verb in re.findall(r'formaction="/act/(\w+)"', listed) if verb in verbs]
        assert offered == can[status], status
    assert can["blocked"] == ["cancel", "delete"]
    assert can["dead"] == ["requeue", "delete"]
