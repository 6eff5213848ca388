"""Calendar windows by the server's clock: their ends, offsets, anchors, and expiry."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from support.clock import UNITS_US, Clock
from support.server import Server
from support.workload import state

DAY = UNITS_US["d"]


def us(text: str) -> int:
    """Converts `2024-02-29` or `2024-02-29 15:00`, UTC, to microseconds since the epoch."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


# The window's arguments, a time within the window, and the window's end.
WINDOWS = [
    ("1mo ALIGNED", "2023-02-10 12:00", "2023-03-01"),
    ("1mo ALIGNED", "2024-02-10 12:00", "2024-03-01"),
    ("1mo ALIGNED", "2023-12-31 23:59", "2024-01-01"),
    ("1w ALIGNED", "2024-02-27", "2024-03-04"),
    ("3mo ALIGNED", "2024-02-29", "2024-04-01"),
    ("1y ALIGNED", "2024-01-01", "2025-01-01"),
    ("1mo ALIGNED ANCHOR 31", "2023-01-31", "2023-02-28"),
    ("1mo ALIGNED ANCHOR 31", "2024-02-28 23:59", "2024-02-29"),
    ("1mo ALIGNED ANCHOR 31", "2024-02-29", "2024-03-31"),
    ("3mo ALIGNED ANCHOR 31", "2024-04-29 23:59", "2024-04-30"),
    ("1mo ALIGNED OFFSET +09:00", "2024-02-29 14:59", "2024-02-29 15:00"),
    ("1mo ALIGNED OFFSET +09:00", "2024-02-29 15:00", "2024-03-31 15:00"),
    ("1mo ALIGNED OFFSET -03:30", "2024-03-01 03:29", "2024-03-01 03:30"),
    ("1mo ALIGNED OFFSET +09:00 ANCHOR 31", "2024-02-10", "2024-02-28 15:00"),
    ("1d ALIGNED OFFSET +09:00", "2024-02-28 15:00", "2024-02-29 15:00"),
]
each_window = pytest.mark.parametrize(("words", "now", "end"), WINDOWS)


def check_end(redis: Redis, clock: Clock, words: str, end: str) -> None:
    """Checks that an exhausted key denies until just before `end`, and has recovered at `end`."""
    clock.set(us(end) - 1)
    assert redis.execute_command(f"RL.FIXED k 10 {words}") == [0, 10, 0, 1, 1]
    clock.set(us(end))
    assert redis.execute_command(f"RL.PEEK k FIXED 10 {words}") == [1, 10, 10, 0, 0]


@each_window
def test_a_window_ends_when_the_calendar_says(
    words: str, now: str, end: str, redis: Redis, clock: Clock
) -> None:
    clock.set(us(now))
    wait_ms = (us(end) - us(now)) // 1000
    assert redis.execute_command(f"RL.FIXED k 10 {words} COST 10") == [1, 10, 0, 0, wait_ms]
    assert redis.execute_command(f"RL.TAKE k FIXED 10 {words}") == [0, 10, 0, wait_ms, wait_ms]
    assert redis.execute_command(f"RL.MPEEK 1 k FIXED 10 {words}")[:2] == [0, wait_ms]
    check_end(redis, clock, words, end)


@each_window
def test_a_key_expires_after_its_window_and_not_much_later(
    words: str, now: str, end: str, redis: Redis, clock: Clock
) -> None:
    for charged_at in (us(now), (us(now) + us(end)) // 2, us(end) - 1):
        clock.set(charged_at)
        redis.execute_command(f"RL.FIXED k 10 {words}")
        latest = us(end) + (us(end) - us(now)) // 8 + 1_000_000
        assert us(end) <= state(redis)[b"k"].expires_at * 1000 <= latest
    clock.set(latest)
    assert redis.exists("k") == 0


@each_window
def test_restart_and_restore_keep_the_end_of_a_window(
    words: str, now: str, end: str, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    clock.set(us(now))
    server = fresh_server()
    redis = server.client()
    redis.execute_command(f"RL.FIXED k 10 {words} COST 10")
    before = state(redis)
    server.restart("save")
    assert state(redis) == before
    dump, expires_at = redis.dump("k"), before[b"k"].expires_at
    redis.flushall()
    redis.restore("k", expires_at, dump, absttl=True)
    assert state(redis) == before
    check_end(redis, clock, words, end)


def test_clock_moved_back_over_the_end_of_a_month_frees_nothing(redis: Redis, clock: Clock) -> None:
    clock.set(us("2024-03-01 00:30"))
    redis.execute_command("RL.FIXED k 10 1mo ALIGNED COST 10")
    clock.advance("-1h")
    half_hour_ms = 30 * 60_000
    reply = redis.execute_command("RL.FIXED k 10 1mo ALIGNED")
    assert reply == [0, 10, 0, half_hour_ms, half_hour_ms]
    expiry = state(redis)[b"k"].expires_at * 1000
    assert us("2024-03-01") <= expiry <= us("2024-03-01") + half_hour_ms * 1000 // 8 + 1_000_000


def test_usage_of_an_unaligned_window_counts_in_an_aligned_month(
    redis: Redis, clock: Clock
) -> None:
    clock.set(us("2024-02-20"))
    redis.execute_command("RL.FIXED k 10 60d COST 4")
    clock.set(us("2024-02-29"))
    day_ms = DAY // 1000
    assert redis.execute_command("RL.PEEK k FIXED 10 1mo ALIGNED") == [1, 10, 6, 0, day_ms]
    clock.set(us("2024-03-01"))
    assert redis.execute_command("RL.PEEK k FIXED 10 1mo ALIGNED") == [1, 10, 10, 0, 0]
    assert redis.execute_command("RL.PEEK k FIXED 10 60d") == [1, 10, 6, 0, 50 * day_ms]


@pytest.mark.parametrize(
    "words",
    [
        "1mo",
        "2mo ALIGNED",
        "1w ALIGNED ANCHOR 2",
        "1y ALIGNED ANCHOR 2",
        "30d ALIGNED ANCHOR 2",
        "1mo ALIGNED ANCHOR 0",
        "1mo ALIGNED ANCHOR 32",
        "1d OFFSET +09:00",
        "1mo OFFSET +09:00",
        "1mo ALIGNED OFFSET +14:01",
        "1mo ALIGNED OFFSET Asia/Tokyo",
    ],
)
def test_invalid_windows_are_refused_and_write_nothing(words: str, redis: Redis) -> None:
    with pytest.raises(ResponseError):
        redis.execute_command(f"RL.FIXED k 10 {words}")
    assert redis.dbsize() == 0


@pytest.mark.parametrize(
    ("call", "granted"),
    [
        pytest.param(
            lambda now: f"quota 5 1d ALIGNED OFFSET {now.isoformat()[-6:]}",
            {24: 1, 25: 2, 26: 1},
            id="offset-of-the-moment",
        ),
        pytest.param(
            lambda _: "quota 5 1d ALIGNED OFFSET +01:00",
            {24: 1, 25: 1, 26: 1},
            id="smallest-offset-of-the-year",
        ),
        pytest.param(
            lambda now: f"quota:{now:%F} 5 2d", {24: 1, 25: 1, 26: 1}, id="local-date-in-the-key"
        ),
    ],
)
def test_day_when_clocks_go_back_is_granted_once_or_twice(
    redis: Redis, clock: Clock, call: Callable[[datetime], str], granted: dict[int, int]
) -> None:
    """Clocks go back in Berlin on 25 October 2026. The client calls every quarter of an hour."""
    berlin = ZoneInfo("Europe/Berlin")
    start, end = datetime(2026, 10, 24, 1, tzinfo=berlin), datetime(2026, 10, 27, tzinfo=berlin)
    found: Counter[int] = Counter()
    for second in range(round(start.timestamp()), round(end.timestamp()), 900):
        clock.set(second * 1_000_000)
        now = datetime.fromtimestamp(second, berlin)
        allowed, *_ = redis.execute_command(f"RL.FIXED {call(now)} COST 5")
        found[now.day] += allowed
    assert dict(found) == granted
