"""Memory: the reference implementation of `treadle.backend`, and a fast backend for one process.

backend.py       MemoryBackend: the verbs, each a call into one of the modules below
  submit.py claim.py settle.py steps.py workers.py    the path of work
  read.py operate.py orders.py limits.py claimed_keys.py schedules.py records.py
transitions.py   how a row gets from one state to another
endings.py       how a row ends, and what that causes: its group is over, others are released
dependencies.py groups.py                         who waits for whom; members and values
moving.py        tables as records, and records as tables
tenant_moves.py  a tenant that leaves, or comes in, while the tables are in use
tables.py        all tables; rows.py: what is in them
  fairness.py (ready and parked), retention.py
  priority_queue.py                               what most tables are made of
"""

from .backend import MemoryBackend

__all__ = ["MemoryBackend"]
