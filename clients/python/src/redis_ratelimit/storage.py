"""A storage for the library `limits`, by which Flask-Limiter and slowapi use the module:

    import redis_ratelimit.storage  # noqa: F401  so that `limits` knows the schemes

    limiter = Limiter(get_remote_address, storage_uri="ratelimit://localhost:6379")

`limits` looks a storage up by the scheme of its URI, and knows those of the classes that have been
imported. These are ours, and each of them with `async+` before it, for `limits.aio`:

    ratelimit://[[user]:password@]host[:port][/db]     one server
    ratelimits://...                                   the same over TLS
    ratelimit+unix://[[user]:password@]/path/to/socket
    ratelimit+cluster://[[user]:password@]host:port[,host:port...]
    ratelimit+sentinel://[[user]:password@]host:port[,host:port...]/service

Each hit is one command, which decides and charges in one step:

    fixed-window             FIXED       the window opens with the first hit
    moving-window            SLIDINGLOG  no window, wherever it begins, holds more than the limit
    sliding-window-counter   SLIDING     the previous window counts by what of it still overlaps

The server's clock rules. A hit that is denied charges nothing and writes nothing. One for which
there is no room, since the key or the server's memory is full, is denied too. All other errors are
redis-py's, and what they lead to is the application's to say; what somebody has to mend is logged.
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
from redis_ratelimit.storage_uri import SCHEMES, connection, is_cluster

__all__ = ["PREFIX", "AsyncRateLimitStorage", "RateLimitStorage"]

# Not that of limits' own storage for Redis, whose keys `reset` would delete.
PREFIX = "RATELIMIT"

# What is told of a hit for which there was no room: when there is, nobody knows.
_ASKED_AGAIN_MS = 1000

# The largest limit that can be asked for, less what is added to it in `_sliding`.
_MOST = 999_999_999_999

# Each strategy has keys of its own: where an application changes its strategy, the key of the one
# before would be of the wrong type until it has expired.
_STRATEGIES = ("fixed", "moving", "sliding")

# RateLimitItem.key_for() ends in the amount, the multiples and the granularity.
_ITEM = re.compile(r"/(\d+)/(\d+)/([^/]+)\Z")

# How many keys SCAN is asked for, and DEL is given, at a time.
_BATCH = 1000

_Words = tuple[str | int, ...]


class _Decision(NamedTuple):
    """What the module replies."""

    allowed: int
    limit: int
    remaining: int
    wait_ms: int
    reset_ms: int

    @property
    def used(self) -> int:
        return self.limit - self.remaining


def _fixed(key: str) -> _Words:
    """`limits` hands over no limit, and to `get` not even a window, but the key of an item has
    both. So the server knows the limit, and a denied hit writes nothing.
    """
    found = _ITEM.search(key)
    granularity = GRANULARITIES.get(found[3]) if found else None
    if found is None or granularity is None:
        raise ConfigurationError(
            f"the fixed window needs a key of RateLimitItem.key_for(), which has the limit and the "
            f"window in it: not {key!r}"
        )
    return "FIXED", int(found[1]), int(found[2]) * granularity.GRANULARITY.seconds


def _moving(limit: int, window: int) -> _Words:
    return "SLIDINGLOG", limit, window


def _sliding(limit: int, window: int) -> _Words:
    """`limits` rounds the weighted count down before it compares, so that a hit passes while the
    count with it is below the next whole number. This is the last amount below.
    """
    return "SLIDING", f"{limit}.999999", window


def _within(seconds: float, window: int) -> float:
    """`limits` takes what it is told modulo the window, whose end it would take for now."""
    return min(seconds, math.nextafter(window, 0))


# Seconds that an application may take to make a response of what it was told.
_LATE = 0.1


class _Keys:
    """What the storages of both kinds have in common."""

    key_prefix: str
    # Flask-Limiter rounds the end of a wait to whole seconds and cuts what is left until then: of
    # the exact instant it would tell less than the wait.
    whole_seconds: bool
    base_exceptions = (RedisError, RedisClusterException)
    _complaint: Complaint

    def _reset_at(self, wait: float, now: float) -> float:
        """Returns the instant that is told as the end of a wait, in seconds since 1970."""
        exact = now + wait
        if not self.whole_seconds:
            return exact
        return max(exact, math.floor(now + _LATE) + math.ceil(wait))

    def _denied_if_full(self, error: RedisError, key: str, words: _Words) -> _Decision:
        """Raises the error unless there is no room for the hit, which is no outage."""
        reply = replies.reply_of(error, ResponseError)
        kind = None if reply is None else replies.kind_of(reply)
        if reply is not None and kind in {replies.Kind.FULL, replies.Kind.OPERATOR}:
            self._complaint.of(reply, key, replies.explained(reply))
        if kind is not replies.Kind.FULL:
            raise error
        limit = math.floor(float(words[1]))
        return _Decision(0, limit, 0, _ASKED_AGAIN_MS, _ASKED_AGAIN_MS)

    def _key(self, key: str, strategy: str) -> str:
        # The braces put the keys of all strategies on one node of a cluster, so that one command
        # clears them.
        return f"{self.key_prefix}:{{{key}}}:{strategy}"

    def _keys(self, key: str) -> list[str]:
        return [self._key(key, strategy) for strategy in _STRATEGIES]

    @property
    def _all_keys(self) -> str:
        """As a pattern."""
        return re.sub(r"([][*?\\])", r"\\\1", self.key_prefix) + ":*"


class RateLimitStorage(_Keys, Storage, MovingWindowSupport, SlidingWindowCounterSupport):
    """For `limits.strategies`, Flask-Limiter and slowapi: see the head of this module."""

    STORAGE_SCHEME: list[str] | None = list(SCHEMES)  # noqa: RUF012  limits declares it so

    def __init__(
        self,
        uri: str,
        wrap_exceptions: bool = False,
        key_prefix: str = PREFIX,
        whole_seconds: bool | None = None,
        **options: Any,
    ) -> None:
        """`options` are redis-py's: those of its Redis, RedisCluster or Sentinel. A
        `connection_pool` among them is used instead of what the URI says.

        With `whole_seconds`, ends of waits are rounded up: None, where Flask-Limiter is in use.

        With `wrap_exceptions`, its errors are raised as `limits.errors.StorageError`.

        Raises `limits.errors.ConfigurationError` if the URI lacks something.
        """
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self.key_prefix = key_prefix
        is_flask = "flask_limiter" in sys.modules
        self.whole_seconds = is_flask if whole_seconds is None else whole_seconds
        self._is_cluster = is_cluster(uri)
        self._complaint = Complaint(time.monotonic)
        self._connect = connection(redis, uri, options)

    @cached_property
    def storage(self) -> Any:
        """The client of redis-py. Its name is that of the client in limits' own storages, which the
        command line of Flask-Limiter shows.

        It is made by the first call, because redis-py's client of a cluster asks for its nodes at
        once, and an application should start while they are away.
        """
        return self._connect()

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:  # noqa: ARG002
        """How much has been used of the window with this hit; if more than the limit, it was denied
        and not charged. The key has to be that of a RateLimitItem, which has the window in it.
        """
        decision = self._ask("RL.TAKE", key, "fixed", _fixed(key), amount)
        return decision.used if decision.allowed else decision.used + amount

    def get(self, key: str) -> int:
        """How much has been used of the window."""
        return self._ask("RL.PEEK", key, "fixed", _fixed(key)).used

    def get_expiry(self, key: str) -> float:
        """When the window ends, in seconds since 1970; now, if there is none."""
        decision = self._ask("RL.PEEK", key, "fixed", _fixed(key))
        return self._reset_at(decision.reset_ms / 1000, time.time())

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Whether the hit passes; if not, it was not charged."""
        return bool(self._ask("RL.TAKE", key, "moving", _moving(limit, expiry), amount).allowed)

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """When the oldest hit that counts came, in seconds since 1970, and how many count."""
        used = self._ask("RL.PEEK", key, "moving", _moving(limit, expiry)).used
        if used == 0:
            return time.time(), 0
        # It counts for as long as a limit of one less is exceeded.
        fewer = self._ask("RL.PEEK", key, "moving", _moving(used - 1, expiry), 0)
        return self._reset_at(fewer.wait_ms / 1000, time.time()) - expiry, used

    def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int = 1
    ) -> bool:
        """Whether the hit passes; if not, it was not charged."""
        return bool(self._ask("RL.TAKE", key, "sliding", _sliding(limit, expiry), amount).allowed)

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Both windows as one: nothing in the previous one, and in the current one their weighted
        count, rounded down, with the seconds until it is one less.
        """
        used = self._ask("RL.PEEK", key, "sliding", _sliding(_MOST, expiry)).used
        if used == 0:
            return 0, 0.0, 0, 0.0
        fewer = self._ask("RL.PEEK", key, "sliding", _sliding(used - 1, expiry), 0)
        now = time.time()
        return 0, 0.0, used, _within(self._reset_at(fewer.wait_ms / 1000, now) - now, expiry)

    def check(self) -> bool:
        """Whether the server is there, with the module. No error leaves this method: Flask-Limiter
        calls it while it counts in memory, and would answer 500.
        """
        try:
            self._ask("RL.PEEK", "check", "fixed", ("FIXED", 1, 1))
        except Exception:
            return False
        return True

    def clear(self, key: str) -> None:
        self.storage.delete(*self._keys(key))

    def clear_sliding_window(self, key: str, expiry: int) -> None:  # noqa: ARG002
        self.clear(key)

    def reset(self) -> int:
        """Deletes all keys with the prefix, by SCAN, and returns how many there were. Hits that
        come meanwhile may or may not be forgotten.
        """
        keys = self.storage.scan_iter(self._all_keys, count=_BATCH)
        deleted = 0
        while batch := list(islice(keys, _BATCH)):
            deleted += self.storage.delete(*batch)
        return deleted

    def _ask(
        self, command: str, key: str, strategy: str, words: _Words, amount: int = 1
    ) -> _Decision:
        named = self._key(key, strategy)
        options = {}
        if self._is_cluster:
            # Else redis-py would ask a node for the keys of the command before it sends it.
            options["target_nodes"] = self.storage.get_node_from_key(named)
        try:
            reply = self.storage.execute_command(command, named, "COST", amount, *words, **options)
        except RedisError as error:
            return self._denied_if_full(error, named, words)
        return _Decision(*reply)


class AsyncRateLimitStorage(
    _Keys,
    aio.storage.Storage,
    aio.storage.MovingWindowSupport,
    aio.storage.SlidingWindowCounterSupport,
):
    """For `limits.aio.strategies`: see the head of this module."""

    STORAGE_SCHEME: list[str] | None = [f"async+{scheme}" for scheme in SCHEMES]  # noqa: RUF012

    def __init__(
        self,
        uri: str,
        wrap_exceptions: bool = False,
        key_prefix: str = PREFIX,
        whole_seconds: bool = False,
        **options: Any,
    ) -> None:
        """As of `RateLimitStorage`; the options are those of redis-py's asyncio classes."""
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self.key_prefix = key_prefix
        self.whole_seconds = whole_seconds
        self._is_cluster = is_cluster(uri)
        self._complaint = Complaint(time.monotonic)
        self.storage = connection(redis.asyncio, uri.removeprefix("async+"), options)()

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:  # noqa: ARG002
        """As of `RateLimitStorage`."""
        decision = await self._ask("RL.TAKE", key, "fixed", _fixed(key), amount)
        return decision.used if decision.allowed else decision.used + amount

    async def get(self, key: str) -> int:
        """As of `RateLimitStorage`."""
        return (await self._ask("RL.PEEK", key, "fixed", _fixed(key))).used

    async def get_expiry(self, key: str) -> float:
        """As of `RateLimitStorage`."""
        decision = await self._ask("RL.PEEK", key, "fixed", _fixed(key))
        return self._reset_at(decision.reset_ms / 1000, time.time())

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """As of `RateLimitStorage`."""
        decision = await self._ask("RL.TAKE", key, "moving", _moving(limit, expiry), amount)
        return bool(decision.allowed)

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """As of `RateLimitStorage`."""
        used = (await self._ask("RL.PEEK", key, "moving", _moving(limit, expiry))).used
        if used == 0:
            return time.time(), 0
        fewer = await self._ask("RL.PEEK", key, "moving", _moving(used - 1, expiry), 0)
        return self._reset_at(fewer.wait_ms / 1000, time.time()) - expiry, used

    async def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int = 1
    ) -> bool:
        """As of `RateLimitStorage`."""
        decision = await self._ask("RL.TAKE", key, "sliding", _sliding(limit, expiry), amount)
        return bool(decision.allowed)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """As of `RateLimitStorage`."""
        used = (await self._ask("RL.PEEK", key, "sliding", _sliding(_MOST, expiry))).used
        if used == 0:
            return 0, 0.0, 0, 0.0
        fewer = await self._ask("RL.PEEK", key, "sliding", _sliding(used - 1, expiry), 0)
        now = time.time()
        return 0, 0.0, used, _within(self._reset_at(fewer.wait_ms / 1000, now) - now, expiry)

    async def check(self) -> bool:
        """As of `RateLimitStorage`."""
        try:
            await self._ask("RL.PEEK", "check", "fixed", ("FIXED", 1, 1))
        except Exception:
            return False
        return True

    async def clear(self, key: str) -> None:
        await self.storage.delete(*self._keys(key))

    async def clear_sliding_window(self, key: str, expiry: int) -> None:  # noqa: ARG002
        await self.clear(key)

    async def reset(self) -> int:
        """As of `RateLimitStorage`."""
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

    async def _ask(
        self, command: str, key: str, strategy: str, words: _Words, amount: int = 1
    ) -> _Decision:
        named = self._key(key, strategy)
        options = {}
        if self._is_cluster:
            await self.storage.initialize()
            options["target_nodes"] = self.storage.get_node_from_key(named)
        try:
            reply = await self.storage.execute_command(
                command, named, "COST", amount, *words, **options
            )
        except RedisError as error:
            return self._denied_if_full(error, named, words)
        return _Decision(*reply)
