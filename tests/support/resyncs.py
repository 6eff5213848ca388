"""Full and partial resyncs of a replica: their causes and their number."""

from collections.abc import Callable
from itertools import product

import pytest
from redis import Redis

from support import poll
from support.server import Server

# Transfers of a snapshot to a replica, and ways of loading it. With swapdb, the replica serves its
# old data until the snapshot is loaded, if both have the same history.
each_transfer = pytest.mark.parametrize(
    ("loading", "transfer"),
    list(product(["disabled", "swapdb"], ["disk", "diskless", "a second connection"])),
)


def syncs(primary: Redis) -> tuple[int, int]:
    """Returns the numbers of full and partial resyncs."""
    stats = primary.info("stats")
    return stats["sync_full"], stats["sync_partial_ok"]


def is_up(replica: Redis) -> bool:
    return replica.info("replication")["master_link_status"] == "up"


def cut_link(primary: Server) -> None:
    with primary.client() as client:
        client.client_kill_filter(_type="replica")


def forget_history(primary: Server) -> None:
    """Changes the primary's replication id, so that replicas need a full resync."""
    with primary.client() as client:
        client.execute_command("DEBUG", "CHANGE-REPL-ID")
        client.client_kill_filter(_type="replica")


def outgrow_backlog(primary: Server) -> None:
    """Disconnects the replicas and overflows the backlog, so that they need a full resync with the
    same history.
    """
    with primary.client() as client, client.pipeline() as transaction:
        transaction.client_kill_filter(_type="replica")
        transaction.set("ballast", bytes(2**20)).delete("ballast")
        transaction.execute()


def full_resync(primary: Server, replica: Redis, cut_off: Callable[[Server], None]) -> None:
    """Cuts a replica off, and waits until it has the primary's snapshot."""
    with primary.client() as client:
        before, _ = syncs(client)
        cut_off(primary)
        poll.until(
            lambda: syncs(client)[0] > before and is_up(replica),
            "the replica has got a snapshot",
            timeout=30,
        )


def start_pair(start: Callable[..., Server], transfer: str, loading: str) -> tuple[Server, Server]:
    """Starts a primary with a small backlog, and its replica."""
    settings = {
        "repl_backlog_size": "16kb",
        "repl_diskless_sync": "no" if transfer == "disk" else "yes",
        "repl_diskless_load": loading,
    }
    primary = start(**settings)
    replica = primary.replica(**settings)
    if transfer == "a second connection":
        use_second_connection(primary.client())
        use_second_connection(replica.client())
    return primary, replica


def use_second_connection(client: Redis) -> None:
    """Makes a server transfer snapshots on a connection beside the replication link."""
    for name in ("dual-channel-replication-enabled", "repl-rdb-channel"):
        if client.config_get(name):
            client.config_set(name, "yes")
            return
    pytest.skip("this server transfers snapshots on the replication link only")
