"""PostgreSQL: the store for a fleet. Each verb is one call of a function in the database.

backend.py            PostgresBackend, made of the verbs in
  submit.py claim.py settle.py steps.py read.py operate.py orders.py workers.py limits.py schedules.py
  transactions.py
moving.py             the schema as records, and filled from records; marks of a store that has moved
tenant_moves.py       a tenant that leaves, or comes in, while the schema is in use
ahead.py              what has ended of such a tenant, copied before the freeze
connection.py         calls with retries
connector.py          opening connections: the hosts of a URL, the login, the types of arrays
pool.py               a bounded pool of connections
link.py               a network that drops everything
statements.py         the SQL that is sent: sql/statements/*.sql
schema.py             the SQL in the database: migrations/*.sql (tables), sql/functions/*.sql
item_columns.py columns.py    items and their words as parameters
fairness.py           what the last claim served
wakeups.py            NOTIFY and LISTEN, or signed through another server
records.py            audit entries and statistics
user_transaction.py   statements on the user's own connection, with any driver
health.py             vacuum, and transactions that keep it from cleaning up
errors.py             the driver's errors as treadle's
"""

from .backend import PostgresBackend
from .schema import schema_sql

__all__ = ["PostgresBackend", "schema_sql"]
