"""Masking: no shape of a URL or DSN shows its password."""

from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from treadle.logs.masking import MASK, Address, masked

SECRET = "hunter2"

SHOWN = {
    f"postgresql://ann:{SECRET}@db.example/shop": "postgresql://ann:***@db.example/shop",
    f"postgresql://:{SECRET}@db/shop": "postgresql://:***@db/shop",
    f"postgres://ann:pa@{SECRET}@db:5432/shop": "postgres://ann:***@db:5432/shop",
    f"postgresql://ann:{SECRET}%40x@db/shop": "postgresql://ann:***@db/shop",
    f"postgresql://ann:a/{SECRET}@db/shop": "postgresql://ann:***@db/shop",
    f"postgresql://ann:a?{SECRET}@db/shop": "postgresql://ann:***@db/shop",
    f"postgresql://ann:a#{SECRET}@db/shop": "postgresql://ann:***@db/shop",
    f"postgresql://ann:a {SECRET}@db/shop": "postgresql://ann:***@db/shop",
    f"postgresql://ann:[{SECRET}@db/shop": "postgresql://ann:***@db/shop",
    f"postgresql://ann:{SECRET}": "postgresql://ann:***",
    f"postgresql://ann:{SECRET}/shop": "postgresql://ann:***",
    f"postgresql:/ann:{SECRET}@db/shop": "postgresql:***@db/shop",
    f"postgresql:ann:{SECRET}@db/shop": "postgresql:***@db/shop",
    f"//ann:{SECRET}@db/shop": "//ann:***@db/shop",
    f"ann:{SECRET}@db": "ann:***@db",
    f"ann:/{SECRET}@db": "ann:***@db",
    f"nosuch+x://ann:{SECRET}@db": "nosuch+x://ann:***@db",
    f"postgresql://db/shop?user=ann&password={SECRET}": "postgresql://db/shop?user=ann&password=***",
    f"postgresql://db/shop?password=a;{SECRET}&x=1": "postgresql://db/shop?password=***",
    f"postgresql://db/shop?password=a&{SECRET}=1": "postgresql://db/shop?password=***",
    f"postgresql://db/shop?x=1;password={SECRET}": "postgresql://db/shop?x=1;password=***",
    f"postgresql://db/shop?pass%77ord={SECRET}": "postgresql://db/shop?pass%77ord=***",
    f"postgresql://db/shop?options=-c%20a.token%3D{SECRET}": "postgresql://db/shop?options=-c%20a.token%3D***",
    f"postgresql://db/shop?sslpassword={SECRET}&x=y": "postgresql://db/shop?sslpassword=***",
    f"postgresql://db/shop?passfile=/home/{SECRET}": "postgresql://db/shop?passfile=***",
    f"postgresql://db/shop?user=ann&password=a@{SECRET}": "postgresql://db/shop?user=ann&password=***",
    f"postgresql://ann@db/shop?password=a:b@{SECRET}": "postgresql://ann@db/shop?password=***",
    f"postgresql://db:5432/shop?password={SECRET}": "postgresql://db:5432/shop?password=***",
    # Whether this is a port or the beginning of a password cannot be told.
    f"postgresql://db:5432/shop?password=a@{SECRET}": "postgresql://db:***",
    f"postgresql://ann@db:1/shop?password=a@{SECRET}": "postgresql://ann@db:***",
    f"postgresql://ann:12{SECRET}?key=b@db/shop": "postgresql://ann:***",
    f"postgresql://ann:{SECRET}@one:5432,two:5433/shop": "postgresql://ann:***@one:5432,two:5433/shop",
    f"postgresql://ann:{SECRET}@[::1]:5432/shop": "postgresql://ann:***@[::1]:5432/shop",
    f"postgresql://ann%3A{SECRET}@db/shop": "postgresql://ann%3A***@db/shop",
    f"postgresql://ann%3A{SECRET}/shop": "postgresql://ann%3A***",
    f"postgresql://ann@shop:{SECRET}": "postgresql://ann@shop:***",
    f"sqlite:///work.db?key={SECRET}": "sqlite:///work.db?key=***",
    f"sqlite:////a?b/work.db?key={SECRET}@x": "sqlite:////a?b/work.db?key=***",
    f"host=db user=ann password={SECRET}": "host=db user=ann password=***",
    f"host=db password='a {SECRET}' user=ann": "host=db password=***",
    rf"password='a\' {SECRET}' user=ann": "password=***",
    f"password='a {SECRET}": "password=***",
    f"password=a {SECRET}": "password=***",
    f"host=db password = a&{SECRET}": "host=db password =***",
    f"PASSWORD={SECRET}": "PASSWORD=***",
}


@pytest.mark.parametrize("address", SHOWN)
def test_a_password_is_masked(address: str) -> None:
    assert masked(address) == SHOWN[address]
    assert SECRET not in masked(address)
    assert SECRET not in repr(Address(address))
    assert SECRET not in f"{Address(address)} {Address(address)!s}"


@pytest.mark.parametrize(
    "address",
    [
        "memory://",
        "sqlite:///work.db?durability=normal",
        "sqlite:////var/lib/work.db",
        "postgresql://ann@db.example:5432/shop?sslmode=require",
        "postgresql://one:5432,two:5433/shop",
        "postgresql://[::1]:5432/shop",
        "postgresql://ann@[::1]:5432,[::2]/shop",
        "postgresql:///shop?host=/var/run",
        "postgresql://%2Fvar%2Frun/shop",
        "host=db user=ann",
        "host=::1 user=ann",
        "",
    ],
)
def test_the_rest_is_shown(address: str) -> None:
    assert masked(address) == address


FORMS: list[Callable[[str], str]] = [
    lambda secret: f"postgresql://ann:{secret}@db.example:5432/shop?sslmode=require",
    lambda secret: f"postgresql://ann:{secret}@one:5432,two:5433/shop",
    lambda secret: f"postgresql://:{secret}@[::1]:5432/shop",
    lambda secret: f"postgresql://ann:{secret}@db/shop?user=a@b",
    lambda secret: f"postgresql://db:5432/shop?user=me&password={secret}",
    lambda secret: f"postgresql://db/shop?password={secret}&user=me",
    lambda secret: f"postgresql://u@h:1,i:2/shop?sslmode=require&sslpassword={secret}",
    lambda secret: f"postgresql:///shop?host=/var/run&passfile={secret}",
    lambda secret: f"sqlite:////a?b/work.db?key={secret}",
    lambda secret: f"sqlite:///work.db?durability=normal;token={secret}",
    lambda secret: f"nosuch+x:/ann:{secret}@db",
    lambda secret: f"postgresql:ann:{secret}@db",
    lambda secret: f"//ann:{secret}@db",
    lambda secret: f"ann:{secret}@db",
    lambda secret: f"ann@db?pwd={secret}",
    lambda secret: f"host=db password={secret} user=ann",
    lambda secret: f"host=db:1 user='a b' password = '{secret}' port=5432",
]

SECRETS = st.text("abcXYZ0123456789@/?#:&=;%'\"\\[], \n~é", min_size=3, max_size=30)


@given(SECRETS, st.sampled_from(FORMS), st.booleans())
def test_no_piece_of_any_password_is_shown(secret: str, form: Callable[[str], str], encoded: bool) -> None:
    """Neither of a percent-encoded one. What the rest of the address says too may be shown."""
    placed = quote(secret, safe="") if encoded else secret
    assume(not form(placed).startswith("ann://"))  # that is a scheme
    shown = masked(form(placed))
    without = form(MASK)
    for text in (secret, placed):
        pieces = {text[start : start + 3] for start in range(len(text) - 2)}
        assert [piece for piece in pieces if piece in shown and piece not in without] == []
