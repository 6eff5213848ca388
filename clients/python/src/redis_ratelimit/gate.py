"""What the adapters for frameworks share: whom they ask, and what they answer a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis_ratelimit import headers
from redis_ratelimit.decision import Decision
from redis_ratelimit.limits import Limit, Policy
from redis_ratelimit.named import Named


class Gate:
    """`limit` is one limit, several, a policy, or a limit under a name, which brings its limiter.
    `name` is what the limit is called in header fields if it has no name of its own. With
    `unix_reset`, X-RateLimit-Reset is in seconds since 1970.
    """

    def __init__(
        self,
        limiter: Any,
        limit: Limit | Sequence[Limit] | Named,
        name: str = "default",
        unix_reset: bool = False,
    ) -> None:
        if isinstance(limit, Named):
            self.limits = limit.limits
            self._take: Callable[..., Any] = limit.take  # type: ignore[attr-defined]
        else:
            if limiter is None:
                raise TypeError(
                    "a limiter is needed, or a limit that has one: limiter.limit('api', limit)"
                )
            self.limits = (limit,) if isinstance(limit, Limit) else tuple(limit)
            self._take = lambda key, **options: limiter.take(key, *self.limits, **options)
        self.name = name
        self._unix_reset = unix_reset
        # A policy may have limits that clients are not told of.
        self._each = not isinstance(self.limits[0], Policy)

    def take(self, key: Any, cost: Any = None) -> Any:
        """The decision; with asyncio it is awaited."""
        options: dict[str, Any] = {} if cost is None else {"cost": cost}
        return self._take(key, each=self._each, **options)

    def fields(self, decision: Decision) -> dict[str, str]:
        return headers.fields(decision, self.limits, name=self.name, unix_reset=self._unix_reset)

    def denial(self, decision: Decision) -> Denial:
        body = headers.problem(decision, self.limits, name=self.name)
        fields = self.fields(decision)
        fields |= {"Content-Type": "application/problem+json", "Content-Length": str(len(body))}
        return Denial(headers.status(decision), fields, body)


class Denial(NamedTuple):
    """The response to a request that is denied."""

    status: int
    headers: dict[str, str]
    body: bytes
