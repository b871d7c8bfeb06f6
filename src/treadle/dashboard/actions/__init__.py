"""Actions: what a visitor can change. Each is a POST, and most have a page that asks first."""

from __future__ import annotations

from . import act, edit, enqueue, fleet, item_verbs
from .route import ActionRoute, asked, post

ACTION_ROUTES: tuple[ActionRoute, ...] = (
    *post("/items/{id}/requeue", item_verbs.requeue, "requeue"),
    *post("/items/{id}/cancel", item_verbs.cancel, "cancel"),
    *post("/items/{id}/trigger", item_verbs.trigger, "trigger"),
    *asked("/items/{id}/complete", edit.complete, "complete"),
    *asked("/items/{id}/edit", edit.edit, "edit"),
    *asked("/items/{id}/update", edit.update, "update"),
    *asked("/items/{id}/delete", item_verbs.delete, "delete"),
    *post("/groups/{id}/repair", item_verbs.repair, "requeue"),
    *post("/queues/{queue}/pause", fleet.pause, "pause"),
    *post("/queues/{queue}/resume", fleet.resume, "resume"),
    *post("/schedules/{name}/pause", fleet.pause_schedule, "pause_schedule"),
    *post("/schedules/{name}/resume", fleet.resume_schedule, "resume_schedule"),
    *post("/schedules/{name}/trigger", fleet.trigger_schedule, "trigger_schedule"),
    *asked("/schedules/{name}/cancel", fleet.cancel_schedule, "cancel_schedule"),
    *asked("/workers/{id}/drain", fleet.drain, "drain_worker"),
    *asked("/act/{verb}", act.act, None),
    *post("/bulk/{id}/stop", act.stop, "stop_bulk"),
    *asked("/types/{type}/enqueue", enqueue.enqueue, "enqueue"),
)
