"""`treadle web`: serve the dashboard."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from treadle.backend import store_name
from treadle.base.wording import one_line, plain
from treadle.errors import InputError

from .load import load_function
from .shell import AppOption, Shell, TenantOption, UrlOption, actor_here, run_command

if TYPE_CHECKING:
    from treadle.dashboard.access import AccessFn


_HANDLERS: Final = "capture_signals"
"""The method of a server of uvicorn that sets its own handlers, which end the process."""


def register(commands: typer.Typer) -> None:
    commands.command("web")(web)


def web(
    app: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", help="the app; default: TREADLE_APP")
    ] = None,
    app_option: AppOption = None,
    url: UrlOption = None,
    tenant: TenantOption = None,
    host: Annotated[str, typer.Option(help="another than this machine needs --access")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 8400,
    access: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="the function that says what a visitor may do; without it, a link that works once",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="without --access: change nothing")] = False,
    proxy_headers: Annotated[
        bool,
        typer.Option(
            "--proxy-headers", help="with --access: a proxy on this machine says where visitors come from"
        ),
    ] = False,
) -> None:
    """Serve the dashboard. Without --access it is for this machine only, behind a link that works once."""
    if app and app_option and app != app_option:
        raise typer.BadParameter(f"{app} and --app {app_option} are two apps: give one")
    shared = {"app": app or app_option, "url": url, "tenant": None, "json": False}
    own = {
        "host": host,
        "port": port,
        "access": access,
        "read_only": read_only,
        "shown_tenant": tenant,
        "proxy_headers": proxy_headers,
    }
    raise typer.Exit(run_command(_serve, {}, {**shared, **own}, logs=True))


async def _serve(
    shell: Shell,
    *,
    host: str,
    port: int,
    access: str | None,
    read_only: bool,
    shown_tenant: str | None,
    proxy_headers: bool,
) -> int | None:
    try:
        import uvicorn

        from treadle.dashboard import dashboard
    except ImportError:
        raise InputError("the dashboard needs the extra `web`: pip install 'treadle[web]'") from None
    from treadle.dashboard.access import LinkAccess

    if access is not None and (read_only or shown_tenant is not None):
        raise InputError("--access says what visitors may do: --read-only and --tenant are for the link")
    if access is None and proxy_headers:
        raise InputError("--proxy-headers is for --access: the link is for this machine only")
    if access is None and not _is_loopback(host):
        raise InputError(
            f"--host {host} can be reached from elsewhere: say with --access MODULE:FUNCTION what visitors "
            "may do, or leave --host out"
        )
    link = LinkAccess(
        actor_here(),
        can="read" if read_only else "all",
        tenants=None if shown_tenant is None else [shown_tenant],
    )
    allows: AccessFn = link if access is None else load_function(access)
    site = dashboard(shell.client, access=allows)
    with _listening(host, port) as listener:
        address = f"http://{_shown_host(host)}:{listener.getsockname()[1]}/"
        shell.print(f"the dashboard of {one_line(store_name(shell.backend))}")
        shell.print(f"open {link.link(address) if access is None else address}")
        if access is None:
            shell.print("the link works once, for one browser on this machine. Ctrl-C ends the dashboard")
        shell.flush()
        await _run(uvicorn.Server(server_config(site, proxy_headers=proxy_headers)), listener)
    return None


def server_config(site: Any, *, proxy_headers: bool) -> Any:
    """The settings of uvicorn. proxy_headers: believe what a proxy on this machine says of visitors."""
    import uvicorn

    return uvicorn.Config(
        site,
        lifespan="off",
        log_level="warning",
        server_header=False,
        proxy_headers=proxy_headers,
        timeout_graceful_shutdown=1,
    )


async def _run(server: Any, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM."""
    setattr(server, _HANDLERS, contextlib.nullcontext)
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, setattr, server, "should_exit", True)
    try:
        await server.serve(sockets=[listener])
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _shown_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextlib.contextmanager
def _listening(host: str, port: int) -> Generator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise InputError(f"cannot listen at {plain(host)}:{port}: {error.strerror or error}") from None
    with listener:
        yield listener
