"""Actions: what a visitor can change. Each is a POST, and most have a page that asks first."""

from __future__ import annotations

from . import (
    act,
    complete,
    drain,
    edit,
    enqueue,
    item_verbs,
    queues,
    schedules,
    update,
)
from .route import ActionRoute, asked, post

ACTION_ROUTES: tuple[ActionRoute, ...] = (
    *post("/items/{id}/requeue", item_verbs.requeue, "requeue"),
    *post("/items/{id}/cancel", item_verbs.cancel, "cancel"),
    *post("/items/{id}/trigger", item_verbs.trigger, "trigger"),
    *asked("/items/{id}/complete", complete.complete, "complete"),
    *asked("/items/{id}/edit", edit.edit, "edit"),
    *asked("/items/{id}/update", update.update, "update"),
    *asked("/items/{id}/delete", item_verbs.delete, "delete"),
    *post("/groups/{id}/repair", item_verbs.repair, "requeue"),
    *post("/queues/{queue}/pause", queues.pause, "pause"),
    *post("/queues/{queue}/resume", queues.resume, "resume"),
    *post("/schedules/{name}/pause", schedules.pause, "pause_schedule"),
    *post("/schedules/{name}/resume", schedules.resume, "resume_schedule"),
    *post("/schedules/{name}/trigger", schedules.trigger, "trigger_schedule"),
    *asked("/schedules/{name}/cancel", schedules.cancel, "cancel_schedule"),
    *asked("/workers/{id}/drain", drain.drain, "drain_worker"),
    *asked("/act/{verb}", act.act, None),
    *post("/bulk/{id}/stop", act.stop, "stop_bulk"),
    *asked("/types/{type}/enqueue", enqueue.enqueue, "enqueue"),
)
