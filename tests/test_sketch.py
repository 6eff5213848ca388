"""RL.SKETCH limits any number of items in a key of a fixed size. No item is granted more than its
limit. An item within its limit is denied only if the sketch is too small.
"""

import random
import re
from collections.abc import Callable

import pytest
from redis import OutOfMemoryError, Redis, ResponseError

from support.addresses import Traffic
from support.binaries import Binary
from support.clock import Clock
from support.listening import all_messages
from support.saving import (
    restart_from_aof,
    restart_from_rdb,
    wait_until_saved,
)
from support.sketch_calls import AOF, SMALL, Start, item
from support.workload import digests, state

pytestmark = pytest.mark.every_server


@pytest.fixture
def call(redis: Redis) -> Callable[[str], object]:
    """`call("RL.SKETCH k item 5 5 1m")` splits the arguments and sends the call."""
    return redis.execute_command


def to_dict(reply: object) -> dict:
    """Converts a reply of RL.INFO to a dictionary. In RESP2 it alternates names and values."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def test_each_item_has_a_bucket_of_its_own(call, clock):
    for _ in range(2):
        for address in ("203.0.113.7", "203.0.113.8", "2001:db8::/64"):
            assert call(f"RL.SKETCH k {address} 3 1 1s") == [1, 3, 2, 0, 1000]
        assert call("RL.SKETCH k 203.0.113.7 3 1 1s COST 2") == [1, 3, 0, 0, 3000]
        assert call("RL.SKETCH k 203.0.113.7 3 1 1s") == [0, 3, 0, 1000, 3000]
        assert call("RL.SKETCH k 203.0.113.8 3 1 1s UPTO COST 9") == [1, 3, 0, 0, 3000, 2]
        clock.advance("1s")
        assert call("RL.TAKE k SKETCH 3 1 1s 203.0.113.7") == [1, 3, 0, 0, 3000]
        assert call("RL.PEEK k SKETCH 3 1 1s 203.0.113.8") == [1, 3, 1, 0, 2000]
        assert call("RL.SKETCH k new 3 1 1s FORCE COST 5") == [0, 3, 0, 2000, 5000]
        assert call("RL.SKETCH k new 3 1 1s COST 4") == [0, 3, 0, -1, 5000]
        clock.advance("6s")
    assert call("TYPE k") == b"rl-sketch"


def test_item_is_any_bytes_or_empty(redis):
    items = [b"", b" ", b"\0", b"\xff" * 300, b"a", b"A"]
    for name in items:
        assert redis.execute_command("RL.SKETCH", "k", name, 1, 1, "1s") == [1, 1, 0, 0, 1000]
    for name in items:
        assert redis.execute_command("RL.SKETCH", "k", name, 1, 1, "1s") == [0, 1, 0, 1000, 1000]


def test_the_key_expires_after_its_fullest_item_has_recovered(redis, call, clock):
    assert call("RL.SKETCH k one 60 1 1s COST 60") == [1, 60, 0, 0, 60_000]
    assert call("RL.SKETCH k other 60 1 1s") == [1, 60, 59, 0, 1000]
    assert 60_000 <= redis.pttl("k") <= 69_000
    clock.advance("69s")
    assert redis.exists("k") == 0


def test_a_key_keeps_its_initial_size(call):
    def size(key: str) -> object:
        return to_dict(call(f"RL.INFO {key}"))[b"size"]

    call("RL.SKETCH k a 5 5 1m")
    call("RL.SKETCH k a 5 5 1m SIZE 64kb")
    call("RL.SKETCH small a 5 5 1m SIZE 65567")
    assert [size("k"), size("small")] == [1_048_576, 65_536]


def test_the_setting_is_the_size_of_new_keys(fresh_server: Start, binary: Binary) -> None:
    redis = fresh_server(module_args="sketch-size 128KB").client(decode_responses=True)

    def size_of_new(key: str) -> int:
        redis.execute_command("RL.SKETCH", key, "a", 5, 5, "1m")
        return to_dict(redis.execute_command("RL.INFO", key))["size"]

    assert size_of_new("k") == 131_072
    if binary.version < (7,):
        return
    redis.config_set("ratelimit.sketch-size", "2mb")
    assert size_of_new("next") == 2_097_152
    for wrong in ("1kb", "1gb", "x"):
        with pytest.raises(ResponseError):
            redis.config_set("ratelimit.sketch-size", wrong)


def test_info_shows_the_quality_of_a_sketch(redis, resp3):
    for number in range(2000):
        redis.execute_command("RL.SKETCH", "k", item(number), 2, 2, "1m", "COST", 2, *SMALL)
    info = to_dict(resp3.execute_command("RL.INFO", "k"))
    assert info[b"kind"] == b"rl-sketch"
    assert info[b"size"] == 65_536
    assert info[b"numbers"] == b"2 2 1m"
    denied = sum(
        not redis.execute_command("RL.PEEK", "k", "SKETCH", 2, 2, "1m", f"unseen{number}")[0]
        for number in range(2000)
    )
    assert abs(float(info[b"unseen_denied"]) - denied / 2000) < 0.04
    assert 0.4 < float(info[b"filled"]) < 0.7


def test_info_shows_shares_and_never_the_secret(redis, resp3):
    redis.execute_command("RL.SKETCH", "k", "a", 5, 2, "1m", "KEEP", 1)
    info = to_dict(resp3.execute_command("RL.INFO", "k"))
    assert set(info) == {b"kind", b"size", b"numbers", b"filled", b"unseen_denied"}
    # The field shows the full capacity, without KEEP.
    assert info[b"numbers"] == b"5 2 1m"
    for share in (info[b"filled"], info[b"unseen_denied"]):
        assert re.fullmatch(rb"0\.[0-9]{4}|1\.0000", share)


def test_new_limit_applies_at_once_and_keeps_usage(call, clock):
    assert call("RL.SKETCH k a 10 10 1m COST 8") == [1, 10, 2, 0, 48_000]
    # Used units drain at the new rate, for every item.
    assert call("RL.SKETCH k b 10 1 1s COST 4") == [1, 10, 6, 0, 4000]
    assert call("RL.SKETCH k a 10 1 1s COST 3") == [0, 10, 2, 1000, 8000]
    # The capacity may differ from call to call.
    assert call("RL.SKETCH k a 9 1 1s COST 2") == [0, 9, 1, 1000, 8000]
    clock.advance("1s")
    assert call("RL.SKETCH k a 10 1 1s COST 3") == [1, 10, 0, 0, 10_000]


def test_a_call_that_would_wait_is_admitted_or_denied_at_once(redis, call):
    call("RL.POLICYSET addresses SKETCH 2 1 1s")
    for line in (
        "RL.TAKE k MAXWAIT 1m SKETCH 2 1 1s a",
        "RL.LIMIT limit addresses MAXWAIT 1m ITEM a",
        "RL.MTAKE 1 several MAXWAIT 1m SKETCH 2 1 1s a",
    ):
        replies = [call(line) for _ in range(3)]
        assert [reply[0] for reply in replies] == [1, 1, 0], line
    assert call("RL.TAKE k SKETCH 2 1 1s a") == [0, 2, 0, 1000, 2000]
    assert redis.type("limit") == b"rl-sketch"


def test_keep_applies_to_each_item(call):
    assert call("RL.SKETCH k a 4 1 1s KEEP 50%") == [1, 4, 1, 0, 1000]
    assert call("RL.SKETCH k a 4 1 1s KEEP 50%") == [1, 4, 0, 0, 2000]
    assert call("RL.SKETCH k a 4 1 1s KEEP 50%") == [0, 4, 0, 1000, 2000]
    assert call("RL.SKETCH k a 4 1 1s") == [1, 4, 1, 0, 3000]
    assert call("RL.SKETCH k b 4 1 1s KEEP 50%") == [1, 4, 1, 0, 1000]


def test_no_item_is_granted_more_than_its_own_bucket_in_any_traffic(redis, clock):
    """Calls a greedy item among thousands in the smallest sketch: a burst of ten, ten a minute."""
    granted, begin = [], clock.now
    for minute in range(3):
        for number in range(3000):
            redis.execute_command(
                "RL.SKETCH", "k", item(minute * 3000 + number), 10, 10, "1m", *SMALL
            )
            if number % 100 == 0:
                clock.advance("2s")
                reply = redis.execute_command(
                    "RL.SKETCH", "k", "greedy", 10, 10, "1m", "UPTO", "COST", 10, *SMALL
                )
                granted += [clock.now] * reply[5]
    assert len(granted) > 10
    for first in range(len(granted)):
        for last in range(first, len(granted)):
            seconds = (granted[last] - granted[first]) / 1_000_000
            assert last - first + 1 <= 10 + seconds * 10 / 60
    assert begin < clock.now


@pytest.mark.one_server
@pytest.mark.timeout(180)
def test_sketch_decides_correctly_with_aof_and_replica(fresh_server: Start, clock: Clock) -> None:
    """Repeats the measurement of benches/sketches.py in a hundredth of the calls."""
    server = fresh_server(**AOF)
    replica = server.replica()
    with server.client() as client, replica.client() as follower:
        # The sketch is twice as large as its traffic needs.
        traffic = Traffic(16_000, "64kb")
        for number in (1, 2):
            minute = traffic.minute(client, clock, number)
            assert (minute.honest_denied, minute.unseen_denied) == (0, 0.0)
            client.bgsave()
        assert traffic.check_greedy() == 1
        wait_until_saved(client)
        stored = digests(client, ["k"])
        replica.wait_for_sync()
        assert digests(follower, ["k"]) == stored
    for interrupt in (restart_from_aof, restart_from_rdb):
        interrupt(server)
        with server.client() as client:
            assert digests(client, ["k"]) == stored


def test_a_fast_path_call_is_the_same_with_and_without_an_aof(fresh_server, clock):
    """Compares a server without an AOF, which takes the fast path, to one with an AOF.

    Each server hashes the items by a different secret. The items are too few to share cells.
    """
    settings = {"module_args": "denial-events yes", "notify_keyspace_events": "KEA"}
    servers = [fresh_server(**settings), fresh_server(**settings, **AOF)]
    clients = [server.client() for server in servers]
    events = [client.pubsub() for client in clients]
    for listener in events:
        listener.psubscribe("__key*__:*")
    draw = random.Random(7)
    for _ in range(1500):
        clock.advance(draw.choice([0, 1, 7, 900, 40_000, 3_000_000]))
        numbers = draw.choice(["3 3 1m", "3 3 1m", "5 1 7s", "2 0.3 1s"]).split()
        options = draw.choice([[], [], [], [], ["COST", "2"], ["COST", "0"], ["UPTO"]])
        words = ("RL.SKETCH", "k", draw.choice("abcd"), *numbers, *options)
        replies = [client.execute_command(*words) for client in clients]
        assert replies[0] == replies[1], words
        assert clients[0].pttl("k") == clients[1].pttl("k")
    results = [
        [
            client.info("ratelimit_kinds"),
            client.execute_command("RL.TOP"),
            client.execute_command("RL.INFO", "k")[:6],
            all_messages(listener),
        ]
        for client, listener in zip(clients, events, strict=True)
    ]
    assert results[0] == results[1]
    *_, messages = results[0]
    assert len(messages) > 1000


# Policies, and the calls on many keys


def test_a_call_by_a_policy_with_a_sketch_needs_an_item(redis, call):
    call("RL.POLICYSET addresses SKETCH 3 1 1s SIZE 64kb")
    assert call("RL.POLICYGET addresses")
    assert call("RL.LIMIT k addresses ITEM a COST 2") == [1, 3, 1, 0, 2000]
    assert call("RL.LIMIT k none OR addresses ITEM b") == [1, 3, 2, 0, 1000]
    assert call("RL.DELAY k addresses ITEM a COST 2") == 1000
    assert call("RL.TAKE k POLICY addresses ITEM a") == [1, 3, 0, 0, 3000]
    assert call("RL.PEEK k POLICY addresses ITEM a") == [0, 3, 0, 1000, 3000]
    each = call("RL.LIMIT k addresses ITEM b EACH")
    assert each[:4] == [1, 0, [[1, 3, 1, 0, 2000]], b"addresses"]
    two_keys = "RL.MTAKE 2 k other POLICY addresses ITEM c FIXED 1 1m"
    assert call(two_keys) == [1, 0, [[1, 3, 2, 0, 1000], [1, 1, 0, 0, 60_000]]]
    assert call(two_keys) == [0, 60_000, [[1, 3, 2, 0, 1000], [0, 1, 0, 60_000, 60_000]]]
    assert redis.type("k") == b"rl-sketch"
    for line in (
        "RL.LIMIT k addresses",
        "RL.LIMIT k addresses COST 2",
        "RL.PEEK k POLICY addresses",
    ):
        with pytest.raises(ResponseError, match="has a SKETCH: the call needs ITEM item"):
            call(line)


def test_an_item_is_ignored_if_the_policy_has_no_sketch(redis, call):
    call("RL.POLICYSET plain FIXED 9 1m")
    call("RL.POLICYSET several FIXED 9 1m FIXED 20 1h")
    for policy in ("plain", "several"):
        for number, address in enumerate(("a", "b", "a")):
            assert call(f"RL.LIMIT {policy} {policy} ITEM {address}")[2] == 8 - number
        assert call(f"RL.DELAY {policy} {policy} ITEM c") == 0
        assert call(f"RL.PEEK {policy} POLICY {policy} ITEM c")[2] == 5
    assert redis.type("plain") == b"rl-window"


def test_a_policy_changed_to_or_from_a_sketch_needs_another_key(redis, call):
    for before, after in (
        ("SKETCH 5 5 1m", "TOKENBUCKET 5 5 1m"),
        ("TOKENBUCKET 5 5 1m", "SKETCH 5 5 1m"),
        ("FIXED 5 1m FIXED 9 1h", "SKETCH 5 5 1m"),
        ("SKETCH 5 5 1m", "FIXED 5 1m FIXED 9 1h"),
    ):
        call(f"RL.POLICYSET p {before}")
        assert call("RL.LIMIT k p ITEM a")[0] == 1
        call(f"RL.POLICYSET p {after}")
        stored = state(redis)
        for line in ("RL.LIMIT k p ITEM a", "RL.LIMIT k p ITEM a EACH", "RL.DELAY k p ITEM a"):
            with pytest.raises(ResponseError, match="WRONGTYPE"):
                call(line)
        assert state(redis) == stored
        assert call("RL.LIMIT another p ITEM a")[0] == 1
        call("DEL k another")


def test_cost_shadow_and_scale_apply_to_items(redis, call):
    call("RL.POLICYSET p SKETCH 4 1 1s COST 2")
    assert call("RL.LIMIT cost p ITEM a COST 1") == [1, 4, 2, 0, 2000]
    call("RL.POLICYSET p SKETCH 4 1 1s SHADOW")
    assert [call("RL.LIMIT shadow p ITEM a COST 3")[0] for _ in range(3)] == [1, 1, 1]
    call("RL.POLICYSET p SKETCH 4 1 1s")
    call("RL.POLICYSCALE p 0.5")
    assert call("RL.LIMIT scaled p ITEM a COST 2") == [1, 2, 0, 0, 4000]
    call("RL.POLICYSCALE p 2 FOR 1m")
    assert call("RL.LIMIT faster p ITEM a COST 8") == [1, 8, 0, 0, 4000]
    # The key stays until the usage would have drained at the original rate.
    assert redis.pttl("faster") >= 8000
    assert {redis.type(key) for key in ("cost", "shadow", "scaled", "faster")} == {b"rl-sketch"}


def test_sketches_and_other_kinds_refuse_each_others_keys(redis, call):
    call("RL.SKETCH k a 5 5 1m")
    others = {
        "bucket": "RL.TOKENBUCKET bucket 5 5 1m",
        "window": "RL.FIXED window 5 1m",
        "limits": "RL.FIXED limits 5 1m AS name",
        "string": "SET string value",
    }
    for line in others.values():
        call(line)
    call("RL.POLICYSET sketch SKETCH 5 5 1m")
    call("RL.POLICYSET bucket TOKENBUCKET 5 5 1m")
    call("RL.POLICYSET several TOKENBUCKET 5 5 1m FIXED 9 1d")
    before = state(redis)
    sketch_calls_on_others = [
        line
        for key in others
        for line in (
            f"RL.SKETCH {key} a 5 5 1m",
            f"RL.PEEK {key} SKETCH 5 5 1m a",
            f"RL.LIMIT {key} sketch ITEM a",
            f"RL.LIMIT {key} sketch ITEM a EACH",
            f"RL.MTAKE 1 {key} SKETCH 5 5 1m a",
            f"RL.MTAKE 1 {key} POLICY sketch ITEM a",
        )
    ]
    other_calls_on_the_sketch = [
        "RL.TOKENBUCKET k 5 5 1m",
        "RL.TOKENBUCKET k 5 5 1m AS name",
        "RL.FIXED k 5 1m ONCE id 1m",
        "RL.TAKE k TOKENBUCKET 5 5 1m FIXED 9 1d",
        "RL.MTAKE 1 k FIXED 9 1d",
        "RL.LIMIT k bucket ITEM a",
        "RL.LIMIT k bucket EACH",
        "RL.LIMIT k several",
        "RL.PEEK k POLICY several",
        "RL.ACQUIRE k 5 1m holder",
        "RL.RELEASE k holder",
        "RL.THROTTLE k 5 5 60",
        "RL.BAN k 1m",
        "RL.BAN k 0",
    ]
    for line in sketch_calls_on_others + other_calls_on_the_sketch:
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            call(line)
    assert state(redis) == before


def test_options_that_need_each_items_usage_are_refused(call):
    why = "since a SKETCH cannot tell apart again what it has merged"
    for line in (
        "RL.SKETCH k a 5 5 1m COST -1",
        "RL.SKETCH k a 5 5 1m ONCE id 1m",
        "RL.SKETCH k a 5 5 1m SETTLE id 1",
        "RL.SKETCH k a 5 5 1m AS name",
        "RL.TAKE k SKETCH 5 5 1m a BAN 3 1m 1h",
        "RL.MTAKE 1 k ONCE id 1m SKETCH 5 5 1m a",
    ):
        with pytest.raises(ResponseError, match=why):
            call(line)
    for line in ("RL.TAKE k SKETCH 5 5 1m a FIXED 9 1d", "RL.POLICYSET p FIXED 9 1d SKETCH 5 5 1m"):
        with pytest.raises(ResponseError, match="must be the only spec of its key"):
            call(line)
    assert call("EXISTS k") == 0


def test_with_memory_full_a_fully_allocated_sketch_continues(fresh_server: Start) -> None:
    redis = fresh_server().client()
    for number in range(1000):
        redis.execute_command("RL.SKETCH", "k", f"{number}", 5, 5, "1m", "SIZE", "64kb")
    redis.config_set("maxmemory", 1)
    for words in (
        ("RL.SKETCH", "new", "a", 5, 5, "1m"),
        ("RL.TAKE", "new", "EACH", "SKETCH", 5, 5, "1m", "a"),
        ("RL.MTAKE", 1, "new", "SKETCH", 5, 5, "1m", "a"),
    ):
        with pytest.raises(OutOfMemoryError):
            redis.execute_command(*words)
    assert redis.exists("new") == 0
    for number in range(500):
        assert redis.execute_command("RL.SKETCH", "k", item(number), 5, 5, "1m")[0] == 1
    assert redis.execute_command("RL.PEEK", "new", "SKETCH", 5, 5, "1m", "a")[0] == 1
