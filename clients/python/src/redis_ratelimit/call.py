"""A call: the words of one command, and how its reply is read. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from redis_ratelimit.decision import Decision
from redis_ratelimit.errors import FullError, SetupError, UnavailableError
from redis_ratelimit.quantities import Key, Word, duration

T = TypeVar("T")

# Why the server did not decide. A SetupError only if the limiter takes one for an outage.
Undecided: TypeAlias = UnavailableError | FullError | SetupError

# Seconds that the server takes as a duration.
LONGEST = 3650 * 86400


@dataclass(frozen=True)
class Call(Generic[T]):
    """One command."""

    # Decides the node of a cluster.
    key: Key
    words: Sequence[Word]
    read: Callable[[Any], T]
    # For how many seconds it may be sent again.
    repeatable: float = math.inf
    # It changes nothing: a replica can answer.
    looks: bool = False
    # Keys of which it may let pass what was denied.
    frees: Sequence[Key] = ()
    # It is made even if the last ones got no reply: what happens if it is not is worse.
    insists: bool = False
    # The server answers when there is room, or then, by the limiter's clock. None: at once.
    until: float | None = None
    # What holds if the server is away or has no room; None: its error is raised.
    without: Callable[[Undecided], T] | None = None
    # The call without the id that it has brought by itself, for a key that has no room for it.
    unnamed: Call[T] | None = None
    # The call with an id, if the server says that it needs one.
    named: Callable[[], Call[T]] | None = None

    def is_over(self, reply: Any) -> bool:
        """Of one that waits and was asked without waiting: whether there is nothing to wait for."""
        decision = self.read(reply)
        return isinstance(decision, Decision) and (decision.allowed or decision.wait is None)


def blocking(call: Call[Any], left: float) -> list[Word]:
    """Its words, if it may wait for so many seconds yet."""
    if left <= 0:
        return list(call.words)
    # To the server 0 is as long as it takes.
    word = duration(left, "wait") if left < LONGEST else "0"
    return [*call.words, "BLOCK", word]
