"""SQLite: durable work with no set-up. One file, any number of processes on one machine.

backend             the contract: each verb is a call to one of two threads
database            the file while it is open: its threads and what belongs to them
threads             execute verbs in their threads: reads beside all writes, which are in group commits
process_directory   where the processes on one file find each other; wakeups go through it
connection, schema  how the file is opened, and that it is still the same one; migrations/*.sql
moving, marks       the file as records, and filled from records; marks of a store that has moved
tenant_moves        a tenant that leaves, or comes in, while the file is in use
ahead               what has ended of such a tenant, copied before the freeze
statements          loads sql/*.sql, and executes them inside a transaction

One module and one sql/*.sql per verb: submit (dependencies), claim (fairness, workers), settle (endings,
groups), steps, read, operate, orders, retention, limits, schedules, records.
"""

from .backend import SqliteBackend
from .schema import schema_sql

__all__ = ["SqliteBackend", "schema_sql"]
