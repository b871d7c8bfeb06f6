"""Callers of Celery tasks, on treadle. Needs neither Celery nor an extra.

    send = CeleryTask(app, send_mail)  # send_mail is a work type

    send.delay("ada@example.org")
    send.apply_async(("ada@example.org",), countdown=60, queue="mail").get(timeout=120)
    group(send.s(to) for to in people).delay()

The code that calls a task stays as it is while the task itself moves. What does not fit raises an error that
says what to write instead.

======================  ====================================================================
`task`                  `CeleryTask`: a work type with the methods of a Celery task; signatures and
                        groups, with the options of `apply_async`; why there are no chains
`result`                what `delay` returns
======================  ====================================================================

See docs/moving/celery.md.
"""

from __future__ import annotations

from .result import CeleryGroupResult, CeleryResult
from .task import ApplyOptions, CeleryGroup, CelerySignature, CeleryTask, chain, chord, group

__all__ = [
    "ApplyOptions",
    "CeleryGroup",
    "CeleryGroupResult",
    "CeleryResult",
    "CelerySignature",
    "CeleryTask",
    "chain",
    "chord",
    "group",
]
