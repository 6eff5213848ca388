"""A limited number of places for workers, in all processes on all machines."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import uniform

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import RedisError

KEY = "rl:places"

MODULE_MISSING = (
    "the redis-ratelimit module is not loaded: start the server with "
    "--loadmodule /path/to/libredis_ratelimit.so"
)


def connect(url: str) -> Redis:
    # Retries are safe here: acquiring again as the same holder takes no second place, and a job
    # that is added twice has the same key twice.
    retry = Retry(ExponentialWithJitterBackoff(base=0.02, cap=0.2), retries=3)
    return Redis.from_url(url, protocol=2, decode_responses=True, retry=retry)


def reason(error: Exception) -> str:
    """For a log. That there is no module, the server calls an unknown command."""
    text = str(error) or repr(error)
    # Redis quotes it in one way, and did in another until 7.0.
    unknown = ("unknown command 'RL.", "unknown command `RL.")
    return MODULE_MISSING if text.startswith(unknown) else text


class PlaceLostError(Exception):
    """The place could not be renewed in time. Somebody else may have it, or have it soon."""


class Place:
    """Held by one worker."""

    # Done with every renewal: for whatever else has to be kept alive as long.
    on_beat: Callable[[], Awaitable[object]] | None = None


class Pool:
    """`async with pool.place("me"):` no more than `limit` at once.

    A holder that dies leaves its place taken for `ttl` seconds at most. One that lives renews it
    three times in each ttl. If it cannot, because Redis is away or the process was frozen, then
    its work is cancelled while the place is still its own: a lease by itself stops nobody.
    """

    # What of the ttl is for work; the rest is for stopping it.
    WORKING = 0.8

    def __init__(self, redis: Redis, limit: int, ttl: float, key: str = KEY) -> None:
        self._redis = redis
        self._key = key
        self._limit = limit
        self._ttl = ttl

    async def has_no_module(self) -> bool:
        """To ask at the start. A server that is away may have it."""
        try:
            await self._redis.execute_command(
                "RL.PEEK", self._key, "CONCURRENCY", self._limit, f"{self._ttl}s", "nobody"
            )
        except (RedisError, OSError) as error:
            return reason(error) == MODULE_MISSING
        return False

    @asynccontextmanager
    async def place(self, holder: str) -> AsyncIterator[Place]:
        """Waits for a place, and holds it until the block ends. `holder` must be unique: two of
        one name would share a place. The block is cancelled when the place is lost, and raises
        PlaceLostError.
        """
        place, done = Place(), asyncio.Event()
        held_until = await self._wait_for_place(holder)
        try:
            async with asyncio.timeout_at(held_until) as deadline:
                beat = asyncio.create_task(self._renew(holder, place, deadline, done))
                try:
                    yield place
                finally:
                    done.set()
                    # A renewal under way has to end first: after the release it would take the
                    # place again.
                    await beat
        except TimeoutError as error:
            if deadline.expired():
                raise PlaceLostError(holder) from error
            raise  # the work's own
        finally:
            with suppress(RedisError):  # then it expires by itself
                await self._redis.execute_command("RL.RELEASE", self._key, holder)

    async def _wait_for_place(self, holder: str) -> float:
        while True:
            held_until, wait = await self._acquire(holder)
            if held_until:
                return held_until
            # Somebody may release a place long before one expires. Not all at the same moment.
            await asyncio.sleep(min(wait, uniform(0.5, 1.0) * self._ttl / 10))

    async def _acquire(self, holder: str) -> tuple[float | None, float]:
        """Until when to work, by this process's clock, if there is a place; else how long until
        one expires.
        """
        asked_at = asyncio.get_running_loop().time()
        allowed, _, _, wait_ms, _ = await self._redis.execute_command(
            "RL.ACQUIRE", self._key, self._limit, f"{self._ttl}s", holder
        )
        # The lease began after it was asked for, so it ends after this.
        return (asked_at + self.WORKING * self._ttl if allowed else None), wait_ms / 1000

    async def _renew(
        self, holder: str, place: Place, deadline: asyncio.Timeout, done: asyncio.Event
    ) -> None:
        while not done.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), self._ttl / 3)
                return
            # If it fails, then again, for as long as the deadline allows.
            with suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(self._ttl / 3):
                    held_until, _ = await self._acquire(holder)
                if done.is_set() or deadline.expired():
                    return
                # Denied: it had expired, and another has it. So now.
                deadline.reschedule(held_until or 0)
                if place.on_beat:
                    async with asyncio.timeout(self._ttl / 3):
                        await place.on_beat()
