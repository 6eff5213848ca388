"""A slot that moves under load, key by key or at once (Valkey 9), loses no limits, idempotency keys
or bans, and counts nothing twice.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from redis import Redis, RedisCluster
from redis.exceptions import AskError, ClusterError, MovedError, TryAgainError

from support import poll
from support.binaries import Binary
from support.cluster import Cluster
from support.cluster_calls import Call, limiters, usage
from support.scale import scaled
from support.server import Server
from support.slot_moves import SlotMove, move_atomically
from support.taking import Taking
from support.workload import LIMITERS, Limiter, Word, digests

pytestmark = [pytest.mark.every_server, pytest.mark.every_kind]
# A limit that no test reaches.
ENDLESS = 100_000


# Both nodes during a move


def other_primary(cluster: Cluster, key: str) -> Server:
    """Returns a primary that does not have the key's slot."""
    owner = cluster.owner(key)
    return random.choice([server for server in cluster.primaries() if server is not owner])


def asking(client: Redis, *call: Word) -> object:
    # ASKING applies to the next command on the same connection.
    client.execute_command("ASKING")
    return client.execute_command(*call)


def redirection(client: Redis, *call: Word, ask: bool = False) -> type[Exception] | None:
    try:
        asking(client, *call) if ask else client.execute_command(*call)
    except (AskError, TryAgainError) as error:
        return type(error)
    return None


def test_moving_slot_is_served_by_both_nodes(cluster: Cluster) -> None:
    limits = limiters(100, "{way}:")
    client = cluster.client()
    taken = Counter(dict.fromkeys(limits, 3))
    for key, limiter in limits.items():
        assert client.execute_command(*limiter.take(key, 3))[0] == 1
    moved, remaining = list(limits)[::2], list(limits)[1::2]

    def take(*keys: str) -> Call:
        """Returns a call that takes one unit of each key for a new holder."""
        limiters = [limits[key].for_holder(f"holder {taken.total()}") for key in keys]
        if len(keys) == 1:
            return limiters[0].take(keys[0])
        return (
            "RL.MTAKE",
            len(keys),
            *keys,
            *(word for limiter in limiters for word in limiter.words()),
        )

    with (
        SlotMove(cluster, "{way}", other_primary(cluster, "{way}")) as move,
        move.source.client() as source,
        move.target.client() as target,
    ):
        move.move_keys(*moved)
        for keys in [*([key] for key in moved), moved]:
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
        for keys in [*([key] for key in remaining), remaining]:
            assert source.execute_command(*take(*keys))[0] == 1
            taken.update(keys)
            assert client.execute_command(*take(*keys))[0] == 1
            taken.update(keys)
        # Keys on two nodes: the error is that of a native command.
        for keys in [(moved[0], remaining[0]), (remaining[0], moved[0])]:
            assert redirection(target, *take(*keys), ask=True) is TryAgainError
            assert redirection(target, "EXISTS", *keys, ask=True) is TryAgainError
            expected = redirection(source, "EXISTS", *keys)
            assert expected in {AskError, TryAgainError}
            assert redirection(source, *take(*keys)) is expected
            with pytest.raises(ClusterError):
                client.execute_command(*take(*keys))
        assert usage(client, limits, 100) == taken
    assert client.execute_command(*take(*limits))[0] == 1
    taken.update(list(limits))
    assert usage(client, limits, 100) == taken


# Moves under load, key by key and atomically


@pytest.fixture
def atomic(cluster: Cluster) -> Cluster:
    if not cluster.moves_atomically:
        pytest.skip("the server has no atomic slot migration")
    return cluster


Mover = Callable[[str, Taking], None]


def key_by_key(cluster: Cluster, key: str, load: Taking) -> None:
    with SlotMove(cluster, key, other_primary(cluster, key)) as move:
        load.wait_for(20)
        while names := move.remaining_keys(1):
            move.move_keys(*names)
            load.wait_for(3)


def atomically(cluster: Cluster, key: str, load: Taking) -> None:
    target = other_primary(cluster, key)
    move_atomically(cluster, key, target, meanwhile=lambda: load.wait_for(100))


@pytest.fixture(params=[key_by_key, atomically])
def move(request: pytest.FixtureRequest, cluster: Cluster) -> Mover:
    """Returns a function that moves a key's slot to another primary, under load before, during and
    after the move.
    """
    if request.param is atomically:
        request.getfixturevalue("atomic")

    def mover(key: str, load: Taking) -> None:
        load.wait_for(30)
        request.param(cluster, key, load)
        load.wait_for(30)

    return mover


@pytest.mark.timeout(scaled(180, 900))
def test_a_slot_that_moves_several_times_under_load_loses_and_doubles_nothing(
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
    """Waits until a load has used up every limit."""
    poll.until(
        lambda: min(usage(client, limits, limit).values()) >= limit,
        "every limit is used up",
        timeout=40,
    )


def test_an_id_and_a_ban_move_with_their_slot(cluster: Cluster, move: Mover) -> None:
    client = cluster.client()
    window, log = ("FIXED", 100, "1h"), ("SLIDINGLOG", 100, "1h")
    take = ("RL.TAKE", "{way}:k", "COST", 40, "ONCE", "first", "1h", *window, *log)
    mtake = ("RL.MTAKE", 2, "{way}:k", "{way}:l", "COST", 3, "ONCE", "second", "1h", *window, *log)
    for call in (take, mtake):
        assert client.execute_command(*call)[0] == 1
    assert client.execute_command("RL.BAN", "{way}:banned", "1h") == 3_600_000
    with Taking(cluster, limiters(ENDLESS, "{way}:other ")) as load:
        move("{way}", load)
    for call in (take, mtake):
        # A client repeats a call if the reply was lost during the move.
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
    assert client.execute_command(*lock, "one", "FENCE")[5] == first, "a renewal keeps the token"
    assert client.execute_command("RL.RELEASE", "{way}:lock", "one") == 1
    # The new node has received the token with the key.
    assert client.execute_command(*lock, "two", "FENCE")[5] > first


@pytest.mark.timeout(scaled(180, 300))
@pytest.mark.parametrize("replicas", [True, False], ids=["replicas", "no replica"])
def test_a_slot_that_moved_atomically_has_the_same_bytes(
    replicas: bool, atomic: Cluster, binary: Binary
) -> None:
    if replicas:
        move_and_compare(atomic)
    else:
        # The source propagates effects to the slot's new node only.
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

    def charge_and_record() -> None:
        charge()
        before.update(all_keys(source))

    for _ in range(4):
        source, target = cluster.owner("{way}"), other_primary(cluster, "{way}")
        before = {}
        charge()
        move_atomically(cluster, "{way}", target, meanwhile=charge_and_record)
        cluster.wait_until_well()
        assert len(before) == len(charges)
        with_keys = [server for server in cluster.servers if cluster.admin(server).dbsize() > 0]
        assert set(with_keys) == {target, *cluster.replicas_of(target)}
        for server in with_keys:
            assert all_keys(server) == before


def all_keys(server: Server) -> dict[bytes, tuple[bytes, bytes, int, bytes]]:
    """Returns all keys of a node, each with its type, dump, expiry and digest."""
    with server.client() as client:
        client.readonly()
        names = sorted(client.keys())
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.type(name).dump(name).pexpiretime(name)
        replies = iter(pipeline.execute())
        rows = zip(replies, replies, replies, digests(client, names), strict=True)
        return dict(zip(names, rows, strict=True))
