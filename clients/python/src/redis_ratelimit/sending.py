"""The course of a call: when it is sent, sent again and given up. The I/O is the caller's."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any, TypeVar

from redis_ratelimit import replies
from redis_ratelimit.calls import Call
from redis_ratelimit.errors import (
    CallError,
    FullError,
    RateLimitError,
    SetupError,
    UnavailableError,
)
from redis_ratelimit.outage import Breaker, Complaint, Notice

T = TypeVar("T")


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
        self._complaint = Complaint(clock)
        self._refused: type[Exception] = exceptions.ResponseError
        # Nothing was sent: words that the library cannot write.
        self._unsendable: type[Exception] = exceptions.DataError
        # Redis calls it RedisError, and Valkey ValkeyError.
        base = exceptions.ConnectionError.__mro__[1]
        self._of_clusters = tuple(
            getattr(exceptions, name)
            for name in ("RedisClusterException", "ValkeyClusterException")
            if hasattr(exceptions, name)
        )
        self._errors = (base, *self._of_clusters, OSError, asyncio.TimeoutError)

    def steps(self, call: Call[T], node: str) -> Generator[Call[T], Any, T]:
        """The caller sends what it is given, as often as it is let go on, and passes on the reply
        or the error. What is returned, or raised, is the call's.
        """
        breaker = self._breakers[node]
        began = self._clock()
        resends = self._resends
        sending = call
        full: FullError | None = None
        while True:
            sent_at = began if call.until is None else self._clock()
            if not (breaker.allows() or call.insists):
                return _without(call, UnavailableError("not asked: it failed a moment ago"))
            try:
                reply = yield sending
            except self._unsendable as error:
                raise CallError(str(error)) from error
            except self._errors as error:
                said = self._said(error)
                if said is not None:
                    breaker.succeeded()
                    self._away.succeeded()
                    why = replies.explained(said)
                    why.__cause__ = error
                    if isinstance(why, FullError) and sending.unnamed is not None:
                        if replies.may_pass_without_id(said):
                            self._complaint.of(said, call.key, why)
                            sending, full = sending.unnamed, why
                            continue
                    elif isinstance(why, CallError) and full is not None:
                        # It is the id that was missing.
                        why = full
                    return self._refusal(call, said, why)
                # Who has waited for long has not failed twice in a row.
                if call.until is not None and self._clock() - sent_at >= breaker.pause:
                    resends = self._resends
                    breaker.succeeded()
                breaker.failed()
                self._away.failed(_named(error))
                if resends == 0 or self._clock() - began >= sending.repeatable:
                    unavailable = UnavailableError(_named(error))
                    unavailable.__cause__ = error
                    return _without(call, unavailable)
                resends -= 1
            else:
                breaker.succeeded()
                self._away.succeeded()
                self._refusing.succeeded()
                return sending.read(reply)

    def _said(self, error: BaseException) -> str | None:
        """The server's reply; None if there was none, so that it is not known what became of the
        call, or if it has to be made elsewhere.
        """
        if self.is_sent_away(error):
            return None
        found: BaseException | None = error
        # A client that found no node of its cluster says so, and behind that why.
        while isinstance(found, self._of_clusters):
            found = found.__cause__ or found.__context__
        reply = None if found is None else replies.reply_of(found, self._refused)
        if reply is None or found is error:
            return reply
        return reply if replies.kind_of(reply) is replies.Kind.OPERATOR else None

    def is_sent_away(self, error: BaseException) -> bool:
        """Whether it waited at a server that is no longer the primary. That closes connections of
        those who wait.
        """
        return isinstance(error, self._refused) and str(error).startswith("UNBLOCKED force")

    def may_be_elsewhere(self, error: Exception) -> bool:
        """Whether another node of the cluster may have the key now."""
        if not isinstance(error, self._errors):
            return False
        said = self._said(error)
        return said is None or said.startswith(("MOVED ", "ASK ", "TRYAGAIN ", "CLUSTERDOWN "))

    def _refusal(self, call: Call[T], said: str, why: RateLimitError) -> T:
        """Of a call that the server has answered with an error."""
        if isinstance(why, UnavailableError):
            self._refusing.failed(str(why))
            return _without(call, why)
        if isinstance(why, SetupError):
            self._complaint.of(said, call.key, why)
        elif isinstance(why, FullError):
            self._complaint.of(said, call.key, why)
            return _without(call, why)
        raise why


def _named(error: BaseException) -> str:
    """redis-py 8 shows its errors without their text."""
    return f"{type(error).__name__}: {error}"


def _without(call: Call[T], error: UnavailableError | FullError) -> T:
    if call.without is None:
        raise error
    return call.without(error)
