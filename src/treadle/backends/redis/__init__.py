"""Redis and Valkey: items in one namespace of a server, a Sentinel set-up or a cluster; or in many.

backend.py        RedisBackend, made of the verbs in
  submit.py claim.py settle.py steps.py read.py lists.py watch.py operate.py orders.py workers.py limits.py
  schedules.py records.py
kinds.py          what counts stand for
stage.py          many items that one call stores, in portions that are seen together
moving.py         the namespace as records, and filled from records; marks: lua/moving
tenant_moves.py   a tenant that leaves, or comes in, while the namespace is in use
scripts.py        the scripts: lua/*.lua, and what they share: lua/lib/*.lua
item_bytes.py record_bytes.py settlement_bytes.py step_bytes.py    what scripts and stored rows have, as bytes
link.py           calls with retries, on a connection for each kind
connector.py address.py topology.py connection.py    finding the server, logging in, talking to it
partitions.py nodes.py    the namespaces of a whole cluster; connections that they share
wakeups.py        PUBLISH and SUBSCRIBE; the Sentinels that name a new primary
health.py         settings with which work can be lost, and missing keys
schema.py         the version of the layout
errors.py         the server's errors as treadle's
"""

from .backend import RedisBackend

__all__ = ["RedisBackend"]
