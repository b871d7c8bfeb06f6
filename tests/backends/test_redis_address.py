"""Redis URLs: what they mean, and what is refused without showing a password."""

import subprocess
import sys

import pytest

from treadle import InputError
from treadle.backends.redis import RedisBackend
from treadle.backends.redis.address import Endpoint, Login, Tls, check_prefix, parse_address
from treadle.backends.redis.topology import slot_of
from treadle.base.timing import SystemClock
from treadle.connect import connect


@pytest.mark.parametrize(
    ("url", "kind", "endpoints"),
    [
        ("redis://", "server", (Endpoint("localhost", 6379),)),
        ("valkey://db.example", "server", (Endpoint("db.example", 6379),)),
        ("REDIS://[::1]:7000/3", "server", (Endpoint("::1", 7000),)),
        ("redis+unix:///run/my%20redis.sock?db=4", "socket", (Endpoint("/run/my redis.sock", 0),)),
        ("valkey+sentinel://a:1,b/work/2", "sentinel", (Endpoint("a", 1), Endpoint("b", 26379))),
        ("redis+cluster://a:1,b", "cluster", (Endpoint("a", 1), Endpoint("b", 6379))),
    ],
)
def test_a_url_names_servers(url: str, kind: str, endpoints: tuple[Endpoint, ...]) -> None:
    address = parse_address(url)
    assert (address.kind, address.endpoints) == (kind, endpoints)


def test_a_url_names_the_database() -> None:
    """In its path, or as an option."""
    urls = ("redis://h", "redis://h/3", "redis+unix:///s?db=4", "redis+sentinel://h/work/5", "redis://h?db=6")
    assert [parse_address(url).db for url in urls] == [0, 3, 4, 5, 6]
    assert parse_address("redis+sentinel://h/my%2Fwork").service == "my/work"


def test_a_url_has_a_login_with_any_characters() -> None:
    assert parse_address("redis://h").login == Login("", "")
    assert parse_address("redis://:a%40b%2F%3A@h").login == Login("", "a@b/:")
    assert parse_address("redis://me:p@ss@h").login == Login("me", "p@ss")
    address = parse_address("redis+sentinel://me:a@h/work?sentinel_user=s&sentinel_password=b")
    assert (address.login, address.sentinel_login) == (Login("me", "a"), Login("s", "b"))


def test_a_url_with_tls_checks_certificates_unless_told_otherwise() -> None:
    assert parse_address("redis://h").tls is None
    for scheme in ("rediss", "valkeys", "rediss+cluster"):
        assert parse_address(f"{scheme}://h").tls == Tls(None, verify=True)
    assert parse_address("rediss://h?ca=/ca.pem&verify=none").tls == Tls("/ca.pem", verify=False)


def test_a_url_has_options() -> None:
    address = parse_address("redis://h?replicas=2&patience=1.5")
    assert (address.replicas, address.patience) == (2, 1.5)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://h", "begin it with redis://"),
        ("rediss+unix:///s", "begin it with redis://"),
        ("redis://a,b", "several hosts need redis+sentinel:// or redis+cluster://"),
        ("redis://h:0", "a port is a number from 1 to 65535"),
        ("redis://h:70000", "a port is a number from 1 to 65535"),
        ("redis://h:x", "write hosts as name"),
        ("redis://h/x", "db is a whole number"),
        ("redis://h/1/2", "too many parts"),
        ("redis://h/1?db=2", "two databases"),
        ("redis://secret@h", "needs a colon"),
        ("redis+unix://run/redis.sock", "three slashes"),
        ("redis+sentinel://h", "name the service"),
        ("redis+cluster://h/1", "a cluster has no numbered databases"),
        (
            "redis://h?replica=1",
            "a URL cannot set replica, only ca, db, partitions, patience, prefix, replicas",
        ),
        ("redis://h?replicas=-1", "replicas is a whole number"),
        ("redis://h?patience=nan", "patience= is a number of seconds"),
        ("redis://h?ca=x", "need TLS"),
        ("rediss://h?verify=maybe", "verify= is full or none"),
    ],
)
def test_a_wrong_url_is_refused(url: str, problem: str) -> None:
    with pytest.raises(InputError, match="cannot be used") as caught:
        parse_address(url)
    assert problem in str(caught.value)


def test_a_file_of_certificates_has_to_exist() -> None:
    with pytest.raises(InputError, match="is no file of certificates"):
        RedisBackend("rediss://h?ca=/does/not/exist")


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b", "a b", "a\x00"])
def test_a_prefix_must_keep_all_keys_in_one_slot(prefix: str) -> None:
    with pytest.raises(InputError, match="must not be empty"):
        check_prefix(prefix)


def test_the_slot_is_that_of_the_prefix() -> None:
    """The example of the specification of Redis Cluster."""
    assert slot_of("123456789") == 0x31C3


def test_no_message_has_the_password() -> None:
    secret = "hunter2"
    backend = RedisBackend(f"redis://me:{secret}@h?sentinel_password={secret}")
    shown = [repr(backend), backend.address, repr(parse_address(f"redis://me:{secret}@h"))]
    shown.append(repr(parse_address(f"redis://me:{secret}@h").login))
    wrong = ("me:{}@h:x", "me:{}@h?pasword={}", "me:12?{}@h", "{}@h", "me:{}@h/x")
    for url in (f"redis://{text.format(secret, secret)}" for text in wrong):
        try:
            parse_address(url)
        except InputError as error:
            shown.append(str(error))
    assert len(shown) == 4 + len(wrong)
    assert not [text for text in shown if secret in text]


@pytest.mark.parametrize(
    "scheme", ["redis", "rediss", "valkey", "valkeys", "redis+cluster", "valkey+cluster"]
)
def test_a_client_takes_a_url(scheme: str) -> None:
    backend = connect(f"{scheme}://me:secret@host:7000", prefix="shop", clock=SystemClock())
    assert repr(backend) == f"RedisBackend('{scheme}://me:***@host:7000', prefix='shop')"


def test_a_url_without_slashes_is_explained() -> None:
    with pytest.raises(InputError, match="write redis://host:6379"):
        connect("redis:host", clock=SystemClock())


@pytest.mark.usefixtures("processes")
def test_the_driver_that_is_missing_is_named() -> None:
    """In a process of its own: here the driver is imported already."""
    program = "import sys; sys.modules['hiredis'] = None; from treadle import Treadle; Treadle('redis://h')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "InputError: Redis needs its driver: pip install 'treadle[redis]'" in done.stderr
