"""Keys with a common `{tag}` are charged together; other keys in one call answer CROSSSLOT and
charge nothing.

* A slot that moves under load, key by key or at once (Valkey 9), loses no limits, idempotency keys
  or bans, and counts nothing twice.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis, RedisCluster, ResponseError
from redis.exceptions import (
    AskError,
    ClusterCrossSlotError,
    ClusterError,
    MovedError,
    TryAgainError,
)

from conftest import running_cluster
from support import poll
from support.binaries import Binary
from support.clock import Clock
from support.cluster import Cluster, Taking
from support.load import used, wide
from support.scale import scaled
from support.server import Server
from support.workload import LIMITERS, Limiter, Word, digests, play, state, steps

pytestmark = [pytest.mark.every_server, pytest.mark.every_kind]

# Nobody takes so much.
ENDLESS = 100_000

Call = tuple[Word, ...]


# Set on every primary.
POLICY = "a-policy"

# Those that have no key, and go to whichever node.
KEYLESS = {
    *("rl.policyset", "rl.policyscale", "rl.policydel", "rl.policyget", "rl.policylist"),
    *("rl.policyeffect", "rl.top"),
}


@pytest.fixture(autouse=True)
def _policy(cluster: Cluster) -> None:
    for primary in cluster.primaries():
        cluster.admin(primary).execute_command("RL.POLICYSET", POLICY, "FIXED", 10, "1h")


def limiters(limit: int, prefix: str = "") -> dict[str, Limiter]:
    """By key: one of every kind, of which nothing recovers while a test runs."""
    return {f"{prefix}{limiter.name}": wide(limiter, limit) for limiter in LIMITERS}


def calls(tag: str) -> dict[str, Call]:
    """A call of every command, on keys of one tag that nothing else has used."""
    key, other = f"{{{tag}}}:key", f"{{{tag}}}:other"
    effect = f"rl-bucket 1 {int(time.time() * 1000) + 60_000} 1 1"
    return {
        "rl.tokenbucket": ("RL.TOKENBUCKET", key, 10, 10, "1h"),
        "rl.leakybucket": ("RL.LEAKYBUCKET", key, 10, 10, "1h"),
        "rl.fixed": ("RL.FIXED", f"{key}:fixed", 10, "1h"),
        "rl.sliding": ("RL.SLIDING", f"{key}:sliding", 10, "1h"),
        "rl.slidinglog": ("RL.SLIDINGLOG", f"{key}:log", 10, "1h"),
        "rl.sketch": ("RL.SKETCH", f"{key}:sketch", "item", 10, 10, "1h", "SIZE", "64KB"),
        "rl.take": ("RL.TAKE", key, "TOKENBUCKET", 10, 10, "1h"),
        "rl.peek": ("RL.PEEK", key, "TOKENBUCKET", 10, 10, "1h"),
        "rl.mtake": ("RL.MTAKE", 2, key, other, "TOKENBUCKET", 10, 10, "1h", "FIXED", 10, "1h"),
        "rl.mpeek": ("RL.MPEEK", 2, key, other, "TOKENBUCKET", 10, 10, "1h", "FIXED", 10, "1h"),
        "rl.acquire": ("RL.ACQUIRE", f"{key}:leases", 10, "1h", "holder"),
        "rl.release": ("RL.RELEASE", f"{key}:leases", "holder", "other"),
        "rl.ban": ("RL.BAN", f"{key}:banned", "1m"),
        "rl.throttle": ("RL.THROTTLE", key, 9, 10, 3600),
        "rl.limit": ("RL.LIMIT", f"{key}:fixed", POLICY),
        "rl.delay": ("RL.DELAY", f"{key}:fixed", POLICY),
        "rl.info": ("RL.INFO", key),
        "rl.effect": ("RL.EFFECT", f"{key}:a", effect, f"{key}:b", effect),
    }


# Routing


def test_a_cluster_client_sends_every_command_where_its_keys_are(cluster: Cluster) -> None:
    clients = [cluster.client(entry) for entry in cluster.servers]
    for owner, (tag, _) in cluster.tags().items():
        for server in cluster.servers:
            cluster.admin(server).config_resetstat()
        for number, call in enumerate(calls(tag).values()):
            clients[number % len(clients)].execute_command(*call)
        for server in cluster.servers:
            stats = cluster.admin(server).info("commandstats")
            for command in calls(tag):
                told = stats.get(f"cmdstat_{command}", {"calls": 0})
                # Sent there at once: nowhere else was it called, or refused with a MOVED. What a
                # primary writes its replica is told by an effect.
                if command == "rl.effect" and server not in cluster.tags():
                    continue
                assert told["calls"] == (server is owner), (command, server.port)
                assert told.get("rejected_calls", 0) == 0, (command, server.port)


def test_the_first_key_that_the_server_tells_of_leads_to_the_node(cluster: Cluster) -> None:
    told = cluster.client().command()
    for owner, (tag, _) in cluster.tags().items():
        for name, call in calls(tag).items():
            # As clients do that know no more of the command.
            key = call[told[name]["first_key_pos"]]
            assert cluster.owner(key) is owner, name
            cluster.admin(owner).execute_command(*call)


def test_every_command_has_a_case_here(cluster: Cluster) -> None:
    listed = cluster.client().command()
    assert {name for name in listed if name.startswith("rl.")} == set(calls("t")) | KEYLESS


def test_a_node_that_has_not_the_slot_of_a_call_tells_who_has(cluster: Cluster) -> None:
    for owner, (tag, _) in cluster.tags().items():
        for server in cluster.servers:
            if server is owner:
                continue
            with server.client() as client:
                for call in calls(tag).values():
                    with pytest.raises(MovedError) as refused:
                        client.execute_command(*call)
                    assert refused.value.port == owner.port
    assert is_empty(cluster)


def is_empty(cluster: Cluster) -> bool:
    return all(cluster.admin(server).dbsize() == 0 for server in cluster.primaries())


def test_keys_of_two_slots_are_refused_and_nothing_is_charged(cluster: Cluster) -> None:
    tags = cluster.tags()
    limits = ("TOKENBUCKET", 10, 10, "1h", "SLIDINGLOG", 10, "1h")
    effect = calls("t")["rl.effect"][2]
    for owner, (tag, other) in tags.items():
        elsewhere = next(there[0] for server, there in tags.items() if server is not owner)
        # Whether the node has both slots or one of them.
        for second in (other, elsewhere):
            keys = (f"{{{tag}}}:k", f"{{{second}}}:k")
            refused: list[Call] = [
                ("RL.MTAKE", 2, *keys, *limits),
                ("RL.MTAKE", 2, *reversed(keys), *limits),
                ("RL.MPEEK", 2, *keys, *limits),
                ("RL.EFFECT", keys[0], effect, keys[1], effect),
            ]
            for server in tags:
                with server.client() as client:
                    for call in refused:
                        with pytest.raises(ClusterCrossSlotError):
                            client.execute_command(*call)
    assert is_empty(cluster)


def test_a_script_takes_what_its_keys_allow_and_no_more(cluster: Cluster) -> None:
    script = "return redis.call('RL.MTAKE', 2, KEYS[1], ARGV[1], unpack(ARGV, 2))"
    limits = ("FIXED", 10, "1h", "FIXED", 20, "1h")
    tags = cluster.tags()
    clients = [cluster.client(entry) for entry in cluster.servers]
    for client in clients:
        for tag, _ in tags.values():
            decisions = client.eval(script, 1, f"{{{tag}}}:a", f"{{{tag}}}:b", *limits)
            assert decisions[0] == 1
    assert sum(cluster.admin(server).dbsize() for server in tags) == 6


def test_a_script_that_crosses_slots_changes_nothing(own_cluster: Cluster) -> None:
    script = "return redis.call('RL.MTAKE', 2, KEYS[1], ARGV[1], unpack(ARGV, 2))"
    limits = ("FIXED", 10, "1h", "FIXED", 20, "1h")
    tags = own_cluster.tags()
    client = own_cluster.client()
    for owner, (tag, _) in tags.items():
        elsewhere = next(there[0] for server, there in tags.items() if server is not owner)
        with pytest.raises(ResponseError, match=r"non.local key|same slot"):
            client.eval(script, 1, f"{{{tag}}}:a", f"{{{elsewhere}}}:c", *limits)
        several = ("RL.MPEEK", 2, f"{{{tag}}}:a", f"{{{tag}}}:b", *limits)
        peeked = client.execute_command(*several)
        assert [decision[2] for decision in peeked[2]] == [10, 20]
    assert sum(own_cluster.admin(server).dbsize() for server in tags) == 0


def test_a_limit_holds_for_all_who_ask_anywhere(cluster: Cluster) -> None:
    client = cluster.client()
    limits = limiters(50)
    assert {cluster.owner(key) for key in limits} == set(cluster.primaries())
    with Taking(cluster, limits, clients=6, turns=200) as load:
        load.join()
    assert load.admitted == dict.fromkeys(limits, 50)
    assert usage(client, limits, 50) == load.admitted


def test_several_limits_hold_together_for_all_who_ask_anywhere(cluster: Cluster) -> None:
    client = cluster.client()
    for tag, _ in cluster.tags().values():
        limits = limiters(50, f"{{{tag}}}:")
        with Taking(cluster, limits, clients=6, turns=200) as load:
            load.join()
        assert load.admitted == dict.fromkeys(limits, 50)
        assert usage(client, limits, 50) == load.admitted


def usage(client: RedisCluster, limits: Mapping[str, Limiter], limit: int) -> Counter[str]:
    return Counter({key: used(client, limiter, key, limit) for key, limiter in limits.items()})


def test_replicas_answer_peeks(cluster: Cluster) -> None:
    for primary, (tag, _) in cluster.tags().items():
        limits = limiters(10, f"{{{tag}}}:")
        several = list(limits)[:2]
        specs = [word for key in several for word in limits[key].by("other").full()]
        with primary.client() as there, cluster.replica_of(primary).client() as here:
            for key, limiter in limits.items():
                there.execute_command(*limiter.take(key, 7))
            cluster.wait_until_well()
            peeks = [limiter.by("other").peek(key, 4) for key, limiter in limits.items()]
            for peek in [*peeks, ("RL.MPEEK", 2, *several, *specs), ("RL.INFO", several[0])]:
                with pytest.raises(MovedError):
                    here.execute_command(*peek)
            here.readonly()
            for peek in peeks:
                # What is left, and not for how long: the time goes on.
                told = here.execute_command(*peek)[:3]
                assert told == there.execute_command(*peek)[:3] == [0, 10, 3]
            assert here.execute_command("RL.MPEEK", 2, *several, *specs)[0] == 1
            assert here.execute_command("RL.INFO", several[0])
            for call in calls(tag).values():
                if "PEEK" not in call[0] and call[0] != "RL.INFO":
                    with pytest.raises(MovedError) as refused:
                        here.execute_command(*call)
                    assert refused.value.port == primary.port


# A slot on its way, key by key


def another(cluster: Cluster, key: str) -> Server:
    """A primary that has not the key's slot."""
    owner = cluster.owner(key)
    return random.choice([server for server in cluster.primaries() if server is not owner])


def asking(client: Redis, *call: Word) -> object:
    # One after the other on one connection, which alone may ask.
    client.execute_command("ASKING")
    return client.execute_command(*call)


def refusal(client: Redis, *call: Word, ask: bool = False) -> type[Exception] | None:
    try:
        asking(client, *call) if ask else client.execute_command(*call)
    except (AskError, TryAgainError) as error:
        return type(error)
    return None


def test_a_slot_on_its_way_is_served_at_both_ends(cluster: Cluster) -> None:
    limits = limiters(100, "{way}:")
    client = cluster.client()
    taken = Counter(dict.fromkeys(limits, 3))
    for key, limiter in limits.items():
        assert client.execute_command(*limiter.take(key, 3))[0] == 1
    gone, left = list(limits)[::2], list(limits)[1::2]

    def take(*keys: str) -> Call:
        """One unit of each, in the name of somebody new."""
        asked = [limits[key].by(f"holder {taken.total()}") for key in keys]
        if len(keys) == 1:
            return asked[0].take(keys[0])
        return ("RL.MTAKE", len(keys), *keys, *(word for one in asked for word in one.full()))

    with (
        cluster.move("{way}", another(cluster, "{way}")) as move,
        move.source.client() as source,
        move.target.client() as target,
    ):
        move.carry(*gone)
        for keys in [*([key] for key in gone), gone]:
            with pytest.raises(AskError) as refused:
                source.execute_command(*take(*keys))
            assert refused.value.port == move.target.port
            with pytest.raises(MovedError) as refused:
                target.execute_command(*take(*keys))
            assert refused.value.port == move.source.port
            assert asking(target, *take(*keys))[0] == 1
            taken.update(keys)
            assert client.execute_command(*take(*keys))[0] == 1
            taken.update(keys)
        for keys in [*([key] for key in left), left]:
            assert source.execute_command(*take(*keys))[0] == 1
            taken.update(keys)
            assert client.execute_command(*take(*keys))[0] == 1
            taken.update(keys)
        # In two places at once: refused as a command of the server's own is.
        for keys in [(gone[0], left[0]), (left[0], gone[0])]:
            assert refusal(target, *take(*keys), ask=True) is TryAgainError
            assert refusal(target, "EXISTS", *keys, ask=True) is TryAgainError
            expected = refusal(source, "EXISTS", *keys)
            assert expected in {AskError, TryAgainError}
            assert refusal(source, *take(*keys)) is expected
            with pytest.raises(ClusterError):
                client.execute_command(*take(*keys))
        assert usage(client, limits, 100) == taken
    assert client.execute_command(*take(*limits))[0] == 1
    taken.update(list(limits))
    assert usage(client, limits, 100) == taken


# A slot that moves under load, whichever way


@pytest.fixture
def atomic(cluster: Cluster) -> Cluster:
    if not cluster.moves_atomically:
        pytest.skip("the server has no atomic slot migration")
    return cluster


Mover = Callable[[str, Taking], None]


def key_by_key(cluster: Cluster, key: str, load: Taking) -> None:
    with cluster.move(key, another(cluster, key)) as move:
        load.wait_for(20)
        while names := move.left(1):
            move.carry(*names)
            load.wait_for(3)


def at_once(cluster: Cluster, key: str, load: Taking) -> None:
    target = another(cluster, key)
    cluster.move_atomically(key, target, meanwhile=lambda: load.wait_for(100))


@pytest.fixture(params=[key_by_key, at_once])
def move(request: pytest.FixtureRequest, cluster: Cluster) -> Mover:
    """Carries the slot of a key to another primary. The load goes on before, during and after."""
    if request.param is at_once:
        request.getfixturevalue("atomic")

    def mover(key: str, load: Taking) -> None:
        load.wait_for(30)
        request.param(cluster, key, load)
        load.wait_for(30)

    return mover


@pytest.mark.timeout(scaled(180, 900))
def test_a_slot_that_moves_to_and_fro_under_load_loses_and_doubles_nothing(
    cluster: Cluster, move: Mover
) -> None:
    client = cluster.client()
    limits = limiters(ENDLESS, "{way}:")
    admitted = Counter()
    for _ in range(scaled(2, 20)):
        with Taking(cluster, limits) as load:
            for _ in range(3):
                move("{way}", load)
        admitted += load.admitted
        assert usage(client, limits, ENDLESS) == admitted
    assert min(admitted[key] for key in limits) > 0


@pytest.mark.timeout(scaled(180, 900))
def test_a_limit_holds_while_its_slot_moves(cluster: Cluster, move: Mover) -> None:
    client = cluster.client()
    for number in range(scaled(2, 20)):
        tag = f"{{way {number}}}"
        limits = limiters(50, f"{tag}:")
        with Taking(cluster, limits) as load:
            for _ in range(2):
                move(tag, load)
            wait_until_full(client, limits, 50)
        assert load.admitted == dict.fromkeys(limits, 50)
        assert usage(client, limits, 50) == load.admitted


def wait_until_full(client: RedisCluster, limits: Mapping[str, Limiter], limit: int) -> None:
    """Returns once a load has taken all that there is, if not more."""
    poll.until(
        lambda: min(usage(client, limits, limit).values()) >= limit,
        "the load has taken all that there is",
        timeout=40,
    )


def test_an_id_and_a_ban_move_with_their_slot(cluster: Cluster, move: Mover) -> None:
    client = cluster.client()
    window, log = ("FIXED", 100, "1h"), ("SLIDINGLOG", 100, "1h")
    settled = ("RL.TAKE", "{way}:k", "COST", 40, "ONCE", "first", "1h", *window, *log)
    both = ("RL.MTAKE", 2, "{way}:k", "{way}:l", "COST", 3, "ONCE", "second", "1h", *window, *log)
    for call in (settled, both):
        assert client.execute_command(*call)[0] == 1
    assert client.execute_command("RL.BAN", "{way}:banned", "1h") == 3_600_000
    with Taking(cluster, limiters(ENDLESS, "{way}:other ")) as load:
        move("{way}", load)
    for call in (settled, both):
        # By a client whose reply was lost while the slot moved.
        assert client.execute_command(*call)[0] == 1
    assert client.execute_command("RL.TAKE", "{way}:k", "SETTLE", "first", 1, *window, *log)[0] == 1
    assert client.execute_command("RL.PEEK", "{way}:k", *window)[2] == 96
    assert client.execute_command("RL.PEEK", "{way}:l", *log)[2] == 97
    assert client.execute_command("RL.PEEK", "{way}:banned", *window)[0] == 0


def test_a_fencing_token_moves_with_its_slot(cluster: Cluster, move: Mover) -> None:
    client = cluster.client()
    lock = ("RL.ACQUIRE", "{way}:lock", 1, "1h")
    first = client.execute_command(*lock, "one", "FENCE")[5]
    assert first > 0
    with Taking(cluster, limiters(ENDLESS, "{way}:other ")) as load:
        move("{way}", load)
    assert client.execute_command(*lock, "one", "FENCE")[5] == first, "a renewal keeps it"
    assert client.execute_command("RL.RELEASE", "{way}:lock", "one") == 1
    # The new node has seen it with the key.
    assert client.execute_command(*lock, "two", "FENCE")[5] > first


@pytest.mark.timeout(scaled(180, 300))
@pytest.mark.parametrize("replicas", [True, False], ids=["replicas", "no replica"])
def test_a_slot_that_has_moved_at_once_has_the_same_bytes(
    replicas: bool, atomic: Cluster, binary: Binary
) -> None:
    if replicas:
        move_and_compare(atomic)
    else:
        # Nobody but the slot's new node listens.
        with Cluster(binary, atomic.clock, replicas=False) as alone:
            move_and_compare(alone)


def move_and_compare(cluster: Cluster) -> None:
    size = scaled(3_000, 90_000)
    log, leases = ("{way}:log", 2 * size, "1h"), ("{way}:leases", 2 * size, "1h")
    with cluster.owner("{way}").client() as owner, owner.pipeline(transaction=False) as pipeline:
        for number in range(size):
            pipeline.execute_command("RL.SLIDINGLOG", *log)
            pipeline.execute_command("RL.ACQUIRE", *leases, f"holder {number}")
        assert all(reply[0] == 1 for reply in pipeline.execute())
    client = cluster.client()
    charges = [("RL.SLIDINGLOG", *log), ("RL.ACQUIRE", *leases, "holder 1")]
    charges += [limiter.take(f"{{way}}:{limiter.name}", "0.5") for limiter in LIMITERS]

    def charge() -> None:
        for call in charges:
            assert client.execute_command(*call)[0] == 1

    def charge_and_look() -> None:
        charge()
        before.update(held(source))

    for _ in range(4):
        source, target = cluster.owner("{way}"), another(cluster, "{way}")
        before = {}
        charge()
        cluster.move_atomically("{way}", target, meanwhile=charge_and_look)
        cluster.wait_until_well()
        assert len(before) == len(charges)
        full = [server for server in cluster.servers if cluster.admin(server).dbsize() > 0]
        assert set(full) == {target, *cluster.replicas_of(target)}
        for server in full:
            assert held(server) == before


def held(server: Server) -> dict[bytes, tuple[bytes, bytes, int, bytes]]:
    """All of a node's keys, at whatever time: with the instant that each expires at."""
    with server.client() as client:
        client.readonly()
        names = sorted(client.keys())
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.type(name).dump(name).pexpiretime(name)
        told = iter(pipeline.execute())
        rows = zip(told, told, told, digests(client, names), strict=True)
        return dict(zip(names, rows, strict=True))


# Replicas


def test_in_a_cluster_too_a_replica_has_the_same_bytes_after_any_workload(
    turned_cluster: Cluster,
) -> None:
    cluster = turned_cluster
    client = cluster.client()
    compared = set()
    with standing_still(cluster):
        for seed in range(600, 600 + 10 * scaled(1, 10), 10):
            for number, (server, (tag, _)) in enumerate(cluster.tags().items()):
                play(steps(seed + number, 400, tag), cluster.clock, client, tag=tag)
                cluster.wait_until_well()
                replica = cluster.replica_of(server)
                with server.client() as there, replica.client() as here:
                    here.readonly()
                    expected = state(there)
                    assert state(here) == expected
                    assert digests(here, expected) == digests(there, expected)
                compared |= {one.type for one in expected.values()}
    assert compared == {limiter.type for limiter in LIMITERS}


@pytest.fixture
def turned_cluster(binary: Binary, shared_clock: Clock, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of one test, whose clock it may turn. Once that is set back, the nodes have heard
    of each other "in the future", and by their own rules miss none that dies from then on.
    """
    with running_cluster(binary, shared_clock, tmp_path) as cluster:
        yield cluster


@contextmanager
def standing_still(cluster: Cluster) -> Iterator[None]:
    """The clock shows what a workload sets. However much that is, nobody is taken for dead."""
    with cluster.node_timeout(1_000_000_000_000):
        cluster.clock.set(time.time_ns() // 1000)
        try:
            yield
        finally:
            cluster.clock.run()
