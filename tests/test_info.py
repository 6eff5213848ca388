"""RL.INFO shows the current usage and the stored state of a key."""

import pytest
from redis import Redis, ResponseError

from support.clock import START_US, UNITS_US, Clock
from support.server import Server

pytestmark = pytest.mark.every_server

# Time of the calls in milliseconds: 1.5 s after the start.
NOW = START_US // 1000 + 1500

# Call that creates a key, and the reply of RL.INFO, for each kind.
KINDS = {
    "token bucket": (
        "RL.TOKENBUCKET k 10 1 1s COST 2.5",
        {"kind": "rl-bucket", "used": "2.5", "drained_to": NOW},
    ),
    "leaky bucket": (
        "RL.LEAKYBUCKET k 10 1 1s",
        {"kind": "rl-bucket", "used": "1", "drained_to": NOW},
    ),
    "throttle": (
        "RL.THROTTLE k 4 1 1 3",
        {"kind": "rl-bucket", "used": "3", "drained_to": NOW},
    ),
    "fixed": (
        "RL.FIXED k 10 1m COST 0.000001",
        {"kind": "rl-window", "used": "0.000001", "mode": "plain", "start": NOW},
    ),
    "fixed aligned": (
        "RL.FIXED k 10 1m ALIGNED COST 10",
        {"kind": "rl-window", "used": "10", "mode": "aligned", "charged": NOW},
    ),
    "sliding": (
        "RL.SLIDING k 10 1500ms",
        {
            "kind": "rl-slider",
            "used": "1",
            "previous": "0",
            "current": "1",
            "start": NOW,
            "window": "1500ms",
        },
    ),
    "sliding strict": (
        "RL.SLIDING k 10 1m STRICT",
        {"kind": "rl-strict", "used": "1", "written": NOW, "window": "60s"},
    ),
    "sliding log": (
        "RL.SLIDINGLOG k 10 1m COST 3",
        {"kind": "rl-reqlog", "used": "3", "entries": 1, "oldest": NOW, "newest": NOW},
    ),
    "concurrency": (
        "RL.ACQUIRE k 10 1m holder COST 3",
        {
            "kind": "rl-leases",
            "used": "3",
            "written": NOW,
            "holders": 1,
            "leases": [["holder", "3", NOW + 60_000]],
        },
    ),
}


def as_text(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode()
    return [as_text(item) for item in value] if isinstance(value, list) else value


def info(redis: Redis) -> dict[str, object]:
    flat = as_text(redis.execute_command("RL.INFO", "k"))
    return dict(zip(flat[::2], flat[1::2], strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_info_shows_usage_and_times_of_every_kind(redis: Redis, clock: Clock, kind: str) -> None:
    call, expected = KINDS[kind]
    clock.advance("1.5s")
    redis.execute_command(*call.split())
    assert info(redis) == expected
    assert list(info(redis))[:2] == ["kind", "used"]
    assert redis.type("k").decode() == expected["kind"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_reply_is_a_map_in_resp3(
    server: Server, redis: Redis, resp3: Redis, clock: Clock, kind: str
) -> None:
    call, expected = KINDS[kind]
    clock.advance("1.5s")
    redis.execute_command(*call.split())
    reply = resp3.execute_command("RL.INFO", "k")
    if server.version < (7,):
        # Modules of Redis 6.2 cannot reply a map.
        assert reply == redis.execute_command("RL.INFO", "k")
        assert as_text(reply) == [word for pair in expected.items() for word in pair]
    else:
        assert isinstance(reply, dict)
        assert {name.decode(): as_text(value) for name, value in reply.items()} == expected


def test_a_server_without_maps_is_logged_at_load(server: Server) -> None:
    is_logged = "maps in RESP3 (RL.INFO and RL.POLICYGET reply flat arrays)" in server.log()
    assert is_logged == (server.version < (7,))


def test_info_of_a_missing_key_is_empty(redis: Redis, resp3: Redis) -> None:
    assert redis.execute_command("RL.INFO", "k") is None
    assert resp3.execute_command("RL.INFO", "k") is None


def test_a_recovered_limiter_is_shown_as_a_missing_key(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.FIXED", "k", 10, "8s")
    clock.advance("10.1s")
    assert redis.execute_command("RL.INFO", "k") is None


def test_both_counts_of_a_sliding_window_are_shown(redis: Redis, clock: Clock) -> None:
    for cost in (6, 3):
        redis.execute_command("RL.SLIDING", "k", 10, "10s", "COST", cost)
        clock.advance("10s")
    reply = info(redis)
    assert (reply["used"], reply["previous"], reply["current"]) == ("3", "6", "3")
    assert reply["start"] == START_US // 1000 + 10_000
    clock.advance("5s")
    assert info(redis)["used"] == "1.5"


def test_info_shows_a_logs_oldest_and_newest_entry(redis: Redis, clock: Clock) -> None:
    for _ in range(5):
        redis.execute_command("RL.SLIDINGLOG", "k", 10, "1m")
        clock.advance("1s")
    reply = info(redis)
    begin = START_US // 1000
    assert (reply["entries"], reply["oldest"], reply["newest"]) == (5, begin, begin + 4000)


def test_info_shows_the_first_100_leases(redis: Redis) -> None:
    for n in range(150):
        redis.execute_command("RL.ACQUIRE", "k", 1000, f"{1000 - n}s", f"h{n}", "COST", "0.5")
    reply = info(redis)
    assert (reply["holders"], reply["used"]) == (150, "75")
    assert len(reply["leases"]) == 100
    # The leases that expire first.
    assert reply["leases"][0] == ["h149", "0.5", START_US // 1000 + 851_000]
    expires = [expires_at for _, _, expires_at in reply["leases"]]
    assert expires == sorted(expires)


def test_a_holders_name_is_shown_unchanged(redis: Redis) -> None:
    redis.execute_command("RL.ACQUIRE", "k", 1, "1s", b"\xff\0\r\n")
    flat = redis.execute_command("RL.INFO", "k")
    assert flat[flat.index(b"leases") + 1][0][0] == b"\xff\0\r\n"


@pytest.mark.parametrize(
    ("command", "type_name"),
    [
        (("SET", "k", "text"), "string"),
        (("RPUSH", "k", "a"), "list"),
        (("HSET", "k", "a", "b"), "hash"),
        (("SADD", "k", "a"), "set"),
        (("ZADD", "k", 1, "a"), "zset"),
        (("XADD", "k", "*", "a", "b"), "stream"),
    ],
)
def test_info_of_another_type_is_an_error(redis: Redis, command: tuple, type_name: str) -> None:
    redis.execute_command(*command)
    with pytest.raises(ResponseError, match=f"WRONGTYPE.*{type_name}"):
        redis.execute_command("RL.INFO", "k")


@pytest.mark.parametrize("keys", [[], ["k", "j"]])
def test_info_takes_one_key(redis: Redis, keys: list[str]) -> None:
    with pytest.raises(ResponseError, match="wrong number of arguments"):
        redis.execute_command("RL.INFO", *keys)


def test_info_changes_nothing_and_works_on_a_replica(pair: tuple[Server, Server]) -> None:
    primary_server, replica_server = pair
    with primary_server.client() as primary, replica_server.client() as replica:
        for call, _ in KINDS.values():
            primary.delete("k")
            primary.execute_command(*call.split())
            replica_server.wait_for_sync()
            before = primary.dump("k"), primary.info("replication")["master_repl_offset"]
            assert replica.execute_command("RL.INFO", "k") == primary.execute_command(
                "RL.INFO", "k"
            )
            assert before == (primary.dump("k"), primary.info("replication")["master_repl_offset"])


def test_a_debt_is_shown(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.TOKENBUCKET", "k", 10, 1, "1s", "COST", 10**12, "FORCE")
    redis.execute_command("RL.TOKENBUCKET", "k", 10, 1, "1s", "COST", "0.25", "FORCE")
    assert info(redis)["used"] == "1000000000000.25"
    clock.advance(UNITS_US["h"])
    # The recovery takes longer than the longest duration, so RL.INFO shows the stored usage.
    assert info(redis)["used"] == "1000000000000.25"
    redis.delete("k")
    redis.execute_command("RL.TOKENBUCKET", "k", 10, 1, "1s", "COST", 100_000, "FORCE")
    clock.advance(UNITS_US["h"])
    assert 100_000 - 3600 <= float(info(redis)["used"]) < 100_000


def test_expired_leases_are_left_out(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.ACQUIRE", "k", 10, "10s", "first")
    redis.execute_command("RL.ACQUIRE", "k", 10, "1m", "second")
    clock.advance("10s")
    reply = info(redis)
    assert (reply["used"], reply["holders"]) == ("1", 1)
    assert reply["leases"] == [["second", "1", START_US // 1000 + 60_000]]
    assert reply["written"] == START_US // 1000


@pytest.mark.parametrize(
    ("spec", "used"),
    [
        ("TOKENBUCKET 10 1 1s AS it", ["5", "2", "0"]),
        ("FIXED 10 5s AS it", ["5", "5", "0"]),
        ("FIXED 10 5s ALIGNED AS it", ["5", "5", "0"]),
        ("SLIDING 10 5s AS it", ["5", "5", "5"]),
        ("SLIDING 10 2500ms AS it", ["5", "4", "0"]),
        ("SLIDINGLOG 10 5s AS it", ["5", "5", "0"]),
        ("SLIDINGLOG 10 3s AS it", ["5", "0", "0"]),
    ],
)
def test_usage_of_a_component_is_current(
    redis: Redis, clock: Clock, spec: str, used: list[str]
) -> None:
    # The second component keeps the key alive.
    redis.execute_command(*f"RL.TAKE k COST 5 {spec} FIXED 10 1h".split())

    def component() -> dict[str, object]:
        reply = redis.execute_command("RL.INFO", "k")
        flat = as_text(reply[reply.index(b"parts") + 1][0])
        return dict(zip(flat[::2], flat[1::2], strict=True))

    first = component()
    shown = [first["used"]]
    for step in ("3s", "2s"):
        clock.advance(step)
        shown.append(component()["used"])
    assert shown == used
    # The stored instants, from which usage is derived, are unchanged.
    stored = ("recovers_at", "drained_to", "start", "charged", "oldest", "newest")
    assert [component().get(name) for name in stored] == [first.get(name) for name in stored]


@pytest.mark.parametrize(
    ("call", "usage"),
    [
        ("RL.TOKENBUCKET k 10 1 1s COST 10", 4),
        ("RL.FIXED k 10 10s COST 10", 10),
        ("RL.SLIDINGLOG k 10 10s COST 10", 10),
    ],
)
def test_shown_usage_of_one_limit_is_no_less_than_the_actual_usage(
    redis: Redis, clock: Clock, call: str, usage: int
) -> None:
    redis.execute_command(*call.split())
    clock.advance("6s")
    # The key does not store the numbers of the limit, so RL.INFO derives the usage from its expiry.
    assert usage <= float(info(redis)["used"]) <= min(10, usage + 2)


def as_map(value: object) -> object:
    """Converts a RESP3 map, or the flat array of RESP2, to a map."""
    if isinstance(value, dict):
        return {as_text(name): as_text(field) for name, field in value.items()}
    flat = as_text(value)
    return dict(zip(flat[::2], flat[1::2], strict=True))


@pytest.mark.parametrize("protocol", [2, 3])
def test_info_of_a_key_with_several_limits_shows_limits_ban_and_ids(
    server: Server, clock: Clock, protocol: int
) -> None:
    clock.advance("1.5s")
    with server.client(protocol=protocol) as redis:
        for call in (
            "RL.TAKE k COST 2 ONCE id 5m FIXED 10 1w ALIGNED TOKENBUCKET 10 1 1s AS tokens",
            "RL.ACQUIRE k 10 1m holder",
            "RL.TAKE k FIXED 1 1w ALIGNED BAN 3 1m 1h",
            "RL.BAN k 10s",
        ):
            redis.execute_command(*call.split())
        reply = redis.execute_command("RL.INFO", "k")
    found = as_map(reply)
    raw = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    parts = [as_map(part) for part in raw[b"parts"]]
    assert list(found) == [
        *("kind", "written", "parts", "ids", "banned_until", "strikes", "first_strike")
    ]
    del found["parts"]
    assert found == {
        "kind": "rl-limits",
        "written": NOW,
        "ids": 1,
        "banned_until": NOW + 10_000,
        "strikes": 1,
        "first_strike": NOW,
    }
    window, bucket, leases = parts
    assert (window["kind"], window["window"], window["used"]) == ("rl-window", "1w ALIGNED", "2")
    assert (bucket["kind"], bucket["name"], bucket["used"]) == ("rl-bucket", "tokens", "2")
    assert bucket["recovers_at"] == NOW + 2_000
    assert "window" not in bucket
    assert (leases["kind"], leases["holders"]) == ("rl-leases", 1)
    assert as_text(leases["leases"]) == [["holder", "1", NOW + 60_000]]


def test_info_of_a_key_with_only_a_ban_shows_the_ban(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.BAN k 1m")
    now = START_US // 1000
    banned = {"kind": "rl-limits", "written": now, "banned_until": now + 60_000}
    assert info(redis) == banned
    clock.advance("-10s")
    # The times are those of the last write. The next charge moves both back.
    assert info(redis) == banned


def test_a_ban_and_strikes_that_are_over_are_left_out(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.FIXED k 10 1h COST 10")
    redis.execute_command("RL.TAKE k FIXED 10 1h BAN 3 1m 1h")
    redis.execute_command("RL.BAN k 30s")
    fields = ("banned_until", "strikes", "first_strike")
    assert [name for name in info(redis) if name in fields] == [*fields]
    clock.advance("29.999s")
    assert "banned_until" in info(redis)
    clock.advance("1ms")
    assert [name for name in info(redis) if name in fields] == ["strikes", "first_strike"]
    clock.advance("30s")
    assert list(info(redis)) == ["kind", "written", "parts"]
