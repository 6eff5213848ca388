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
LONGEST = 3650 * 86400


@dataclass(frozen=True)
class Call(Generic[T]):
    """Command, and the policy for sending it."""

    # Key that selects the node of a cluster.
    key: Key
    words: Sequence[Word]
    read: Callable[[Any], T]
    # Seconds within which the call may be resent.
    repeatable: float = math.inf
    # Read-only call: a replica can answer it.
    is_peek: bool = False
    # Keys whose remembered denials the call invalidates.
    frees: Sequence[Key] = ()
    # Sent even while the circuit breaker is open, as skipping the call would do more harm.
    insists: bool = False
    # Deadline by the limiter's clock of a call that blocks in the server; None: does not block.
    until: float | None = None
    # Fallback if the server is unavailable or has no room; None: the error is raised.
    without: Callable[[Undecided], T] | None = None
    # The same call without its generated idempotency key, for a key that has no room for one.
    unnamed: Call[T] | None = None
    # The same call with an idempotency key, for a policy that requires one.
    named: Callable[[], Call[T]] | None = None

    def is_over(self, reply: Any) -> bool:
        """Returns `True` if the reply to a non-blocking attempt ends the wait of this call."""
        decision = self.read(reply)
        return isinstance(decision, Decision) and (decision.allowed or decision.wait is None)


def blocking(call: Call[Any], remaining: float) -> list[Word]:
    """Returns the words of a call that may block for `left` more seconds."""
    if remaining <= 0:
        return list(call.words)
    # BLOCK 0 waits without a timeout.
    word = duration(remaining, "wait") if remaining < LONGEST else "0"
    return [*call.words, "BLOCK", word]
