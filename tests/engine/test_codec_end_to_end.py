"""Arguments and results are encoded, stored and decoded (SPEC §14)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from tests.engine.kit import PATIENCE, MakeApp, failure
from treadle import Context, EncodeError, InputError, PayloadTooLarge, Result, Retry, Secret, work


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    sku: str
    price: Decimal
    due: date


@dataclass
class Order:
    id: UUID
    at: datetime
    colour: Colour
    lines: list[Line] = field(default_factory=list)


class Address(TypedDict):
    street: str
    since: date


class Person(msgspec.Struct):
    name: str
    address: Address


class Customer(pydantic.BaseModel):
    name: str
    joined: datetime
    limits: dict[str, Decimal]


ORDER = Order(
    UUID(int=7),
    datetime(2024, 2, 29, 12, 30, 15, 250, tzinfo=UTC),
    Colour.BLUE,
    [Line("a-1", Decimal("9.90"), date(2024, 3, 1))],
)
PERSON = Person("Ada", {"street": "Main", "since": date(1999, 1, 1)})
CUSTOMER = Customer(name="Bob", joined=datetime(2020, 1, 1, tzinfo=UTC), limits={"day": Decimal("1.5")})


@work
async def order_back(order: Order) -> Order:
    assert isinstance(order, Order)
    assert isinstance(order.lines[0].price, Decimal)
    return order


@work
async def person_back(person: Person) -> Person:
    assert isinstance(person.address["since"], date)
    return person


@work
async def customer_back(customer: Customer) -> Customer:
    assert isinstance(customer, Customer)
    return customer


@work
async def colour_back(colour: Colour, address: Address) -> tuple[Colour, Address]:
    assert isinstance(colour, Colour)
    return (colour, address)


@work
async def anything_back(value: Any) -> Any:
    return value


async def test_declared_types_come_back_as_declared(make_app: MakeApp) -> None:
    """§14: Dataclass, msgspec, pydantic, Enum and TypedDict, as arguments, results and group values."""
    address: Address = {"street": "Main", "since": date(2001, 2, 3)}
    works = [
        (order_back(ORDER), ORDER),
        (person_back(PERSON), PERSON),
        (customer_back(CUSTOMER), CUSTOMER),
        (colour_back(Colour.RED, address), (Colour.RED, address)),
    ]
    async with make_app(order_back, person_back, customer_back, colour_back) as app:
        for call, expected in works:
            handle = await app.enqueue(call)
            for found in (
                await handle.result(PATIENCE),
                await handle.group(PATIENCE),
                # From the store, not from this process.
                await app.handle(handle.id).result(PATIENCE),
                await app.handle(handle.id).group(PATIENCE),
                (await handle.state()).result,
            ):
                assert found == expected
                assert type(found) is type(expected)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -1,
        2**70,
        1.5,
        float("inf"),
        "text \x00 \N{GRINNING FACE}",
        b"\x00\xff",
        [1, [2, {"three": None}]],
        (1, (2, 3)),
        {1, 2, 3},
        frozenset({"a"}),
        {1: "one", (2, 3): "pair"},
        {"$treadle": "datetime", "value": "2024"},
        {"$treadle": {"$treadle": 1}},
        datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        date(2024, 1, 2),
        timedelta(days=1, microseconds=3),
        Decimal("1.10"),
        UUID(int=3),
        complex(1, 2),
    ],
    ids=repr,
)
async def test_untyped_values_round_trip(make_app: MakeApp, value: Any) -> None:
    """T52, §14: The tagged types, and user data that looks like a tag."""
    async with make_app(anything_back) as app:
        handle = await app.enqueue(anything_back(value))
        for found in (await handle.result(PATIENCE), await app.handle(handle.id).result(PATIENCE)):
            assert found == value
            assert type(found) is type(value)


async def test_a_group_value_has_the_type_that_its_child_declares(make_app: MakeApp) -> None:
    """§2, §14: Also in another process. An app without the type gets plain values."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, Order]:
        return ctx.queue(order_back(ORDER))

    async with make_app(root, order_back) as app:
        handle = await app.enqueue(root())
        assert await handle.group(PATIENCE) == ORDER
        assert await app.handle(handle.id).group(PATIENCE) == ORDER
        group = await app.group(handle.id)
        assert group is not None
        assert group.value == ORDER
        # An app that does not have the type gets plain values.
        plain = await make_app().handle(handle.id).group(PATIENCE)
        assert plain["lines"][0]["sku"] == "a-1"


async def test_wrong_arguments_are_refused_when_the_work_is_made() -> None:
    """§1: The InputError names the parameter."""
    with pytest.raises(InputError, match="colour"):
        colour_back("green", {"street": "", "since": date(2001, 1, 1)})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="order"):
        order_back({"id": 1})  # type: ignore[arg-type]


async def test_arguments_that_cannot_be_encoded_are_refused_at_enqueue(make_app: MakeApp) -> None:
    """§14: The EncodeError names the path, and nothing is stored."""
    app = make_app(anything_back)
    refused = anything_back({"a": [1, object()]})
    with pytest.raises(EncodeError) as caught:
        await app.enqueue(refused)
    assert "a" in caught.value.path
    assert "[1]" in caught.value.path
    assert await app.get([refused.id]) == [None]
    # enqueue_many is one step: one bad work stops all of them.
    good = anything_back(1)
    with pytest.raises(EncodeError):
        await app.enqueue_many([good, anything_back(object())])
    assert await app.get([good.id]) == [None]


async def test_a_result_that_cannot_be_encoded_is_dead_at_once(make_app: MakeApp) -> None:
    """§17: The reason is `bad_result`, the error names the path, and there is no retry."""
    calls: list[int] = []

    @work(name="odd", retry=Retry(attempts=5, base=0))
    async def odd() -> Any:
        calls.append(1)
        return {"deep": [object()]}

    async with make_app(odd) as app:
        error = await failure(app.enqueue(odd()).result(PATIENCE))
        assert (error.reason, error.error_type) == ("bad_result", "BadResultError")
        start, _, place = error.error.partition("; the handler is in ")
        assert start.startswith("the result of odd cannot be stored: at deep[0]: ")
        assert re.fullmatch(r"test_codec_end_to_end\.py, line \d+", place)
    assert len(calls) == 1


async def test_a_result_of_the_wrong_type_is_dead(make_app: MakeApp) -> None:
    """§14: Declared types are checked for results too."""

    @work(name="lies")
    async def lies() -> Order:
        return {"id": 1}  # type: ignore[return-value]

    async with make_app(lies) as app:
        error = await failure(app.enqueue(lies()).result(PATIENCE))
        assert error.reason == "bad_result"


HIDDEN = "what is wrong is not shown, because it may be secret"


class Card(msgspec.Struct):
    number: Annotated[str, Secret]


@pytest.mark.parametrize(
    ("annotation", "value", "problem"),
    [
        (int, "text", "does not fit its annotation `int`: got `str` ('text')"),
        (str, 5, "does not fit its annotation `str`: got `int` (5)"),
        (int | None, [1], "does not fit its annotation `int | None`: got `list`"),
        (Order, {"id": "x"}, "does not fit its annotation `Order`: at id: Expected `uuid`, got `str`"),
        (list[int], [1, "x"], "does not fit its annotation `list[int]`: at [1]: Expected `int`, got `str`"),
        (None, 5, "does not fit its annotation `None`: got `int` (5)"),
        (Annotated[int, Secret], "47110815", f"does not fit its annotation `int`: {HIDDEN}"),
        (Card, "47110815", f"does not fit its annotation `Card`: {HIDDEN}"),
        (Card, Card(47110815), f"does not fit its annotation `Card`: {HIDDEN}"),  # type: ignore[arg-type]
    ],
)
async def test_a_result_of_the_wrong_type_says_what_is_wrong(
    make_app: MakeApp, annotation: Any, value: Any, problem: str
) -> None:
    async def lie():  # type: ignore[no-untyped-def]
        return value

    lie.__annotations__["return"] = annotation
    lies = work(name="lies")(lie)
    async with make_app(lies) as app:
        handle = await app.enqueue(lies())
        error = await failure(handle.result(PATIENCE))
        state = await handle.state()
    line = lie.__code__.co_firstlineno
    assert error.error == (
        f"the result of lies {problem}; the handler is in test_codec_end_to_end.py, line {line}"
    )
    assert (error.reason, error.attempts) == ("bad_result", 1)
    assert "47110815" not in f"{state.error} {state.history} {state.result!r}"
    assert "$" not in repr(state)


async def test_a_parent_whose_childs_arguments_cannot_be_encoded_is_dead(make_app: MakeApp) -> None:
    """§14, §17: No child is stored."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, Any]:
        return ctx.queue(good, anything_back(object()))

    good = anything_back(1)
    async with make_app(root, anything_back) as app:
        error = await failure(app.enqueue(root()).result(PATIENCE))
        assert error.error_type == "EncodeError"
        assert await app.get([good.id]) == [None]


async def test_a_group_value_that_cannot_be_encoded_makes_the_item_dead(make_app: MakeApp) -> None:
    """§2, §14."""

    @work(name="fold")
    async def fold(ctx: Context) -> Result[int, Any]:
        return ctx.result(1, append=lambda _: object())

    async with make_app(fold) as app:
        error = await failure(app.enqueue(fold()).result(PATIENCE))
        assert (error.reason, error.error_type) == ("bad_result", "EncodeError")


async def test_payloads_over_max_payload_are_refused(make_app: MakeApp) -> None:
    """§14: PayloadTooLarge at enqueue. A handler whose result is too large is dead."""

    @work(name="grow")
    async def grow(n: int) -> str:
        return "x" * n

    @work(name="root")
    async def root(ctx: Context) -> Result[None, Any]:
        return ctx.queue(anything_back("x" * 2000))

    async with make_app(anything_back, grow, root, max_payload=1000) as app:
        with pytest.raises(PayloadTooLarge) as caught:
            await app.enqueue(anything_back("x" * 1000))
        assert caught.value.limit == 1000
        assert caught.value.size > 1000
        assert await app.enqueue(grow(900)).result(PATIENCE) == "x" * 900
        for large in (grow(2000), root()):
            error = await failure(app.enqueue(large).result(PATIENCE))
            assert (error.reason, error.error_type) == ("bad_result", "PayloadTooLarge")


async def test_the_default_payload_limit_is_1_mib(make_app: MakeApp) -> None:
    """§14."""
    app = make_app(anything_back)
    await app.enqueue(anything_back("x" * (1024 * 1024 - 100)))
    with pytest.raises(PayloadTooLarge, match="max_payload"):
        await app.enqueue(anything_back("x" * (1024 * 1024)))


class Upper:
    """A codec of the user: JSON with a prefix that tests can see."""

    def __init__(self, mark: bytes) -> None:
        self.mark = mark

    def encode(self, value: Any) -> bytes:
        return self.mark + json.dumps(value).encode()

    def decode(self, data: bytes) -> Any:
        assert data.startswith(self.mark)
        return json.loads(data.removeprefix(self.mark))


async def test_apps_and_types_can_have_their_own_codec(make_app: MakeApp) -> None:
    """§14, §17: Group values use the app's codec."""

    @work(name="typed", codec=Upper(b"T:"))
    async def typed(value: Any) -> Any:
        return value

    @work(name="fold")
    async def fold(ctx: Context, n: int) -> Result[int]:
        return ctx.result(n, append=lambda old: (old or 0) + n)

    async with make_app(typed, anything_back, fold, codec=Upper(b"A:")) as app:
        for call, mark in ((typed({"a": [1]}), b"T:"), (anything_back({"a": [1]}), b"A:")):
            handle = await app.enqueue(call)
            assert await handle.result(PATIENCE) == {"a": [1]}
            (raw,) = await app.backend.get([handle.id])
            assert raw is not None
            assert raw.input.startswith(mark)
            assert isinstance(raw.result, bytes)
            assert raw.result.startswith(mark)
        assert await app.enqueue(fold(3)).group(PATIENCE) == 3
