"""Cluster of servers, with its slots and roles."""

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Self

import pytest
from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.crc import key_slot
from redis.retry import Retry

from support import poll
from support.binaries import Binary
from support.clock import Clock
from support.server import Server

SLOTS = 16_384
PRIMARIES = 3

# Node timeout: long enough that no node counts as failed on a busy machine. Tests that kill a node
# use the short one.
NODE_TIMEOUT_MS = 5_000
SHORT_NODE_TIMEOUT_MS = 2_000


@dataclass(frozen=True)
class Node:
    """State of a node, as one node reports it."""

    id: str
    is_primary: bool
    # Id of the primary that a replica follows; "-" for a primary.
    primary_id: str
    slots: tuple[range, ...]
    is_well: bool

    def serves(self, slot: int) -> bool:
        return any(slot in part for part in self.slots)


# Nodes by port, as one node reports them.
View = dict[int, Node]


class Cluster:
    """Cluster of three primaries on loopback, with or without a replica each, within a `with`
    block.

    It needs a running clock: nodes exchange heartbeats and vote by the wall clock.
    """

    def __init__(self, binary: Binary, clock: Clock, *, replicas: bool = True) -> None:
        self.clock = clock
        self.servers: list[Server] = []
        self._binary = binary
        self._size = PRIMARIES * 2 if replicas else PRIMARIES
        self._owned = ExitStack()
        self._clients = ExitStack()
        self._admins: dict[Server, Redis] = {}
        self._ids: dict[Server, str] = {}
        self._elected_at = -math.inf

    def __enter__(self) -> Self:
        settings = {
            "cluster_enabled": "yes",
            "cluster_node_timeout": NODE_TIMEOUT_MS,
            # An outage of one shard leaves the others in use.
            "cluster_require_full_coverage": "no",
            # A replica may take over however old its data is: idle primaries send nothing, as the
            # tests' servers send no pings.
            "cluster_replica_validity_factor": 0,
            # Replicas never migrate to another primary.
            "cluster_migration_barrier": 100,
        }
        with ExitStack() as started:
            for _ in range(self._size):
                server = started.enter_context(Server(self._binary, clock=self.clock, **settings))
                self.servers.append(server)
                self._admins[server] = server.client(decode_responses=True)
            self._build()
            self._owned = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._clients.close()
        self._owned.close()

    def _build(self) -> None:
        for number, server in enumerate(self.servers):
            admin = self._admins[server]
            self._ids[server] = admin.execute_command("CLUSTER MYID")
            # Distinct epochs, on which the nodes would otherwise have to agree.
            admin.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        self._introduce()
        primaries, replicas = self.servers[:PRIMARIES], self.servers[PRIMARIES:]
        for number, primary in enumerate(primaries):
            slots = range(number * SLOTS // PRIMARIES, (number + 1) * SLOTS // PRIMARIES)
            self._admins[primary].execute_command("CLUSTER ADDSLOTS", *slots)
        for primary, replica in zip(primaries, replicas, strict=False):
            self._admins[replica].execute_command("CLUSTER REPLICATE", self._ids[primary])
        self.wait_until_well()

    def _introduce(self) -> None:
        """Returns once every node knows every other node by its id.

        A node forgets a CLUSTER MEET if the handshake takes longer than the node timeout, as it may
        on a busy machine, so it is repeated.
        """
        last_meet = -math.inf

        def all_know_all() -> bool:
            nonlocal last_meet
            # Compare ids: a node in the handshake has a temporary id.
            known = {
                server: {node.id for node in self._view(server).values()} for server in self.servers
            }
            strangers = [
                (server, other)
                for server, other in combinations(self.servers, 2)
                if self._ids[other] not in known[server] or self._ids[server] not in known[other]
            ]
            if strangers and time.monotonic() - last_meet > NODE_TIMEOUT_MS / 1000:
                for server, other in strangers:
                    self._admins[server].execute_command("CLUSTER MEET", "127.0.0.1", other.port)
                last_meet = time.monotonic()
            return not strangers

        poll.until(all_know_all, "all nodes know each other", timeout=60)

    # Layout

    def _view(self, server: Server) -> View:
        """Returns the nodes that a server knows, by port."""
        found = {}
        for address, fields in self._admins[server].execute_command("CLUSTER NODES").items():
            flags = set(fields["flags"].split(","))
            found[int(address.rpartition(":")[2])] = Node(
                fields["node_id"],
                "master" in flags,
                fields["master_id"],
                # A range of slots has two ends, and a single slot has one.
                tuple(range(int(part[0]), int(part[-1]) + 1) for part in fields["slots"]),
                is_well=not flags & {"handshake", "fail", "fail?", "noaddr"}
                and not fields["migrations"],
            )
        return found

    def _running(self) -> list[Server]:
        return [server for server in self.servers if server.is_running]

    def _agreed_layout(self) -> dict[Server, Node]:
        """Returns the layout once all running primaries agree on it. A replica may lag behind."""
        found: View = {}

        def agree() -> bool:
            nonlocal found
            views = {server: self._view(server) for server in self._running()}
            primaries = [view for server, view in views.items() if view[server.port].is_primary]
            found = primaries[0]
            return all(_roles(view) == _roles(found) for view in primaries)

        poll.until(agree, "all nodes have one view of the cluster", timeout=60)
        return {server: found[server.port] for server in self.servers}

    def primaries(self) -> list[Server]:
        """Returns the primaries that serve slots, and a killed primary until it is replaced."""
        return [server for server, node in self._agreed_layout().items() if node.slots]

    def owner(self, key: str) -> Server:
        slot = slot_of(key)
        return next(server for server, node in self._agreed_layout().items() if node.serves(slot))

    def replicas_of(self, primary: Server) -> list[Server]:
        primary_id = self._ids[primary]
        layout = self._agreed_layout()
        return [server for server, node in layout.items() if node.primary_id == primary_id]

    def replica_of(self, primary: Server) -> Server:
        (replica,) = self.replicas_of(primary)
        return replica

    def tags(self) -> dict[Server, tuple[str, str]]:
        """Returns two hash tags for each primary, which map to different slots of it."""
        nodes = self._agreed_layout()
        found: dict[Server, list[str]] = {
            server: [] for server, node in nodes.items() if node.slots
        }
        for number in range(1000):
            tag = f"t{number}"
            slot = slot_of(f"{{{tag}}}")
            for server, tags in found.items():
                if nodes[server].serves(slot):
                    tags.append(tag)
        return {server: (tags[0], tags[1]) for server, tags in found.items()}

    # Clients

    def client(self, entry: Server | None = None) -> RedisCluster:
        """Returns a client that enters at this node. It never resends a call without a reply, which
        could be charged twice, but follows redirections (MOVED, ASK).
        """
        entry = entry or self._running()[0]
        client = RedisCluster(
            startup_nodes=[ClusterNode("127.0.0.1", entry.port)],
            protocol=2,
            socket_timeout=20,
            retry=Retry(NoBackoff(), 0),
            require_full_coverage=False,
            # Reload the layout at the first MOVED, for example after a failover.
            reinitialize_steps=1,
        )
        return self._clients.enter_context(client)

    @contextmanager
    def closing_clients(self) -> Iterator[None]:
        """Closes the clients that are created within the block, including those of nodes."""
        with ExitStack() as closing:
            for server in self.servers:
                closing.enter_context(server.closing_clients())
            closing.callback(self._clients.close)
            yield

    # States

    def wait_until_well(self) -> None:
        """Returns once all nodes are up and agree, and every replica is in sync."""
        try:
            poll.until(lambda: not self._what_is_wrong(), "the cluster is well", timeout=60)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self._what_is_wrong()}") from None

    def _what_is_wrong(self) -> str | None:
        views = []
        for server in self.servers:
            server.check()
            if self._admins[server].execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                return f"{server.port} says that the cluster fails"
            views.append(self._view(server))
            if not all(node.is_well for node in views[-1].values()):
                return f"{server.port} sees {views[-1]}"
        view = views[0]
        if any(_roles(other) != _roles(view) for other in views) or len(view) < len(self.servers):
            return f"the nodes have different views: {views}"
        nodes = {server: view[server.port] for server in self.servers}
        replicas = [server for server, node in nodes.items() if not node.is_primary]
        if sum(len(part) for node in nodes.values() for part in node.slots) != SLOTS:
            return f"some slots are not served: {view}"
        if len(replicas) != self._size - PRIMARIES:
            return f"there are {len(replicas)} replicas: {view}"
        out_of_sync = (
            self._out_of_sync(replica, nodes[replica].primary_id) for replica in replicas
        )
        return next(filter(None, out_of_sync), None)

    def _out_of_sync(self, replica: Server, primary_id: str) -> str | None:
        primary = next(server for server, name in self._ids.items() if name == primary_id)
        replica_info = self._admins[replica].info("replication")
        primary_info = self._admins[primary].info("replication")
        in_sync = (
            replica_info["role"] == "slave"
            and replica_info["master_link_status"] == "up"
            and replica_info["master_port"] == primary.port
            and replica_info["slave_repl_offset"] == primary_info["master_repl_offset"]
        )
        return None if in_sync else f"{replica.port} is out of sync: {replica_info}, {primary_info}"

    def empty(self) -> None:
        """Empties the cluster for the next test, after restarting servers that died."""
        for server in self.servers:
            if not server.is_running:
                server.start()
        self.wait_until_well()
        for primary in self.primaries():
            self._admins[primary].flushall()
        poll.until(self._delete_all_policies, "the cluster has no policies", timeout=30)
        self.wait_until_well()

    def _delete_all_policies(self) -> bool:
        """Deletes all policies. Returns `False` if there are policies again, as nodes may still
        exchange older ones.
        """
        for primary in self.primaries():
            listed = self._admins[primary].execute_command("RL.POLICYLIST")
            if names := [name for name, *_ in listed]:
                self._admins[primary].execute_command("RL.POLICYDEL", *names)
        nodes = self._admins.values()
        return not any(node.execute_command("RL.POLICYLIST") for node in nodes)

    def check(self) -> None:
        for server in self.servers:
            server.check()

    @contextmanager
    def setting(self, name: str, value: object, *servers: Server) -> Iterator[None]:
        """Changes a setting of the module on these nodes for the duration of the block."""
        if not all(server.binary.has_module_config for server in servers):
            pytest.skip("this server has no CONFIG for modules")
        before = {server: self._admins[server].config_get(name)[name] for server in servers}
        for server in servers:
            self._admins[server].config_set(name, value)
        try:
            yield
        finally:
            for server, former_value in before.items():
                self._admins[server].config_set(name, former_value)

    @contextmanager
    def node_timeout(self, milliseconds: int) -> Iterator[None]:
        self._set_node_timeout(milliseconds)
        try:
            yield
        finally:
            self._set_node_timeout(NODE_TIMEOUT_MS)

    def _set_node_timeout(self, milliseconds: int) -> None:
        for server in self._running():
            self._admins[server].config_set("cluster-node-timeout", milliseconds)

    @property
    def moves_atomically(self) -> bool:
        server = self.servers[0]
        return server.version >= ((9,) if server.is_valkey else (8, 4))

    def is_served_by(self, server: Server, slot: int) -> bool:
        """Returns `True` if all running nodes agree that the server serves the slot."""
        return all(self._view(node)[server.port].serves(slot) for node in self._running())

    # Failovers

    def wait_for_elections(self) -> None:
        """Waits until an election is possible in every shard. After an election, a replica does not
        start another one for four times the node timeout, and primaries do not vote again for twice
        the node timeout.
        """
        poll.until(
            lambda: time.monotonic() - self._elected_at > 4.2 * NODE_TIMEOUT_MS / 1000,
            "there may be elections again",
            timeout=60,
        )

    def fail_over(self, primary: Server) -> Server:
        """Fails over by CLUSTER FAILOVER. Returns the new primary once all nodes know it."""
        replica = self.replica_of(primary)
        asked_at = -math.inf

        def taken_over() -> bool:
            nonlocal asked_at
            # On a busy machine, a failover may expire after five seconds, so repeat it.
            if time.monotonic() - asked_at > 7 and not self._view(replica)[replica.port].slots:
                self._admins[replica].execute_command("CLUSTER FAILOVER")
                asked_at = time.monotonic()
            return self._has_taken_over(primary, replica)

        poll.until(taken_over, "the replica has taken over", timeout=120)
        self._elected_at = time.monotonic()
        return replica

    def wait_for_takeover(self, primary: Server, replica: Server) -> None:
        """Waits until the replica of a lost primary has taken over and all nodes know it."""
        poll.until(
            lambda: self._has_taken_over(primary, replica),
            "the replica has taken over",
            timeout=120,
        )
        self._elected_at = time.monotonic()

    def _has_taken_over(self, primary: Server, replica: Server) -> bool:
        views = [self._view(server) for server in self._running()]
        return all(view[replica.port].slots and not view[primary.port].slots for view in views)

    def wait_until_up(self, server: Server) -> None:
        """Waits until a restarted server follows the primary that took over from it."""
        poll.until(
            lambda: self._admins[server].info("replication").get("master_link_status") == "up",
            "the server has become a replica",
            timeout=60,
        )

    def admin(self, server: Server) -> Redis:
        return self._admins[server]

    def id_of(self, server: Server) -> str:
        return self._ids[server]


def _roles(view: View) -> dict[int, tuple[bool, str, tuple[range, ...]]]:
    return {port: (node.is_primary, node.primary_id, node.slots) for port, node in view.items()}


def slot_of(key: str) -> int:
    return key_slot(key.encode())
