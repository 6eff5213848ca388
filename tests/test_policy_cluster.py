"""All nodes of a cluster have the same policies, whichever primary was told, also after nodes were
apart or killed.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ReadOnlyError, ResponseError

from support import poll
from support.binaries import Binary
from support.clock import Clock
from support.cluster import PROMPT, Cluster, Taking
from support.policies import record
from support.scale import scaled
from support.server import Server
from support.workload import LIMITERS

pytestmark = [pytest.mark.every_server, pytest.mark.every_kind]

SPECS = "TOKENBUCKET 10 10 1m"


def version_on(node: Redis, name: str) -> int:
    """0 if it has no such policy."""
    policy = node.execute_command("RL.POLICYGET", name)
    return 0 if policy is None else as_map(policy)["version"]


def as_map(flat: object) -> dict[str, object]:
    if isinstance(flat, dict):
        return flat
    assert isinstance(flat, list)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def everywhere(cluster: Cluster, name: str, version: int, *but: Server) -> None:
    """Returns once all nodes that are up have that version, 0 being none."""
    nodes = [cluster.admin(node) for node in cluster.servers if node.is_running and node not in but]
    poll.until(
        lambda: all(version_on(node, name) == version for node in nodes),
        f"{name} is at version {version} on every node",
        timeout=30,
    )


def of_one_mind(cluster: Cluster) -> None:
    """Returns once no primary has heard of another that has other policies."""

    def agree() -> bool:
        told = [cluster.admin(node).info("ratelimit_policies") for node in cluster.servers]
        digests = {policies["ratelimit_policies_digest"] for policies in told}
        differ = sum(policies["ratelimit_policy_peers_differ"] for policies in told)
        return len(digests) == 1 and differ == 0

    poll.until(agree, "all have the same policies, and know it", timeout=30)


@pytest.fixture
def name() -> str:
    """Another in each test, as deletions are remembered."""
    return f"policy:{random.randrange(10**9)}"


def test_what_one_primary_is_told_holds_on_all_nodes(cluster: Cluster, name: str) -> None:
    primaries, last = cluster.primaries(), 0
    for primary in primaries:
        version = cluster.admin(primary).execute_command("RL.POLICYSET", name, *SPECS.split())
        assert version > last
        everywhere(cluster, name, version)
        last = version
    admin = cluster.admin(primaries[1])
    admin.execute_command("RL.POLICYSCALE", name, "0.5")
    poll.until(
        lambda: all(
            as_map(cluster.admin(node).execute_command("RL.POLICYGET", name))["scale"] == "0.5"
            for node in cluster.servers
        ),
        "it is scaled on every node",
    )
    client = cluster.client()
    for tag, _ in cluster.tags().values():
        allowed, limit, remaining, _, _ = client.execute_command("RL.LIMIT", f"{{{tag}}}", name)
        assert (allowed, limit, remaining) == (1, 5, 4)
    assert cluster.admin(primaries[2]).execute_command("RL.POLICYDEL", name) == 1
    everywhere(cluster, name, 0)
    of_one_mind(cluster)


def test_a_version_is_deleted_on_every_node_by_any_primary(cluster: Cluster, name: str) -> None:
    primaries = cluster.primaries()
    version = cluster.admin(primaries[0]).execute_command("RL.POLICYSET", name, *SPECS.split())
    everywhere(cluster, name, version)
    admin = cluster.admin(primaries[1])
    with pytest.raises(ResponseError, match=f"has version {version}, not {version - 1}"):
        admin.execute_command("RL.POLICYDEL", name, "VERSION", version - 1)
    assert admin.execute_command("RL.POLICYDEL", name, "VERSION", version) == 1
    everywhere(cluster, name, 0)
    with pytest.raises(ResponseError, match="no policy"):
        cluster.admin(primaries[2]).execute_command("RL.POLICYDEL", name, "VERSION", version)
    of_one_mind(cluster)


def test_what_is_told_reaches_idle_nodes_within_a_second(cluster: Cluster, name: str) -> None:
    """By the first message, and not by the digests that come later."""
    primary = cluster.primaries()[0]
    nodes = [cluster.admin(node) for node in cluster.servers]
    seconds = []
    for _ in range(1, scaled(10, 100)):
        begun = time.monotonic()
        version = cluster.admin(primary).execute_command("RL.POLICYSET", name, *SPECS.split())
        poll.until(
            lambda version=version: all(version_on(node, name) == version for node in nodes),
            "all nodes have it",
        )
        seconds.append(time.monotonic() - begun)
    # A machine may be busy at any one time, but not at every one.
    assert min(seconds) < 1


def test_a_replica_refuses_and_decides(cluster: Cluster, name: str) -> None:
    primary = cluster.primaries()[0]
    replica = cluster.admin(cluster.replica_of(primary))
    with pytest.raises(ReadOnlyError):
        replica.execute_command("RL.POLICYSET", name, *SPECS.split())
    version = cluster.admin(primary).execute_command("RL.POLICYSET", name, *SPECS.split())
    everywhere(cluster, name, version)
    tag = cluster.tags()[primary][0]
    replica.execute_command("READONLY")
    assert replica.execute_command("RL.PEEK", f"{{{tag}}}", "POLICY", name)[:3] == [1, 10, 10]


def test_two_primaries_that_are_told_at_once_agree(cluster: Cluster, name: str) -> None:
    for _ in range(scaled(5, 50)):
        for factor, primary in enumerate(cluster.primaries()):
            spec = ("FIXED", 10 + factor, "1m")
            cluster.admin(primary).execute_command("RL.POLICYSET", name, *spec)
            cluster.admin(primary).execute_command("RL.POLICYSCALE", name, factor + 1)
        of_one_mind(cluster)
    found = {
        str(as_map(cluster.admin(node).execute_command("RL.POLICYGET", name))["specs"])
        for node in cluster.servers
    }
    assert len(found) == 1


def test_under_load_and_with_a_failover_in_the_middle(cluster: Cluster, name: str) -> None:
    limits = {f"{{{tag}}}:load": LIMITERS[0] for tag, _ in cluster.tags().values()}
    cluster.wait_for_elections()
    with Taking(cluster, limits, may_lose=True) as load:
        load.wait_for(50)
        first, second, _ = cluster.primaries()
        cluster.admin(first).execute_command("RL.POLICYSET", name, *SPECS.split())
        cluster.fail_over(first)
        last = cluster.admin(second).execute_command("RL.POLICYSET", name, "FIXED", 7, "1m")
        load.wait_for(50)
    cluster.wait_until_well()
    everywhere(cluster, name, last)
    of_one_mind(cluster)


@pytest.mark.timeout(scaled(300, 1800))
def test_it_survives_that_every_primary_is_killed_in_turn(cluster: Cluster, name: str) -> None:
    first = cluster.admin(cluster.primaries()[0])
    version = first.execute_command("RL.POLICYSET", name, *SPECS.split())
    everywhere(cluster, name, version)
    with cluster.node_timeout(PROMPT):
        for victim in cluster.primaries():
            replica = cluster.replica_of(victim)
            victim.stop("kill")
            cluster.wait_for_takeover(victim, replica)
            victim.start()
            cluster.wait_until_up(victim)
            everywhere(cluster, name, version)
    cluster.wait_until_well()
    of_one_mind(cluster)


@contextmanager
def without_gossip(cluster: Cluster, *servers: Server) -> Iterator[None]:
    """As if these nodes could not be reached by the others' policies."""
    with cluster.setting("ratelimit.policy-gossip", "no", *servers):
        yield


def test_without_gossip_each_primary_is_told_by_hand(cluster: Cluster, name: str) -> None:
    first, second, third = cluster.primaries()
    with without_gossip(cluster, *cluster.servers):
        mine = cluster.admin(first).execute_command("RL.POLICYSET", name, *SPECS.split())
        poll.until(
            lambda: version_on(cluster.admin(cluster.replica_of(first)), name) == mine,
            "its replica has it",
        )
        assert version_on(cluster.admin(second), name) == 0
        theirs = cluster.admin(third).execute_command("RL.POLICYSET", name, "FIXED", 3, "1m")
    of_one_mind(cluster)
    # No two are of one version, so who set the first one knows that another stands.
    assert theirs > mine
    everywhere(cluster, name, theirs)


def test_nodes_that_were_apart_agree_afterwards(cluster: Cluster, name: str) -> None:
    first, second, third = cluster.primaries()
    names = [f"{name}:{number}" for number in range(30)]
    version = {
        policy: cluster.admin(first).execute_command("RL.POLICYSET", policy, *SPECS.split())
        for policy in names
    }
    of_one_mind(cluster)
    with without_gossip(cluster, third):
        for policy in names[:10]:
            cluster.admin(first).execute_command("RL.POLICYDEL", policy)
            cluster.admin(third).execute_command("RL.POLICYSCALE", policy, 2)
        for policy in names[10:20]:
            version[policy] = cluster.admin(third).execute_command(
                "RL.POLICYSET", policy, "FIXED", 3, "1m"
            )
        for policy in names[20:]:
            cluster.admin(second).execute_command("RL.POLICYSCALE", policy, 3)
    of_one_mind(cluster)
    for node in cluster.servers:
        admin = cluster.admin(node)
        assert [version_on(admin, policy) for policy in names[:10]] == [0] * 10
        assert {policy: version_on(admin, policy) for policy in names[10:]} == {
            policy: version[policy] for policy in names[10:]
        }
        scales = [
            as_map(admin.execute_command("RL.POLICYGET", policy))["scale"] for policy in names[20:]
        ]
        assert scales == ["3"] * 10


def test_thousands_reach_a_node_that_was_away(cluster: Cluster, name: str) -> None:
    """More than fit one message."""
    first, _, third = cluster.primaries()
    count = scaled(500, 4000)
    long = " ".join(
        f"FIXED {number} {number}s AS a-name-of-a-limit-that-is-long{number}"
        for number in range(1, 9)
    )
    with (
        without_gossip(cluster, third),
        cluster.admin(first).pipeline(transaction=False) as pipe,
    ):
        for number in range(count):
            pipe.execute_command("RL.POLICYSET", f"{name}:{number}", *long.split())
        versions = pipe.execute()
    assert len(set(versions)) == count
    of_one_mind(cluster)
    everywhere(cluster, f"{name}:{count - 1}", versions[-1])
    cluster.admin(third).execute_command(
        "RL.POLICYDEL", *(f"{name}:{number}" for number in range(count))
    )
    of_one_mind(cluster)


def test_a_slot_that_moves_to_a_node_just_added_finds_its_policies(
    binary: Binary, clock: Clock, tmp_path: Path, name: str
) -> None:
    running = Clock(clock.library, tmp_path / "clock")
    running.run()
    with Cluster(binary, running, replicas=False) as cluster:
        first = cluster.primaries()[0]
        version = cluster.admin(first).execute_command("RL.POLICYSET", name, *SPECS.split())
        client = cluster.client()
        key = next(f"{{{tags[0]}}}" for server, tags in cluster.tags().items() if server is first)
        assert client.execute_command("RL.LIMIT", key, name, "COST", 4)[2] == 6
        with (
            Server(
                binary, clock=running, cluster_enabled="yes", cluster_require_full_coverage="no"
            ) as added,
            added.client(decode_responses=True) as admin,
        ):
            admin.execute_command("CLUSTER MEET", "127.0.0.1", first.port)
            poll.until(
                lambda: version_on(admin, name) == version,
                "the new node has the policy",
                timeout=30,
            )
            poll.until(
                lambda: admin.execute_command("CLUSTER INFO")["cluster_state"] == "ok",
                "the new node is up",
                timeout=30,
            )
            # The slot, and the key in it, goes over.
            source = cluster.admin(first)
            slot = source.execute_command("CLUSTER KEYSLOT", key)
            added_id = admin.execute_command("CLUSTER MYID")
            poll.until(
                lambda: added_id in str(source.execute_command("CLUSTER NODES")), "they have met"
            )
            admin.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", cluster.id_of(first))
            source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", added_id)
            source.execute_command("MIGRATE", "127.0.0.1", added.port, key, 0, 20_000)
            for node in (admin, source):
                node.execute_command("CLUSTER SETSLOT", slot, "NODE", added_id)
            assert admin.execute_command("RL.LIMIT", key, name)[:3] == [1, 10, 5]


# A record that somebody makes up, or whose stamp was made by a clock that was wrong


def test_a_forged_record_makes_no_policy_of_a_cluster_unchangeable(
    cluster: Cluster, name: str
) -> None:
    first, second, _ = (cluster.admin(primary) for primary in cluster.primaries())
    set_by = first.execute_command("RL.POLICYSET", name, *SPECS.split())
    everywhere(cluster, name, set_by)
    last = 31_536_000_000_000_000
    with pytest.raises(ResponseError, match="more than a day ahead"):
        second.execute_command("RL.POLICYEFFECT", record(name.encode(), last, "FIXED 0 1h"))
    assert as_map(second.info("ratelimit_policies"))["ratelimit_policy_stamps_refused"] >= 1
    for number, primary in enumerate(cluster.primaries(), 1):
        admin = cluster.admin(primary)
        version = admin.execute_command("RL.POLICYSET", name, "FIXED", number, "1h")
        everywhere(cluster, name, version)
    of_one_mind(cluster)


def test_a_scale_for_a_time_ends_on_every_node(cluster: Cluster, name: str) -> None:
    first, second, _ = (cluster.admin(primary) for primary in cluster.primaries())
    version = first.execute_command("RL.POLICYSET", name, *SPECS.split())
    everywhere(cluster, name, version)
    second.execute_command("RL.POLICYSCALE", name, "0.5", "FOR", "2s")

    def scales() -> set[tuple[object, bool]]:
        nodes = (cluster.admin(node) for node in cluster.servers)
        told = (as_map(node.execute_command("RL.POLICYGET", name)) for node in nodes)
        return {(one["scale"], one["scale_ms"] == -1) for one in told}

    poll.until(lambda: scales() == {("0.5", False)}, "it is scaled on every node")
    poll.until(lambda: scales() == {("1", True)}, "it is over on every node", timeout=30)
    of_one_mind(cluster)


# Work in pieces


def messages(node: Redis) -> dict[str, int]:
    """How many messages of modules it has sent and received."""
    told = node.execute_command("CLUSTER INFO")
    return {
        way: int(told.get(f"cluster_stats_messages_module_{way}", 0))
        for way in ("sent", "received")
    }


def test_what_is_asked_for_comes_in_pieces(cluster: Cluster, name: str) -> None:
    first, second, third = cluster.primaries()
    count, most = scaled(3000, 60_000), 200
    with cluster.setting("ratelimit.max-policies", 65_536, first, second, third):
        with without_gossip(cluster, third):
            with cluster.admin(first).pipeline(transaction=False) as pipe:
                for number in range(count):
                    pipe.execute_command("RL.POLICYSET", f"{name}:{number}", *SPECS.split())
                last = pipe.execute()[-1]
            of_one_mind_but(cluster, third)
            before = messages(cluster.admin(third))["received"]
        everywhere(cluster, f"{name}:{count - 1}", last)
        of_one_mind(cluster)
        # None of them with more than so many records.
        assert messages(cluster.admin(third))["received"] - before >= count // most
        for start in range(0, count, 500):
            names = (f"{name}:{number}" for number in range(start, min(start + 500, count)))
            cluster.admin(third).execute_command("RL.POLICYDEL", *names)
        of_one_mind(cluster)


def of_one_mind_but(cluster: Cluster, but: Server) -> None:
    def agree() -> bool:
        digests = {
            cluster.admin(node).info("ratelimit_policies")["ratelimit_policies_digest"]
            for node in cluster.primaries()
            if node is not but
        }
        return len(digests) == 1

    poll.until(agree, "the others have the same", timeout=30)


def test_who_may_not_write_asks_for_nothing_and_keeps_one_record_of_each_name(
    cluster: Cluster, name: str
) -> None:
    first, _, third = cluster.primaries()
    admin, paused = cluster.admin(first), cluster.admin(third)
    names = [f"{name}:{number}" for number in range(500)]
    paused.execute_command("CLIENT", "PAUSE", 3_600_000, "WRITE")
    try:
        version = {}
        for _ in range(3):
            with admin.pipeline(transaction=False) as pipe:
                for policy in names:
                    pipe.execute_command("RL.POLICYSET", policy, *SPECS.split())
                version = dict(zip(names, pipe.execute(), strict=True))
        of_one_mind_but(cluster, third)
        digests = 5

        def heard_meanwhile() -> int:
            """How many messages it receives while it sends its digest a few times."""
            before = messages(paused)
            sent = before["sent"] + digests * (len(cluster.servers) - 1)
            told = "it has sent its digest a few times"
            poll.until(lambda: messages(paused)["sent"] >= sent, told, timeout=30)
            return messages(paused)["received"] - before["received"]

        # It hears theirs as often, and is sent nothing else, once it has received what was under
        # way as the others agreed. On a busy machine that takes a while.
        most = (digests + 3) * (len(cluster.primaries()) - 1)
        assert min(heard_meanwhile() for _ in range(3)) <= most
        assert version_on(paused, names[0]) == 0
    finally:
        paused.execute_command("CLIENT", "UNPAUSE")
    for policy in (names[0], names[-1]):
        everywhere(cluster, policy, version[policy])
    of_one_mind(cluster)
    admin.execute_command("RL.POLICYDEL", *names)
    of_one_mind(cluster)
