"""Full and partial resyncs of a replica: how one is brought about, and how many there were."""

from collections.abc import Callable
from itertools import product

import pytest
from redis import Redis

from support import poll
from support.server import Server

# How a snapshot gets to a replica, and how that one loads it. With swapdb the replica goes on
# answering from what it had, where the history is the same.
each_transfer = pytest.mark.parametrize(
    ("loading", "transfer"),
    list(product(["disabled", "swapdb"], ["disk", "diskless", "a second connection"])),
)


def syncs(primary: Redis) -> tuple[int, int]:
    """How many resyncs were full, and how many partial."""
    stats = primary.info("stats")
    return stats["sync_full"], stats["sync_partial_ok"]


def is_up(replica: Redis) -> bool:
    return replica.info("replication")["master_link_status"] == "up"


def cut_link(primary: Server) -> None:
    with primary.client() as client:
        client.client_kill_filter(_type="replica")


def forget_history(primary: Server) -> None:
    """The replica's history is no longer the primary's, so nothing of what it has is of use."""
    with primary.client() as client:
        client.execute_command("DEBUG", "CHANGE-REPL-ID")
        client.client_kill_filter(_type="replica")


def outgrow_backlog(primary: Server) -> None:
    """The replica goes on in the same history, but has missed more of it than there is left."""
    with primary.client() as client, client.pipeline() as at_once:
        at_once.client_kill_filter(_type="replica")
        at_once.set("ballast", bytes(2**20)).delete("ballast")
        at_once.execute()


def full_resync(primary: Server, replica: Redis, cut_off: Callable[[Server], None]) -> None:
    """Returns once a replica that was cut off has the primary's snapshot."""
    with primary.client() as client:
        before, _ = syncs(client)
        cut_off(primary)
        poll.until(
            lambda: syncs(client)[0] > before and is_up(replica),
            "the replica has got a snapshot",
            timeout=30,
        )


def transferring(
    start: Callable[..., Server], transfer: str, loading: str
) -> tuple[Server, Server]:
    """A primary with a small backlog, and its replica."""
    settings = {
        "repl_backlog_size": "16kb",
        "repl_diskless_sync": "no" if transfer == "disk" else "yes",
        "repl_diskless_load": loading,
    }
    primary = start(**settings)
    replica = primary.replica(**settings)
    if transfer == "a second connection":
        sends_beside(primary.client())
        sends_beside(replica.client())
    return primary, replica


def sends_beside(client: Redis) -> None:
    """A snapshot then comes by a connection of its own, while the first brings what goes on."""
    for name in ("dual-channel-replication-enabled", "repl-rdb-channel"):
        if client.config_get(name):
            client.config_set(name, "yes")
            return
    pytest.skip("this server sends a snapshot by the replica's one connection only")
