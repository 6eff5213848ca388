"""What a subscriber has been told."""

from redis.client import PubSub

from support.server import PATIENCE


def all_told(listener: PubSub) -> list[object]:
    """All that the server had told this subscriber when it answers its PING: that comes after them,
    however busy the machine is.
    """
    listener.ping()
    told = []
    while True:
        message = listener.get_message(timeout=PATIENCE)
        assert message is not None, "no answer to PING"
        if message["type"] == "pong":
            return told
        told.append(message)
