"""Calls to Redis that cost a request little while Redis is away."""

import asyncio
import logging
import time
from contextlib import suppress

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from ratelimit.limits import PREFIX

log = logging.getLogger("ratelimit")

MODULE_MISSING = (
    "the redis-ratelimit module is not loaded: start the server with "
    "--loadmodule /path/to/libredis_ratelimit.so"
)


class UnavailableError(Exception):
    """Redis did not decide: it is away, too slow, or answers with an error."""


class LostError(UnavailableError):
    """No reply came. The call may have been charged all the same."""


def connect(url: str, *, cluster: bool = False) -> Redis | RedisCluster:
    options = {
        # A call that is sent twice may charge twice. Which may be, `Calls` knows.
        "retry": Retry(NoBackoff(), 0),
        # How long a call may take is in `Calls`, for all of its steps together.
        "socket_timeout": None,
        "socket_connect_timeout": None,
    }
    if cluster:
        return RedisCluster.from_url(url, **options)
    # A burst of requests waits its turn on a few connections, rather than for many new ones.
    pool = BlockingConnectionPool.from_url(url, max_connections=20, timeout=None, **options)
    return Redis.from_pool(pool)


class Breaker:
    """Stops asking who does not answer: after some failures in a row, nobody asks for a while.
    Then one caller does, and if that fails too, nobody for a while again.

    By hand, since of those on PyPI that know asyncio one has had no release since 2021, and the
    other lets all callers through at once when it is time to try again.
    """

    def __init__(self, failures: int = 3, pause: float = 1.0) -> None:
        self.pause = pause
        self._most = failures
        self._failures = 0
        self._closed_until = 0.0

    def allows(self) -> bool:
        if self._failures < self._most:
            return True
        now = time.monotonic()
        if now < self._closed_until:
            return False
        # This caller finds out; the next may not before its own pause is over.
        self._closed_until = now + self.pause
        return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        self._closed_until = time.monotonic() + self.pause


class Outage:
    """A line in the log when it begins and one when it is over, however many requests there are.

    It is over when a call succeeds and for a `pause` none has failed: a server of which every
    other call fails would fill the log.
    """

    def __init__(self, begun: str, over: str, pause: float) -> None:
        self._begun = begun
        self._over = over
        self._pause = pause
        self._failed_at: float | None = None

    def failed(self, why: str) -> None:
        if self._failed_at is None:
            log.warning("%s: %s", self._begun, why)
        self._failed_at = time.monotonic()

    def succeeded(self) -> None:
        if self._failed_at is not None and time.monotonic() >= self._failed_at + self._pause:
            log.warning(self._over)
            self._failed_at = None


class Calls:
    """`await calls(key, "RL.MTAKE", ...)`: the reply, or an UnavailableError before long.

    The key, or one of them, tells a cluster's client where to send it.
    """

    def __init__(
        self, redis: Redis | RedisCluster, *, timeout: float = 0.1, breaker: Breaker | None = None
    ) -> None:
        self.redis = redis
        self.breaker = breaker or Breaker()
        self._timeout = timeout
        pause = self.breaker.pause
        self._away = Outage("Redis is away", "Redis is back", pause)
        self._refusing = Outage("Redis refuses calls", "Redis refuses no more calls", pause)

    async def check(self) -> None:
        """To call at the start, so that a server without the module is told of there and then.
        Away or refusing, it is an outage like any other: serving goes on.
        """
        key = f"{PREFIX}:{{check}}"  # no limit's
        with suppress(UnavailableError):
            # A new process may take its time.
            await self._call(max(self._timeout, 1.0), key, "RL.PEEK", key, "FIXED", 1, "1s")

    async def __call__(self, key: str, *words: object) -> list:
        return await self._call(self._timeout, key, *words)

    async def resend(self, key: str, *words: object) -> list:
        """A call with ONCE or SETTLE, which counts once: if its reply is lost, it is sent again."""
        try:
            return await self(key, *words)
        except LostError:
            return await self(key, *words)

    async def _call(self, timeout: float, key: str, *words: object) -> list:
        if not self.breaker.allows():
            raise UnavailableError("not asked: it failed a moment ago")
        try:
            # Over all of it: a free connection, or a new one and its greetings, and the reply.
            async with asyncio.timeout(timeout):
                reply = await self._send(key, words)
        except ResponseError as error:
            # A full memory, a key of another type, no module: only this call has failed.
            self.breaker.succeeded()
            self._away.succeeded()
            self._refusing.failed(_reason(error))
            raise UnavailableError(str(error)) from error
        except (RedisError, RedisClusterException, OSError, TimeoutError) as error:
            self.breaker.failed()
            self._away.failed(repr(error))
            raise LostError(repr(error)) from error
        self.breaker.succeeded()
        self._away.succeeded()
        self._refusing.succeeded()
        return reply

    async def _send(self, key: str, words: tuple[object, ...]) -> list:
        if isinstance(self.redis, Redis):
            return await self.redis.execute_command(*words)
        # Else redis-py would ask a node for the keys of each RL.MTAKE before it sends it.
        await self.redis.initialize()
        node = self.redis.get_node_from_key(key)
        return await self.redis.execute_command(*words, target_nodes=node)


def _reason(error: ResponseError) -> str:
    # Redis quotes the command in one way, and did in another until 7.0.
    unknown = ("unknown command 'RL.", "unknown command `RL.")
    return MODULE_MISSING if str(error).startswith(unknown) else str(error)
