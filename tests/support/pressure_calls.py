"""Servers under pressure: many keys, and the memory that they use."""

from collections.abc import Callable, Iterable

from redis import Redis

from support.scale import scaled
from support.server import Server
from support.workload import LIMITERS, Limiter

Start = Callable[..., Server]
# Number of calls of a flood sent at a time.
BATCH = 500


def limiter_of(number: int) -> Limiter:
    return LIMITERS[number % len(LIMITERS)]


def cost_of(number: int) -> int:
    """Returns the charge of a key in a flood. It differs between neighbouring keys of a kind."""
    return 1 + number // len(LIMITERS) % 9


def flood(client: Redis, numbers: range, watch: Callable[[], None] = lambda: None) -> list[object]:
    """Charges a separate key for each number, of all kinds in turn. Returns the replies, including
    errors.
    """
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
    """Returns the units that each key of a flood has left of 10, as another caller sees it."""
    pipeline = client.pipeline(transaction=False)
    for number in numbers:
        pipeline.execute_command(*limiter_of(number).for_holder("other").peek(f"flood:{number}"))
    return [units for _, _, units, _, _ in pipeline.execute()]


def quiet_memory(client: Redis) -> int:
    """Returns the used memory without the buffers that the server keeps for recently used
    connections.
    """
    client.connection_pool.disconnect()
    return client.info("memory")["used_memory"]


# Largest number of entries of a key: the setting's default, and more in the long form.
MAX_ENTRIES = scaled(100_000, 1_000_000)


def holder(number: int) -> str:
    return f"holder {number:07}"


def full_key_error(setting: str) -> str:
    return f"^the key has {MAX_ENTRIES} entries, as many as ratelimit.{setting} allows$"


def fill_and_deny(client: Redis, numbers: Iterable[int]) -> None:
    """Exhausts the limit of each key after `flood`, and checks that one more unit is denied.

    No key grows: a holder renews its lease, and a log extends its entry of the same time.
    """
    numbers = list(numbers)
    pipeline = client.pipeline(transaction=False)
    for number in numbers:
        limiter, key = limiter_of(number), f"flood:{number}"
        units = 10 if limiter.has_leases else 10 - cost_of(number)
        pipeline.execute_command(*limiter.take(key, units))
        pipeline.execute_command(*limiter.for_holder("other").take(key))
    answers = iter(pipeline.execute())
    for taken, denied in zip(answers, answers, strict=True):
        assert (taken[:3], denied[:3]) == ([1, 10, 0], [0, 10, 0])
