"""What can go wrong for a user of the client, each with what to do about it.

The tree says what is known: NotPublished is certain, OutcomeUnknown is not, and the two are never
mixed up.
"""
# ruff: noqa: N818 (the names say what is known; "Error" at the end of each would say nothing more)

from __future__ import annotations

from migratory.errors import MigratoryError


class ClientError(MigratoryError):
    """Anything that the client reports."""


class ClientClosed(ClientError):
    """The client was closed by its user."""

    def __init__(self) -> None:
        super().__init__("CLIENT_CLOSED", "the client is closed", "open another one")


class ClientStopped(ClientError):
    """The server told the client not to come back."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message, "remove the cause, then open another client")


class PublishError(ClientError):
    """A message was not acknowledged."""

    def __init__(self, topic: str, code: str, message: str, remedy: str) -> None:
        super().__init__(code, f"{message} (topic {topic})", remedy)
        self.topic = topic


class NotPublished(PublishError):
    """The message is certainly not published."""


class OutcomeUnknown(PublishError):
    """The message may or may not be published, and this can no longer be found out."""

    def __init__(self, topic: str, code: str, message: str) -> None:
        remedy = "look for it in the topic, or publish it again if a second copy does no harm"
        super().__init__(topic, code, message, remedy)


class SubscribeError(ClientError):
    """A topic could not be subscribed."""

    def __init__(self, topic: str, code: str, message: str, remedy: str) -> None:
        super().__init__(code, f"{message} (topic {topic})", remedy)
        self.topic = topic


class SubscriptionDenied(SubscribeError):
    """The server refuses the topic, for good."""


class AlreadySubscribed(SubscribeError):
    """The client has the topic already: positions are kept once per topic and client."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            topic,
            "ALREADY_SUBSCRIBED",
            "this client has subscribed the topic already",
            "share that subscription, or open a second client",
        )
