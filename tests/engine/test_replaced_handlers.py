"""`app.replace`: another function runs the items of a type, in one app, until it is undone."""

from __future__ import annotations

import pytest

from treadle import Context, Result, Treadle, work


@work(name="charge")
async def charge(cents: int) -> str:
    return f"charged {cents}"


@work(name="resize", run_in="process")
def resize(path: str) -> str:
    return f"resized {path}"


@work.batch(name="embed", size=2, max_wait=0)
async def embed(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


def _declared(n: int) -> int: ...


remote = work.declare("remote", _declared)


async def test_a_replaced_handler_does_not_run() -> None:
    async with Treadle(work=[charge]) as app, Treadle(work=[charge]) as other:

        async def fake(cents: int) -> str:
            return f"faked {cents}"

        with app.replace(charge, fake):
            assert await app.enqueue(charge(5)).result() == "faked 5"
            assert await other.enqueue(charge(5)).result() == "charged 5"
        assert await app.enqueue(charge(5)).result() == "charged 5"


async def test_a_replacement_made_before_the_start_ends_with_the_app() -> None:
    app = Treadle()
    app.replace(charge, lambda cents: f"faked {cents}")
    async with app:
        assert await app.enqueue(charge(5)).result() == "faked 5"
    async with app:
        assert await app.enqueue(charge(5)).result() == "charged 5"


async def test_a_replacement_may_take_a_context_and_return_a_result() -> None:
    async with Treadle(work=[charge]) as app:

        def fake(ctx: Context, cents: int) -> Result[str]:
            return ctx.result(f"{ctx.type} {cents}")

        app.replace(charge, fake)
        assert await app.enqueue(charge(7)).result() == "charge 7"


async def test_the_handler_of_a_process_is_replaced_in_a_thread() -> None:
    seen: list[str] = []

    def fake(path: str) -> str:
        seen.append(path)
        return "faked"

    async with Treadle(work=[resize]) as app:
        app.replace(resize, fake)
        assert await app.enqueue(resize("a.png")).result() == "faked"
    assert seen == ["a.png"]


async def test_a_batch_is_replaced_by_a_function_of_lists() -> None:
    async with Treadle(work=[embed]) as app:

        async def fake(texts: list[str]) -> list[int]:
            return [-1 for _ in texts]

        app.replace(embed, fake)  # type: ignore[arg-type]
        assert await app.enqueue(embed("hello")).result() == -1


async def test_a_declared_type_has_a_handler_while_it_is_replaced() -> None:
    async with Treadle(work=[remote]) as app:
        with app.replace(remote, lambda n: n + 1):
            assert await app.enqueue(remote(1)).result() == 2
        handle = await app.enqueue(remote(1))
        await app.worker.drain()
        assert (await handle.state()).status == "ready"


async def test_a_function_with_another_signature_is_refused() -> None:
    async def fake(euros: int) -> str:
        return ""

    with pytest.raises(TypeError, match=r"it takes \(euros\), declared is \(cents\)"):
        Treadle().replace(charge, fake)  # type: ignore[arg-type]
