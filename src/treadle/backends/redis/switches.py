"""Switches: follow the primary that Sentinels name, also while the old one answers.

After `SENTINEL FAILOVER` the old primary takes writes for about ten seconds, and loses them when it becomes a
replica. So each link listens at one Sentinel, and leaves the old primary when the Sentinel names another.
"""

from __future__ import annotations

from typing import Any, Final

from .connector import RedisConnector
from .subscription import RedisSubscription

SWITCHES: Final = (b"+switch-master", b"+promoted-slave")
"""What Sentinels tell. The one that leads names the new primary with the second, and sends the first when all
replicas follow it. The others send the first only."""


def primary_switches(connector: RedisConnector) -> RedisSubscription | None:
    """None: there are no Sentinels to listen to."""
    if not connector.has_sentinels:
        return None
    service = connector.address.service.encode()

    def on_push(message: list[Any]) -> None:
        if message[0] == b"message" and service in message[2].split():
            subscription.renew()  # it begins with the question that has to be asked now

    subscription = RedisSubscription(
        connector.connect_sentinel,
        [(b"SUBSCRIBE", channel) for channel in SWITCHES],
        on_push,
        lambda _: connector.follow(),
        listens_for="a planned failover",
        instead="it may lose what is stored meanwhile",
    )
    return subscription
