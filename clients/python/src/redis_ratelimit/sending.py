"""The course of a call: when it is sent, sent again and given up. The I/O is the caller's."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any, TypeVar

from redis_ratelimit.calls import Call
from redis_ratelimit.errors import MODULE_MISSING, CallError, NoPolicyError, UnavailableError
from redis_ratelimit.outage import Breaker, Notice

T = TypeVar("T")

# What a server may say of its own state, in the words of an error that is otherwise the caller's.
_STATES = (
    "unknown command",
    "unknown subcommand",
    "internal error in module",
    "the key has ",
    "the policy was set by a later version",
    "max number of clients",
)


class Sending:
    """`resends` is how often a call is sent again whose reply was lost. After `failures` calls in
    a row without a reply nobody asks for `pause` seconds; in a cluster each node is by itself.
    """

    def __init__(
        self,
        exceptions: ModuleType,
        *,
        resends: int,
        failures: int,
        pause: float,
        clock: Callable[[], float],
    ) -> None:
        self._resends = resends
        self._clock = clock
        self._breakers: defaultdict[str, Breaker] = defaultdict(
            lambda: Breaker(failures, pause, clock)
        )
        self._away = Notice("Redis is away", "Redis is back", pause, clock)
        self._refusing = Notice("Redis refuses calls", "Redis refuses no more calls", pause, clock)
        self._refused: type[Exception] = exceptions.ResponseError
        # Redis calls it RedisError, and Valkey ValkeyError.
        base = exceptions.ConnectionError.__mro__[1]
        clusters = [
            getattr(exceptions, name)
            for name in ("RedisClusterException", "ValkeyClusterException")
            if hasattr(exceptions, name)
        ]
        self._lost = (base, *clusters, OSError, asyncio.TimeoutError)
        self._elsewhere = (
            exceptions.AskError,  # MOVED, too
            exceptions.TryAgainError,
            exceptions.ClusterDownError,
        )

    def steps(self, call: Call[T], node: str) -> Generator[None, Any, T]:
        """The caller sends the call as often as it is let go on, and passes on the reply or the
        error. What is returned, or raised, is the call's.
        """
        breaker = self._breakers[node]
        began = self._clock()
        resends = self._resends
        while True:
            sent_at = began if call.until is None else self._clock()
            if not (breaker.allows() or call.insists):
                return _without(call, UnavailableError("not asked: it failed a moment ago"))
            try:
                reply = yield
            except (self._refused, *self._lost) as error:
                if not self._is_lost(error):
                    breaker.succeeded()
                    self._away.succeeded()
                    return self._answer(call, error)
                # Who has waited for long has not failed twice in a row.
                if call.until is not None and self._clock() - sent_at >= breaker.pause:
                    resends = self._resends
                    breaker.succeeded()
                breaker.failed()
                self._away.failed(repr(error))
                if resends == 0 or self._clock() - began >= call.repeatable:
                    unavailable = UnavailableError(repr(error))
                    unavailable.__cause__ = error
                    return _without(call, unavailable)
                resends -= 1
            else:
                breaker.succeeded()
                self._away.succeeded()
                self._refusing.succeeded()
                return call.read(reply)

    def _is_lost(self, error: Exception) -> bool:
        """Whether it is not known what became of the call, or it has to be made elsewhere."""
        if isinstance(error, self._refused):
            return self.is_sent_away(error)
        return isinstance(error, self._lost)

    def is_sent_away(self, error: Exception) -> bool:
        """Whether it waited at a server that is no longer the primary. That closes connections of
        those who wait.
        """
        return isinstance(error, self._refused) and str(error).startswith("UNBLOCKED force")

    def may_be_elsewhere(self, error: Exception) -> bool:
        """Whether another node of the cluster may have the key now."""
        return isinstance(error, self._elsewhere) or self._is_lost(error)

    def _answer(self, call: Call[T], error: Exception) -> T:
        """Of a call that the server refused: its mistake, or the server's state."""
        text = str(error)
        if text.startswith("NOPOLICY"):
            raise NoPolicyError(text) from error
        # An error with a code of its own is of another class, or the code is its first word.
        is_plain = type(error) is self._refused and not text.partition(" ")[0].isupper()
        if is_plain and not text.startswith(_STATES):
            raise CallError(text) from error
        # Redis quotes it in one way, and did in another until 7.0.
        missing = text.startswith(("unknown command 'RL.", "unknown command `RL."))
        unavailable = UnavailableError(MODULE_MISSING if missing else text)
        unavailable.__cause__ = error
        self._refusing.failed(str(unavailable))
        return _without(call, unavailable)


def _without(call: Call[T], error: UnavailableError) -> T:
    if call.without is None:
        raise error
    return call.without(error)
