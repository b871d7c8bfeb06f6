"""`treadle worker`: run the workers of an app in processes, under a supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from treadle import __version__
from treadle.app import Treadle
from treadle.backend import store_name
from treadle.base.wording import duration, listed, one_line, plural
from treadle.cli import log_format as logs
from treadle.cli.exit_codes import AWAY, REFUSED, USAGE
from treadle.cli.load import CannotLoad, load, report
from treadle.cli.log_format import LogFormat, LogLevel
from treadle.cli.metrics_server import Health, ListenAddress, MetricsServer, read_address
from treadle.cli.names import misspelt_queues
from treadle.cli.supervisor import Supervisor
from treadle.errors import InputError, TreadleError, message_of
from treadle.logs.lines import INFO, WARNING, log_line
from treadle.operate.filters import names_in
from treadle.store_metrics import StoreMetrics
from treadle.worker import lease_times, settings_of

from .child import ChildOptions, EventLoop, chosen_loop
from .load import StoreAway
from .metrics_server import CannotListen
from .reports import ChildReport


def worker(
    app: Annotated[
        str | None,
        typer.Argument(
            help="the app, as package.module:name; default: --app, or TREADLE_APP", metavar="[MODULE:APP]"
        ),
    ] = None,
    app_option: Annotated[
        str | None, typer.Option("--app", metavar="MODULE:APP", help="the same, as other commands take it")
    ] = None,
    queues: Annotated[str | None, typer.Option(help="serve only these queues, separated by commas")] = None,
    tenants: Annotated[str | None, typer.Option(help="serve only these tenants, separated by commas")] = None,
    concurrency: Annotated[
        int, typer.Option(min=0, help="the most items at once, per process; 0: as the app is set")
    ] = 0,
    processes: Annotated[int, typer.Option(min=1, help="the number of worker processes")] = 1,
    burst: Annotated[bool, typer.Option(help="run the items that are due, then exit")] = False,
    reload: Annotated[bool, typer.Option(help="restart when a Python file of the project changes")] = False,
    loop: Annotated[
        EventLoop,
        typer.Option(help="the event loop of the worker processes; auto: uvloop if it is installed"),
    ] = EventLoop.auto,
    max_block: Annotated[
        float, typer.Option(min=1.0, help="kill a process whose event loop is blocked for this many seconds")
    ] = 60.0,
    wait: Annotated[
        float, typer.Option(min=0.0, help="seconds to wait for a store that is unavailable at the start")
    ] = 60.0,
    metrics: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="serve /metrics, /health/live and /health/ready there; :9100 means any address",
        ),
    ] = "",
    store_metrics: Annotated[
        bool,
        typer.Option(
            help="with --metrics: also how the whole store stands; by default. One place for it is enough"
        ),
    ] = True,
    log_level: Annotated[
        LogLevel, typer.Option(envvar="TREADLE_LOG", case_sensitive=False, help="the least level to log")
    ] = LogLevel.info,
    log_format: Annotated[
        LogFormat, typer.Option(help="text for people, json for programs")
    ] = LogFormat.text,
) -> None:
    """Run workers: a supervisor, and the worker processes that it starts.

    SIGTERM or Ctrl-C lets handlers finish (for the app's `drain` seconds). A second one kills the processes.

    The exit code is 0 when it was stopped, or when a burst is done, also if items died; 1 if the store
    refuses it, or an error may have left items of a burst; 2 if it was called in a wrong way, the port is in
    use, or the app cannot be loaded; 3 if the store is unavailable.
    """
    address = _address(metrics, log_format)
    served = _names(queues, "queues", log_format), _names(tenants, "tenants", log_format)
    chosen = _chosen_loop(loop, log_format)
    app = _which_app(app, app_option, log_format)
    opened = _load(app, log_format)
    from treadle.backends.memory import MemoryBackend

    if processes > 1 and isinstance(opened.backend, MemoryBackend):
        _refuse(
            f"{app} keeps its items in memory, and processes share no memory: each of the {processes} would "
            "have a store of its own. Use a sqlite:// or postgresql:// store, or --processes 1",
            log_format,
        )
    options = ChildOptions(
        app=app,
        worker="",
        liveness="",
        queues=served[0],
        tenants=served[1],
        concurrency=concurrency or None,
        burst=burst,
        wait=wait,
        loop=chosen,
        log_level=log_level,
        log_format=log_format,
        metrics=address is not None,
    )
    _announce(opened, options, processes)
    supervisor = Supervisor(
        opened.backend,
        lease_times(opened),
        options,
        processes=processes,
        max_block=max_block,
        opened=partial(_remark, opened, options.queues or (), is_new=_makes_store(opened)),
    )
    serving = _serving(supervisor, opened, address, store_metrics)
    raise typer.Exit(_run(supervisor, reload, serving, log_format))


def _names(given: str | None, what: str, format: LogFormat) -> tuple[str, ...] | None:
    """The names in an option. None: it is not given. An empty one is refused: the variable that it came from
    may not be set, and the worker would serve everything."""
    names = tuple(names_in(given))
    if given is not None and not names:
        _refuse(f"--{what} {given!r} names no {what}: name some, as in --{what} a,b, or leave it out", format)
    return names or None


def _which_app(argument: str | None, option: str | None, format: LogFormat) -> str:
    if argument and option and argument != option:
        _refuse(f"{argument} and --app {option} are two apps: give one", format)
    named = argument or option or os.environ.get("TREADLE_APP")
    if not named:
        _refuse("say which app: `treadle worker shop.jobs:app`, or set TREADLE_APP", format)
    return named


def _chosen_loop(wanted: EventLoop, format: LogFormat) -> EventLoop:
    chosen = chosen_loop(wanted)
    if chosen is None:
        _refuse(
            "--loop uvloop: it is not installed. `pip install 'treadle[uvloop]'`, or use --loop auto", format
        )
    return chosen


def _load(app: str, format: LogFormat) -> Treadle:
    try:
        return load(app)
    except CannotLoad as error:
        report(error, format)
        raise typer.Exit(USAGE) from None


def _refuse(message: str, format: LogFormat, code: int = USAGE) -> NoReturn:
    """End the command, and say why."""
    logs.say_refusal(message, format)
    raise typer.Exit(code)


def _announce(app: Treadle, options: ChildOptions, processes: int) -> None:
    """Set logging up, unless the app has, and say what begins."""
    logs.set_up(options.log_level, options.log_format)
    text = banner(app, options, processes)
    if options.log_format == LogFormat.json:
        log_line(INFO, " ".join(text.split()), facts_of(app, options, processes))
    else:
        typer.echo(text, err=True)


def _makes_store(app: Treadle) -> bool:
    """Whether the file of the store does not exist yet. Its path may be mistyped."""
    kind, mark, path = store_name(app.backend).partition(":///")
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # it cannot be used: that is said later
        return kind == "sqlite" and bool(mark) and not Path(path).expanduser().exists()
    return False


async def _remark(app: Treadle, queues: Sequence[str], *, is_new: bool) -> None:
    """Say what may be a mistake, once the store is open."""
    if is_new:
        log_line(WARNING, f"made a new, empty store: {one_line(store_name(app.backend))}")
    for remark in await misspelt_queues(app, app.backend, queues) if queues else ():
        log_line(WARNING, one_line(f"--queues: {remark}"))


def _address(metrics: str, format: LogFormat) -> ListenAddress | None:
    try:
        return read_address(metrics) if metrics else None
    except InputError as error:
        _refuse(one_line(message_of(error)), format)


def _serving(
    supervisor: Supervisor, app: Treadle, address: ListenAddress | None, store_metrics: bool
) -> AbstractAsyncContextManager[None]:
    """What serves the metrics, while it is entered."""
    if address is None:
        return contextlib.nullcontext()
    backend = app.backend
    from treadle.backends.memory import MemoryBackend

    # A store in memory is that of this process, which is empty, and not that of the child.
    shown = store_metrics and not isinstance(backend, MemoryBackend)
    store = StoreMetrics(app, connect=False) if shown else None
    return MetricsServer(supervisor, Health(supervisor, backend), store).serve(address)


def _run(
    supervisor: Supervisor, reload: bool, serving: AbstractAsyncContextManager[None], format: LogFormat
) -> int:
    """Returns the exit code."""
    began = time.monotonic()
    try:
        code = asyncio.run(_supervise(supervisor, reload, serving))
    except CannotListen as error:
        _refuse(f"--metrics: {error}", format)
    except StoreAway as error:
        _refuse(str(error), format, AWAY)
    except TreadleError as error:  # the store refuses: a newer schema, a missing directory
        _refuse(one_line(message_of(error)), format, REFUSED)
    log_line(INFO, summary(supervisor.report(), time.monotonic() - began))
    return code


async def _supervise(supervisor: Supervisor, reload: bool, serving: AbstractAsyncContextManager[None]) -> int:
    async with serving:
        if not reload:
            return await supervisor.run()
        watcher = asyncio.ensure_future(FileWatcher().run(supervisor.restart))
        try:
            return await supervisor.run()
        finally:
            watcher.cancel()


LOOK_EVERY = 0.5
"""Seconds between two scans."""
SKIPPED = frozenset({".venv", "venv", "node_modules", "__pycache__", ".git"})
"""Directories that are not walked."""


class FileWatcher:
    """Notices changes of the Python files in a directory: the current one, unless `root` is given."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or Path.cwd()
        self._seen = self._scan()

    async def run(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a Python file was changed, added or removed, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if self.run_once():
                changed()

    def run_once(self) -> bool:
        """Whether a file has changed since the last call."""
        seen, self._seen = self._seen, self._scan()
        return seen != self._seen

    def _scan(self) -> dict[Path, float]:
        found: dict[Path, float] = {}
        for folder, folders, files in os.walk(self._root):
            folders[:] = [each for each in folders if each not in SKIPPED]
            for name in files:
                path = Path(folder, name)
                if name.endswith(".py"):
                    with contextlib.suppress(FileNotFoundError):  # an editor replaces it just now
                        found[path] = path.stat().st_mtime
        return found


MOST_TYPES = 20
"""The most types that are named."""
_LABEL = 13
_WIDTH = 80


def banner(app: Treadle, options: ChildOptions, processes: int) -> str:
    """The first lines of a worker: what it runs, from where, and how it is stopped."""
    settings = settings_of(app.worker)
    facts = [
        ("store", store_name(app.backend)),
        ("queues", _listed_names(options.queues or settings.queues)),
        ("types", _types(app)),
        ("processes", f"{processes}, each up to {_concurrency(app, options)}"),
        ("pid", str(os.getpid())),
        ("event loop", options.loop),
    ]
    tenants = options.tenants or settings.tenants
    if tenants is not None:
        facts.insert(2, ("tenants", _listed_names(tenants)))
    drain = duration(lease_times(app).drain)
    ends = (
        "Runs what is due, then ends."
        if options.burst
        else f"Ctrl-C stops it, and lets handlers finish for {drain}. A second Ctrl-C kills them."
    )
    lines = [f"treadle {__version__}  {one_line(options.app)}", *(_row(*fact) for fact in facts), ends]
    return "\n".join(lines)


def facts_of(app: Treadle, options: ChildOptions, processes: int) -> dict[str, Any]:
    """The same as fields of a record. None: all."""
    settings = settings_of(app.worker)
    return {
        "version": __version__,
        "app": options.app,
        "store": store_name(app.backend),
        "queues": options.queues or settings.queues,
        "tenants": options.tenants or settings.tenants,
        "types": _type_names(app),
        "processes": processes,
        "concurrency": _limit(app, options),
        "loop": options.loop,
    }


def _row(label: str, text: str) -> str:
    indent = "  " + " " * _LABEL
    return textwrap.fill(
        one_line(text, 2000),
        _WIDTH,
        initial_indent=f"  {label:<{_LABEL}}",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _listed_names(names: tuple[str, ...] | None) -> str:
    return "all" if names is None else ", ".join(names)


def _types(app: Treadle) -> str:
    names = _type_names(app)
    if not names:
        return "none: nothing can run. Give the app work=[...], or define types with @app.work"
    return listed(names, MOST_TYPES)


def _type_names(app: Treadle) -> list[str]:
    only = settings_of(app.worker).types
    return sorted(
        name for name, type in app.types.items() if type.has_handler and (only is None or name in only)
    )


def _concurrency(app: Treadle, options: ChildOptions) -> str:
    limit = _limit(app, options)
    return "as many items at once as its doer allows" if limit is None else f"{plural(limit, 'item')} at once"


def _limit(app: Treadle, options: ChildOptions) -> int | None:
    limit = options.concurrency or getattr(settings_of(app.worker).doer, "limit", None)
    return limit if isinstance(limit, int) else None


def summary(report: ChildReport, seconds: float) -> str:
    """The last line of a worker: how long it ran, and what came of it."""
    counts = [
        f"{report.total(name):,} {name}" for name in ("started", "succeeded", "failed", "dead", "lease_lost")
    ]
    if not report.total("lease_lost"):
        counts.pop()
    return f"stopped after {duration(seconds)}: {', '.join(counts).replace('lease_lost', 'lost')}"
