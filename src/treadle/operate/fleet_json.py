"""Counts, workers, limits, schedules, audit entries, bulk actions and reasons as JSON, for programs:
what commands of operators print with `--json`, and pages of the dashboard answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec.structs import asdict

from treadle.base.timing import iso
from treadle.bulk_action import BulkState
from treadle.item import Order, Status, WorkerState
from treadle.item_facts import LimitUse, UnservedType
from treadle.records import AuditEntry, QueueBacklog
from treadle.store.fleet import WorkerStanding, last_beat
from treadle.why import Reason, Why
from treadle.worker_info import BlockingItem

from .backlog import backlog_text
from .schedule_state import ScheduleState

COUNTED: Final[tuple[Status, ...]] = ("ready", "running", "scheduled", "blocked", "dead")
"""The statuses that an overview counts."""


def counts_json(counts: Mapping[Status, tuple[int, bool]]) -> dict[str, Any]:
    """How many items are in each status, and whether this is an estimate."""
    found = {status: counts.get(status, (0, False)) for status in COUNTED}
    return {status: {"count": count, "estimated": estimated} for status, (count, estimated) in found.items()}


def backlog_json(backlog: QueueBacklog | None) -> dict[str, Any] | None:
    """How fast a queue grows or drains. Null: not known."""
    if backlog is None:
        return None
    return {
        "arrivals_per_minute": backlog.arrivals,
        "ends_per_minute": backlog.ends,
        "growth_per_minute": backlog.growth,
        "over_seconds": backlog.over,
        "drains_in_seconds": backlog.drains_in,
        "seconds": backlog.seconds,
        "rough": backlog.rough,
        "text": backlog_text(backlog) or None,
    }


def unserved_json(unserved: UnservedType) -> dict[str, Any]:
    """The names of `UnservedType`."""
    return {"type": unserved.type, "count": unserved.count, "since": iso(unserved.since)}


def worker_json(worker: WorkerState, standing: WorkerStanding) -> dict[str, Any]:
    """A worker for programs: the names of `WorkerState`, and some of `WorkerInfo`. Null: not known."""
    info = worker.info
    return {
        "id": worker.id,
        "state": standing,
        "until": iso(worker.until),
        "last_beat_at": iso(last_beat(worker)),
        "running": worker.running,
        "types": None if worker.types is None else sorted(worker.types),
        "info": None
        if info is None
        else {
            "host": info.host,
            "pid": info.pid,
            "version": info.version,
            "release": info.release,
            "started_at": iso(info.started_at) if info.started_at else None,
            "queues": info.queues,
            "tenants": info.tenants,
            "room": info.room,
            "rooms": dict(info.rooms),
            "waiting": info.waiting,
            "pressed_until": iso(info.pressed_until),
            "declined": dict(info.declined),
            "undecodable": {
                type: {
                    "count": each.count,
                    "error": each.error,
                    "until": iso(each.until),
                }
                for type, each in info.undecodable.items()
            },
            "blocked_since": iso(info.blocked_since),
            "blocked_by": [_blocking_json(each) for each in info.blocked_by],
            "blockages": [
                {
                    "since": iso(each.since),
                    "until": iso(each.until),
                    "items": [_blocking_json(item) for item in each.items],
                }
                for each in info.blockages
            ],
            "draining": info.draining,
        },
    }


def _blocking_json(item: BlockingItem) -> dict[str, Any]:
    return {"id": item.id, "type": item.type, "tenant": item.tenant}


def order_json(order: Order) -> dict[str, Any]:
    """An order for programs: the names of `Order`."""
    return {**asdict(order), "until": iso(order.until), "at": iso(order.at)}


def limit_json(use: LimitUse) -> dict[str, Any]:
    """A limit for programs: the names of `LimitUse`."""
    return {
        "name": use.name,
        "algorithm": use.algorithm,
        "used": use.used,
        "limit": use.limit,
        "lowest": use.lowest,
        "retry_after": use.retry_after,
        "code": use.code,
        "code_window": use.code_window,
        "known": use.known,
        "order": None if use.order is None else order_json(use.order),
        "holders": [
            {"worker": each.worker, "count": each.count, "items": list(each.items)} for each in use.holders
        ],
    }


def schedule_json(schedule: ScheduleState) -> dict[str, Any]:
    """A schedule for programs: the names of `ScheduleState`."""
    return {
        "name": schedule.name,
        "state": schedule.state,
        "next_at": iso(schedule.next_at),
        "last_at": iso(schedule.last_at),
        "seen_at": iso(schedule.seen_at),
        "paused": schedule.paused,
        "orphaned": schedule.orphaned,
        "ended": schedule.ended,
        "last_error": schedule.last_error or None,
        "timing": dict(schedule.timing),
    }


def audit_json(entry: AuditEntry) -> dict[str, Any]:
    """An audit entry for programs: the names of `AuditEntry`."""
    return {
        "no": entry.no,
        "at": iso(entry.at),
        "actor": entry.actor,
        "verb": entry.verb,
        "tenant": entry.tenant,
        "ids": list(entry.ids),
        "count": entry.count,
        "about": entry.about,
        "reason": entry.reason,
        "address": entry.address,
        "bulk": entry.bulk,
    }


def bulk_json(action: BulkState) -> dict[str, Any]:
    """A bulk action for programs: the names of `BulkState`."""
    return {
        "id": action.id,
        "verb": action.verb,
        "state": action.state,
        "where": action.where,
        "changes": action.changes,
        "tenant": action.tenant,
        "actor": action.actor,
        "reason": action.reason,
        "total": action.total,
        "more": action.more,
        "matched": action.matched,
        "changed": action.changed,
        "skipped": dict(action.skipped),
        "refused": [
            {"id": each.id, "tenant": each.tenant, "error": each.error, "message": each.message}
            for each in action.refused
        ],
        "rate": action.rate,
        "canary": action.canary,
        "canary_wait": action.canary_wait,
        "canary_tried": action.canary_tried,
        "canary_succeeded": action.canary_succeeded,
        "held_back_by": [{"id": each.id, "tenant": each.tenant} for each in action.held_back_by],
        "started_at": iso(action.started_at),
        "ended_at": iso(action.ended_at),
        "error": action.error,
        "waits": action.waits,
    }


class ShownProblem(Protocol):
    """A problem, as it is or as a visitor may see it."""

    @property
    def kind(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def fix(self) -> str: ...
    @property
    def refs(self) -> Sequence[str]: ...
    @property
    def items(self) -> int: ...


def problem_json(problem: ShownProblem) -> dict[str, Any]:
    """What programs are told of a problem."""
    return {
        "kind": problem.kind,
        "text": problem.text,
        "fix": problem.fix,
        "refs": list(problem.refs),
        "items": problem.items,
    }


def why_json(answer: Why) -> dict[str, Any]:
    """The names of `Why`."""
    return {
        "id": answer.id,
        "status": answer.status,
        "reasons": [reason_json(reason) for reason in answer.reasons],
    }


def reason_json(reason: Reason) -> dict[str, Any]:
    """The names of `Reason`."""
    return {
        "kind": reason.kind,
        "text": reason.text,
        "until": iso(reason.until),
        "refs": list(reason.refs),
        "fix": reason.fix,
        "about": reason.about,
    }
