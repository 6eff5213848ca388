"""Call: the words of one command, and the decoder of its reply. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from redis_ratelimit.decision import Decision
from redis_ratelimit.errors import FullError, SetupError, UnavailableError
from redis_ratelimit.quantities import Key, Word, duration

T = TypeVar("T")

# Reason why the server did not decide. A SetupError only with `setup_errors="outage"`.
Undecided: TypeAlias = UnavailableError | FullError | SetupError

# Largest duration that the server accepts, in seconds.
MAX_DURATION = 3650 * 86400


@dataclass(frozen=True)
class Call(Generic[T]):
    """Command, and how to send it."""

    # Key that selects the node of a cluster.
    key: Key
    words: Sequence[Word]
    decode: Callable[[Any], T]
    # Seconds within which the call may be resent.
    resendable_for: float = math.inf
    # Read-only call: a replica can answer it.
    is_peek: bool = False
    # Keys whose remembered denials the call invalidates.
    invalidated_keys: Sequence[Key] = ()
    # `True` if the call is sent even while the circuit breaker is open, as skipping it would do
    # more harm.
    bypasses_breaker: bool = False
    # Deadline, by the limiter's clock, of a call that blocks in the server; None: it does not
    # block.
    deadline: float | None = None
    # Fallback if the server is unavailable or has no room; None: the error is raised.
    fallback: Callable[[Undecided], T] | None = None
    # The same call without its generated idempotency key, for a key that has no room for one.
    without_id: Call[T] | None = None
    # The same call with an idempotency key, for a policy that requires one.
    with_id: Callable[[], Call[T]] | None = None

    def is_over(self, reply: Any) -> bool:
        """Returns `True` if the reply to a non-blocking attempt ends the wait of this call."""
        decision = self.decode(reply)
        return isinstance(decision, Decision) and (decision.allowed or decision.wait is None)


def blocking_words(call: Call[Any], remaining: float) -> list[Word]:
    """Returns the words of a call that may block for `remaining` more seconds."""
    if remaining <= 0:
        return list(call.words)
    # BLOCK 0 waits without a timeout.
    word = duration(remaining, "wait") if remaining < MAX_DURATION else "0"
    return [*call.words, "BLOCK", word]
