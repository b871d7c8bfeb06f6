"""Masking: no shape of a URL or DSN shows its password."""

import pytest

from treadle.masking import Address, masked

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
    f"postgresql:/ann:{SECRET}@db/shop": "postgresql:/ann:***@db/shop",
    f"postgresql:ann:{SECRET}@db/shop": "postgresql:***@db/shop",
    f"//ann:{SECRET}@db/shop": "//ann:***@db/shop",
    f"ann:{SECRET}@db": "ann:***@db",
    f"nosuch+x://ann:{SECRET}@db": "nosuch+x://ann:***@db",
    f"postgresql://db/shop?user=ann&password={SECRET}": "postgresql://db/shop?user=ann&password=***",
    f"postgresql://db/shop?password=a;{SECRET}&x=1": "postgresql://db/shop?password=***&x=1",
    f"postgresql://db/shop?pass%77ord={SECRET}": "postgresql://db/shop?pass%77ord=***",
    f"postgresql://db/shop?sslpassword={SECRET}&x=y": "postgresql://db/shop?sslpassword=***&x=y",
    f"sqlite:///work.db?key={SECRET}": "sqlite:///work.db?key=***",
    f"host=db user=ann password={SECRET}": "host=db user=ann password=***",
    f"host=db password='a {SECRET}' user=ann": "host=db password=*** user=ann",
    rf"password='a\' {SECRET}' user=ann": "password=*** user=ann",
    f"password='a {SECRET}": "password=***",
    f"host=db password = a&{SECRET}": "host=db password = ***",
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
        "postgresql:///shop?host=/var/run",
        "host=db user=ann",
        "",
    ],
)
def test_the_rest_is_shown(address: str) -> None:
    assert masked(address) == address
