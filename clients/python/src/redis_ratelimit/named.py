"""What limits under a name are, of both kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from redis_ratelimit.limits import Concurrency, Limit
from redis_ratelimit.quantities import Key


class _Everybody:
    """Whom a call is for that names nobody."""

    def __repr__(self) -> str:
        return "EVERYBODY"


# Not None: a caller that is not known would have everybody's limit.
EVERYBODY: Final[Any] = _Everybody()


class Named:
    """`options` are those of every `take`, unless the call says otherwise."""

    def __init__(
        self, limiter: Any, name: str, limits: Sequence[Limit], options: dict[str, Any]
    ) -> None:
        if not limits:
            raise ValueError("a call needs a limit, such as Fixed(100, '1m') or Policy('api')")
        if not isinstance(name, str):
            raise TypeError(f"a name must be text, not {name!r}")
        self.name = name
        self.limits = tuple(limits)
        self.limiter = limiter
        self._options = options

    def key_of(self, who: Key = EVERYBODY) -> Key:
        """The name, a colon and whoever it is; without `who`, the name, for all together."""
        if isinstance(who, str):
            return f"{self.name}:{who}"
        if isinstance(who, bytes):
            return self.name.encode() + b":" + who
        if who is EVERYBODY:
            return self.name
        raise TypeError(f"a key must be text or bytes, not {who!r}")

    def _concurrency(self) -> Concurrency:
        limit = self.limits[0]
        if len(self.limits) > 1 or not isinstance(limit, Concurrency):
            raise TypeError(f"{self.name} is not one Concurrency limit")
        return limit
