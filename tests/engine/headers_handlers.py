"""Handlers that run in a process."""

from treadle import Context, work


@work(name="headers.in_process", run_in="process")
def in_process(ctx: Context) -> dict[str, str]:
    return dict(ctx.headers)
