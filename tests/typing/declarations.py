"""Declarations without handlers, and batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_type

from treadle import Context, Result, Work, work
from treadle.item import ItemState


def add_signature(a: int, b: int) -> int:
    raise NotImplementedError


def flow_signature(n: int) -> Result[None, int | str]:
    raise NotImplementedError


async def async_signature(ctx: Context, n: int) -> Result[bytes]:
    raise NotImplementedError


add = work.declare("math.add", add_signature)
add_with_context = work.declare("math.add2", add_signature, queue="math", priority=3)
add_in_thread = work.declare("math.add3", add_signature)
flow = work.declare("math.flow", flow_signature)
digest = work.declare("math.digest", async_signature)

assert_type(add(1, b=2), Work[int, int])
assert_type(flow(1), Work[None, int | str])
assert_type(digest(n=1), Work[bytes, bytes])


@add.handler
async def add_handler(a: int, b: int) -> int:
    return a + b


@add_with_context.handler
async def add_with_context_handler(ctx: Context, a: int, b: int) -> Result[int]:
    return ctx.result(a + b)


@add_in_thread.handler
def add_in_thread_handler(a: int, b: int) -> int:
    return a + b


@flow.handler
async def flow_handler(ctx: Context, n: int) -> Result[None, int]:
    return ctx.queue(add(n, n))


assert_type(add_handler(1, 2), Work[int, int])

# ------------------------------------------------------------------------------------------- batches


@dataclass
class Vector:
    values: list[float]


@work.batch(size=50, max_wait=0.1)
async def embed(texts: list[str]) -> list[Vector]:
    return [Vector([len(text)]) for text in texts]


@work.batch(size=10, queue="gpu")
async def embed_some(texts: Sequence[str]) -> list[Vector | Exception]:
    return [Vector([1.0]) if text else ValueError("empty") for text in texts]


@work.batch()
def count(texts: list[str]) -> Sequence[int]:
    return [len(text) for text in texts]


@work.batch()
async def store(rows: list[tuple[int, str]]) -> list[None]:
    return [None for _ in rows]


@work.batch()
async def embed_with_contexts(contexts: list[Context], texts: list[str]) -> list[Vector | Exception]:
    return [Vector([ctx.attempt]) for ctx in contexts]


@work.batch()
async def fan_out(contexts: list[Context], numbers: list[int]) -> list[Result[None, int] | Exception]:
    return [ctx.queue(add(n, n)) for ctx, n in zip(contexts, numbers, strict=True)]


@work.batch(run_in="process")
def fan_out_in_process(contexts: list[Context], numbers: list[int]) -> list[Result[None, int]]:
    return [ctx.queue(add(n, n)) for ctx, n in zip(contexts, numbers, strict=True)]


@work(run_in="process")
def in_process(ctx: Context, n: int) -> Result[None, int]:
    assert_type(ctx.sync.results(ctx.dependencies), list[Any])
    assert_type(ctx.sync.states([ctx.id]), list[ItemState | None])
    assert_type(ctx.sync.claim("key", ttl=5), bool)
    return ctx.queue(add(n, n))


assert_type(embed("hello"), Work[Vector, Vector])
assert_type(embed_with_contexts("hello"), Work[Vector, Vector])
assert_type(fan_out(5), Work[None, int])
assert_type(fan_out_in_process(5), Work[None, int])
assert_type(in_process(5), Work[None, int])
assert_type(embed_some("hello"), Work[Vector, Vector])
assert_type(count("hello"), Work[int, int])
assert_type(store((1, "a")), Work[None, None])
