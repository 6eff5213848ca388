"""With cell-compat, RL.THROTTLE and CL.THROTTLE take over redis-cell's keys, and leave any other
string as it is.
"""

from collections.abc import Callable, Iterator

import pytest
from redis import Redis, ResponseError

from support.binaries import Binary
from support.clock import UNITS_US, Clock
from support.server import Server

SECOND = UNITS_US["s"]


def test_calls_of_redis_cells_tests_get_its_replies(redis: Redis, clock: Clock) -> None:
    begin = clock.now
    # Its limit of 5 is a burst of 4 and one more. Columns: ms, quantity, then limited, limit,
    # remaining, and the seconds, rounded up, until a retry can pass and until the limiter is full
    # again.
    table = [
        # A quantity above the limit never passes.
        (0, 6, [1, 5, 5, -1, 0]),
        (0, 1, [0, 5, 4, -1, 1]),
        (0, 1, [0, 5, 3, -1, 2]),
        (0, 1, [0, 5, 2, -1, 3]),
        (0, 1, [0, 5, 1, -1, 4]),
        (0, 1, [0, 5, 0, -1, 5]),
        (0, 1, [1, 5, 0, 1, 5]),
        (3000, 1, [0, 5, 2, -1, 3]),
        (3100, 1, [0, 5, 1, -1, 4]),
        (4000, 1, [0, 5, 1, -1, 4]),
        (8000, 1, [0, 5, 4, -1, 1]),
        (9500, 1, [0, 5, 4, -1, 1]),
        # A peek.
        (9500, 0, [0, 5, 4, -1, 1]),
        (9500, 2, [0, 5, 2, -1, 3]),
        (9500, 5, [1, 5, 2, 3, 3]),
    ]
    for row, (ms, quantity, reply) in enumerate(table):
        clock.set(begin + ms * 1000)
        assert redis.execute_command("RL.THROTTLE", "k", 4, 1, 1, quantity) == reply, row


def test_the_quantity_is_one_if_not_given(redis: Redis) -> None:
    assert redis.execute_command("RL.THROTTLE", "k", 15, 30, 60) == [0, 16, 15, -1, 2]
    assert redis.type("k") == b"rl-bucket"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("k 4 1 1 -1", "ERR quantity must be"),
        ("k 4 1 0", "ERR period must be"),
        ("k 4 0 1", "ERR count must be"),
        ("k -1 1 1", "ERR max_burst must be"),
        ("k 999999999999 1 315360000", "ERR count must be enough"),
        ("k 4 1", "wrong number of arguments"),
        ("k", "wrong number of arguments"),
        ("k 4 1 1 1 1", "ERR syntax error, unexpected '1', where no more words can follow"),
    ],
)
def test_invalid_call_is_an_error_and_leaves_no_key(redis: Redis, words: str, error: str) -> None:
    with pytest.raises(ResponseError) as raised:
        redis.execute_command("RL.THROTTLE", *words.split())
    # The client strips ERR.
    assert str(raised.value).startswith(error.removeprefix("ERR "))
    assert redis.dbsize() == 0


def test_quantity_0_or_above_the_burst_creates_no_key(redis: Redis) -> None:
    assert redis.execute_command("RL.THROTTLE", "k", 4, 1, 1, 0) == [0, 5, 5, -1, 0]
    assert redis.execute_command("RL.THROTTLE", "k", 4, 1, 1, 6) == [1, 5, 5, -1, 0]
    assert redis.execute_command("RL.THROTTLE", "k", 4, 1, 1, 10**12) == [1, 5, 5, -1, 0]
    assert redis.dbsize() == 0


@pytest.mark.parametrize("key", [b"\xff\xfe", b"", b"a\0b", b"x" * 10_000])
def test_a_key_may_be_any_bytes(redis: Redis, key: bytes) -> None:
    assert redis.execute_command("RL.THROTTLE", key, 4, 1, 1) == [0, 5, 4, -1, 1]
    assert redis.keys() == [key]


def test_throttle_is_a_token_bucket_of_the_burst_and_one_more(redis: Redis, clock: Clock) -> None:
    bucket = ("TOKENBUCKET", 5, 30, "60s")
    assert redis.execute_command("RL.THROTTLE", "k", 4, 30, 60, 2) == [0, 5, 3, -1, 4]
    assert redis.execute_command("RL.TAKE", "k", *bucket) == [1, 5, 2, 0, 6000]
    assert redis.execute_command("RL.THROTTLE", "k", 4, 30, 60, 2) == [0, 5, 0, -1, 10]
    clock.advance("1500ms")
    assert redis.execute_command("RL.PEEK", "k", *bucket) == [0, 5, 0, 500, 8500]
    assert redis.execute_command("RL.THROTTLE", "k", 4, 30, 60) == [1, 5, 0, 1, 9]
    # Debts and give-backs are the same for both commands.
    redis.execute_command("RL.TAKE", "k", *bucket, "COST", 5, "FORCE")
    assert redis.execute_command("RL.THROTTLE", "k", 4, 30, 60, 0) == [1, 5, 0, 9, 19]
    redis.execute_command("RL.TAKE", "k", *bucket, "COST", -6)
    assert redis.execute_command("RL.THROTTLE", "k", 4, 30, 60, 0) == [0, 5, 1, -1, 7]
    redis.execute_command("RL.THROTTLE", "twin", 4, 30, 60, 3)
    redis.execute_command("RL.TAKE", "other-twin", *bucket, "COST", 3)
    assert redis.dump("twin") == redis.dump("other-twin")


def test_a_denied_call_changes_nothing(pair: tuple[Server, Server]) -> None:
    with pair[0].client() as redis:
        redis.execute_command("RL.THROTTLE", "k", 4, 1, 1, 5)
        before = redis.dump("k"), redis.pttl("k"), redis.info("replication")["master_repl_offset"]
        assert redis.execute_command("RL.THROTTLE", "k", 4, 1, 1)[0] == 1
        assert redis.execute_command("RL.THROTTLE", "k", 4, 1, 1, 6) == [1, 5, 0, -1, 5]
        after = redis.dump("k"), redis.pttl("k"), redis.info("replication")["master_repl_offset"]
        assert before == after


def test_key_of_another_algorithm_is_an_error(redis: Redis) -> None:
    redis.execute_command("RL.FIXED", "k", 5, "60s")
    with pytest.raises(ResponseError, match=r"WRONGTYPE.*rl-window.*rl-bucket"):
        redis.execute_command("RL.THROTTLE", "k", 4, 1, 1)


@pytest.mark.parametrize("module_args", ["", "cell-compat no"])
def test_without_cell_compat_there_is_no_cl_throttle(
    fresh_server: Callable[..., Server], module_args: str
) -> None:
    redis = fresh_server(module_args=module_args).client()
    with pytest.raises(ResponseError, match="unknown command"):
        redis.execute_command("CL.THROTTLE", "k", 4, 1, 1)
    assert redis.execute_command("RL.THROTTLE", "k", 4, 1, 1) == [0, 5, 4, -1, 1]


@pytest.fixture(scope="module")
def compat_server(binary: Binary, shared_clock: Clock) -> Iterator[Server]:
    with Server(binary, clock=shared_clock, module_args="cell-compat yes") as server:
        yield server


@pytest.fixture
def compat_redis(compat_server: Server) -> Iterator[Redis]:
    with compat_server.client() as redis:
        redis.flushall()
        yield redis


def test_with_cell_compat_cl_throttle_is_rl_throttle(compat_redis: Redis) -> None:
    assert compat_redis.execute_command("CL.THROTTLE", "k", 4, 1, 1) == [0, 5, 4, -1, 1]
    assert compat_redis.execute_command("RL.THROTTLE", "k", 4, 1, 1) == [0, 5, 3, -1, 2]
    assert compat_redis.execute_command("cl.throttle", "k", 4, 1, 1, 4) == [1, 5, 3, 1, 2]
    with pytest.raises(ResponseError, match="quantity must be"):
        compat_redis.execute_command("CL.THROTTLE", "k", 4, 1, 1, -1)
    keys = compat_redis.execute_command("COMMAND GETKEYS", "CL.THROTTLE", "k", 4, 1, 1)
    assert [str(key) for key in keys] == ["k"]


def set_cell_key(redis: Redis, clock: Clock, recovers_in_us: int) -> None:
    """Sets a key as redis-cell does: its value is the time of recovery in nanoseconds, at which it
    also expires.
    """
    recovers_in_ms = max(1, -(-recovers_in_us // 1000))
    redis.set("k", f"{clock.now + recovers_in_us}000", px=recovers_in_ms)


@pytest.mark.parametrize(
    ("call", "reply"),
    [
        ((3 * SECOND, 1), [0, 5, 1, -1, 4]),
        ((3 * SECOND, 2), [0, 5, 0, -1, 5]),
        ((3 * SECOND, 0), [0, 5, 2, -1, 3]),
        ((2_500_000, 1), [0, 5, 1, -1, 4]),
        ((1, 1), [0, 5, 3, -1, 2]),
        # The key is replaced even if the call is denied.
        ((3 * SECOND + 1, 2), [1, 5, 1, 1, 4]),
        ((5 * SECOND, 1), [1, 5, 0, 1, 5]),
        ((3 * SECOND, 6), [1, 5, 2, -1, 3]),
        # Usage of a higher limit is a debt under this limit.
        ((8 * SECOND, 1), [1, 5, 0, 4, 8]),
    ],
)
@pytest.mark.parametrize("command", ["CL.THROTTLE", "RL.THROTTLE"])
def test_the_first_call_continues_from_redis_cells_state(
    compat_redis: Redis, clock: Clock, command: str, call: tuple[int, int], reply: list[int]
) -> None:
    recovers_in_us, quantity = call
    set_cell_key(compat_redis, clock, recovers_in_us)
    throttle = (command, "k", 4, 1, 1)
    assert compat_redis.execute_command(*throttle, quantity) == reply
    assert compat_redis.type("k") == b"rl-bucket"
    reset = reply[4] * 1000
    assert reset - 1000 < compat_redis.pttl("k") <= reset + reset // 8 + 1000
    assert compat_redis.execute_command(*throttle, 0)[2::2] == reply[2::2]


def test_recovered_key_equals_a_missing_key(compat_redis: Redis, clock: Clock) -> None:
    for quantity, reply in ((0, [0, 5, 5, -1, 0]), (1, [0, 5, 4, -1, 1])):
        compat_redis.set("k", f"{clock.now - SECOND // 2}000", px=300)
        assert compat_redis.execute_command("CL.THROTTLE", "k", 4, 1, 1, quantity) == reply
        assert compat_redis.exists("k") == quantity


@pytest.mark.parametrize(
    ("recovers_in_us", "expires_in_ms"),
    [
        (5 * SECOND, None),
        # The expiry may differ from the recovery by up to a second.
        (5 * SECOND, 3999),
        (5 * SECOND + 1, 4000),
        (5 * SECOND, 6001),
        (5 * SECOND - 1, 6000),
        (500 * SECOND, 5000),
        (-5 * SECOND, 5000),
    ],
)
def test_other_numbers_are_not_keys_of_redis_cell(
    compat_redis: Redis, clock: Clock, recovers_in_us: int, expires_in_ms: int | None
) -> None:
    compat_redis.set("k", f"{clock.now + recovers_in_us}000", px=expires_in_ms)
    assert_stays_a_string(compat_redis)


@pytest.mark.parametrize("expires_in_ms", [4000, 6000])
def test_expiry_within_a_second_identifies_a_key_of_redis_cell(
    compat_redis: Redis, clock: Clock, expires_in_ms: int
) -> None:
    compat_redis.set("k", f"{clock.now + 5 * SECOND}000", px=expires_in_ms)
    assert compat_redis.execute_command("CL.THROTTLE", "k", 9, 1, 1) == [0, 10, 4, -1, 6]


@pytest.mark.parametrize(
    "text",
    ["-{ns}", "+{ns}", " {ns}", "{ns}.0", "{ns}0", "{us}", "{ns}\0", "", "9" * 26, "\xff" * 19],
)
def test_other_strings_are_not_keys_of_redis_cell(
    compat_redis: Redis, clock: Clock, text: str
) -> None:
    recovers_at = clock.now + 5 * SECOND
    compat_redis.set("k", text.format(us=recovers_at, ns=f"{recovers_at}000"), px=5000)
    assert_stays_a_string(compat_redis)


def assert_stays_a_string(redis: Redis) -> None:
    def stored() -> tuple[object, ...]:
        return redis.dump("k"), redis.pttl("k"), redis.object("encoding", "k")

    before = stored()
    for command in ("CL.THROTTLE", "RL.THROTTLE"):
        with pytest.raises(ResponseError, match=r"WRONGTYPE.*string.*rl-bucket"):
            redis.execute_command(command, "k", 4, 1, 1)
    assert stored() == before


@pytest.mark.parametrize("command", ["GET", "DEL"])
def test_a_string_stays_if_a_command_for_its_conversion_is_renamed(
    command: str, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(module_args="cell-compat yes", rename_command=f'{command} ""')
    redis = server.client()
    set_cell_key(redis, clock, 3 * SECOND)
    with pytest.raises(ResponseError, match=r"WRONGTYPE.*string.*rl-bucket"):
        redis.execute_command("CL.THROTTLE", "k", 4, 1, 1)
    assert redis.type("k") == b"string"
    server.check()


def test_a_string_too_long_for_redis_cell_is_not_copied(
    fresh_server: Callable[..., Server],
) -> None:
    redis = fresh_server(module_args="cell-compat yes").client()
    redis.setrange("k", 200_000_000, "x")
    redis.pexpire("k", 5000)
    before = redis.info("memory")["used_memory_peak"]
    with pytest.raises(ResponseError, match=r"WRONGTYPE.*string.*rl-bucket"):
        redis.execute_command("CL.THROTTLE", "k", 4, 1, 1)
    assert redis.info("memory")["used_memory_peak"] < before + 100_000_000


def test_invalid_call_replaces_nothing(compat_redis: Redis, clock: Clock) -> None:
    set_cell_key(compat_redis, clock, 3 * SECOND)
    with pytest.raises(ResponseError, match="quantity must be"):
        compat_redis.execute_command("CL.THROTTLE", "k", 4, 1, 1, -1)
    assert compat_redis.type("k") == b"string"


def test_without_cell_compat_keys_of_redis_cell_are_refused(redis: Redis, clock: Clock) -> None:
    set_cell_key(redis, clock, 3 * SECOND)
    with pytest.raises(ResponseError, match=r"WRONGTYPE.*string.*rl-bucket"):
        redis.execute_command("RL.THROTTLE", "k", 4, 1, 1)
    assert redis.type("k") == b"string"


@pytest.mark.parametrize(
    ("recovers_in_us", "quantity"),
    [(3 * SECOND, 1), (5 * SECOND, 1), (3 * SECOND, 0), (-SECOND // 2, 0)],
    ids=["charged", "denied", "peeked", "recovered"],
)
def test_replicas_and_the_aof_get_the_converted_key(
    fresh_server: Callable[..., Server], clock: Clock, recovers_in_us: int, quantity: int
) -> None:
    server = fresh_server(module_args="cell-compat yes", appendonly="yes", appendfsync="no")
    replica = server.replica()
    redis = server.client()
    set_cell_key(redis, clock, recovers_in_us)
    redis.execute_command("CL.THROTTLE", "k", 4, 1, 1, quantity)
    replica.wait_for_sync()
    dump, ttl = redis.dump("k"), redis.pttl("k")
    assert redis.type("k") == (b"rl-bucket" if recovers_in_us > 0 else b"none")
    assert (replica.client().dump("k"), replica.client().pttl("k")) == (dump, ttl)
    server.restart("nosave")
    assert (redis.dump("k"), redis.pttl("k")) == (dump, ttl)
