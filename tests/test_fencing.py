"""RL.ACQUIRE with FENCE gives each lease a larger token than all before it, over deletion, expiry,
`RENAME`, `FLUSHALL`, a restart, a failover, and a clock that is set back.

- A new primary whose clock is behind by more than the lag may repeat the token of a lease that the
  failover lost. `WAIT` after the acquisition rules that out.
- A server that starts without its data makes tokens by its clock alone.
- `RESTORE` brings back old leases with their old tokens.
"""

from collections.abc import Callable
from random import Random

import pytest
from redis import Redis, ResponseError

from conftest import Pair
from support.clock import START_US, Clock
from support.saving import rewrite_aof
from support.server import Server
from support.waiting import Queue
from support.workload import digests, written_commands

pytestmark = pytest.mark.every_server

Start = Callable[..., Server]


def acquire(client: Redis, holder: str = "a", *options: str | int, key: str = "k") -> list[int]:
    return client.execute_command("RL.ACQUIRE", key, 1, "60s", holder, *options)


def token(client: Redis, holder: str = "a", *options: str | int, key: str = "k") -> int:
    """Acquires a lease and returns its token."""
    *decision, fence = acquire(client, holder, *options, "FENCE", key=key)
    assert decision == [1, 1, 0, 0, 60_000]
    assert 0 < fence < 2**53
    return fence


def leases(client: Redis, key: str = "k") -> list:
    flat = client.execute_command("RL.INFO", key)
    return dict(zip(flat[::2], flat[1::2], strict=True))[b"leases"]


def test_a_new_lease_has_a_larger_token(redis: Redis, clock: Clock) -> None:
    first = token(redis)
    assert first >= START_US
    assert acquire(redis, "b", "FENCE") == [0, 1, 0, 60_000, 60_000, 0]
    redis.execute_command("RL.RELEASE", "k", "a")
    second = token(redis, "b")
    clock.advance("60s")
    third = token(redis, "a")
    assert first < second < third


def test_a_renewal_keeps_its_token(redis: Redis, clock: Clock) -> None:
    first = token(redis)
    clock.advance("59s")
    assert token(redis) == first
    assert acquire(redis) == [1, 1, 0, 0, 60_000], "without FENCE the reply has no token"
    assert token(redis, "a", "COST", 1) == first, "a renewal without FENCE keeps the token"
    clock.advance("60s")
    assert token(redis) > first, "a new lease after the first one has expired"


def test_a_lease_without_a_token_gets_one_on_renewal_with_fence(redis: Redis, clock: Clock) -> None:
    acquire(redis)
    assert leases(redis) == [[b"a", b"1", START_US // 1000 + 60_000]]
    clock.advance("1s")
    fence = token(redis)
    assert leases(redis) == [[b"a", b"1", START_US // 1000 + 61_000, fence]]
    # An expired lease loses its token, although the next call does not ask for one.
    clock.advance("60s")
    acquire(redis)
    assert len(leases(redis)[0]) == 3


def test_a_token_with_several_units_and_holders(redis: Redis) -> None:
    call = ("RL.ACQUIRE", "k", 100, "60s")
    tokens = [redis.execute_command(*call, f"h{n}", "FENCE")[5] for n in range(100)]
    assert tokens == sorted(set(tokens))
    assert [redis.execute_command(*call, f"h{n}", "FENCE")[5] for n in range(100)] == tokens
    assert redis.execute_command(*call, "h7", "COST", "0.5", "FENCE")[5] == tokens[7]
    redis.execute_command("RL.RELEASE", "k", *(f"h{n}" for n in range(1, 100)))
    assert redis.execute_command(*call, "h0", "FENCE")[5] == tokens[0]


@pytest.mark.parametrize("way", ["DEL k", "FLUSHALL", "RENAME k other", "SWAPDB 0 1", "UNLINK k"])
def test_tokens_grow_over_every_change_of_the_key(redis: Redis, clock: Clock, way: str) -> None:
    first = token(redis)
    redis.execute_command(*way.split())
    clock.advance("-1h")
    second = token(redis, "b")
    assert second > first
    redis.execute_command("RL.RELEASE", "k", "b")
    assert token(redis, "b") > second


def test_named_lease_has_increasing_tokens(redis: Redis, clock: Clock) -> None:
    first = token(redis, "a", "AS", "lock")
    redis.execute_command("RL.TAKE", "k", "FIXED", 9, "1h")
    assert token(redis, "a", "AS", "lock") == first
    redis.execute_command("RL.RELEASE", "k", "a")
    clock.advance("-1s")
    assert token(redis, "a", "AS", "lock") > first


@pytest.mark.parametrize(
    "words",
    [
        "RL.TAKE k CONCURRENCY 1 60s a FENCE",
        "RL.PEEK k CONCURRENCY 1 60s a FENCE",
        "RL.TOKENBUCKET k 1 1 1s FENCE",
        "RL.MTAKE 1 k CONCURRENCY 1 60s a FENCE",
    ],
)
def test_only_rl_acquire_accepts_fence(redis: Redis, words: str) -> None:
    with pytest.raises(ResponseError, match=r"unexpected 'FENCE', which only RL.ACQUIRE has"):
        redis.execute_command(*words.split())


def test_duplicate_option_is_rejected(redis: Redis) -> None:
    with pytest.raises(ResponseError, match=r"unexpected 'FENCE', which is given twice"):
        acquire(redis, "a", "FENCE", "FENCE")


def test_a_waiting_call_gets_its_token_with_the_lease(queue: Queue, clock: Clock) -> None:
    first = token(queue.client)
    patient = queue.join("b", "FENCE")
    timed_out = queue.join("c", "FENCE", block="1s")
    clock.advance("30s")
    assert timed_out.reply() == [0, 1, 0, 30_000, 30_000, 0]
    between = token(queue.client, key="other")
    queue.release("a")
    *granted, second = patient.reply()
    assert granted == [1, 1, 0, 0, 60_000]
    assert first < between < second, "the token is created when the lease is granted"
    assert token(queue.client, "b") == second


@pytest.mark.parametrize("way", ["snapshot", "AOF", "rewritten AOF", "rewritten without preamble"])
@pytest.mark.parametrize("key", ["stays", "is deleted"])
def test_tokens_grow_over_a_restart(fresh_server: Start, clock: Clock, way: str, key: str) -> None:
    server = fresh_server(
        module_args="policies yes",
        appendonly="no" if way == "snapshot" else "yes",
        aof_use_rdb_preamble="no" if "without" in way else "yes",
    )
    with server.client() as client:
        first = token(client)
        if key == "is deleted":
            client.delete("k")
        if "rewritten" in way:
            rewrite_aof(client)
    # The token from disk counts, although the clock is set back.
    clock.advance("-10d")
    server.restart("save" if way == "snapshot" else "nosave")
    with server.client() as client:
        if key == "stays":
            assert token(client) == first
            client.delete("k")
        assert token(client) > first


def test_replica_has_the_tokens_and_continues_from_them(pair: Pair) -> None:
    with pair.primary.client() as primary, pair.replica.client() as replica:
        first = token(primary)
        pair.replica.wait_for_sync()
        assert digests(replica, [b"k"]) == digests(primary, [b"k"])
        assert leases(replica) == leases(primary)
        assert leases(replica)[0][3] == first
        # An effect carries the token, and later calls leave it unchanged.
        acquire(primary)
        pair.replica.wait_for_sync()
        assert replica.dump("k") == primary.dump("k")


@pytest.mark.parametrize("replica_starts", ["before", "after"])
def test_tokens_grow_over_a_failover(
    fresh_server: Start, clock: Clock, replica_starts: str
) -> None:
    """Sets the clock back before the failover. The replica starts before or after the first token
    is created.
    """
    primary = fresh_server(module_args="policies yes")
    replica = primary.replica(module_args="policies yes") if replica_starts == "before" else None
    with primary.client() as client:
        first = token(client)
        client.delete("k")
    if replica is None:
        replica = primary.replica(module_args="policies yes")
    replica.wait_for_sync()
    clock.advance("-1h")
    replica.follow(None)
    with replica.client() as client:
        assert token(client) > first


def test_token_of_a_restored_key_is_kept_and_exceeded(fresh_server: Start, clock: Clock) -> None:
    with fresh_server().client() as source, fresh_server().client() as target:
        clock.advance("1h")
        first = token(source)
        dump = source.dump("k")
        clock.advance("-1h")
        target.restore("k", 600_000, dump)
        assert leases(target)[0][3] == first
        assert token(target, key="other") > first


def test_foreign_tokens_more_than_a_day_ahead_are_ignored(
    fresh_server: Start, clock: Clock
) -> None:
    with fresh_server().client() as source, fresh_server().client() as target:
        clock.advance("2d")
        first = token(source)
        dump = source.dump("k")
        clock.advance("-2d")
        target.restore("k", 600_000, dump)
        assert leases(target)[0][3] == first, "the restored lease keeps its token"
        assert token(target, key="other") == START_US, "a token two days ahead is ignored"
        target.execute_command("RL.POLICYEFFECT", f"rl-fence 1 {first}")
        assert token(target, key="another") == START_US + 1
        target.execute_command("RL.POLICYEFFECT", f"rl-fence 1 {START_US + 5_000_000}")
        assert token(target, key="third") == START_US + 5_000_001


def test_a_token_from_a_client_reaches_replicas_and_the_aof(
    fresh_server: Start,
) -> None:
    newest = START_US + 5_000_000
    server = fresh_server(module_args="policies yes", appendonly="yes")
    replica = server.replica()
    with server.client() as client:
        for fence in (newest - 1, newest, newest - 2, newest, newest + 2 * 86_400_000_000):
            client.execute_command("RL.POLICYEFFECT", f"rl-fence 1 {fence}")
    assert [words[1] for words in written_commands(server)] == [
        b"rl-fence 1 %d" % fence for fence in (newest - 1, newest)
    ], "tokens that are not larger, or too far ahead, are not written"
    replica.wait_for_sync()
    server.restart("kill")
    replica.follow(None)
    for node in (server, replica):
        with node.client() as client:
            assert token(client) == newest + 1


def test_a_new_lease_has_the_largest_token_after_any_calls(
    fresh_server: Start, clock: Clock
) -> None:
    """Makes random calls while the clock moves forwards and backwards, with restarts and a
    failover.
    """
    server = fresh_server(module_args="policies yes", appendonly="yes", appendfsync="always")
    replica, rng = server.replica(), Random(7)
    # Token of each key and holder.
    tokens: dict[tuple[str, str], int] = {}
    newest = renewed = 0
    for number in range(400):
        with server.client() as client:
            clock.advance(rng.choice([0, 1, 900_000, 30_000_000, -1, -5_000_000]))
            key, holder = rng.choice("kl"), rng.choice("abc")
            if rng.random() < 0.15:
                client.execute_command("RL.RELEASE", key, holder)
                tokens.pop((key, holder), None)
            words = ["FENCE"] if rng.random() < 0.8 else []
            fences = client.execute_command("RL.ACQUIRE", key, 2, "60s", holder, *words)[5:]
            if fences and fences[0] > 0 and fences[0] == tokens.get((key, holder)):
                renewed += 1
            elif fences and fences[0] > 0:
                assert fences[0] > newest
                newest = tokens[key, holder] = fences[0]
            if number == 200:
                expected = digests(client, sorted(client.keys()))
        if number in (100, 200, 300):
            server.restart("kill")
            if number == 200:
                with server.client() as client:
                    assert digests(client, sorted(client.keys())) == expected
    assert renewed > 20
    assert len(tokens) > 3
    with server.client() as client, replica.client() as other:
        replica.wait_for_sync()
        names = sorted(client.keys())
        assert names
        assert digests(other, names) == digests(client, names)
        replica.follow(None)
        assert other.execute_command("RL.ACQUIRE", "new", 1, "60s", "a", "FENCE")[5] > newest


def test_a_copy_keeps_the_token(redis: Redis) -> None:
    first = token(redis)
    redis.copy("k", "copy")
    assert token(redis, key="copy") == first
    redis.execute_command("RL.RELEASE", "copy", "a")
    assert token(redis, key="copy") > first


def test_a_stale_writer_is_refused(redis: Redis, clock: Clock) -> None:
    """Checks a storage that refuses tokens smaller than its last one, after a job has stalled for
    longer than its lease.
    """
    written: list[tuple[int, str]] = []

    def write(fence: int, text: str) -> bool:
        if written and fence < written[-1][0]:
            return False
        written.append((fence, text))
        return True

    stale = token(redis, "host-a")
    assert write(stale, "a begins")
    clock.advance("61s")
    current = token(redis, "host-b")
    assert write(current, "b begins")
    assert not write(stale, "a goes on")
    assert write(current, "b ends")
    assert [text for _, text in written] == ["a begins", "b begins", "b ends"]
