"""What callers of the API see."""

import asyncio

import httpx
import pytest
from treadle import Treadle
from treadle.testing import enqueued

from shop.pretend_bank import Payment

LAMP = {"sku": "lamp", "count": 2, "address": "Rue 1"}
KEY = {"Idempotency-Key": "first"}


async def test_an_order_is_charged_reserved_and_shipped(
    caller: httpx.AsyncClient, payments: dict[str, Payment]
) -> None:
    answer = await caller.post("/orders", json=LAMP, headers=KEY)
    assert answer.status_code == 202
    id, links = answer.json()["id"], answer.json()["links"]
    assert answer.headers["Location"] == links["state"] == f"/work/{id}"
    state = (await caller.get(links["wait"])).json()
    assert state["ended"]
    assert state["group"]["value"] == f"parcel {id[:8]} to Rue 1"
    order = (await caller.get(f"/orders/{id}")).json()
    assert (order["status"], order["cents"]) == ("shipped", 5000)
    assert payments[id].cents == 5000


async def test_a_key_is_one_order(caller: httpx.AsyncClient, payments: dict[str, Payment]) -> None:
    answers = await asyncio.gather(*(caller.post("/orders", json=LAMP, headers=KEY) for _ in range(5)))
    assert sorted(answer.json()["existing"] for answer in answers) == [False, True, True, True, True]
    (id,) = {answer.json()["id"] for answer in answers}
    await caller.get(f"/work/{id}?wait=10")
    assert list(payments) == [id]

    other = await caller.post("/orders", json={**LAMP, "count": 3}, headers=KEY)
    assert other.status_code == 422
    assert other.json()["detail"] == "this Idempotency-Key belongs to another order"


async def test_customers_do_not_meet(caller: httpx.AsyncClient) -> None:
    bob = {"X-Customer": "bob"}
    mine = (await caller.post("/orders", json=LAMP, headers=KEY)).json()
    theirs = (await caller.post("/orders", json=LAMP, headers={**KEY, **bob})).json()
    assert theirs["id"] != mine["id"]
    assert not theirs["existing"]
    for path in (mine["links"]["state"], f"/orders/{mine['id']}"):
        assert (await caller.get(path, headers=bob)).status_code == 404


async def test_what_is_refused(caller: httpx.AsyncClient, treadle_app: Treadle) -> None:
    answer = await caller.post("/orders", json={**LAMP, "sku": "moon"}, headers=KEY)
    assert answer.status_code == 404
    for headers in ({}, {"Idempotency-Key": ""}, {"Idempotency-Key": "k" * 256}):
        assert (await caller.post("/orders", json=LAMP, headers=headers)).status_code == 422
    assert await enqueued(treadle_app) == []


async def test_the_dashboard_is_for_staff(caller: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "sesame")
    assert (await caller.get("/treadle/")).status_code == 401
    assert (await caller.get("/treadle/", auth=("staff", "open"))).status_code == 401
    assert (await caller.get("/treadle/", auth=("staff", "sesame"))).status_code == 200
