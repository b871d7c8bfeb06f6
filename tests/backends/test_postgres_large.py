"""PostgreSQL: more in one step than the server takes at once."""

import asyncpg
import pytest

from tests.backends.postgres_store import opened
from treadle.backends.postgres import PostgresBackend, item_columns
from treadle.backends.postgres.errors import translated
from treadle.errors import BackendError, StoreFull, StoreUnavailable
from treadle.item import Submission
from treadle.testing.contract.build import apply, beat, claim, item, state, succeed
from treadle.testing.contract.check import consistent

LARGE = b"x" * 1000


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A server that takes little. Returns the statements that are sent to it."""
    monkeypatch.setattr(item_columns, "MOST_BYTES", 2500)
    monkeypatch.setattr(item_columns, "LARGEST", 5000)
    return []


def record(backend: PostgresBackend, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    on = backend._calls.on

    async def recording(connection: object, sql: str, *rest: object) -> object:
        calls.append(sql)
        return await on(connection, sql, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(backend._calls, "on", recording)


async def test_many_requests_are_split_into_several_calls(
    prepared_url: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two fit into a call, so ten take five, for submits and for settlements."""
    async with opened(prepared_url) as backend:
        await beat(backend)
        record(backend, calls, monkeypatch)
        await backend.submit([Submission((item(f"i{n}", input=LARGE),)) for n in range(10)])
        assert len(calls) == 5
        leases = await claim(backend)
        assert len(leases) == 10
        calls.clear()
        await apply(backend, *(succeed(lease, result=LARGE) for lease in leases))
        assert len(calls) == 5
        assert (await state(backend, "i9")).result == LARGE
        await consistent(backend)


async def test_a_request_that_is_too_large_is_refused(prepared_url: str, calls: list[str]) -> None:
    """With what to do about it, and nothing is stored: a submission is one step."""
    async with opened(prepared_url) as backend:
        together = Submission(tuple(item(f"i{n}", input=LARGE) for n in range(6)))
        with pytest.raises(BackendError, match="in several steps") as raised:
            await backend.submit([together])
        assert not isinstance(raised.value, StoreFull | StoreUnavailable)
        assert list(await backend.get(["i0"])) == [None]


def test_a_limit_of_one_request_is_not_a_full_store() -> None:
    error = translated(
        asyncpg.ProgramLimitExceededError("array size exceeds the maximum allowed (1073741823)")
    )
    assert "cannot take so much at once" in str(error)
    assert not isinstance(error, StoreFull | StoreUnavailable)
    assert isinstance(translated(asyncpg.DiskFullError("no space left")), StoreFull)
    refused = translated(asyncpg.InvalidPasswordError("wrong"))
    assert str(refused).startswith("PostgreSQL refuses the login: ")
    missing = translated(asyncpg.InvalidCatalogNameError('database "shopp" does not exist'))
    assert str(missing).startswith("PostgreSQL has no such database: ")
    assert isinstance(missing, StoreUnavailable)
