"""RL.SLIDING with STRICT by the server's clock, its memory, and its replication."""

import random

from redis import Redis

from support.clock import Clock
from support.server import Server


def test_a_slot_leaves_once_its_last_microsecond_is_as_old_as_the_window(
    redis: Redis, clock: Clock
) -> None:
    # The slots of a window of a minute last a second, and START is the beginning of a slot.
    take = ("RL.SLIDING", "k", 1, "60s", "STRICT")
    assert redis.execute_command(*take) == [1, 1, 0, 0, 61_000]
    clock.advance("60999998us")
    assert redis.execute_command(*take) == [0, 1, 0, 1, 1]
    clock.advance("1us")
    assert redis.execute_command(*take) == [1, 1, 0, 0, 60_000]


def test_a_key_takes_at_most_600_bytes(redis: Redis, clock: Clock) -> None:
    for _ in range(200):
        redis.execute_command("RL.SLIDING", "k", 10**9, "60s", "STRICT", "COST", "1000.000001")
        clock.advance("500ms")
    assert redis.memory_usage("k") <= 600


def test_a_replica_holds_the_same_bytes(pair: tuple[Server, Server], clock: Clock) -> None:
    chance = random.Random(1)
    primary_server, replica_server = pair
    with primary_server.client() as primary, replica_server.client() as replica:
        keys = [f"k{n}" for n in range(8)]
        for _ in range(600):
            clock.advance(chance.choice([0, 1, 99_999, 1_000_000, 30_000_000, -500_000]))
            window = chance.choice(["61us", "6s", "60s"])
            cost = chance.choice([1, 2.5, 7, -1.5, -4, 0])
            force = ["FORCE"] if cost > 0 and chance.random() < 0.2 else []
            words = ("STRICT", "COST", cost, *force)
            primary.execute_command("RL.SLIDING", chance.choice(keys), 10, window, *words)
        replica_server.wait_for_sync()
        dumps = [primary.dump(key) for key in keys]
        assert any(dumps)
        assert [replica.dump(key) for key in keys] == dumps
