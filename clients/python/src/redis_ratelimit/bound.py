# Generated from aio_bound.py by scripts/make_sync.py: edit that file, and run `make sync`.

"""Limits under a name: `limiter.limit("api", Fixed(100, "1m"))`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from redis_ratelimit import sketches
from redis_ratelimit.decision import Decision
from redis_ratelimit.lease import Lease
from redis_ratelimit.named import EVERYBODY, BaseBound
from redis_ratelimit.quantities import Amount, Key
from redis_ratelimit.units import Units

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from redis_ratelimit.options import PeekOptions, TakeOptions

F = TypeVar("F", bound=Callable[..., Any])


class Bound(BaseBound):
    """Limits bound to a limiter, with the limiter's calls. Without `who`, the key is the name
    alone, and all callers share the limit.
    """

    def take(self, who: Key = EVERYBODY, **options: Unpack[TakeOptions]) -> Decision:
        """Charges the limits, as `Limiter.take`."""
        return self._take(self.key_of(who), options)

    def _take(self, key: Key, options: TakeOptions) -> Decision:
        if self._options:
            options = {**self._options, **options}  # type: ignore[typeddict-item]
        decision: Decision = self.limiter.take(key, *self.limits, **options)
        self._set_name(decision)
        return decision

    def peek(self, who: Key = EVERYBODY, **options: Unpack[PeekOptions]) -> Decision:
        """Returns the decision that `take` would make now. Changes nothing."""
        decision: Decision = self.limiter.peek(self.key_of(who), *self.limits, **options)
        self._set_name(decision)
        return decision

    def settle(self, who: Key = EVERYBODY, *, id: Key, cost: Amount) -> Decision:
        """Corrects a charge, as `Limiter.settle`."""
        decision: Decision = self.limiter.settle(self.key_of(who), *self.limits, id=id, cost=cost)
        return decision

    def give_back(self, who: Key = EVERYBODY, *, cost: Amount = 1) -> Decision:
        """Lowers the usage, as `Limiter.give_back`."""
        decision: Decision = self.limiter.give_back(self.key_of(who), *self.limits, cost=cost)
        return decision

    def reset(self, who: Key = EVERYBODY) -> bool:
        """Deletes the usage, as `Limiter.reset`."""
        sketches.refuse(self.limits)
        return bool(self.limiter.reset(self.key_of(who)))

    def lease(
        self,
        who: Key = EVERYBODY,
        holder: Key | None = None,
        *,
        wait: float | None = 0.0,
        fence: bool = False,
    ) -> Lease:
        """Returns a lease of a concurrency limit, as `Limiter.lease`."""
        lease: Lease = self.limiter.lease(
            self.key_of(who), self._concurrency_limit(), holder, wait=wait, fence=fence
        )
        return lease

    def units(
        self,
        who: Key = EVERYBODY,
        *,
        batch: int | None = None,
        keep: float = 1.0,
        peers: int | None = None,
    ) -> Units:
        """Returns units of a hot key, as `Limiter.units`."""
        units: Units = self.limiter.units(
            self.key_of(who), *self.limits, batch=batch, keep=keep, peers=peers
        )
        return units

    def __call__(self, key: Key | Callable[..., Key] = EVERYBODY) -> Callable[[F], F]:
        """Decorates a function: each call is charged to this key, or to the key that a function
        returns for the arguments. A denied call raises DeniedError.
        """

        def limited(function: F) -> F:
            @wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                who = key(*args, **kwargs) if callable(key) else key
                (self.take(who)).require()
                return function(*args, **kwargs)

            return call  # type: ignore[return-value]

        return limited
