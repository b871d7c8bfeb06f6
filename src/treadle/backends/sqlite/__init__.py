"""SQLite: durable work with no set-up. One file, any number of processes on one machine.

backend    the verbs, each a call to one of two threads
writer     all writing, in group commits            reader     reads, and the look for foreign commits
turn       whose turn it is to write                connection how the file is opened
tx         one step in the database                 schema     versions; migrations/*.sql
one module and one sql/*.sql per verb: submit (plan, store), claim (turns, picking), settle (finish, groups,
history), worker, read, ...
"""

from .backend import SqliteBackend
from .schema import schema_sql

__all__ = ["SqliteBackend", "schema_sql"]
