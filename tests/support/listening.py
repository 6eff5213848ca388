"""Messages received by a subscriber."""

from redis.client import PubSub

from support.server import TIMEOUT


def all_messages(listener: PubSub) -> list[object]:
    """Returns all messages sent to this subscriber before the reply to its PING, which comes after
    them even on a busy machine.
    """
    listener.ping()
    messages = []
    while True:
        message = listener.get_message(timeout=TIMEOUT)
        assert message is not None, "no answer to PING"
        if message["type"] == "pong":
            return messages
        messages.append(message)
