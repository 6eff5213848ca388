"""Servers on which calls are measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from redis import Redis

from support import poll
from support.binaries import Binary
from support.server import MODULE, Server


@dataclass(frozen=True)
class Setup:
    """Configuration of a server on which calls are measured."""

    name: str
    settings: tuple[tuple[str, str], ...] = ()
    has_replica: bool = False
    is_cluster: bool = False
    module: Path = MODULE
    module_args: str = ""


PLAIN = Setup("default settings")
AOF = Setup(
    "AOF everysec",
    (("appendonly", "yes"), ("appendfsync", "everysec"), ("auto-aof-rewrite-percentage", "0")),
)
REPLICA = Setup("a replica", has_replica=True)
CLUSTER = Setup("a cluster", (("cluster-enabled", "yes"),), is_cluster=True)
SLOTS = 16_384


class MeasuredServer(Server):
    """Server whose use of resources is read over a single connection."""

    @cached_property
    def admin(self) -> Redis:
        return self.client(decode_responses=True)

    def cpu_seconds(self) -> float:
        """Returns the processor time of all threads since the start."""
        info = self.admin.info("cpu")
        return info["used_cpu_user"] + info["used_cpu_sys"]


@contextmanager
def serving(
    binary: Binary, setup: Setup = PLAIN, wrapper: Binary | None = None
) -> Iterator[MeasuredServer]:
    """Runs a server with a setup, by the `wrapper` of a tool if there is one."""
    with MeasuredServer(
        wrapper or binary,
        module=setup.module,
        module_args=setup.module_args,
        **dict(setup.settings),
    ) as server:
        if setup.is_cluster:
            server.admin.execute_command("CLUSTER ADDSLOTS", *range(SLOTS))
            poll.until(
                lambda: server.admin.execute_command("CLUSTER INFO")["cluster_state"] == "ok",
                "the cluster serves all slots",
                timeout=60,
            )
        if not setup.has_replica:
            yield server
            return
        with Server(binary, replicaof=f"127.0.0.1 {server.port}"):
            poll.until(
                lambda: server.admin.info("replication").get("slave0", {}).get("state") == "online",
                "the replica is in sync",
                timeout=60,
            )
            yield server


def release(binary: Binary) -> str:
    """Returns the name without the last number of the version: Redis 7.0."""
    return ".".join(binary.name.split(".")[:2])
