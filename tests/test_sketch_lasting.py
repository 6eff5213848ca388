"""Snapshots, the AOF, replicas and copies keep a sketch byte for byte."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from support.clock import Clock
from support.saving import (
    load_aof,
    reload,
    restart_from_aof,
    restart_from_rdb,
    restart_from_rewritten_aof,
)
from support.server import Server
from support.sketch_calls import AOF, SMALL, Start, item
from support.workload import digests, state, written_commands

pytestmark = pytest.mark.every_server
INTERRUPTIONS = {
    "restart from RDB": (restart_from_rdb, {}),
    "restart from AOF": (restart_from_aof, AOF),
    "restart from rewritten AOF": (
        restart_from_rewritten_aof,
        AOF | {"aof_use_rdb_preamble": "no"},
    ),
    "restart from rewritten AOF with RDB preamble": (
        restart_from_rewritten_aof,
        AOF | {"aof_use_rdb_preamble": "yes"},
    ),
    "DEBUG RELOAD": (reload, {}),
    "DEBUG LOADAOF": (load_aof, AOF | {"aof_use_rdb_preamble": "no"}),
}


def fill(redis: Redis, clock: Clock, calls: int, *, key: str = "k", seed: int = 1) -> list[object]:
    """Charges 2000 items while the clock goes forward and sometimes back. Returns the replies."""
    draw = random.Random(seed)
    replies = []
    for _ in range(calls // 100):
        clock.set(clock.now + draw.choice([0, 1, 700, 40_000, 3_000_000, -2_000_000]))
        pipeline = redis.pipeline(transaction=False)
        for _ in range(100):
            words = (item(draw.randrange(2000)), 5, 5, "1m", "COST", draw.choice([1, 1, 2.5]))
            pipeline.execute_command("RL.SKETCH", key, *words, *SMALL)
        replies += pipeline.execute()
    return replies


# Persistence


@pytest.mark.parametrize(
    ("interrupt", "settings"), INTERRUPTIONS.values(), ids=INTERRUPTIONS.keys()
)
def test_an_interruption_changes_no_byte_and_no_later_reply(
    interrupt: Callable[[Server], None],
    settings: dict[str, str],
    fresh_server: Start,
    clock: Clock,
) -> None:
    server = fresh_server(**settings)
    client = server.client()
    fill(client, clock, 3000)
    client.execute_command("COPY", "k", "copy")
    before = state(client)
    before_digests = digests(client, ["k", "copy"])
    assert len(set(before_digests)) == 1
    interrupt(server)
    assert state(client) == before
    assert digests(client, ["k", "copy"]) == before_digests
    # The secret is kept, so that every item has the same cells as before.
    peeks = [("SKETCH", 5, 5, "1m", item(number)) for number in range(0, 2000, 40)]
    peeked = [
        [client.execute_command("RL.PEEK", key, *peek) for peek in peeks] for key in ("k", "copy")
    ]
    assert peeked[0] == peeked[1]
    assert any(reply[2] < 5 for reply in peeked[0])


def test_a_replica_holds_the_same_bytes_and_expiry(pair, clock):
    with pair.primary.client() as primary, pair.replica.client() as replica:
        replies = fill(primary, clock, 6000)
        assert {reply[0] for reply in replies} == {0, 1}
        pair.replica.wait_for_sync()
        stored = state(primary)
        assert stored == state(replica)
        assert digests(primary, stored) == digests(replica, stored)


def test_an_admitted_call_propagates_four_cells_and_a_denied_call_nothing(fresh_server, clock):
    server = fresh_server(**AOF, aof_use_rdb_preamble="no")
    with server.client() as client:
        for _ in range(2):
            client.execute_command("RL.SKETCH", "k", "a", 2, 2, "1m")
            clock.advance(6)
        assert client.execute_command("RL.SKETCH", "k", "a", 2, 2, "1m")[0] == 0
        effects = [words[2].split() for words in written_commands(server) if b"k" in words]
    assert [effect[0] for effect in effects] == [b"rl-sketch"] * 2
    # Kind, version and expiry, a tag for a change, 9 numbers of the sketch, and the count of the
    # cells, each of which has a number and a usage.
    assert {len(effect) for effect in effects} == {3 + 1 + 9 + 1 + 2 * 4}


def test_large_sketch_is_rewritten_in_parts(fresh_server):
    settings = AOF | {"aof_use_rdb_preamble": "no"}
    server = fresh_server(**settings)
    with server.client() as client:
        pipeline = client.pipeline(transaction=False)
        for number in range(5000):
            pipeline.execute_command("RL.SKETCH", "k", item(number), 5, 5, "1m", "SIZE", "1mb")
        pipeline.execute()
        before = state(client)
        restart_from_rewritten_aof(server)
        assert state(client) == before
    written = b"".join(file.read_bytes() for file in server.aof_files())
    parts = [int(length) for length in re.findall(rb"\$(\d+)\r\nrl-sketch", written)]
    assert len(parts) == 5
    assert max(parts) < 300_000


def cpu_ms(server: Server) -> float:
    """Returns the CPU time of the server's main thread, which excludes waiting for a processor."""
    with server.client() as client:
        pid = client.info("server")["process_id"]
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e6


@pytest.mark.one_server
@pytest.mark.timeout(240)
def test_no_call_on_the_largest_sketch_takes_long(fresh_server: Start) -> None:
    server = fresh_server()
    with server.client() as client:
        durations_ms = {}

        def measure(name: str, run: Callable[[], object]) -> None:
            before = cpu_ms(server)
            run()
            durations_ms[name] = cpu_ms(server) - before

        call = ("RL.SKETCH", "k", "a", 5, 5, "1h", "SIZE", "256mb")
        measure("creation", lambda: client.execute_command(*call))
        for first in range(0, 60_000, 2000):
            pipeline = client.pipeline(transaction=False)
            for number in range(first, first + 2000):
                pipeline.execute_command("RL.SKETCH", "k", item(number), 5, 5, "1h")
            measure("2,000 calls", pipeline.execute)
        assert client.memory_usage("k") > 200_000_000
        measure("copy", lambda: client.execute_command("COPY", "k", "copy"))
        measure("call after the copy", lambda: client.execute_command(*call))
        # Deletion is not measured: the allocator may return pages to the system at that time.
        assert max(durations_ms, key=durations_ms.get) == "2,000 calls", durations_ms


def test_dump_restore_and_copy_keep_a_sketch_and_copies_are_independent(redis, clock):
    fill(redis, clock, 3000)
    payload, ttl = redis.dump("k"), redis.pttl("k")
    redis.restore("restored", ttl, payload)
    redis.execute_command("COPY", "k", "copy")
    assert redis.dump("restored") == redis.dump("copy") == payload
    assert redis.memory_usage("copy") > 60_000
    # FORCE: by the random secret, other items may have filled the cells of this one.
    another = ("another", 5, 5, "1m", "COST", 5, "FORCE")
    redis.execute_command("RL.SKETCH", "copy", *another)
    assert redis.dump("copy") != redis.dump("k") == payload
    redis.execute_command("RL.SKETCH", "k", *another)
    assert redis.dump("copy") == redis.dump("k")
    redis.delete("k", "restored")
    assert redis.execute_command("RL.PEEK", "copy", "SKETCH", 5, 5, "1m", "another")[0] == 0


def test_two_keys_hash_by_different_secrets(redis):
    for key in ("k", "other"):
        redis.execute_command("RL.SKETCH", key, "a", 5, 5, "1m")
    first, second = digests(redis, ["k", "other"])
    assert first != second
    # A deleted key and a new one of the same name have different secrets, too.
    redis.delete("k")
    redis.execute_command("RL.SKETCH", "k", "a", 5, 5, "1m")
    assert digests(redis, ["k"]) != [first]


def test_memory_is_allocated_when_it_is_used(redis):
    redis.execute_command("RL.SKETCH", "k", "a", 5, 5, "1m", "SIZE", "256mb")
    assert redis.memory_usage("k") < 50_000
    for number in range(100):
        redis.execute_command("RL.SKETCH", "k", item(number), 5, 5, "1m")
    assert 300 * 4096 < redis.memory_usage("k") < 410 * 7000
    # A copy shares the pieces, and is usable after the original is deleted.
    redis.execute_command("COPY", "k", "copy")
    redis.delete("k")
    assert redis.execute_command("RL.PEEK", "copy", "SKETCH", 5, 5, "1m", "a")[2] == 4
    redis.delete("copy")
    assert redis.dbsize() == 0
