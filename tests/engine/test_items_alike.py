"""Works that are submitted together become the same items as one by one, and are called alike only if they
differ in nothing but their ids and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from treadle import Client, Retry, Work, dependency, work
from treadle.define.work_type import AnyWorkType
from treadle.errors import DuplicateWorkError, PayloadTooLarge
from treadle.item import Item
from treadle.operate.operator import core_of


@work(name="plain")
async def plain(n: int) -> int:
    return n


@work(name="other", queue="slow", priority=3, retry=Retry(attempts=7), keep=60)
async def other(n: int) -> int:
    return n


@work(name="unique", unique=True)
async def unique(n: int) -> int:
    return n


@work(name="computed", options=lambda given: {"priority": given["n"]})
async def computed(n: int) -> int:
    return n


@work(name="skipping", skip_queue=True)
async def skipping(n: int) -> int:
    return n


@work(name="compensated", on_dead=plain(1))
async def compensated(n: int) -> int:
    return n


TYPES = (plain, other, unique, computed, skipping, compensated)


def of(type: AnyWorkType, count: int = 3) -> list[Work[Any, Any]]:
    return [type(n) for n in range(count)]


def alike(items: Sequence[Item]) -> bool:
    return (
        len({msgspec.structs.astuple(msgspec.structs.replace(one, id="", input=b"")) for one in items}) == 1
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"queue": "fast"}, {"priority": 5, "delay": 3.0}, {"unique": True}, {"headers": {"a": "b"}}],
)
@pytest.mark.parametrize(
    "works",
    [
        *(pytest.param(of(type), id=type.name) for type in TYPES),
        pytest.param([*of(plain), *of(other)], id="two types"),
        pytest.param([plain(1), dependency(on="x", queue=[plain(2)])], id="a dependency last"),
        pytest.param(
            [dependency(on="x", queue=[plain(2)]), dependency(on="y", queue=[plain(2)])], id="dependencies"
        ),
        pytest.param(of(plain, 1), id="one"),
    ],
)
def test_items_are_those_that_are_built_one_by_one(
    works: list[Work[Any, Any]], options: dict[str, Any]
) -> None:
    if "unique" in options and any(one.type.startswith("treadle") for one in works):
        options = {}  # a dependency is never unique
    builder = core_of(Client("memory://", work=TYPES)).item_builder
    expected = tuple([builder.item(one, options, tenant="t") for one in works])
    for _ in range(2):
        items, are_alike = builder.items(works, options, tenant="t")
        assert items == expected
        assert not are_alike or alike(items)


@pytest.mark.parametrize("type", [plain, other, compensated])
def test_items_of_one_type_are_alike(type: AnyWorkType) -> None:
    builder = core_of(Client("memory://", work=TYPES)).item_builder
    assert builder.items(of(type), {}, tenant="t")[1]
    assert builder.items(of(type), {"queue": "fast"}, tenant="t")[1]


async def test_an_input_that_is_too_large_is_refused_among_others() -> None:
    @work(name="text")
    async def text(text: str) -> None: ...

    async with Client("memory://", work=[text], max_payload=100) as client:
        with pytest.raises(PayloadTooLarge, match="'text'"):
            await client.enqueue_many([text("a"), text("b" * 200)])
        assert await client.counts() == []


async def test_a_type_with_the_name_of_another_is_refused_among_others() -> None:
    @work(name="plain")
    async def same(n: int) -> int:
        return n

    async with Client("memory://", work=[plain]) as client:
        with pytest.raises(DuplicateWorkError):
            await client.enqueue_many([plain(1), same(2)])
