"""Servers under pressure: many keys, and how much memory they count."""

from collections.abc import Callable, Iterable

from redis import Redis

from support.scale import scaled
from support.server import Server
from support.workload import (
    LIMITERS,
    Limiter,
)

Start = Callable[..., Server]
# Of a flood, sent at a time.
BATCH = 500


def limiter_of(number: int) -> Limiter:
    return LIMITERS[number % len(LIMITERS)]


def cost_of(number: int) -> int:
    """Each key of a flood is charged so much, by which it is known again."""
    return 1 + number // len(LIMITERS) % 9


def flood(client: Redis, numbers: range, watch: Callable[[], None] = lambda: None) -> list[object]:
    """Charges a key of its own for each number, the kinds in turn; the replies, errors included."""
    replies: list[object] = []
    for start in range(numbers.start, numbers.stop, BATCH):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, min(start + BATCH, numbers.stop)):
            call = limiter_of(number).take(f"flood:{number}", cost_of(number))
            pipeline.execute_command(*call)
        replies += pipeline.execute(raise_on_error=False)
        watch()
    return replies


def remaining(client: Redis, numbers: range) -> list[int]:
    """What each key of a flood has left of its 10 units, as somebody else sees it."""
    pipeline = client.pipeline(transaction=False)
    for number in numbers:
        pipeline.execute_command(*limiter_of(number).by("other").peek(f"flood:{number}"))
    return [units for _, _, units, _, _ in pipeline.execute()]


def quiet_memory(client: Redis) -> int:
    """Without the buffers that the server keeps for a while of a connection used for much."""
    client.connection_pool.disconnect()
    return client.info("memory")["used_memory"]


# As many as the setting allows by default; the long form goes past that.
MOST = scaled(100_000, 1_000_000)


def holder(number: int) -> str:
    return f"holder {number:07}"


def full(setting: str) -> str:
    return f"^the key has {MOST} entries, as many as ratelimit.{setting} allows$"


def fill_and_deny(client: Redis, numbers: Iterable[int]) -> None:
    """Charges what `flood` has left of each key's limit, and is denied one unit more.

    A holder renews and a log adds to the entry of that instant, so that no key grows.
    """
    numbers = list(numbers)
    pipeline = client.pipeline(transaction=False)
    for number in numbers:
        limiter, key = limiter_of(number), f"flood:{number}"
        units = 10 if limiter.leases else 10 - cost_of(number)
        pipeline.execute_command(*limiter.take(key, units))
        pipeline.execute_command(*limiter.by("other").take(key))
    answers = iter(pipeline.execute())
    for taken, denied in zip(answers, answers, strict=True):
        assert (taken[:3], denied[:3]) == ([1, 10, 0], [0, 10, 0])
