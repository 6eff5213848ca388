"""Full and partial resyncs of a replica: how one is brought about, and how many there were."""

import pytest
from redis import Redis

from support.server import Server


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


def sends_beside(client: Redis) -> None:
    """A snapshot then comes by a connection of its own, while the first brings what goes on."""
    for name in ("dual-channel-replication-enabled", "repl-rdb-channel"):
        if client.config_get(name):
            client.config_set(name, "yes")
            return
    pytest.skip("this server sends a snapshot by the replica's one connection only")
