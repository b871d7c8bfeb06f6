"""Handlers that run in a process."""

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
