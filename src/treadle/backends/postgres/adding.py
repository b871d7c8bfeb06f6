"""Adding: new items that are alike but for their ids and inputs, as almost all are, in one plain statement.

It stores all of them, or raises a unique violation if an id is taken, and nothing is stored. The function
that knows what to do then, `store`, takes a third longer for many items and a quarter longer for one.
"""

from __future__ import annotations

from typing import Final

import asyncpg

from .columns import NAMES, parameter
from .rows import SHAPE

TAKEN: Final = asyncpg.UniqueViolationError


def _adding(rows: str, *types: str) -> str:
    """The statement that stores these rows, of a number, a nonce, an id and an input. `types` are those of
    the parameters that `rows` uses; what all items have in common follows."""
    known = [parameter(number, type) for number, type in enumerate((*types, *SHAPE.values()), start=1)]
    common = dict(zip(SHAPE, known[len(types) :], strict=True))
    return _STATEMENT.format(rows=rows.format(*known), **common)


_STATEMENT: Final = """
with moment as materialized (
  select treadle.clock() as now, set_config('lock_timeout', '200ms', true)
),
stored as (
  insert into treadle.item (no, nonce, id, input, queued, due, deadline, keep, keep_dead, priority, attempts,
      need, tenant, type, queue, lane, parent, workflow, workflow_type, options)
    select u.no, u.nonce, u.id, u.input, m.now, coalesce({run_at}, m.now + {delay}),
      coalesce({deadline}, m.now + {expires_in}), {keep}, {keep_dead}, {priority}, {attempts}, {need},
      {tenant}, {type}, {queue}, {lane}, {parent}, {workflow}, {workflow_type}, {options}
    from moment m, {rows} u (no, nonce, id, input)
    returning no, queued, due, deadline
),
entered as (
  insert into treadle.job (no, seq, due, since, deadline, keep, keep_dead, status, priority, budget, tenant,
      type, queue, lane)
    select no, no, due, queued, deadline, nullif({keep}, 86400), {keep_dead},
      case when due > queued then 1 else 2 end, {priority}, {attempts}, {tenant}, {type}, {queue}, {lane}
    from stored
)
select case when coalesce({run_at}, m.now + {delay}) > m.now then 1 else 2 end as state from moment m
"""

ADD_ONE: Final = _adding(
    "(values (nextval('treadle.number'), {1}, {0}, {2}))",
    *("text", "bigint", "bytea"),
)
"""Its id, its nonce, its input; the shape."""
ADD: Final = _adding(
    "unnest(treadle.numbered({4}, {3}), treadle.spread({1}, {3}), {0}, treadle.spread({2}, {3}))",
    *(NAMES, "bigint[]", "bytea[]", "int", "int[]"),
)
"""Ids, nonces, inputs, how many, their ranks; the shape."""
