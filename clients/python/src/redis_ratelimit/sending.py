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
    def has_failures(self) -> bool:
        """`True` if a successful call has to reset any state."""
        return self.breaker.failures > 0 or self.away.has_begun or self.refusing.has_begun


class Sending:
    """Sender of calls.

    `resends` is the number of times that a call is resent after its reply was lost. After
    `failures` consecutive calls without a reply, no call is sent for `pause` seconds; each node of
    a cluster is counted separately.
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
        self._response_error: type[Exception] = exceptions.ResponseError
        # Error of the library for words that it cannot encode. Nothing was sent.
        self._encoding_error: type[Exception] = exceptions.DataError
        # RedisError or ValkeyError, depending on the library.
        base = exceptions.ConnectionError.__mro__[1]
        self._cluster_errors = tuple(
            getattr(exceptions, name)
            for name in ("RedisClusterException", "ValkeyClusterException")
            if hasattr(exceptions, name)
        )
        self._errors = (RefusedError, base, *self._cluster_errors, OSError, asyncio.TimeoutError)

    def steps(self, call: Call[T], node_name: str, address: str) -> Generator[Call[T], Any, T]:
        """Yields the calls to send, and receives their replies or errors. Returns the result of the
        call, or raises its error. `node_name` is "" outside of a cluster, and `address` the address
        with which the limiter was configured.
        """
        node = self._nodes[node_name]
        breaker = node.breaker
        started_at = self._clock()
        resends = self._resends
        attempt = call
        full_error: FullError | None = None
        while True:
            sent_at = self._clock()
            if not (breaker.allows() or call.bypasses_breaker):
                why_not = f"{node_name or address} was not asked: it failed a moment ago"
                return _fallback(call, UnavailableError(why_not))
            try:
                reply = yield attempt
            except self._encoding_error as error:
                raise CallError(str(error)) from error
            except self._errors as error:
                text = self._error_text(error)
                if text is not None:
                    self._record_answer(node)
                    # A server that became a replica has charged nothing: resend to the new primary.
                    if text.startswith("READONLY ") and resends > 0:
                        resends -= 1
                        continue
                    why = replies.to_exception(text)
                    why.__cause__ = error
                    alternative = self._alternative(attempt, text, why)
                    if alternative is not None:
                        attempt, full_error = (
                            alternative,
                            why if isinstance(why, FullError) else None,
                        )
                        continue
                    if isinstance(why, CallError) and full_error is not None:
                        # Only the call without an id is malformed: report the first error.
                        why = full_error
                    return self._refusal(call, text, why, node, node_name or address)
                # A failure after a long wait does not count as consecutive.
                if call.deadline is not None and self._clock() - sent_at >= breaker.pause:
                    resends = self._resends
                    breaker.succeeded()
                if resends == 0 or self._clock() - started_at >= attempt.resendable_for:
                    breaker.failed(sent_at)
                    message = f"{node_name or address}: {_describe(error)}"
                    node.away.failed(message)
                    unavailable = UnavailableError(message)
                    unavailable.__cause__ = error
                    return _fallback(call, unavailable)
                resends -= 1
            else:
                if node.has_failures:
                    self._record_answer(node)
                    node.refusing.succeeded()
                return attempt.decode(reply)

    def _alternative(self, call: Call[T], text: str, why: RateLimitError) -> Call[T] | None:
        """Returns the same call with an id, or without its id, if that may not be rejected."""
        if isinstance(why, FullError) and replies.may_pass_without_id(text):
            if call.without_id is not None:
                self._complaint.log_reply(text, call.key, why)
            return call.without_id
        if isinstance(why, CallError) and call.with_id and str(why).startswith(NEEDS_ID):
            return call.with_id()
        return None

    def _record_answer(self, node: _Node) -> None:
        node.breaker.succeeded()
        node.away.succeeded()
        # While no node of the cluster was known, failures were counted for the name "".
        self._nodes[""].away.succeeded()

    def _error_text(self, error: BaseException) -> str | None:
        """Returns the server's error reply. None if there was none, so that the outcome of the call
        is unknown, or if the call has to be sent to another node.
        """
        if self.is_from_former_primary(error):
            return None
        if isinstance(error, RefusedError):
            return str(error)
        cause: BaseException | None = error
        # A client that reaches no node of its cluster chains the cause.
        while isinstance(cause, self._cluster_errors):
            cause = cause.__cause__ or cause.__context__
        reply = None if cause is None else replies.reply_of(cause, self._response_error)
        if reply is None or cause is error:
            return reply
        return reply if replies.cause_of(reply) is replies.Cause.OPERATOR else None

    def is_from_former_primary(self, error: BaseException) -> bool:
        """Returns `True` if the error ended a blocked call because its server became a replica."""
        return isinstance(error, (RefusedError, self._response_error)) and str(error).startswith(
            "UNBLOCKED force"
        )

    def may_have_moved(self, error: Exception) -> bool:
        """Returns `True` if another node of the cluster may have the key of the call."""
        if not isinstance(error, self._errors):
            return False
        text = self._error_text(error)
        return text is None or text.startswith(("MOVED ", "ASK ", "TRYAGAIN ", "CLUSTERDOWN "))

    def _refusal(
        self, call: Call[T], text: str, why: RateLimitError, node: _Node, address: str
    ) -> T:
        """Returns or raises the result of a call that the server answered with an error."""
        if isinstance(why, UnavailableError):
            node.refusing.failed(f"{address}: {why}")
            return _fallback(call, why)
        if isinstance(why, SetupError):
            self._complaint.log_reply(text, call.key, why)
            if self._setup_errors == "outage":
                return _fallback(call, why)
        elif isinstance(why, FullError):
            self._complaint.log_reply(text, call.key, why)
            return _fallback(call, why)
        raise why


def _describe(error: BaseException) -> str:
    """Returns the class and text of an error; the `repr` of redis-py 8 lacks the text."""
    return f"{type(error).__name__}: {error}"


def _fallback(call: Call[T], error: Undecided) -> T:
    if call.fallback is None:
        raise error
    return call.fallback(error)
