"""Whom a limit by address counts."""

from ipaddress import IPv6Address, ip_address, ip_network


def network(host: str) -> str:
    """An IPv4 address, or the /64 network of an IPv6 one, since one subscriber has all of that."""
    try:
        found = ip_address(host)
    except ValueError:  # a Unix socket
        return host
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped:
            return str(found.ipv4_mapped)
        # Without the interface of a link-local address, as in fe80::1%eth0.
        return str(ip_network((int(found), 64), strict=False))
    return str(found)
