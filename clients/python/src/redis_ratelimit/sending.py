"""Sending of a call: resends, circuit breaking and fallback. The caller does the I/O."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any, Literal, TypeAlias, TypeVar

from redis_ratelimit import replies
from redis_ratelimit.call import Call, Undecided
from redis_ratelimit.errors import (
    CallError,
    FullError,
    RateLimitError,
    SetupError,
    UnavailableError,
)
from redis_ratelimit.ids import NEEDS_ID
from redis_ratelimit.outage import Breaker, Complaint, Notice
from redis_ratelimit.resp import RefusedError

T = TypeVar("T")


# Reaction to a misconfigured server: raise SetupError, or treat it as an outage.
SetupErrors: TypeAlias = Literal["raise", "outage"]


class _Node:
    """State of one server: circuit breaker and outages."""

    def __init__(self, failures: int, pause: float, clock: Callable[[], float]) -> None:
        self.breaker = Breaker(failures, pause, clock)
        self.away = Notice("Redis is away", "Redis is back", pause, clock)
        self.refusing = Notice("Redis refuses calls", "Redis refuses no more calls", pause, clock)

    @property
    def failed(self) -> bool:
        """`True` if a successful call has to reset any state."""
        return self.breaker.failures > 0 or self.away.begun or self.refusing.begun


class Sending:
    """Sender of calls.

    `resends` is the number of times that a call is resent after its reply was lost. After
    `failures` consecutive calls without a reply, no call is sent for `pause` seconds; each node of
    a cluster counts by itself.
    """

    def __init__(
        self,
        exceptions: ModuleType,
        *,
        setup_errors: SetupErrors,
        resends: int,
        failures: int,
        pause: float,
        clock: Callable[[], float],
    ) -> None:
        if setup_errors not in {"raise", "outage"}:
            raise ValueError(f'setup_errors must be "raise" or "outage", not {setup_errors!r}')
        self._setup_errors = setup_errors
        self._resends = resends
        self._clock = clock
        self._nodes: defaultdict[str, _Node] = defaultdict(lambda: _Node(failures, pause, clock))
        self._complaint = Complaint(clock)
        self._refused: type[Exception] = exceptions.ResponseError
        # Error of the library for words that it cannot encode. Nothing was sent.
        self._unsendable: type[Exception] = exceptions.DataError
        # RedisError or ValkeyError, depending on the library.
        base = exceptions.ConnectionError.__mro__[1]
        self._of_clusters = tuple(
            getattr(exceptions, name)
            for name in ("RedisClusterException", "ValkeyClusterException")
            if hasattr(exceptions, name)
        )
        self._errors = (RefusedError, base, *self._of_clusters, OSError, asyncio.TimeoutError)

    def steps(self, call: Call[T], name: str, place: str) -> Generator[Call[T], Any, T]:
        """Yields the calls to send, and receives their replies or errors. Returns, or raises, the
        result of the call. `name` is the name of the node in a cluster, otherwise "", and `place`
        the address that the limiter was configured with.
        """
        node = self._nodes[name]
        breaker = node.breaker
        began = self._clock()
        resends = self._resends
        sending = call
        full: FullError | None = None
        while True:
            sent_at = self._clock()
            if not (breaker.allows() or call.insists):
                why_not = f"{name or place} was not asked: it failed a moment ago"
                return _without(call, UnavailableError(why_not))
            try:
                reply = yield sending
            except self._unsendable as error:
                raise CallError(str(error)) from error
            except self._errors as error:
                text = self._error_text(error)
                if text is not None:
                    self._answered(node)
                    # A server that became a replica has charged nothing: resend to the new primary.
                    if text.startswith("READONLY ") and resends > 0:
                        resends -= 1
                        continue
                    why = replies.explained(text)
                    why.__cause__ = error
                    alternative = self._alternative(sending, text, why)
                    if alternative is not None:
                        sending, full = alternative, why if isinstance(why, FullError) else None
                        continue
                    if isinstance(why, CallError) and full is not None:
                        # It was only rejected because it was resent without its id: report the
                        # first error.
                        why = full
                    return self._refusal(call, text, why, node, name or place)
                # After a long wait, this failure does not count as consecutive.
                if call.until is not None and self._clock() - sent_at >= breaker.pause:
                    resends = self._resends
                    breaker.succeeded()
                if resends == 0 or self._clock() - began >= sending.repeatable:
                    breaker.failed(sent_at)
                    message = f"{name or place}: {_named(error)}"
                    node.away.failed(message)
                    unavailable = UnavailableError(message)
                    unavailable.__cause__ = error
                    return _without(call, unavailable)
                resends -= 1
            else:
                if node.failed:
                    self._answered(node)
                    node.refusing.succeeded()
                return sending.read(reply)

    def _alternative(self, call: Call[T], text: str, why: RateLimitError) -> Call[T] | None:
        """Returns the call to send in place of a rejected one: with an id, or without one."""
        if isinstance(why, FullError) and replies.may_pass_without_id(text):
            if call.unnamed is not None:
                self._complaint.of(text, call.key, why)
            return call.unnamed
        if isinstance(why, CallError) and call.named and str(why).startswith(NEEDS_ID):
            return call.named()
        return None

    def _answered(self, node: _Node) -> None:
        node.breaker.succeeded()
        node.away.succeeded()
        # Before any node of the cluster was known, failures counted for "".
        self._nodes[""].away.succeeded()

    def _error_text(self, error: BaseException) -> str | None:
        """Returns the server's error reply. None: there was none, so the outcome of the call is
        unknown, or the call has to be sent to another node.
        """
        if self.is_sent_away(error):
            return None
        if isinstance(error, RefusedError):
            return str(error)
        found: BaseException | None = error
        # A client that reaches no node of its cluster chains the cause.
        while isinstance(found, self._of_clusters):
            found = found.__cause__ or found.__context__
        reply = None if found is None else replies.reply_of(found, self._refused)
        if reply is None or found is error:
            return reply
        return reply if replies.cause_of(reply) is replies.Cause.OPERATOR else None

    def is_sent_away(self, error: BaseException) -> bool:
        """Returns `True` if the call was blocked at a server that is no longer the primary, which
        unblocks all its clients.
        """
        return isinstance(error, (RefusedError, self._refused)) and str(error).startswith(
            "UNBLOCKED force"
        )

    def may_be_elsewhere(self, error: Exception) -> bool:
        """Returns `True` if another node of the cluster may have the key now."""
        if not isinstance(error, self._errors):
            return False
        text = self._error_text(error)
        return text is None or text.startswith(("MOVED ", "ASK ", "TRYAGAIN ", "CLUSTERDOWN "))

    def _refusal(self, call: Call[T], text: str, why: RateLimitError, node: _Node, place: str) -> T:
        """Returns or raises the result of a call that the server answered with an error."""
        if isinstance(why, UnavailableError):
            node.refusing.failed(f"{place}: {why}")
            return _without(call, why)
        if isinstance(why, SetupError):
            self._complaint.of(text, call.key, why)
            if self._setup_errors == "outage":
                return _without(call, why)
        elif isinstance(why, FullError):
            self._complaint.of(text, call.key, why)
            return _without(call, why)
        raise why


def _named(error: BaseException) -> str:
    """Returns the class and text of an error; the `repr` of redis-py 8 lacks the text."""
    return f"{type(error).__name__}: {error}"


def _without(call: Call[T], error: Undecided) -> T:
    if call.without is None:
        raise error
    return call.without(error)
