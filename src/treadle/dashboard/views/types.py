"""Types: what there is to run: how often it runs and fails, how it is configured, and who has it."""

from __future__ import annotations

import asyncio
import inspect
import re
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias

import msgspec

from treadle.base.ids import check_name
from treadle.base.wording import duration, one_line
from treadle.dashboard.access import NotShown
from treadle.dashboard.queue_states import Depth, depth_json, depths
from treadle.dashboard.throughput import (
    SPANS,
    Rate,
    Throughput,
    read_rates,
    read_throughput,
    span_of,
    throughput_json,
)
from treadle.dashboard.views import Pages, View, page_of, pages_json
from treadle.dashboard.visit import Visit
from treadle.define.dependency import BUILT_IN
from treadle.define.work_type import AnyWorkType, arguments_of
from treadle.item import Order, WorkerState
from treadle.item_facts import Overview, UnservedType
from treadle.operate.fleet_json import order_json, unserved_json
from treadle.operate.why.fleet import misfit_text
from treadle.retry import Retry
from treadle.store.fleet import Fleet

from .limits import LimitRow, doer_words, limit_rows, limits_of_types, rows_json
from .workers import WorkerRow, row_json, worker_row

PER_PAGE: Final = 200
MOST_WORKERS: Final = 50
MOST_TEXT: Final = 2000
"""Characters of a signature or a docstring."""

Code: TypeAlias = Literal["handler", "declared", "none"]
"""Whether this process has the handler of a type, only its signature, or nothing."""


class TypeState(msgspec.Struct, frozen=True):
    name: str
    code: Code
    depth: Depth
    workers: int
    """Live workers that have it, or may."""
    unserved: UnservedType | None = None
    """Ready items that no worker takes."""
    rate: Rate | None = None
    pauses: list[Order] = []
    """Those of this type that are in force."""

    @property
    def paused_for(self) -> list[str]:
        """Tenants for which alone it is paused."""
        return sorted(each.tenant for each in self.pauses if each.tenant is not None)


class TypesPage(msgspec.Struct, frozen=True):
    types: list[TypeState] | None
    """None: not in time."""
    pages: Pages
    span: str
    rates: bool
    """Whether rates are known."""
    over: float = 0.0
    """Seconds in which these were counted."""


class TypeFacts(msgspec.Struct, frozen=True):
    """What the code of this process says about a type."""

    signature: str
    docstring: str
    aliases: list[str]
    options: dict[str, str]
    """By name, in words."""


class TypePage(msgspec.Struct, frozen=True):
    state: TypeState
    facts: TypeFacts | None
    """None: its code is not here."""
    throughput: Throughput | None
    limits: list[LimitRow] | None
    """None: not in time."""
    queues: dict[str, Depth]
    """Where its items are."""
    workers: list[WorkerRow]
    more_workers: int
    """Visitors of single tenants are told only how many there are."""
    misfits: str = ""
    """That workers could not decode arguments of its items. Empty: none says so."""


async def read_all(visit: Visit) -> TypesPage:
    span = span_of(visit)
    overview, rates = await asyncio.gather(
        visit.in_time(visit.overview()), read_rates(visit, "type", *SPANS[span])
    )
    if overview is None:
        return TypesPage(None, Pages(1, 1, 0), span, False)
    states = type_states(visit, overview, rates)
    if visit.access.tenants is not None:  # what others use is not told
        states = [state for state in states if state.depth.counts]
    shown, pages = page_of(visit, states, PER_PAGE)
    over = max((each.over for each in (rates or {}).values()), default=float(SPANS[span][0]))
    return TypesPage(shown, pages, span, rates is not None, over)


def type_states(visit: Visit, overview: Overview, rates: dict[str, Rate] | None) -> list[TypeState]:
    """The types that the code here, the workers, the items or the statistics name, by name. Those whose items
    wait for a worker come first. Types of treadle itself are among them if they have open or dead items."""
    found = depths(overview.counts, attrgetter("type"))
    unserved = {each.type: each for each in overview.unserved}
    fleet = Fleet(overview.workers, overview.now)
    served = {type for worker in fleet.live for type in worker.types or ()}
    pauses: dict[str, list[Order]] = {}
    for order in overview.paused:
        if order.type is not None:
            pauses.setdefault(order.type, []).append(order)
    names = {*visit.client.types, *served, *found, *unserved, *pauses, *(rates or ())}
    states = [
        TypeState(
            name=name,
            code=code_of(visit.client.types.get(name)),
            depth=found.get(name, Depth()),
            workers=len(fleet.serving(type=name)),
            unserved=unserved.get(name),
            rate=(rates or {}).get(name),
            pauses=pauses.get(name, []),
        )
        for name in names
        if name in found or not is_built_in(name)
    ]
    return sorted(states, key=lambda state: (state.unserved is None, state.name))


def is_built_in(name: str) -> bool:
    """Whether it is a type of treadle itself."""
    return name in BUILT_IN or name.startswith("treadle.")


def code_of(type: AnyWorkType | None) -> Code:
    if type is None:
        return "none"
    return "handler" if type.has_handler else "declared"


async def read_one(visit: Visit) -> TypePage:
    name, span = check_name(visit.part("type"), field="type"), span_of(visit)
    overview, throughput = await asyncio.gather(visit.overview(), read_throughput(visit, span, type=name))
    uses = await visit.in_time(visit.client.limits(overview=overview))
    own, fleet = not is_built_in(name), Fleet(overview.workers, overview.now)
    type = visit.client.types.get(name) if own else None
    state = next((each for each in type_states(visit, overview, None) if each.name == name), None)
    is_known = state is not None or (own and bool(throughput is not None and throughput.started))
    if visit.access.tenants is not None:  # what others use is not told
        is_known = state is not None and bool(state.depth.counts)
    if not is_known and not await visit.uses(type=name):
        raise NotShown(f"there is no type {name!r}")
    serving, most = fleet.serving(type=name), MOST_WORKERS if visit.access.tenants is None else 0
    queues = depths((count for count in overview.counts if count.type == name), attrgetter("queue"))
    return TypePage(
        state=state or TypeState(name, "none", Depth(), len(serving)),
        facts=None if type is None else type_facts(type),
        throughput=throughput,
        limits=None
        if uses is None
        else limit_rows(limits_of_types(uses, visit.client.types, [name]), overview.workers),
        queues=dict(sorted(queues.items(), key=lambda each: (-each[1].open, each[0]))),
        workers=[worker_row(fleet, worker) for worker in serving[:most]],
        more_workers=max(0, len(serving) - most),
        misfits=_misfits(visit, name, serving),
    )


def _misfits(visit: Visit, type: str, workers: list[WorkerState]) -> str:
    said = [(each, found) for each in workers if each.info and (found := each.info.undecodable.get(type))]
    if not said:
        return ""
    error = said[0][1].error if visit.access.payloads else ""
    return misfit_text("the arguments of items of this type", [each for each, _ in said], error)


# ---------------------------------------------------------------------------------------------- the code


def type_facts(type: AnyWorkType) -> TypeFacts:
    """What a work type says about itself."""
    return TypeFacts(
        signature=signature_of(type),
        docstring=(inspect.getdoc(type) or "")[:MOST_TEXT],
        aliases=list(type.aliases),
        options=option_words(type),
    )


_MODULE: Final = re.compile(r"\btreadle\.(?:\w+\.)*(?=[A-Z])")
"""Where a class of treadle is, which users import from elsewhere."""


class _Written(str):
    """An annotation that is a text, shown as it was written."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def signature_of(type: AnyWorkType) -> str:
    """How it is called, without the Context. Empty if that cannot be said: defaults are values of users."""
    try:
        signature = inspect.signature(type)
        own = {each.name for each in arguments_of(type).parameters}
        parameters = [
            each.replace(annotation=_written(each.annotation))
            for each in signature.parameters.values()
            if each.name in own
        ]
        shown = inspect.Signature(parameters, return_annotation=_written(signature.return_annotation))
        return one_line(_MODULE.sub("", str(shown)).replace("NoneType", "None"), MOST_TEXT)
    except Exception:  # noqa: BLE001  the repr of a default may raise anything
        return ""


def _written(annotation: object) -> object:
    return _Written(annotation) if isinstance(annotation, str) else annotation


def option_words(type: AnyWorkType) -> dict[str, str]:
    """The options of a type that say how it runs, in words."""
    options, words = type.options, dict[str, str]()
    retry = options.get("retry")
    words["retry"] = retry_words(retry) if isinstance(retry, Retry) else "that of the app"
    words["doer"] = doer_words(options.get("doer"))
    words["runs in"] = {"loop": "the event loop", "thread": "a thread", "process": "a process"}[type.run_in]
    if type.batch is not None:
        words["batch"] = f"up to {type.batch.size:,} items, or after {duration(type.batch.max_wait)}"
    for name in ("timeout", "expires_in", "keep"):
        if isinstance(value := options.get(name), int | float):
            words[name.replace("_", " ")] = duration(value)
    for name in ("queue", "priority", "lane", "key_policy"):
        if options.get(name) not in (None, ""):
            words[name.replace("_", " ")] = str(options[name])
    if options.get("unique"):
        words["unique"] = "yes: one open item for the same input"
    if isinstance(on_dead := getattr(options.get("on_dead"), "name", None), str):
        words["on dead"] = on_dead
    return words


def retry_words(retry: Retry) -> str:
    """A retry policy in words."""
    if retry.attempts == 1:
        return "no retry: 1 attempt"
    attempts = "any number of attempts" if retry.attempts is None else f"{retry.attempts} attempts"
    if retry.backoff is not None:
        return f"{attempts}, waits by a function"
    waits = f"waits from {duration(retry.base)}"
    grows = f" times {retry.factor:g} each, up to {duration(retry.max)}" if retry.factor != 1 else ""
    jitter = f", less up to {retry.jitter:.0%}" if retry.jitter else ""
    return f"{attempts}, {waits}{grows}{jitter}"


# ---------------------------------------------------------------------------------------------- programs


def all_json(visit: Visit, page: TypesPage) -> dict[str, Any]:
    types = None if page.types is None else [type_json(each) for each in page.types]
    return {"types": types, **pages_json(page.pages), "span": page.span}


def one_json(visit: Visit, page: TypePage) -> dict[str, Any]:
    return {
        **type_json(page.state),
        "facts": page.facts,
        "throughput": throughput_json(page.throughput),
        "limits": rows_json(page.limits),
        "queues": [{"queue": queue, **depth_json(depth)} for queue, depth in page.queues.items()],
        "workers": [row_json(visit, each) for each in page.workers],
        "more_workers": page.more_workers,
    }


def type_json(state: TypeState) -> dict[str, Any]:
    """A type as `treadle status --json` has it, and more."""
    return {
        "type": state.name,
        **depth_json(state.depth),
        "code": state.code,
        "worker_count": state.workers,
        "unserved": None if state.unserved is None else unserved_json(state.unserved),
        "rate": state.rate,
        "paused": [order_json(each) for each in state.pauses],
    }


VIEW = View("/types", "types.html", read_all, "types", to_json=all_json)
TYPE_VIEW = View("/types/{type}", "type.html", read_one, "types", to_json=one_json)
