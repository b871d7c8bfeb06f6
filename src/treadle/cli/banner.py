"""Banner: what `treadle worker` says about itself when it begins, and when it ends."""

from __future__ import annotations

import os
import textwrap
from typing import Any

from treadle import __version__
from treadle.app import Treadle
from treadle.backend import store_name
from treadle.base.wording import duration, listed, one_line, plural
from treadle.cli.child import ChildOptions
from treadle.cli.reports import ChildReport
from treadle.worker import lease_times, settings_of

MOST_TYPES = 20
"""The most types that are named."""
_LABEL = 13
_WIDTH = 80


def banner(app: Treadle, options: ChildOptions, processes: int) -> str:
    """The first lines of a worker: what it runs, from where, and how it is stopped."""
    settings = settings_of(app.worker)
    facts = [
        ("store", store_name(app.backend)),
        ("queues", _names(options.queues or settings.queues)),
        ("types", _types(app)),
        ("processes", f"{processes}, each up to {_concurrency(app, options)}"),
        ("pid", str(os.getpid())),
        ("event loop", options.loop),
    ]
    tenants = options.tenants or settings.tenants
    if tenants is not None:
        facts.insert(2, ("tenants", _names(tenants)))
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


def _names(names: tuple[str, ...] | None) -> str:
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
