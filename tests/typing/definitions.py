"""The types that `@work` gives to each form of handler: P, S and G, and the calls that follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_type

from treadle import Context, Failure, Result, Retry, Work, WorkType, work


@dataclass
class Receipt:
    to: str


# --------------------------------------------------------------------- plain functions, async or not


@work
async def add(a: int, b: int) -> int:
    return a + b


@work
def resize(path: str, *, width: int = 100) -> bytes:
    return path.encode() * width


@work
async def notify(who: str) -> None: ...


@work
async def maybe(n: int | None = None) -> int | None:
    return n


assert_type(add(1, 2), Work[int, int])
assert_type(add(1, b=2), Work[int, int])
assert_type(add(a=1, b=2), Work[int, int])
assert_type(resize("a"), Work[bytes, bytes])
assert_type(resize("a", width=5), Work[bytes, bytes])
assert_type(notify("you"), Work[None, None])
assert_type(maybe(), Work[int | None, int | None])

# ---------------------------------------------------------------- with a Context, which P is without


@work
async def send(ctx: Context, to: str) -> Result[Receipt]:
    return ctx.result(Receipt(to))


@work
def send_plainly(ctx: Context, to: str) -> Receipt:
    return Receipt(to)


@work
async def flow(ctx: Context, urls: Sequence[str]) -> Result[None, int | Receipt]:
    return ctx.queue(add(1, 2), send("you"))


@work
def sync_flow(ctx: Context, n: int = 1) -> Result[str, str | int]:
    return ctx.result("own").next(add(n, n))


@work
async def nothing(ctx: Context) -> None: ...


assert_type(send("you"), Work[Receipt, Receipt])
assert_type(send(to="you"), Work[Receipt, Receipt])
assert_type(send_plainly("you"), Work[Receipt, Receipt])
assert_type(flow(["a"]), Work[None, int | Receipt])
assert_type(sync_flow(), Work[str, str | int])
assert_type(sync_flow(n=2), Work[str, str | int])
assert_type(nothing(), Work[None, None])

# --------------------------------------------------- a value or a Result: mypy cannot tell the two apart


@work
async def cached(ctx: Context, n: int) -> int | Result[None, int]:
    return n if n else ctx.queue(add(1, 2))


@work
def sync_cached(ctx: Context, n: int) -> Result[None, int] | None:
    return ctx.queue(add(1, 2)) if n else None


MYPY = False  # mypy takes it for True
if not MYPY:
    assert_type(cached(1), Work[int | None, int])
    assert_type(sync_cached(1), Work[None, int | None])

# -------------------------------------------------------------------------------------- with options


@work(name="mail.send", retry=Retry(attempts=5), queue="mail", timeout=30, expires_in=3600)
async def mail(to: str) -> Receipt:
    return Receipt(to)


@work(
    options=lambda given: {"priority": given["n"], "lane": "a"},
    on_failure=lambda error, info: "abort" if isinstance(error, KeyError) else None,
    on_dead=add(1, 2),
    log_context=lambda given: {"n": given["n"]},
    run_in="thread",
    strict_return=False,
    skip_queue=True,
    keep=60,
)
def configured(ctx: Context, n: int) -> Result[int]:
    return ctx.result(n)


@work
async def refund(ctx: Context, failure: Failure, note: str = "") -> None: ...


@work(on_dead=refund)
def charge(order: str) -> None: ...


assert_type(mail("you"), Work[Receipt, Receipt])
assert_type(configured(1), Work[int, int])

# --------------------------------------------- no annotation, or any object: not taken for a Context


@work
async def repeat_any(value: object, times: int = 1) -> str:
    return str(value) * times


@work
def variadic(*args: Any, **kwargs: Any) -> int:
    return len(args) + len(kwargs)


assert_type(repeat_any("a", 3), Work[str, str])
assert_type(repeat_any(value="a"), Work[str, str])
assert_type(variadic(1, 2, c=3), Work[int, int])

# ------------------------------------------------------------------------------------ what they have


def takes_any_type(types: Sequence[WorkType[..., Any, Any]]) -> None: ...


takes_any_type([add, send, flow, repeat_any])

assert_type(add.name, str)
assert_type(add(1, 2).id, str)
assert_type(add(1, 2).type, str)
assert_type(add(1, 2).input, dict[str, Any])
