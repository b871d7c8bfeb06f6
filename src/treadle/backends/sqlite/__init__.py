"""SQLite: durable work with no set-up. One file, any number of processes on one machine.

backend             the contract: each verb is a call to one of two threads
database            the file while it is open: its threads and what belongs to them
writer, reader      execute verbs in their threads: all writes in group commits, reads beside them
write_lock          how writers take the write lock fairly
process_directory   where the processes on one file find each other; wakeups go through it
connection, schema  how the file is opened; migrations/*.sql
statements          loads sql/*.sql, and executes them inside a transaction

One module and one sql/*.sql per verb: submit (dependencies), claim (fairness, workers), settle (endings,
groups), read, operate, retention, limits, schedules.
"""

from .backend import SqliteBackend
from .schema import schema_sql

__all__ = ["SqliteBackend", "schema_sql"]
