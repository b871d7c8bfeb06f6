"""Secrets: what is shown in place of them, by annotation and by name."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Generic, NamedTuple, NewType, TypeAlias, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from treadle import (
    Abort,
    Client,
    Context,
    Failure,
    Handle,
    InputError,
    Result,
    Secret,
    Treadle,
    WorkFailed,
    work,
)
from treadle.define.secret_values import ALONE, ENDINGS, SECRET_NAMES, SecretMask, holds_secret
from treadle.define.work_type import declared_types
from treadle.operate.item_json import Values
from treadle.operate.operator import core_of

T = TypeVar("T")
Maybe: TypeAlias = Annotated[str, Secret] | None


class Login(msgspec.Struct, rename="camel"):
    user_name: str
    pass_code: Annotated[str, Secret]


OwnLogin = NewType("OwnLogin", Login)


class Row(msgspec.Struct, array_like=True):
    name: str
    code: Annotated[str, Secret]


class Box(msgspec.Struct, Generic[T]):
    inside: T


@dataclasses.dataclass
class Pair(Generic[T]):
    left: T
    right: list[T]


class Point(NamedTuple):
    x: int
    y: Annotated[int, Secret()]


class Words(TypedDict, total=False):
    a: str
    b: Annotated[str, Secret]


class Model(pydantic.BaseModel):
    name: str
    code: Annotated[str, Secret] = pydantic.Field(alias="theCode")
    more: list[Annotated[str, Secret]] = []


MASK = SecretMask()


SHOWN: list[tuple[Any, Any, Any]] = [
    (Annotated[str, Secret], "x", "***"),
    (Maybe, None, None),
    (Annotated[bool, Secret], False, "***"),
    (OwnLogin, {"passCode": "x"}, {"passCode": "***"}),
    (Annotated[dict[str, int], Secret], {"a": 1}, "***"),
    (list[Annotated[str, Secret]], ["x", "y"], ["***", "***"]),
    (tuple[int, Annotated[str, Secret]], [1, "x"], [1, "***"]),
    (dict[str, Annotated[str, Secret]], {"a": "x"}, {"a": "***"}),
    (dict[Annotated[str, Secret], int], {"x": 1}, "***"),
    (int | Login, {"userName": "u", "passCode": "x"}, {"userName": "u", "passCode": "***"}),
    (list[Row], [["n", "x"]], [["n", "***"]]),
    (Box[Login], {"inside": {"passCode": "x"}}, {"inside": {"passCode": "***"}}),
    (
        Pair[Annotated[str, Secret]],
        {"left": "x", "right": ["y"]},
        {"left": "***", "right": ["***"]},
    ),
    (Pair[int], {"left": 1, "right": [2]}, {"left": 1, "right": [2]}),
    (Point, [1, 2], [1, "***"]),
    (Words, {"a": "x", "b": "y"}, {"a": "x", "b": "***"}),
    (
        Model,
        {"name": "n", "theCode": "x", "more": ["y"]},
        {"name": "n", "theCode": "***", "more": ["***"]},
    ),
    (int, {"a": 1}, {"a": 1}),
]


@pytest.mark.parametrize(("declared", "value", "expected"), SHOWN)
def test_what_is_annotated_is_masked(declared: Any, value: Any, expected: Any) -> None:
    assert MASK.masked(value, declared) == expected
    assert holds_secret(declared) is (value != expected or value is None)


SECRET = "password Password userPassword DB-PASSWORD apiKey APIKey X-Api-Key access_token token2 token_2"
MORE = "Authorization set-cookie privateKeyPem clientSecret credentials accesskey privatekey pass auth"
LESS_PLAIN = "mypassword tokens refreshTokens otp sessionId session_id signature authtoken"


@pytest.mark.parametrize("name", f"{SECRET} {MORE} {LESS_PLAIN}".split())
def test_names_tell_what_is_secret(name: str) -> None:
    masked = MASK.masked(
        {name: {"a": "x"}, "deep": [{name: "x"}], "other": {name: None}, "has": {name: True}}
    )
    assert masked == {name: "***", "deep": [{name: "***"}], "other": {name: None}, "has": {name: True}}


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "secretary", "tokenize", "passworded", "key", "keys", "first_pass", "auth_type", "", "_"],
)
def test_other_names_tell_nothing(name: str) -> None:
    assert MASK.masked({name: "x"}) == {name: "x"}


def test_passwords_in_urls_are_masked() -> None:
    shown = {"at": ["postgres://u:***@h/db", "see https://h:80/a@b?c=d:e@f"], "n": "a:b@c"}
    given = {"at": ["postgres://u:p:w@1@h/db", *shown["at"][1:]], "n": "a:b@c"}
    assert MASK.masked(given) == shown


def test_more_names_are_given_by_mask() -> None:
    mask = SecretMask(["iban", "Geheime Zahl"])
    assert mask.masked({"iban": "x", "geheimeZahl": 1, "token": "y", "a": 2}) == {
        "iban": "***",
        "geheimeZahl": "***",
        "token": "***",
        "a": 2,
    }
    with pytest.raises(InputError, match="mask='iban' must be a list of names"):
        Treadle(mask="iban")
    with pytest.raises(InputError, match="is no name"):
        Treadle(mask=["--"])


def test_a_value_that_is_nested_too_deeply_is_masked_as_a_whole() -> None:
    value: Any = "x"
    for _ in range(100_000):
        value = [value]
    assert MASK.masked(value) == "***"


@work
async def sign_in(
    login: Login, pin: Annotated[int, Secret], /, *codes: Annotated[str, Secret]
) -> Annotated[str, Secret]:
    return f"{login.pass_code}{pin}{''.join(codes)}"


@work
async def nest(*, model: Model, **more: Login) -> Model:
    return model


async def test_handlers_get_secrets_and_items_are_shown_without_them() -> None:
    async with Treadle(work=[sign_in, nest], mask=["iban"]) as app:
        handle = await app.enqueue(
            sign_in(Login("u", "code"), 42, "a", "b"), headers={"auth-token": "t", "n": "1"}
        )
        assert await handle.result() == "code42ab"
        model = Model(name="n", theCode="x", more=["y"])
        other = await app.enqueue(nest(model=model, second=Login("v", "w")))
        assert await other.result() == model
        (first, second) = await app.get([handle, other])
        assert first is not None
        assert second is not None
        registry = core_of(app).registry
        shown = Values(registry).item(first)
        assert shown["input"] == {
            "login": {"userName": "u", "passCode": "***"},
            "pin": "***",
            "codes": ["***", "***"],
        }
        assert (shown["result"], shown["headers"]) == ("***", {"auth-token": "***", "n": "1"})
        revealed = Values(registry).item(first, reveal=True)
        assert (revealed["input"]["pin"], revealed["result"]) == (42, "code42ab")
        shown = Values(registry).item(second)
        assert shown["input"] == {
            "model": {"name": "n", "theCode": "***", "more": ["***"]},
            "more": {"second": {"userName": "v", "passCode": "***"}},
        }
        assert shown["result"] == {"name": "n", "theCode": "***", "more": ["***"]}


async def test_what_cannot_be_read_shows_no_secrets_either() -> None:
    app = Treadle(work=[sign_in, nest])
    handle = await app.enqueue(sign_in(Login("u", "code"), 42))
    (state,) = await app.get(handle)
    assert state is not None
    state.input = b'{"login": 3, "pin": "1234", "password": "x"}'
    shown = app.values.item(state)
    assert shown["input"] == {"login": "***", "pin": "***", "password": "***"}
    assert "1234" not in shown["unreadable"]
    state.input = b"\xff1234"
    assert app.values.item(state)["input"] == "***"
    await app.close()


async def test_an_argument_that_has_another_name_today_may_be_a_secret() -> None:
    @work
    async def call(number: int, pin: Annotated[str, Secret]) -> None: ...

    @work
    async def plain(number: int) -> None: ...

    async with Treadle(work=[call, plain]) as app:
        await app.enqueue(call(1, "1234"), id="a", delay=60)
        (state,) = await app.get("a")
        assert state is not None
        state.input = b'{"number": 1, "code": "1234"}'
        assert app.values.item(state)["input"] == {"number": 1, "code": "***"}
        state.type = plain.name
        assert app.values.item(state)["input"] == {"number": 1, "code": "1234"}


async def test_without_the_code_of_a_type_all_of_it_is_masked() -> None:
    async with Treadle(work=[sign_in]) as app:
        handle = await app.enqueue(sign_in(Login("u", "code"), 42))
        await handle.result()
        (stored,) = await app.backend.get([handle.id])
        group = await app.group(handle.group_id)
        assert stored is not None
        assert group is not None
        async with Client(app.backend) as bare:
            (decoded,) = await bare.get(handle)
            assert decoded is not None
            registry = core_of(bare).registry
            for state in (stored, decoded):
                shown = Values(registry).item(state)
                assert (shown["input"], shown["result"]) == ("***", "***")
                assert f"the code of {sign_in.name!r} is not here" in shown["unreadable"]
                revealed = Values(registry).item(state, reveal=True)
                assert revealed["input"]["pin"] == 42
                assert "unreadable" not in revealed
            assert Values(registry).group(group)["value"] == "***"
            bare.register(sign_in)  # the way to see what is no secret
            assert Values(registry).item(stored)["input"]["login"] == {"userName": "u", "passCode": "***"}
            stored.type, stored.input = "gone", b"\xff"
            assert Values(registry).item(stored)["input"] == "***"
            assert Values(registry).item(stored, reveal=True)["input"] == {"$base64": "/w=="}


@work
async def collect(ctx: Context, number: int) -> Result[None, list[dict[str, Annotated[str, Secret]]]]:
    def add(old: Any) -> Any:
        return [*(old or []), {f"key {number}": "abcd"}]

    return ctx.result(None, append=add)


@work
async def hand_over(ctx: Context) -> Result[None, Any]:
    return ctx.queue(sign_in(Login("u", "code"), 42))


async def test_the_value_of_a_group_is_masked_as_the_member_that_gave_it_declares_it() -> None:
    async with Treadle(work=[collect, hand_over, sign_in]) as app, Client(app.backend) as bare:
        bare.register(hand_over)
        for made, value, shown in (
            (collect(1), [{"key 1": "abcd"}], [{"key 1": "***"}]),
            (hand_over(), "code42", "***"),
        ):
            handle: Handle[Any, Any] = await app.enqueue(made)
            assert await handle.group() == value
            (group,) = await app.backend.group([handle.id])
            assert group is not None
            assert app.values.group(group)["value"] == shown
            assert app.values.group(group, reveal=True)["value"] == value
            assert bare.values.group(group)["value"] == "***"


def test_a_declaration_and_its_handler_may_both_mark_secrets() -> None:
    def declared(a: list[str], b: Annotated[str, Secret]) -> None: ...

    later = work.declare("later", declared)

    @later.handler
    async def run(a: list[Annotated[str, Secret]], b: str) -> None: ...

    assert MASK.masked({"a": ["x"], "b": "y"}, *declared_types(later)) == {"a": ["***"], "b": "***"}


@work
async def notify(failures: list[dict[str, Any]]) -> None: ...


@work
async def undo(ctx: Context, failure: Failure) -> Result[Failure, Failure | None]:
    return ctx.result(failure).next(notify([msgspec.to_builtins(failure)]))


@work
async def undo_plainly(failure: Any) -> None:
    raise Abort("it cannot be undone")


@work(on_dead=undo)
async def charge(order: int, card: Annotated[str, Secret]) -> None:
    raise Abort("no money")


async def test_the_input_in_a_failure_is_masked_as_its_own_type_declares_it() -> None:
    async with Treadle(work=[notify, undo, undo_plainly, charge], log_failures=False) as app:
        for work_ in (charge(1, "4711"), charge(2, "4711")):
            on_dead = undo if work_.input["order"] == 1 else undo_plainly
            with pytest.raises(WorkFailed):
                await app.enqueue(work_, on_dead=on_dead).group()
        registry, shown = core_of(app).registry, {"order": 1, "card": "***"}
        (item,) = (await app.list(type=undo.name)).items
        assert Values(registry).item(item)["input"]["failure"]["input"] == shown
        assert Values(registry).item(item)["result"]["input"] == shown
        assert Values(registry).item(item, reveal=True)["input"]["failure"]["input"]["card"] == "4711"
        (item,) = (await app.list(type=notify.name)).items
        assert Values(registry).item(item)["input"]["failures"][0]["input"] == shown
        (item,) = (await app.list(type=undo_plainly.name)).items
        assert Values(registry).item(item)["input"]["failure"]["input"] == {"order": 2, "card": "***"}
        async with Client(app.backend, work=[undo_plainly]) as bare:  # it has no code for the item that died
            shown = bare.values.item(item)["input"]["failure"]
            assert (shown["type"], shown["input"]) == (charge.name, "***")


async def test_the_failure_of_a_compensation_holds_another_one() -> None:
    async with Treadle(work=[undo, undo_plainly, charge, notify], log_failures=False) as app:
        handle = await app.enqueue(undo_plainly({"id": "a"}), id="a", on_dead=undo)
        failure = Failure("b", charge.name, {"order": 1, "card": "4711"}, "", "aborted")
        other = await app.enqueue(undo_plainly(msgspec.to_builtins(failure)), on_dead=undo)
        for each in (handle, other):
            with pytest.raises(WorkFailed):
                await each.group()
        (item, _) = (await app.list(type=undo.name)).items
        inner = app.values.item(item)["input"]["failure"]["input"]["failure"]
        assert inner["input"] == {"order": 1, "card": "***"}


def test_texts_without_a_secret_name_are_told_by_a_word_of_each() -> None:
    """A text is looked through only if it has one of these words: no name may be without one."""
    own = ("iban", "κωδικός", "Straße nr", "x-no-2")
    mask = SecretMask(own)
    for name in (*SECRET_NAMES, *ALONE, *(f"my{end}" for end in ENDINGS), "iban", "X-No-2"):
        for shown in (name, name.upper(), name.replace("_", "-")):
            assert mask.masked_text(f"at 5: {shown}=hunter2, ok") == f"at 5: {shown}=***, ok", shown
    assert mask.masked_text("order 5: paid=12") == "order 5: paid=12"
