"""Handlers that run in a process."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from opentelemetry import trace

from treadle import Context, work


@work(name="headers.in_process", run_in="process")
def in_process(ctx: Context) -> dict[str, str]:
    return dict(ctx.headers)


@work(name="trace.in_process", run_in="process")
def trace_in_process(ctx: Context) -> list[int]:
    own = trace.get_current_span().get_span_context()
    ctx.log.warning("from a process")
    return [own.trace_id, own.span_id]


@work(name="trace.apart", run_in="process")
def apart(n: int) -> int:
    return n


@contextmanager
def raise_around(trace: Mapping[str, str]) -> Generator[None]:
    """What a tracer that fails in a process enters there."""
    if "enter" in trace:
        raise OSError("cannot enter")
    yield
    raise OSError("cannot leave")
