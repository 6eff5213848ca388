"""RL.TOP lists the keys that this server has denied most."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from redis import Redis, ResponseError

from support.clock import Clock
from support.heavy_hitters import deny, exact, rows, top
from support.server import Server
from support.workload import Limiter, each_limiter

Start = Callable[..., Server]


@pytest.fixture
def redis(server: Server) -> Iterator[Redis]:
    """Empties the table before each test."""
    with server.client() as client:
        client.execute_command("RL.TOP", "RESET")
        yield client


# Counting


@each_limiter
def test_every_denied_call_counts_for_its_key(limiter: Limiter, redis: Redis) -> None:
    redis.execute_command(*limiter.take("k", 10))
    other = limiter.for_holder("other")
    assert top(redis) == []
    redis.execute_command(*other.take("k", 1))
    redis.execute_command(*other.take("k", 4))
    redis.execute_command(*other.take("k", 11))
    redis.execute_command(*other.take("missing", 11))
    assert top(redis) == exact(k=3, missing=1)
    redis.execute_command(*other.peek("k", 4))
    redis.execute_command("RL.MPEEK", 1, "k", *other.words(4))
    redis.execute_command("RL.INFO", "k")
    with pytest.raises(ResponseError):
        redis.execute_command(*other.take("k", "x"))
    assert top(redis) == exact(k=3, missing=1), "peeks and errors are not denials"


def test_a_call_over_several_keys_counts_for_the_keys_that_denied(redis: Redis) -> None:
    redis.execute_command("RL.MTAKE 3 a b c FIXED 5 1h FIXED 1 1h FIXED 1 1h")
    redis.execute_command("RL.MTAKE 3 a b c FIXED 5 1h FIXED 1 1h FIXED 1 1h")
    redis.execute_command("RL.MTAKE 2 a b FIXED 5 1h FIXED 1 1h AS part")
    redis.execute_command("RL.MTAKE 2 a b FIXED 5 1h FIXED 1 1h AS part")
    redis.execute_command("RL.MTAKE 2 d a SLIDING 1 1h AS part COST 2 FIXED 5 1h")
    assert top(redis) == exact(b=3, c=1, d=1)


def test_a_call_over_several_limits_on_a_key_counts_once(redis: Redis) -> None:
    for _ in range(3):
        redis.execute_command("RL.TAKE k FIXED 1 1m FIXED 1 1h TOKENBUCKET 5 5 1s")
    assert top(redis) == exact(k=2)


def test_denials_of_a_banned_key_count(redis: Redis) -> None:
    redis.execute_command("RL.BAN k 1h")
    redis.execute_command("RL.BAN k 2h")
    assert top(redis) == []
    for _ in range(3):
        redis.execute_command("RL.TAKE k FIXED 10 1m")
    assert top(redis) == exact(k=3)


def test_a_denied_lease_counts(redis: Redis) -> None:
    for holder in ("one", "two", "two", "one"):
        redis.execute_command("RL.ACQUIRE pool 1 1h", holder)
    assert top(redis) == exact(pool=2)


def test_repeated_id_is_not_counted_as_denied(redis: Redis) -> None:
    for _ in range(3):
        redis.execute_command("RL.FIXED k 1 1h ONCE id 1h")
    assert top(redis) == []
    redis.execute_command("RL.FIXED k 1 1h ONCE other 1h")
    redis.execute_command("RL.FIXED k 1 1h ONCE id 1h")
    assert top(redis) == exact(k=1)


def test_calls_of_cl_throttle_count(fresh_server: Start) -> None:
    redis = fresh_server(module_args="cell-compat yes").client()
    for _ in range(3):
        redis.execute_command("CL.THROTTLE k 0 1 3600")
        redis.execute_command("RL.THROTTLE other 0 1 3600")
    assert top(redis) == exact(k=2, other=2)
    redis.execute_command("RL.TOP RESET")
    # A key as redis-cell writes it, which is full for an hour.
    now, _ = redis.time()
    redis.set("cell", str((now + 3600) * 10**9), ex=3600)
    assert redis.execute_command("CL.THROTTLE cell 0 1 3600")[0] == 1
    assert top(redis) == exact(cell=1)


def test_calls_by_a_policy_count(fresh_server: Start) -> None:
    redis = fresh_server().client()
    redis.execute_command("RL.POLICYSET gold FIXED 1 1h FIXED 5 1d")
    redis.execute_command("RL.POLICYSET plain FIXED 1 1h")
    for _ in range(3):
        redis.execute_command("RL.LIMIT a gold")
        redis.execute_command("RL.DELAY b gold")
        redis.execute_command("RL.LIMIT c plain")
        redis.execute_command("RL.DELAY d plain")
        redis.execute_command("RL.TAKE e POLICY gold")
        redis.execute_command("RL.MTAKE 2 f g POLICY gold POLICY plain")
    assert top(redis) == exact(a=2, b=2, c=2, d=2, e=2, f=2, g=2)
    redis.execute_command("RL.PEEK a POLICY gold")
    assert top(redis, "COUNT", 1) == exact(a=2)


def test_denials_by_a_shadow_limit_alone_do_not_count(fresh_server: Start) -> None:
    redis = fresh_server().client()
    redis.execute_command("RL.POLICYSET new FIXED 5 1h FIXED 1 1d SHADOW")
    assert [redis.execute_command("RL.LIMIT k new")[0] for _ in range(3)] == [1, 1, 1]
    assert top(redis) == []


def test_calls_in_transactions_and_scripts_count(redis: Redis) -> None:
    with redis.pipeline() as pipeline:
        pipeline.execute_command("RL.FIXED k 1 1h COST 2").execute()
    redis.eval("return redis.call('RL.FIXED', 'k', 1, '1h', 'COST', 2)", 0)
    assert top(redis) == exact(k=2)
    assert redis.eval("return redis.call('RL.TOP')", 0) == [[b"k", 2, 0, None, None]]


def test_a_name_counts_for_all_databases_together(redis: Redis, server: Server) -> None:
    deny(redis, "k")
    with closing(server.client()) as other:
        other.select(1)
        deny(other, "k", "k")
        assert top(other) == exact(k=3)


def test_names_are_any_bytes_and_a_long_one_is_cut(redis: Redis) -> None:
    names = [b"", b"\x00", b"\x00\x00", b"\xff\r\n$", b"x" * 512]
    deny(redis, *names, b"x" * 513, b"x" * 600)
    assert sorted(top(redis)) == sorted(
        [*((name, 1, 0) for name in names[:-1]), (b"x" * 512, 3, 0)]
    )


def test_counts_survive_time_and_removed_keys(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.FIXED k 1 1h")
    deny(redis, "k")
    clock.advance("30d")
    redis.flushall()
    assert top(redis) == exact(k=1)
    deny(redis, "k")
    redis.flushdb()
    assert top(redis) == exact(k=2)


# Replies


def test_the_keys_that_are_denied_most_come_first(redis: Redis) -> None:
    assert top(redis) == []
    deny(redis, *"abcbcc")
    assert top(redis) == exact(c=3, b=2, a=1)
    assert top(redis, "COUNT", 2) == top(redis)[:2]
    assert top(redis, "count", 65_536) == top(redis)
    deny(redis, *map(str, range(20)))
    # Equal counts are sorted by name, and ten keys are listed by default.
    assert [name for name, *_ in top(redis)] == b"c b 0 1 10 11 12 13 14 15".split()
    assert len(top(redis, "COUNT", 100)) == 23


def test_the_reply_is_the_same_in_resp3(redis: Redis, resp3: Redis) -> None:
    deny(redis, *"aab")
    assert resp3.execute_command("RL.TOP") == [[b"a", 2, 0, None, None], [b"b", 1, 0, None, None]]


def test_a_reset_returns_the_forgotten_counts(redis: Redis) -> None:
    deny(redis, *"aab")
    assert top(redis, "RESET", "COUNT", 1) == exact(a=2)
    assert top(redis) == []
    deny(redis, "b")
    assert top(redis, "COUNT", 5, "reset") == exact(b=1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("COUNT 0", "count must be a whole number from 1 to 65536, such as 10"),
        ("COUNT 65537", "count must be a whole number from 1 to 65536, such as 10"),
        ("COUNT x", "count must be a whole number such as 10, not 'x'"),
        ("RESET COUNT -1", "count must be a whole number from 1 to 65536, such as 10"),
        ("COUNT", "count is missing: COUNT count"),
        ("SINCE", "since is missing: SINCE duration"),
        ("SINCE 59s", "since must be a duration from 1m to 1h, such as 5m, not '59s'"),
        ("SINCE 2h RESET", "since must be a duration from 1m to 1h, such as 5m, not '2h'"),
        ("SINCE 5min", "since must be a duration such as 5m, not '5min' (units: us ms s m h d)"),
        ("COUNT 1 COUNT 2", "syntax error, unexpected 'COUNT'"),
        ("RESET RESET", "syntax error, unexpected 'RESET'"),
        ("k", "syntax error, unexpected 'k', where COUNT, SINCE or RESET is needed"),
        ("RESET x", "syntax error, unexpected 'x', where COUNT, SINCE or RESET is needed"),
    ],
)
def test_invalid_argument_is_an_error_and_resets_nothing(
    redis: Redis, words: str, message: str
) -> None:
    deny(redis, "k")
    with pytest.raises(ResponseError) as raised:
        redis.execute_command("RL.TOP", *words.split())
    assert str(raised.value).startswith(message)
    assert top(redis) == exact(k=1)


# Policies


def test_the_policy_that_denied_a_key_last_is_shown(fresh_server: Start) -> None:
    redis = fresh_server().client()
    redis.execute_command("RL.POLICYSET gold FIXED 1 1h")
    redis.execute_command("RL.POLICYSET silver FIXED 1 1h FIXED 5 1d AS day")

    def policies() -> dict[bytes, bytes | None]:
        return {key: policy for key, _, _, policy, _ in rows(redis)}

    calls = {
        b"limit": "RL.LIMIT limit none OR gold",
        b"delay": "RL.DELAY delay gold",
        b"several": "RL.LIMIT several silver",
        b"options": "RL.LIMIT options silver COST 1",
        b"take": "RL.TAKE take POLICY silver",
        b"inline": "RL.FIXED inline 1 1h",
    }
    for call in calls.values():
        redis.execute_command(*call.split())
        assert redis.execute_command(*call.split()) not in (0, [1, 1, 0, 0, 3_600_000]), call
    expected = {b"limit": b"gold", b"delay": b"gold", b"several": b"silver", b"options": b"silver"}
    assert policies() == expected | {b"take": b"silver", b"inline": None}
    # A call over several keys counts for each key that denies, with the policy of that key.
    redis.execute_command("RL.TOP RESET")
    redis.execute_command(
        *["RL.MTAKE", "4", "inline", "limit", "take", "free"],
        *["FIXED", "1", "1h", "POLICY", "silver", "POLICY", "gold", "POLICY", "gold"],
    )
    assert policies() == {b"inline": None, b"limit": b"silver", b"take": b"gold"}
    # A call with its own limits has no policy.
    redis.execute_command("RL.FIXED limit 1 1h COST 2")
    assert rows(redis, "COUNT", 1) == [[b"limit", 2, 0, b"silver", None]]
    # Neither a peek nor an admitted call changes anything.
    redis.execute_command("RL.LIMIT inline gold COST 0")
    redis.execute_command("RL.PEEK inline POLICY gold")
    assert policies()[b"inline"] is None
    redis.execute_command("RL.LIMIT take silver FORCE")
    assert policies()[b"take"] == b"gold"


def test_a_banned_key_is_denied_by_the_policy_of_the_call(fresh_server: Start) -> None:
    redis = fresh_server().client()
    redis.execute_command("RL.POLICYSET login FIXED 5 1h BAN 3 1m 1h")
    redis.execute_command("RL.BAN k 1h")
    redis.execute_command("RL.LIMIT k login")
    assert rows(redis) == [[b"k", 1, 0, b"login", None]]


# Items


def items(redis: Redis, *words: str | int) -> list[tuple[bytes, bytes | None, int]]:
    """Returns each key and item, and how often it was denied."""
    return [(key, item, denied) for key, denied, _, _, item in rows(redis, *words)]


SKETCH_CALLS = [
    ("RL.SKETCH", "k", "{}", 1, 1, "1h"),
    ("RL.SKETCH", "k", "{}", 1, 1, "1h", "COST", 1),
    ("RL.TAKE", "k", "SKETCH", 1, 1, "1h", "{}"),
    ("RL.MTAKE", 2, "k", "other", "SKETCH", 1, 1, "1h", "{}", "FIXED", 9, "1h"),
    ("RL.LIMIT", "k", "addresses", "ITEM", "{}"),
    ("RL.DELAY", "k", "addresses", "ITEM", "{}"),
    ("RL.TAKE", "k", "POLICY", "addresses", "ITEM", "{}"),
]


@pytest.mark.every_server
@pytest.mark.parametrize("appendonly", ["no", "yes"])
def test_a_sketch_counts_by_key_and_item(
    fresh_server: Start, clock: Clock, appendonly: str
) -> None:
    """Runs with and without an AOF, as the fast path is only taken without one."""
    redis = fresh_server(appendonly=appendonly).client()
    redis.execute_command("RL.POLICYSET addresses SKETCH 1 1 1h")
    long, empty, strange = b"x" * 600, b"", b"\x00\r\n\xff"
    for item in (b"a", long, empty, strange):
        assert redis.execute_command("RL.SKETCH", "k", item, 1, 1, "1h")[0] == 1
    for call in SKETCH_CALLS:
        for item in (b"a", b"a", long, empty, strange):
            redis.execute_command(*(item if word == "{}" else word for word in call))
    times = len(SKETCH_CALLS)
    expected = [
        (b"k", b"a", 2 * times),
        *((b"k", item, times) for item in sorted([empty, strange, b"x" * 512])),
    ]
    assert items(redis) == items(redis, "SINCE", "1m") == expected
    assert all(policy == b"addresses" for _, _, _, policy, _ in rows(redis))
    assert items(redis, "COUNT", 1) == expected[:1]
    # Peeks and admitted calls do not count. Items of different keys count separately. A key of
    # another kind has no items.
    redis.execute_command("RL.PEEK k SKETCH 1 1 1h a")
    redis.execute_command("RL.SKETCH other b 1 1 1h")
    redis.execute_command("RL.SKETCH other a 1 1 1h COST 2")
    redis.execute_command("RL.FIXED a 1 1h COST 2")
    assert set(items(redis)) == {*expected, (b"other", b"a", 1), (b"a", None, 1)}
    clock.advance("2m")
    redis.execute_command("RL.SKETCH k a 1 1 1h")
    assert items(redis, "SINCE", "2m") == [(b"k", b"a", 1)]
    redis.execute_command("RL.TOP RESET")
    assert rows(redis) == []


# Recent denials


def test_recent_denials_are_shown(redis: Redis, clock: Clock) -> None:
    # START is 20 s into a minute.
    deny(redis, "a", "a", "b")
    assert top(redis, "SINCE", "1m") == exact(a=2, b=1)
    clock.advance("40s")
    deny(redis, "b")
    assert top(redis, "SINCE", "1m") == exact(b=1)
    assert top(redis, "SINCE", "119s") == exact(b=1)
    assert top(redis, "SINCE", "2m") == top(redis, "SINCE", "1h") == exact(a=2, b=2)
    assert top(redis, "SINCE", "2m", "COUNT", 1) == exact(a=2)
    clock.advance("59m")
    assert top(redis, "SINCE", "59m") == []
    assert top(redis, "SINCE", "1h") == exact(b=1)
    clock.advance("1m")
    assert top(redis, "SINCE", "1h") == []
    assert top(redis) == exact(a=2, b=2)
    deny(redis, "a")
    assert top(redis, "SINCE", "1h", "RESET") == exact(a=1)
    assert top(redis) == []


def test_a_clock_that_goes_back_forgets_no_minute_and_counts_none_twice(
    redis: Redis, clock: Clock
) -> None:
    deny(redis, "a")
    clock.advance("5m")
    deny(redis, "a", "b")
    clock.advance("-30d")
    # The step back begins another minute.
    assert top(redis, "SINCE", "1m") == []
    assert top(redis, "SINCE", "2m") == exact(a=1, b=1)
    deny(redis, "b")
    assert top(redis, "SINCE", "1m") == exact(b=1)
    assert top(redis, "SINCE", "7m") == exact(a=2, b=2)
    clock.advance("59m")
    assert top(redis, "SINCE", "1h") == exact(b=1)
    clock.advance("30d")
    assert top(redis, "SINCE", "1h") == []
