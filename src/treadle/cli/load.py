"""Load the app or the function that a command names as `module:name`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import math
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from treadle.app import Treadle
from treadle.backend import Backend, placed
from treadle.base.wording import duration, one_line
from treadle.cli.log_format import LogFormat, LogLevel, say_refusal, set_up
from treadle.client import Client
from treadle.errors import StoreUnavailable, message_of
from treadle.logs.lines import WARNING, error_text, log_line
from treadle.retry import STORE_BACKOFF


class CannotLoad(Exception):
    """What was named was not found: the message says what was instead. Or its module raised: the cause."""


def load(path: str) -> Treadle:
    """Import the app `package.module:name`. If its module has used `app.sync`, end the loop of that: the
    command has a loop of its own."""
    module, name = _import(path, "module:app, as in shop.jobs:app")
    found = getattr(module, name, None)
    if isinstance(found, Treadle):
        found.sync.close()
        return found
    apps = [key for key, value in vars(module).items() if isinstance(value, Treadle)]
    hint = f"it has {', '.join(apps)}" if apps else "it has none"
    raise CannotLoad(f"{module.__name__!r} has no Treadle app called {name!r}: {hint}")


def load_function(path: str) -> Callable[..., Any]:
    """Import the function `package.module:name`."""
    module, name = _import(path, "module:function, as in shop.web:access")
    found: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(found):
        raise CannotLoad(f"{module.__name__!r} has no function called {name!r}")
    return found


def _import(path: str, form: str) -> tuple[ModuleType, str]:
    """The module, and the name in it. The current directory is searched first, as for scripts."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise CannotLoad(f"{path!r} is not of the form {form}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name), name
    except ModuleNotFoundError as error:
        if error.name not in (module_name, module_name.partition(".")[0]):
            raise _raised(module_name, error) from error
        raise CannotLoad(f"there is no module {module_name!r} in {here} or on the path") from None
    except Exception as error:
        raise _raised(module_name, error) from error


def which_store(app: str | None, url: str | None) -> tuple[str | None, str | None]:
    """The app and the URL that a command names. If it names neither, one of the environment."""
    if not app and not url:
        app, url = os.environ.get("TREADLE_APP"), os.environ.get("TREADLE_URL")
        url = None if app else url
    return app, url


def client_of(app: str | None, url: str | None, *, logs: bool = False) -> Client:
    """The app, or a client for the URL, as operators use it: it does not migrate the store. Without `logs` it
    logs nothing, unless the module of the app has set logging up."""
    client = load(app) if app else Client(url or "")
    if logs:
        set_up(LogLevel.warning, LogFormat.text)
    elif not logging.root.handlers:
        logging.getLogger("treadle").addHandler(logging.NullHandler())
    apply_schema(client.backend, False)
    return client


def apply_schema(backend: Backend, wanted: bool) -> None:
    """Whether to bring the store, or each of several, to the schema of this version when it is opened, if it
    has a schema."""
    several = placed(backend)
    for each in (backend,) if several is None else several.backends.values():
        if hasattr(each, "apply_schema"):
            each.apply_schema = wanted  # pyright: ignore[reportAttributeAccessIssue]


def _raised(module: str, error: Exception) -> CannotLoad:
    return CannotLoad(f"the module {module!r} cannot be imported: {error_text(error)}")


def report(error: CannotLoad, format: str = LogFormat.text) -> None:
    """Write to standard error why the app was not loaded, for the person who started the command. If its
    module raised: the traceback, from the user's code on."""
    say_refusal(one_line(str(error)), format, error.__cause__)


class StoreAway(Exception):
    """The store was unavailable for as long as it was waited for."""


async def open_store(
    opening: Callable[[], Awaitable[object]], name: str, wait: float, stop: asyncio.Event
) -> bool:
    """Call `opening` until the store answers, for at most `wait` seconds: then `StoreAway`. Returns False if
    `stop` was set before. Other errors are raised at once."""
    began, failures = time.monotonic(), 0
    stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    try:
        while not stop.is_set():
            error = await _try(opening, stopping)
            waited = time.monotonic() - began
            if error is None:
                if failures and not stop.is_set():
                    log_line(WARNING, f"the store {one_line(name)} is available after {duration(waited)}")
                return not stop.is_set()
            reason = one_line(message_of(error))
            if waited >= wait:
                raise StoreAway(_given_up(one_line(name), reason, waited if failures else 0.0)) from error
            if not failures:
                limit = "" if math.isinf(wait) else f" for {duration(wait)}"
                log_line(WARNING, f"the store {one_line(name)} is unavailable, trying again{limit}: {reason}")
            failures += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(stopping), STORE_BACKOFF.delay(failures))
        return False
    finally:
        stopping.cancel()


async def _try(
    opening: Callable[[], Awaitable[object]], stopping: asyncio.Future[Any]
) -> StoreUnavailable | None:
    trying = asyncio.ensure_future(opening())
    await asyncio.wait({trying, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not trying.done():
        trying.cancel()
        await asyncio.wait({trying})
        return None
    try:
        trying.result()
    except StoreUnavailable as error:
        return error
    return None


def _given_up(name: str, reason: str, waited: float) -> str:
    state = f"was unavailable for {duration(waited)}" if waited else "is unavailable"
    return f"the store {name} {state}: {reason}"
