"""Redis and Valkey: items in one namespace of a server, a Sentinel set-up or a cluster."""

from .backend import RedisBackend

__all__ = ["RedisBackend"]
