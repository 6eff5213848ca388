"""Messages received by a subscriber."""

from redis.client import PubSub

from support.server import PATIENCE


def all_told(listener: PubSub) -> list[object]:
    """Returns all messages sent to this subscriber before the reply to its PING, which comes after
    them even on a busy machine.
    """
    listener.ping()
    told = []
    while True:
        message = listener.get_message(timeout=PATIENCE)
        assert message is not None, "no answer to PING"
        if message["type"] == "pong":
            return told
        told.append(message)
