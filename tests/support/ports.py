"""Ports for the servers that tests, examples and benchmarks start."""

import random
import socket
from contextlib import ExitStack

HOST = "127.0.0.1"
# Range below the system's ephemeral ports, which an outgoing connection could take before the
# server does. The port of the cluster bus is 10,000 higher, outside of this range.
RESERVED = range(11_000, 21_000)
BUS = 10_000


def reserve_port(until: ExitStack) -> int:
    """Reserves a free TCP port until the stack `until` closes, even while its server is down.

    Binding the UDP port of the same number reserves it, as servers need only the TCP port. Tests in
    other languages reserve ports in the same way, as they run concurrently.
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
        # Servers set this option, too: ended connections in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
