"""Client addresses as keys: the name under which a limit counts a client."""

from __future__ import annotations

import logging
import re
import time
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

log = logging.getLogger("redis_ratelimit")

# Prefix length of the network that one subscriber has.
IPV6_PREFIX = 64

# Clients without an address share this name.
UNKNOWN = "unknown"

_NAT64 = ip_network("64:ff9b::/96")
# An address in brackets or an IPv4 address, perhaps with a port.
_BRACKETED = re.compile(r"\[([^\[\]]*:[^\[\]]*)\](?::([0-9]{1,5}))?")
_WITH_PORT = re.compile(r"([0-9.]+):([0-9]{1,5})")
_MAX_PORT = 65535

# Seconds between two log messages about clients without an address.
_LOG_INTERVAL = 60.0


def network(text: str, ipv6_prefix: int = IPV6_PREFIX) -> str | None:
    """Returns the name of the client at an address: an IPv4 address, or the network of an IPv6
    address, which belongs to one subscriber. None if the text is no address.

    The text may have a port, brackets, quotes or a scope. IPv4-mapped and NAT64 addresses become
    IPv4 addresses.
    """
    text = text.strip(" \t")
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    match = _BRACKETED.fullmatch(text) or _WITH_PORT.fullmatch(text)
    if match is not None and int(match[2] or 0) > _MAX_PORT:
        return None
    try:
        address = ip_address(match[1] if match else text)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return str(address)
    # Drop the interface of a link-local address, as in fe80::1%eth0.
    address = IPv6Address(int(address))
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    if address in _NAT64:
        return str(IPv4Address(int(address) & 0xFFFFFFFF))
    subnet = ip_network((address, ipv6_prefix), strict=False)
    return str(address) if ipv6_prefix == 128 else str(subnet)


def checked_prefix(ipv6_prefix: int) -> int:
    """Returns the prefix length. Raises ValueError unless it is from 1 to 128."""
    if not isinstance(ipv6_prefix, int) or not 1 <= ipv6_prefix <= 128:
        raise ValueError(f"ipv6_prefix must be a length from 1 to 128, not {ipv6_prefix!r}")
    return ipv6_prefix


class _UnknownClientLog:
    """Log of clients that have no address, with at most one message a minute."""

    def __init__(self) -> None:
        self._logged_at = -_LOG_INTERVAL

    def log(self, text: str | None) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _LOG_INTERVAL:
            self._logged_at = now
            log.warning(
                "a request without a client address (%r) is limited as %r, with all others like "
                "it: let the server or its proxy pass the address, or give the limit a key",
                text,
                UNKNOWN,
            )


_unknown_clients = _UnknownClientLog()


def client(text: str | None, ipv6_prefix: int = IPV6_PREFIX) -> str | None:
    """Returns the name of a request's client. If it has no address, logs that and returns None."""
    name = network(text, ipv6_prefix) if text else None
    if name is None:
        _unknown_clients.log(text)
    return name
