"""Storage for the library `limits`, through which Flask-Limiter and slowapi use the module:

    import redis_ratelimit.storage  # noqa: F401  so that `limits` knows the schemes

    limiter = Limiter(get_remote_address, storage_uri="ratelimit://localhost:6379")

`limits` selects a storage by the scheme of its URI, among the classes that have been imported. This
module adds these schemes, each also with the prefix `async+` for `limits.aio`:

    ratelimit://[[user]:password@]host[:port][/db]     one server
    ratelimits://...                                   the same over TLS
    ratelimit+unix://[[user]:password@]/path/to/socket
    ratelimit+cluster://[[user]:password@]host:port[,host:port...]
    ratelimit+sentinel://[[user]:password@]host:port[,host:port...]/service

Each hit is one command, which decides and charges in one step:

    fixed-window             FIXED       the window opens with the first hit
    moving-window            SLIDINGLOG  no window, wherever it begins, holds more than the limit
    sliding-window-counter   SLIDING     the previous window counts by the share that still overlaps

Time is the server's clock. A denied hit charges nothing and writes nothing. A hit is also denied if
the key or the server's memory is full. All other errors are redis-py's, and the application handles
them; errors that need an operator are logged.
"""

import math
import re
import sys
import time
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from limits import aio
from limits.errors import ConfigurationError
from limits.limits import GRANULARITIES
from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from redis_ratelimit import replies
from redis_ratelimit.outage import Complaint
from redis_ratelimit.storage_uri import SCHEMES, client_factory, is_cluster

__all__ = ["PREFIX", "AsyncRateLimitStorage", "RateLimitStorage"]

# Default prefix of keys. It differs from that of limits' own storage for Redis, whose keys `reset`
# would delete.
PREFIX = "RATELIMIT"

# Reported wait of a hit that was denied because the key or the server is full.
_FULL_WAIT_MS = 1000

# Largest limit of a sliding window, to which `_sliding` adds a fraction.
_MAX_LIMIT = 999_999_999_999

# Each strategy has keys of its own. After an application changed its strategy, a shared key would
# have the wrong type until it expires.
_STRATEGIES = ("fixed", "moving", "sliding")

# RateLimitItem.key_for() ends in the amount, the multiples and the granularity.
_ITEM = re.compile(r"/(\d+)/(\d+)/([^/]+)\Z")

# Number of keys per SCAN and DEL.
_BATCH = 1000

_Words = tuple[str | int, ...]


class _Decision(NamedTuple):
    """Reply of the module."""

    allowed: int
    limit: int
    remaining: int
    wait_ms: int
    reset_ms: int

    @property
    def used(self) -> int:
        return self.limit - self.remaining


def _fixed(key: str) -> _Words:
    """Returns the words of a fixed window. `limits` passes no limit, and to `get` not even a
    window, but the key of an item contains both.
    """
    match = _ITEM.search(key)
    granularity = GRANULARITIES.get(match[3]) if match else None
    if match is None or granularity is None:
        raise ConfigurationError(
            f"the fixed window needs a key of RateLimitItem.key_for(), which has the limit and the "
            f"window in it: not {key!r}"
        )
    return "FIXED", int(match[1]), int(match[2]) * granularity.GRANULARITY.seconds


def _moving(limit: int, window: int) -> _Words:
    return "SLIDINGLOG", limit, window


def _sliding(limit: int, window: int) -> _Words:
    """Returns the words of a sliding window. `limits` rounds the weighted count down before it
    compares, so a hit passes up to the last amount below the next whole number.
    """
    return "SLIDING", f"{limit}.999999", window


def _below_window(seconds: float, window: int) -> float:
    """Returns `seconds`, lowered below the window: `limits` takes them modulo the window, which
    would turn a whole window into 0.
    """
    return min(seconds, math.nextafter(window, 0))


# Seconds that an application may take from the decision to its response.
_RESPONSE_DELAY = 0.1


class _BaseStorage:
    """Common part of the storages for threads and for asyncio."""

    key_prefix: str
    # `True` if the reported end of a wait is a whole second. Flask-Limiter truncates the time until
    # that end to whole seconds, so it would report less than the wait for the exact end.
    whole_seconds: bool
    base_exceptions = (RedisError, RedisClusterException)
    _complaint: Complaint

    def _reset_at(self, wait: float, now: float) -> float:
        """Returns the reported end of a wait, in seconds since 1970."""
        exact = now + wait
        if not self.whole_seconds:
            return exact
        return max(exact, math.floor(now + _RESPONSE_DELAY) + math.ceil(wait))

    def _denied_if_full(self, error: RedisError, key: str, words: _Words) -> _Decision:
        """Returns a denial if the key or the server is full; raises the error otherwise."""
        reply = replies.reply_of(error, ResponseError)
        cause = None if reply is None else replies.cause_of(reply)
        if reply is not None and cause in {replies.Cause.FULL, replies.Cause.OPERATOR}:
            self._complaint.log_reply(reply, key, replies.to_exception(reply))
        if cause is not replies.Cause.FULL:
            raise error
        limit = math.floor(float(words[1]))
        return _Decision(0, limit, 0, _FULL_WAIT_MS, _FULL_WAIT_MS)

    def _key(self, key: str, strategy: str) -> str:
        # The hash tag puts the keys of all strategies on one node of a cluster, so that one command
        # can delete them.
        return f"{self.key_prefix}:{{{key}}}:{strategy}"

    def _keys(self, key: str) -> list[str]:
        return [self._key(key, strategy) for strategy in _STRATEGIES]

    @property
    def _all_keys(self) -> str:
        """Glob pattern of all keys with the prefix."""
        return re.sub(r"([][*?\\])", r"\\\1", self.key_prefix) + ":*"


class RateLimitStorage(_BaseStorage, Storage, MovingWindowSupport, SlidingWindowCounterSupport):
    """Storage for `limits.strategies`, Flask-Limiter and slowapi, described in this module's
    docstring.
    """

    STORAGE_SCHEME: list[str] | None = list(SCHEMES)  # noqa: RUF012  limits declares it so

    def __init__(
        self,
        uri: str,
        wrap_exceptions: bool = False,
        key_prefix: str = PREFIX,
        whole_seconds: bool | None = None,
        **options: Any,
    ) -> None:
        """`options` are those of redis-py's Redis, RedisCluster or Sentinel. A `connection_pool`
        among them replaces the server of the URI.

        `whole_seconds` rounds the ends of waits up to whole seconds, by default if Flask-Limiter is
        imported.

        `wrap_exceptions` raises errors of redis-py as `limits.errors.StorageError`.

        Raises `limits.errors.ConfigurationError` if the URI lacks something.
        """
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self.key_prefix = key_prefix
        is_flask = "flask_limiter" in sys.modules
        self.whole_seconds = is_flask if whole_seconds is None else whole_seconds
        self._is_cluster = is_cluster(uri)
        self._complaint = Complaint(time.monotonic)
        self._connect = client_factory(redis, uri, options)

    @cached_property
    def storage(self) -> Any:
        """Client of redis-py. It has the name that it has in limits' own storages, where
        Flask-Limiter's command line looks for it.

        The first call creates the client: redis-py's client of a cluster connects on creation, and
        an application should start while the cluster is unreachable.
        """
        return self._connect()

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:  # noqa: ARG002
        """Charges a hit and returns the usage of the window including the hit. If that is above the
        limit, the hit was denied and not charged. The key must be a RateLimitItem's, which contains
        the limit and the window.
        """
        decision = self._send("RL.TAKE", key, "fixed", _fixed(key), amount)
        return decision.used if decision.allowed else decision.used + amount

    def get(self, key: str) -> int:
        """Returns the usage of the window."""
        return self._send("RL.PEEK", key, "fixed", _fixed(key)).used

    def get_expiry(self, key: str) -> float:
        """Returns the end of the window in seconds since 1970, or now if there is no window."""
        decision = self._send("RL.PEEK", key, "fixed", _fixed(key))
        return self._reset_at(decision.reset_ms / 1000, time.time())

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Charges a hit. Returns `False` if it was denied and not charged."""
        return bool(self._send("RL.TAKE", key, "moving", _moving(limit, expiry), amount).allowed)

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Returns the time of the oldest hit in the window, in seconds since 1970, and the number
        of hits.
        """
        used = self._send("RL.PEEK", key, "moving", _moving(limit, expiry)).used
        if used == 0:
            return time.time(), 0
        # The oldest hit leaves the window when a limit of one less is no longer exceeded.
        one_less = self._send("RL.PEEK", key, "moving", _moving(used - 1, expiry), 0)
        return self._reset_at(one_less.wait_ms / 1000, time.time()) - expiry, used

    def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int = 1
    ) -> bool:
        """Charges a hit. Returns `False` if it was denied and not charged."""
        return bool(self._send("RL.TAKE", key, "sliding", _sliding(limit, expiry), amount).allowed)

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Returns the count of the previous window and the seconds until it ends, both 0, and those
        of the current window: the weighted count of both windows, rounded down, and the seconds
        until it is one less.
        """
        used = self._send("RL.PEEK", key, "sliding", _sliding(_MAX_LIMIT, expiry)).used
        if used == 0:
            return 0, 0.0, 0, 0.0
        one_less = self._send("RL.PEEK", key, "sliding", _sliding(used - 1, expiry), 0)
        now = time.time()
        return (
            0,
            0.0,
            used,
            _below_window(self._reset_at(one_less.wait_ms / 1000, now) - now, expiry),
        )

    def check(self) -> bool:
        """Returns `True` if the server is reachable and has the module. Never raises: Flask-Limiter
        calls it while it counts in memory, and would respond with 500.
        """
        try:
            self._send("RL.PEEK", "check", "fixed", ("FIXED", 1, 1))
        except Exception:
            return False
        return True

    def clear(self, key: str) -> None:
        self.storage.delete(*self._keys(key))

    def clear_sliding_window(self, key: str, expiry: int) -> None:  # noqa: ARG002
        self.clear(key)

    def reset(self) -> int:
        """Deletes all keys with the prefix, by SCAN, and returns their number. Concurrent hits may
        or may not be deleted.
        """
        keys = self.storage.scan_iter(self._all_keys, count=_BATCH)
        deleted = 0
        while batch := list(islice(keys, _BATCH)):
            deleted += self.storage.delete(*batch)
        return deleted

    def _send(
        self, command: str, key: str, strategy: str, words: _Words, amount: int = 1
    ) -> _Decision:
        full_key = self._key(key, strategy)
        options = {}
        if self._is_cluster:
            # Without a target, redis-py would send COMMAND GETKEYS before each command.
            options["target_nodes"] = self.storage.get_node_from_key(full_key)
        try:
            reply = self.storage.execute_command(
                command, full_key, "COST", amount, *words, **options
            )
        except RedisError as error:
            return self._denied_if_full(error, full_key, words)
        return _Decision(*reply)


class AsyncRateLimitStorage(
    _BaseStorage,
    aio.storage.Storage,
    aio.storage.MovingWindowSupport,
    aio.storage.SlidingWindowCounterSupport,
):
    """Storage for `limits.aio.strategies`; see the docstring of the module."""

    STORAGE_SCHEME: list[str] | None = [f"async+{scheme}" for scheme in SCHEMES]  # noqa: RUF012

    def __init__(
        self,
        uri: str,
        wrap_exceptions: bool = False,
        key_prefix: str = PREFIX,
        whole_seconds: bool = False,
        **options: Any,
    ) -> None:
        """Creates the storage. `options` are those of redis-py's asyncio classes."""
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self.key_prefix = key_prefix
        self.whole_seconds = whole_seconds
        self._is_cluster = is_cluster(uri)
        self._complaint = Complaint(time.monotonic)
        self.storage = client_factory(redis.asyncio, uri.removeprefix("async+"), options)()

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:  # noqa: ARG002
        """Charges a hit; see `RateLimitStorage.incr`."""
        decision = await self._send("RL.TAKE", key, "fixed", _fixed(key), amount)
        return decision.used if decision.allowed else decision.used + amount

    async def get(self, key: str) -> int:
        """Returns the usage of the window."""
        return (await self._send("RL.PEEK", key, "fixed", _fixed(key))).used

    async def get_expiry(self, key: str) -> float:
        """Returns the end of the window; see `RateLimitStorage.get_expiry`."""
        decision = await self._send("RL.PEEK", key, "fixed", _fixed(key))
        return self._reset_at(decision.reset_ms / 1000, time.time())

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Charges a hit. Returns `False` if it was denied and not charged."""
        decision = await self._send("RL.TAKE", key, "moving", _moving(limit, expiry), amount)
        return bool(decision.allowed)

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Returns the oldest hit and the count; see `RateLimitStorage.get_moving_window`."""
        used = (await self._send("RL.PEEK", key, "moving", _moving(limit, expiry))).used
        if used == 0:
            return time.time(), 0
        one_less = await self._send("RL.PEEK", key, "moving", _moving(used - 1, expiry), 0)
        return self._reset_at(one_less.wait_ms / 1000, time.time()) - expiry, used

    async def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int = 1
    ) -> bool:
        """Charges a hit. Returns `False` if it was denied and not charged."""
        decision = await self._send("RL.TAKE", key, "sliding", _sliding(limit, expiry), amount)
        return bool(decision.allowed)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Returns the counts of two windows; see `RateLimitStorage.get_sliding_window`."""
        used = (await self._send("RL.PEEK", key, "sliding", _sliding(_MAX_LIMIT, expiry))).used
        if used == 0:
            return 0, 0.0, 0, 0.0
        one_less = await self._send("RL.PEEK", key, "sliding", _sliding(used - 1, expiry), 0)
        now = time.time()
        return (
            0,
            0.0,
            used,
            _below_window(self._reset_at(one_less.wait_ms / 1000, now) - now, expiry),
        )

    async def check(self) -> bool:
        """Returns `True` if the server is reachable and has the module. Never raises."""
        try:
            await self._send("RL.PEEK", "check", "fixed", ("FIXED", 1, 1))
        except Exception:
            return False
        return True

    async def clear(self, key: str) -> None:
        await self.storage.delete(*self._keys(key))

    async def clear_sliding_window(self, key: str, expiry: int) -> None:  # noqa: ARG002
        await self.clear(key)

    async def reset(self) -> int:
        """Deletes all keys with the prefix, by SCAN, and returns their number."""
        deleted = 0
        batch: list[bytes] = []
        async for key in self.storage.scan_iter(self._all_keys, count=_BATCH):
            batch.append(key)
            if len(batch) == _BATCH:
                deleted += await self.storage.delete(*batch)
                batch.clear()
        if batch:
            deleted += await self.storage.delete(*batch)
        return deleted

    async def _send(
        self, command: str, key: str, strategy: str, words: _Words, amount: int = 1
    ) -> _Decision:
        full_key = self._key(key, strategy)
        options = {}
        if self._is_cluster:
            await self.storage.initialize()
            options["target_nodes"] = self.storage.get_node_from_key(full_key)
        try:
            reply = await self.storage.execute_command(
                command, full_key, "COST", amount, *words, **options
            )
        except RedisError as error:
            return self._denied_if_full(error, full_key, words)
        return _Decision(*reply)
