"""Bound: a work type as one worker runs it. Everything that is the same for every attempt, looked up once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.doers.base import BaseDoer
from treadle.metrics import TypeMetrics
from treadle.retry import Retry

from .itemize import Itemizer
from .registry import AnyType
from .settings import Settings


class Bound:
    __slots__ = (
        "doer",
        "fn",
        "is_async",
        "log_context",
        "metrics",
        "name",
        "on_failure",
        "own_doer",
        "retry",
        "run_in",
        "strict",
        "timeout",
        "type",
        "wants_context",
    )

    def __init__(
        self, type: AnyType, itemizer: Itemizer, settings: Settings, metrics: TypeMetrics, doer: BaseDoer
    ) -> None:
        handler = type.required_handler
        base = itemizer.base(type)
        self.type = type
        self.name = type.name
        self.fn: Callable[..., Any] = handler.fn
        self.is_async = handler.is_async
        self.wants_context = handler.wants_context
        self.run_in = type.run_in
        self.retry: Retry = base.retry
        self.timeout = base.timeout
        self.strict: bool = type.options.get("strict_return", settings.strict_return)
        self.on_failure = type.options.get("on_failure") or settings.on_failure
        self.log_context = type.options.get("log_context")
        self.metrics = metrics
        self.doer = doer
        self.own_doer = "doer" in type.options
