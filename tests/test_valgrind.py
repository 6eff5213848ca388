"""Under valgrind's memcheck, the module makes no invalid memory access and leaks nothing.

OUTPUT is from a run with a faulty module, in which memcheck found the faults. It is shortened, and
tests how logs are parsed.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis, ResponseError

from support import poll
from support.binaries import Binary
from support.clock import Clock
from support.memcheck import Memcheck, findings
from support.scale import scaled
from support.server import Server
from support.waiting import Queue, error_of, info_of
from support.workload import LIMITERS, digests, play, state, steps

# Timeout in seconds. A start is slow, and a call takes about fifty times as long as usual.
TIMEOUT = 120
pytestmark = pytest.mark.timeout(scaled(300, 3600))


@pytest.fixture
def memcheck(binary: Binary, tmp_path: Path) -> Memcheck:
    if shutil.which("valgrind") is None:
        pytest.skip("there is no valgrind on the PATH")
    if binary.path.read_bytes()[:2] == b"#!":
        pytest.skip("the server is started by a script, which valgrind would watch in its place")
    return Memcheck(binary, tmp_path)


@pytest.fixture
def memcheck_server(memcheck: Memcheck, clock: Clock) -> Iterator[Server]:
    # Without a preamble the module writes the rewritten AOF.
    settings = {"appendonly": "yes", "aof-use-rdb-preamble": "no"}
    with Server(memcheck.binary, clock=clock, timeout=TIMEOUT, **settings) as server:
        yield server


def test_a_server_at_work_shows_no_error_and_no_leak(
    memcheck_server: Server, memcheck: Memcheck, clock: Clock
) -> None:
    client = memcheck_server.client()
    play(steps(seed=90, count=scaled(600, 20_000)), clock, client)
    wrong_calls(client)
    restore_copies(client)
    restore_mutations(client, scaled(150, 10_000))
    transactions_and_scripts(client)
    rewrite_and_load(memcheck_server, clock)
    remove_all(client)
    with Queue(memcheck_server, TIMEOUT) as queue:
        wait_in_turn(queue, clock)
        for limiter in LIMITERS:
            client.execute_command(*limiter.take(f"left, {limiter.name}", 5))
        # Some callers still wait when the server shuts down.
        queue.acquire("a")
        queue.join_all("b", "c", "b", block="1h")
        memcheck_server.stop()

    found = memcheck.findings()
    # The values left in the keyspace belong to the module, and memcheck must know them.
    assert any(finding.is_ours and finding.is_reachable for finding in found)
    assert [str(finding) for finding in found if finding.is_error] == []
    assert [str(finding) for finding in found if finding.is_ours and finding.is_leak] == []


OUTPUT = """\
==42== Memcheck, a memory error detector
==42== Command: redis-server server.conf
==42==
==42== Thread 3 bio_lazy_free:
==42== Invalid read of size 1
==42==    at 0x4F8915B: read_volatile<u8> (library/core/src/ptr/mod.rs:2091)
==42==    by 0x4F8915B: redis_ratelimit::command::info::info (info.rs:12)
==43== Conditional jump or move depends on uninitialised value(s)
==43==    at 0x43E834: rewriteAppendOnlyFile (aof.c:1461)
==42==  Address 0x5213e60 is 0 bytes after a block of size 32 alloc'd
==42==    at 0x48416C4: malloc (in vgpreload_memcheck-amd64-linux.so)
==42==    by 0x43E08A: zmalloc (zmalloc.c:119)
==42==
==43==
==42== HEAP SUMMARY:
==42==     in use at exit: 992,467 bytes in 13,112 blocks
==42==
==42== 5,760 bytes in 180 blocks are definitely lost in loss record 939 of 947
==42==    at 0x48416C4: malloc (in vgpreload_memcheck-amd64-linux.so)
==42==    by 0x4F8915B: redis_ratelimit::command::info::info (info.rs:12)
==42==
==42== 16 (8 direct, 8 indirect) bytes in 1 blocks are definitely lost in loss record 9 of 947
==42==    at 0x48416C4: malloc (in vgpreload_memcheck-amd64-linux.so)
==42==    by 0x43E08A: moduleLoad (module.c:8595)
==42==
==42== 8 bytes in 1 blocks are still reachable in loss record 31 of 947
==42==    at 0x48416C4: malloc (in vgpreload_memcheck-amd64-linux.so)
==42==    by 0x4F7988A: redis_ratelimit::limiter::leases::ConcurrencyUsage::lease (leases.rs:202)
==42==
==42== LEAK SUMMARY:
==42==    definitely lost: 5,776 bytes in 181 blocks
"""


def test_memcheck_findings_are_classified() -> None:
    found = findings(OUTPUT)
    assert [(finding.message, finding.is_ours) for finding in found if finding.is_error] == [
        ("Invalid read of size 1", True),
        ("Conditional jump or move depends on uninitialised value(s)", False),
    ]
    assert [
        (finding.message.split()[0], finding.is_ours) for finding in found if finding.is_leak
    ] == [
        ("5,760", True),
        ("16", False),
    ]
    assert [finding.is_ours for finding in found if finding.is_reachable] == [True]
    assert len(found) == 5


def wrong_calls(client: Redis) -> None:
    """Sends wrong calls: with missing, wrong and surplus arguments, and on keys of another type."""
    client.set("string", "x")
    calls = [
        ["RL.TOKENBUCKET", "k", 10, 1, "1s", "COST", 1, "MAXWAIT", "1s"],
        ["RL.LEAKYBUCKET", "k", 10, 1, "1s", "COST", 1, "UPTO"],
        ["RL.FIXED", "k", 10, "60s", "ALIGNED", "COST", 1],
        ["RL.SLIDING", "k", 10, "60s", "STRICT", "COST", 1],
        ["RL.SLIDINGLOG", "k", 10, "60s", "COST", 1, "FORCE"],
        ["RL.MTAKE", 2, "k", "l", "FIXED", 10, "60s", "CONCURRENCY", 10, "60s", "holder"],
        ["RL.MPEEK", 1, "k", "FIXED", 10, "60s", "COST", 1],
        ["RL.ACQUIRE", "k", 10, "60s", "holder", "COST", 1],
        ["RL.RELEASE", "k", "holder"],
        ["RL.BAN", "k", "60s"],
        ["RL.TAKE", "k", "ONCE", "id", "1m", "FIXED", 10, "60s", "AS", "name", "SLIDING", 10, "1h"],
        ["RL.TAKE", "k", "SETTLE", "id", 1, "FIXED", 10, "1w", "ALIGNED", "BAN", 3, "1m", "1h"],
        ["RL.THROTTLE", "k", 10, 1, 60, 1],
        ["RL.INFO", "k"],
        ["RL.EFFECT", "k", "rl-bucket 1 1700003600000 1000000 1700000000000000"],
    ]
    pipeline = client.pipeline(transaction=False)
    for call in calls:
        for place in range(1, len(call)):
            pipeline.execute_command(*call[:place])
            for wrong in ("", "x" * 300, b"\x00\xff", -1, 10**30, "string", "1e-9", "FORCE"):
                pipeline.execute_command(*call[:place], wrong, *call[place + 1 :])
                pipeline.delete("k", "l")
        pipeline.execute_command(*call, *["COST"] * 40)
        pipeline.execute_command("COMMAND GETKEYS", *call)
    replies = pipeline.execute(raise_on_error=False)
    assert sum(isinstance(reply, ResponseError) for reply in replies) > 500
    client.delete("string")


def restore_copies(client: Redis) -> None:
    """Dumps, restores, copies, renames and inspects every key."""
    stored = state(client)
    assert {value.type for value in stored.values()} == {limiter.type for limiter in LIMITERS}
    for key, (_, dump, expires_at) in stored.items():
        client.restore("restored", expires_at, dump, absttl=True)
        client.copy("restored", "copy")
        client.rename("restored", "renamed")
        assert client.dump("copy") == client.dump("renamed") == dump
        assert digests(client, [b"copy"]) == digests(client, [key])
        assert client.memory_usage("copy") > 0
        assert client.execute_command("RL.INFO", "copy")
        client.delete("copy", "renamed")
    assert state(client) == stored


def restore_mutations(client: Redis, count: int) -> None:
    """Restores payloads with some bytes changed. Most are refused; the others are used."""
    dumps = [stored.dump for stored in state(client).values()]
    draw = random.Random(91)
    client.execute_command("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1)
    pipeline = client.pipeline(transaction=False)
    for _ in range(count):
        dump = bytearray(draw.choice(dumps))
        for _ in range(draw.randint(1, 3)):
            # After the byte of the server's own type, and before the server's version.
            dump[draw.randrange(9, len(dump) - 10)] = draw.choice([0, 1, 2, 5, 0x81, 0xFF])
        if draw.random() < 0.2:
            del dump[draw.randrange(10, len(dump) - 10) : -10]
        pipeline.restore("mutated", 3_600_000, bytes(dump), replace=True)
        for limiter in LIMITERS:
            pipeline.execute_command(*limiter.take("mutated"))
        pipeline.execute_command("RL.INFO", "mutated")
        pipeline.dump("mutated")
    restores = pipeline.execute(raise_on_error=False)[:: len(LIMITERS) + 3]
    assert 0 < sum(reply is True or reply == b"OK" for reply in restores) < count
    client.execute_command("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 0)
    client.delete("mutated")


def transactions_and_scripts(client: Redis) -> None:
    with client.pipeline(transaction=True) as pipeline:
        for limiter in LIMITERS:
            pipeline.execute_command(*limiter.take(f"by EXEC, {limiter.name}"))
        pipeline.execute()
    for limiter in LIMITERS:
        script = "return redis.call(unpack(ARGV))"
        client.eval(script, 1, "k", *limiter.take(f"by script, {limiter.name}"))


def rewrite_and_load(server: Server, clock: Clock) -> None:
    """Saves all keys in an AOF and in an RDB file, and loads each."""
    client = server.client()
    assert len(state(client)) > 10
    client.bgrewriteaof()
    poll.until(
        lambda: not client.info("persistence")["aof_rewrite_in_progress"],
        "the AOF is rewritten",
        timeout=120,
    )
    play(steps(seed=92, count=50), clock, client)
    before = state(client)
    client.execute_command("DEBUG", "LOADAOF")
    assert state(client) == before
    client.execute_command("DEBUG", "RELOAD")
    assert state(client) == before


def wait_in_turn(queue: Queue, clock: Clock) -> None:
    """Starts waiting calls, and ends them in every way."""
    client = queue.client
    for options in (), ("AS", "pool", "COST", 1, "KEEP", 0, "NX"):
        queue.acquire("a", *options[:2])
        waiters = {name: queue.join(name, *options) for name in ("b", "c", "x" * 256)}
        last = queue.join("last", *options, block="30s")
        killed, closed, denied, refused = queue.join_all(*"defg", block="1h")
        later = queue.join("b", *options)
        assert waiters.pop("b").reply()[0] == 0
        info_of(client)
        queue.info()
        client.client_kill_filter(_id=killed.id)
        closed.hang_up()
        client.client_unblock(denied.id)
        client.client_unblock(refused.id, error=True)
        assert denied.reply()[0] == 0
        assert error_of(refused.reply).startswith("UNBLOCKED")
        clock.advance("30s")
        assert last.reply()[0] == 0
        clock.advance("-1h")
        client.execute_command("DEBUG", "RELOAD")
        queue.release("a")
        assert later.reply()[0] == 1
        with client.pipeline(transaction=True) as pipeline:
            pipeline.execute_command("RL.ACQUIRE", "k", 1, "60s", "late", "BLOCK", 0)
            pipeline.delete("k")
            pipeline.execute()
        assert waiters.pop("c").reply()[0] == 1
        client.set("k", "text")
        assert "WRONGTYPE" in error_of(waiters.popitem()[1].reply)
        client.flushall()
    queue.until(lambda: queue.is_empty, "nobody waits")


def remove_all(client: Redis) -> None:
    """Removes all keys, the large ones in the background."""
    pipeline = client.pipeline(transaction=False)
    for number in range(300):
        pipeline.execute_command("RL.SLIDINGLOG", "log", 1000, f"{3600 + number}s")
        pipeline.execute_command("RL.ACQUIRE", "leases", 1000, "1h", f"holder {number}")
        pipeline.execute_command("RL.ACQUIRE", "more leases", 1000, "1h", f"holder {number}")
    pipeline.execute()
    assert client.unlink("log", "leases") == 2
    client.execute_command("FLUSHALL", "ASYNC")
    poll.until(
        lambda: client.info("memory")["lazyfree_pending_objects"] == 0,
        "all values are freed in the background",
        timeout=60,
    )
