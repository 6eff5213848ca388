"""Ports for the servers that tests, examples and benchmarks start."""

import random
import socket
from contextlib import ExitStack

HOST = "127.0.0.1"
# Below the ports that the system gives to outgoing connections, one of which could take a port
# before its server does. The cluster bus of each is 10,000 higher, where no port is reserved.
RESERVED = range(11_000, 21_000)
BUS = 10_000


def reserve_port(until: ExitStack) -> int:
    """A free TCP port, which nobody else who reserves one gets before `until` closes, not even
    while the server that has it is down.

    Whoever has bound the UDP port of the same number has reserved it: a server needs only that of
    TCP. The fixtures of all languages do so, as they run beside each other.
    """
    while True:
        port = random.choice(RESERVED)
        reservation = socket.socket(type=socket.SOCK_DGRAM)
        try:
            reservation.bind((HOST, port))
        except OSError:
            reservation.close()
            continue
        if _is_free(port) and _is_free(port + BUS):
            until.enter_context(reservation)
            return port
        reservation.close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection that has ended there is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
