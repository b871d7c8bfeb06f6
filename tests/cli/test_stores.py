"""Commands over several stores: `treadle stores`, `doctor`, and what is left out if one does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.cli import looked_at
from tests.cli.calling import Called, call
from tests.cli.conftest import APP
from tests.cli.looked_at import order, send
from treadle import MemoryBackend, Treadle
from treadle.backends.many import ManyStores
from treadle.backends.sqlite import SqliteBackend
from treadle.errors import StoreUnavailable
from treadle.testing import WrappedBackend

T = TypeVar("T")


class Link(WrappedBackend):
    is_down = False

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if self.is_down and verb != "close":
            raise StoreUnavailable("connection refused")
        return await call()


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> dict[str, Link]:
    links = {name: Link(MemoryBackend()) for name in ("eu", "us")}
    monkeypatch.setattr(looked_at, "app", Treadle(ManyStores(links), work=looked_at.TYPES))
    return links


def run(*arguments: str) -> Called:
    return call(*arguments, "--app", APP)


def test_stores_are_listed_and_tenants_placed(links: dict[str, Link]) -> None:
    assert run("stores", "place", "acme", "us").out == "acme is in us\n"
    refused = run("stores", "place", "acme", "eu")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == "treadle: acme is in us already: treadle move --to eu --tenant acme\n"
    states = run("stores", "--json").objects
    assert [(state["name"], state["home"], state["answers"]) for state in states] == [
        ("eu", True, True),
        ("us", False, True),
    ]
    links["us"].is_down = True
    answer = run("stores")
    assert answer.code == 3
    assert "us does not answer: " in answer.out
    assert "connection refused" in answer.out


@pytest.mark.parametrize("arguments", [("status",), ("stores",), ("stores", "place", "acme", "us")])
def test_commands_make_none_of_several_stores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """`treadle migrate` does."""
    urls = {name: f"sqlite:///{tmp_path}/{name}.db" for name in ("eu", "us")}

    def renew() -> None:
        monkeypatch.setattr(looked_at, "app", Treadle(urls, work=looked_at.TYPES))

    renew()
    refused = run(*arguments)
    assert refused.code == 1
    assert "treadle migrate" in refused.err
    assert list(tmp_path.iterdir()) == []
    renew()
    assert call("migrate", "--app", APP).code == 0
    renew()
    assert run(*arguments).code == 0


def test_a_move_is_resumed_or_given_up(links: dict[str, Link]) -> None:
    answer = run("move", "--tenant", "acme", "--to", "us", "--resume", "--give-up")
    assert answer.code == 2
    assert "give one of them" in answer.err


def test_an_empty_store_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then every command says what to do."""
    stores = {"eu": MemoryBackend(), "us": MemoryBackend()}

    def renew() -> None:
        monkeypatch.setattr(looked_at, "app", Treadle(ManyStores(stores), work=looked_at.TYPES))

    renew()
    assert run("stores", "place", "acme", "us").code == 0
    stores["us"] = MemoryBackend()
    renew()
    refused = run("status")
    assert (refused.code, refused.out) == (1, "")
    assert "If they are lost: treadle stores accept us" in refused.err
    renew()
    assert run("stores", "accept", "us").out == "us begins anew: what was in it is lost\n"
    assert run("stores", "accept", "us").code == 2
    assert run("status").code == 0


def test_a_doctor_looks_at_each_store(links: dict[str, Link]) -> None:
    run("stores", "place", "acme", "us")
    found = run("doctor", "--json").objects
    assert not [each for each in found if each["outcome"] == "problem"]
    links["us"].is_down = True
    answer = run("doctor", "--json")
    (away,) = [each for each in answer.objects if each["check"] == "store"]
    assert away["outcome"] == "problem"
    assert away["text"].startswith("us: it does not answer: ")
    assert "connection refused" in away["text"]
    assert answer.code in (3, 4)


def test_what_does_not_answer_is_named(links: dict[str, Link]) -> None:
    async def fill(app: Treadle) -> None:
        await app.place("acme", "eu")
        await app.tenant("acme").enqueue(send(1))

    asyncio.run(fill(looked_at.app))
    links["us"].is_down = True
    answer = run("list", "--json")
    assert answer.code == 3
    assert [each["store"] for each in answer.objects] == ["eu"]
    assert "left out what did not answer: us" in answer.err


def test_what_a_store_may_have_that_does_not_answer_is_not_said_to_be_nowhere(links: dict[str, Link]) -> None:
    run("stores", "place", "acme", "us")
    links["us"].is_down = True
    for command in ("show", "why", "group", "workflow", "dead show", "show --stream"):
        answer = run(*command.split(), "66093bdfb0978d92108a140f876456a4")
        assert answer.code == 3, command
        said = answer.out + answer.err
        assert "in the stores that answer" in said, command
        assert "us" in said, command
        assert "never" not in said, command
    answer = run("cancel", "--tenant", "acme", "--yes", "66093bdfb0978d92108a140f876456a4")
    assert answer.code == 3
    assert answer.err.startswith("treadle: the store us is unavailable: ")


def test_lists_of_one_store(links: dict[str, Link]) -> None:
    """A column says in which store each is, and a filter leaves the others out."""

    async def fill(app: Treadle) -> None:
        async with app:
            for store in links:
                await app.place(store, store)
                await (await app.tenant(store).enqueue(send(3))).wait(5)
                await (await app.tenant(store).enqueue(order([1]))).group(5)

    asyncio.run(fill(looked_at.app))
    assert [each["store"] for each in run("list", "--store", "us", "--status", "dead", "--json").objects] == [
        "us"
    ]
    assert [each["store"] for each in run("groups", "--store", "us", "--json").objects] == ["us"]
    assert "STORE" in run("groups").out
    assert [each["stores"] for each in run("dead", "--json").objects] == [["eu", "us"]]
    assert "eu, us" in run("dead").out
    assert [each["count"] for each in run("dead", "--store", "us", "--json").objects] == [1]
    assert [each["count"] for each in run("dead", "--by", "reason", "--store", "us", "--json").objects] == [1]
    (status,) = run("status", "--store", "us", "--json").objects
    assert status["statuses"]["dead"]["count"] == 1
    assert run("dead", "requeue", "--store", "us", "--yes").out == "requeued 1 item\n"
    assert run("status", "--store", "asia").code == 2
    links["us"].is_down = True
    assert run("dead", "--store", "us").code == 3
    assert "left out what did not answer: us" in run("dead", "--by", "reason", "--store", "us").err


def test_a_tenant_moves(monkeypatch: pytest.MonkeyPatch, quick_directory: Path, tmp_path: Path) -> None:
    """From file to file and back, with who and why in the audit."""
    stores = {name: SqliteBackend(quick_directory / f"{tmp_path.name}-{name}.db") for name in ("eu", "us")}
    app = Treadle(ManyStores(stores), work=looked_at.TYPES)
    monkeypatch.setattr(looked_at, "app", app)
    assert call("migrate", "--app", APP).code == 0
    run("stores", "place", "acme", "eu")
    assert run("list", "--tenant", "acme").code == 0

    async def fill() -> None:
        await app.tenant("acme").enqueue(send(1))
        await app.close()

    asyncio.run(fill())
    answer = run("move", "--tenant", "acme", "--from", "eu", "--to", "us", "--because", "room")
    assert answer.out.startswith("acme is in us now: 1 item, 0 of them running; writes waited ")
    assert run("stores", "place", "acme").out == "acme is in us\n"
    (entry,) = run("audit", "--json", "--tenant", "acme").objects
    assert (entry["verb"], entry["about"], entry["reason"], entry["count"]) == ("move", "eu to us", "room", 1)
    assert run("move", "--tenant", "acme", "--to", "us").out == "acme is in us\n"
    assert run("move", "--tenant", "acme", "--give-up").out == "there was no move to give up\n"
    (moved,) = run("move", "--tenant", "acme", "--to", "eu", "--json").objects
    assert (moved["source"], moved["to"], moved["items"]) == ("us", "eu", 1)
    assert run("move", "--tenant", "acme", "--from", "us", "--to", "eu").code == 0
    assert run("move", "--to", "us").code == 2
    assert run("move", "--tenant", "acme", "--to", "mars").code == 2
