"""Limits under a name: `limiter.limit("api", Fixed(100, "1m"))`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from redis_ratelimit.decision import Decision
from redis_ratelimit.limits import Amount, Key, Limit

F = TypeVar("F", bound=Callable[..., Any])


class _Named:
    def __init__(
        self, limiter: Any, name: str, limits: Sequence[Limit], options: dict[str, Any]
    ) -> None:
        if not limits:
            raise ValueError("a call needs a limit, such as Fixed(100, '1m') or Policy('api')")
        self.name = name
        self.limits = tuple(limits)
        self._limiter = limiter
        self._options = options

    def key_of(self, who: Key) -> Key:
        """The key of whoever it is."""
        if isinstance(who, str):
            return f"{self.name}:{who}"
        if isinstance(who, bytes):
            return self.name.encode() + b":" + who
        raise TypeError(f"a key must be text or bytes, not {who!r}")


class Bound(_Named):
    """The calls are those of the limiter, without the limits."""

    def take(self, who: Key, **options: Any) -> Decision:
        decision: Decision = self._limiter.take(
            self.key_of(who), *self.limits, **{**self._options, **options}
        )
        return decision

    def peek(self, who: Key, **options: Any) -> Decision:
        decision: Decision = self._limiter.peek(self.key_of(who), *self.limits, **options)
        return decision

    def settle(self, who: Key, *, id: Key, cost: Amount) -> Decision:
        decision: Decision = self._limiter.settle(self.key_of(who), *self.limits, id=id, cost=cost)
        return decision

    def give_back(self, who: Key, *, cost: Amount = 1) -> Decision:
        decision: Decision = self._limiter.give_back(self.key_of(who), *self.limits, cost=cost)
        return decision

    def reset(self, who: Key) -> bool:
        return bool(self._limiter.reset(self.key_of(who)))

    def __call__(self, key: Key | Callable[..., Key]) -> Callable[[F], F]:
        """A decorator: each call of the function is charged to this key, or to what `key` makes of
        its arguments. DeniedError if it does not pass.
        """

        def limited(function: F) -> F:
            @wraps(function)
            def call(*args: Any, **named: Any) -> Any:
                who = key(*args, **named) if callable(key) else key
                (self.take(who)).require()
                return function(*args, **named)

            return call  # type: ignore[return-value]

        return limited


class AsyncBound(_Named):
    """For asyncio. The calls are those of the limiter, without the limits."""

    async def take(self, who: Key, **options: Any) -> Decision:
        decision: Decision = await self._limiter.take(
            self.key_of(who), *self.limits, **{**self._options, **options}
        )
        return decision

    async def peek(self, who: Key, **options: Any) -> Decision:
        decision: Decision = await self._limiter.peek(self.key_of(who), *self.limits, **options)
        return decision

    async def settle(self, who: Key, *, id: Key, cost: Amount) -> Decision:
        decision: Decision = await self._limiter.settle(
            self.key_of(who), *self.limits, id=id, cost=cost
        )
        return decision

    async def give_back(self, who: Key, *, cost: Amount = 1) -> Decision:
        decision: Decision = await self._limiter.give_back(
            self.key_of(who), *self.limits, cost=cost
        )
        return decision

    async def reset(self, who: Key) -> bool:
        return bool(await self._limiter.reset(self.key_of(who)))

    def __call__(self, key: Key | Callable[..., Key]) -> Callable[[F], F]:
        """A decorator: each call of the function is charged to this key, or to what `key` makes of
        its arguments. DeniedError if it does not pass.
        """

        def limited(function: F) -> F:
            @wraps(function)
            async def call(*args: Any, **named: Any) -> Any:
                who = key(*args, **named) if callable(key) else key
                (await self.take(who)).require()
                return await function(*args, **named)

            return call  # type: ignore[return-value]

        return limited
