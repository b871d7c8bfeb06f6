"""Actions: what a visitor can change. Each is a POST, and most have a page that asks first."""

from __future__ import annotations

from .route import ActionRoute

ACTION_ROUTES: tuple[ActionRoute, ...] = ()
