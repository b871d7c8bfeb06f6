"""PostgreSQL: the store for a fleet. Each verb is one call of a function that lives in the database.

backend.py     PostgresBackend: the verbs, by the stage of work they belong to
  submitting.py claiming.py settling.py reading.py operating.py coordinating.py signals.py
rows.py        items as columns          rotation.py   turns, between claims
calls.py       one statement, one trip; retries       pool.py   connections       failures.py   errors
schema.py      migrations/*.sql (tables) and sql/*.sql (functions, named after the verbs)
"""

from .backend import PostgresBackend
from .schema import schema_sql

__all__ = ["PostgresBackend", "schema_sql"]
