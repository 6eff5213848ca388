"""Calls to Redis that cost a request little while Redis is away."""

import asyncio
import logging
import time

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError, ResponseError

log = logging.getLogger("ratelimit")


class UnavailableError(Exception):
    """Redis did not decide: it is away, too slow, or answers with an error."""


def connect(url: str, *, cluster: bool = False) -> Redis | RedisCluster:
    options = {
        # A call that is sent twice may charge twice.
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

    async def __call__(self, key: str, *words: object) -> list:
        if not self.breaker.allows():
            raise UnavailableError("not asked: it failed a moment ago")
        try:
            # Over all of it: a free connection, or a new one and its greetings, and the reply.
            async with asyncio.timeout(self._timeout):
                reply = await self._send(key, words)
        except ResponseError as error:
            # A full memory, a key of another type, no module: only this call has failed.
            self.breaker.succeeded()
            log.error("%s: %s", words[0], error)
            raise UnavailableError(str(error)) from error
        except (RedisError, RedisClusterException, OSError, TimeoutError) as error:
            self.breaker.failed()
            log.warning("%s: %s", words[0], repr(error))
            raise UnavailableError(repr(error)) from error
        self.breaker.succeeded()
        return reply

    async def _send(self, key: str, words: tuple[object, ...]) -> list:
        if isinstance(self.redis, Redis):
            return await self.redis.execute_command(*words)
        # Else redis-py would ask a node for the keys of each RL.MTAKE before it sends it.
        await self.redis.initialize()
        node = self.redis.get_node_from_key(key)
        return await self.redis.execute_command(*words, target_nodes=node)
