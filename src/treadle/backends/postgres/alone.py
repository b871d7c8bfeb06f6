"""Alone: one item that is like almost all, in one plain statement.

For a single item the function that stores many, `add`, takes 85 us longer, a quarter of the whole call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.item import Item, Submission

from .rows import SHAPE

_PARAMETERS: Final = ", ".join(
    f"${number}::{type}" for number, type in enumerate(("text", "bigint", "bytea", *SHAPE), start=1)
)

ADD_ONE: Final = f"""
with one as materialized (
  select nextval('treadle.number') as no, treadle.clock() as now, set_config('lock_timeout', '200ms', true),
    given.*
  from (values ({_PARAMETERS})) given (id, nonce, input, tenant, type, queue, lane, priority, attempts,
    run_at, delay, deadline, expires, parent, workflow, workflow_type, need, keep, keep_dead, options)
),
stored as (
  insert into treadle.item (no, nonce, queued, due, deadline, keep, keep_dead, priority, attempts, need, id,
      tenant, type, queue, lane, parent, workflow, workflow_type, input, options)
    select no, nonce, now, coalesce(run_at, now + delay), coalesce(deadline, now + expires), keep, keep_dead,
      priority, attempts, need, id, tenant, type, queue, lane, parent, workflow, workflow_type, input, options
    from one
    on conflict (id, tenant) do nothing
    returning no, due, queued, deadline, keep, keep_dead, priority, attempts, queue, tenant, lane, type
)
insert into treadle.job (no, seq, due, since, deadline, keep, keep_dead, status, priority, budget, queue,
    tenant, lane, type)
  select no, no, due, queued, deadline, nullif(keep, 86400), keep_dead,
    case when due > queued then 1 else 2 end, priority, attempts, queue, tenant, lane, type
  from stored
  returning status
"""  # noqa: S608  constants
"""Answers the status, or nothing if the id is taken: then nothing was stored."""


def alone(submissions: Sequence[Submission]) -> Item | None:
    """The item that is all there is to submit."""
    if len(submissions) == 1 and len(submissions[0].items) == 1:
        return submissions[0].items[0]
    return None
