"""The client SDK: a sans-I/O session under a thin trio transport.

`open_client` is the way in. Docs: the protocol in docs/protocol.md, section 10 for what a client
owes the cluster.
"""

from client_sdk.client import Client, Receipt, Subscription, open_client
from client_sdk.errors import (
    AlreadySubscribed,
    ClientClosed,
    ClientError,
    ClientStopped,
    NotPublished,
    OutcomeUnknown,
    PublishError,
    SubscribeError,
    SubscriptionDenied,
)
from client_sdk.items import Gap, Item, Message, Reset, Resumed, Subscribed
from client_sdk.trace import open_trace
from migratory.wire.ids import Position

__all__ = [
    "AlreadySubscribed",
    "Client",
    "ClientClosed",
    "ClientError",
    "ClientStopped",
    "Gap",
    "Item",
    "Message",
    "NotPublished",
    "OutcomeUnknown",
    "Position",
    "PublishError",
    "Receipt",
    "Reset",
    "Resumed",
    "SubscribeError",
    "Subscribed",
    "Subscription",
    "SubscriptionDenied",
    "open_client",
    "open_trace",
]
