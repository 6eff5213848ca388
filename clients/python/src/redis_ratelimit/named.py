"""Limits that are bound to a limiter, under a name or without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from redis_ratelimit.addresses import IPV6_PREFIX, UNKNOWN, network
from redis_ratelimit.limits import Concurrency, Limit
from redis_ratelimit.quantities import Key
from redis_ratelimit.rates import RIGHT_FORM, AnyLimit, is_rate, limits_of

# Prefix of the keys of clients that are identified by their address.
BY_ADDRESS = "ip"


class _Everybody:
    """Type of `EVERYBODY`."""

    def __repr__(self) -> str:
        return "EVERYBODY"


# Default of `who`: the key that all callers share. Not None, which a function for an unknown caller
# may return.
EVERYBODY: Final[Any] = _Everybody()


def spec(limits: Sequence[Limit]) -> Key:
    """Returns the canonical words of limits, the same in all packages."""
    words = [limit.canonical for limit in limits]
    if all(isinstance(one, str) for one in words):
        return "+".join(map(str, words))
    return b"+".join(one.encode() if isinstance(one, str) else one for one in words)


def named(terms: Sequence[AnyLimit]) -> tuple[str | None, tuple[Limit, ...]]:
    """Returns the name and the limits from the arguments of `limiter.limit`, such as `limit("api",
    Fixed(100, "1m"))`. The name is optional.
    """
    name: str | None = None
    limits = tuple(terms)
    if limits and isinstance(limits[0], str) and not is_rate(limits[0]):
        name, *others = limits  # type: ignore[assignment]
        limits = tuple(others)
    if not limits:
        raise ValueError(f"a limit is needed, after its name: limit('api', {RIGHT_FORM})")
    return name, limits_of(limits)


class Named:
    """Limits bound to a limiter. `options` are the defaults of every `take`.

    The keys begin with the name. Without one they begin with the canonical words of the limits, so
    that two limits of one client have two keys.
    """

    def __init__(
        self, limiter: Any, name: str | None, limits: Sequence[Limit], options: dict[str, Any]
    ) -> None:
        if not limits:
            raise ValueError(f"a limit is needed, such as {RIGHT_FORM}")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"a name must be text, not {name!r}")
        self.name = name
        self.limits = tuple(limits)
        self.limiter = limiter
        self._options = options
        self._stem = spec(self.limits) if name is None else name
        self._bytes = self._stem if isinstance(self._stem, bytes) else self._stem.encode()
        if self._bytes == b"ip" or self._bytes.startswith(b"ip:"):
            raise ValueError(
                f"{self._stem!r} is no name for a limit: keys with {BY_ADDRESS}: are those of "
                "client addresses"
            )

    def key_of(self, who: Key = EVERYBODY) -> Key:
        """Returns the key of a caller: the name, or else the canonical words of the limits, a colon
        and `who`. Without `who`, returns the key that all callers share. The limiter's prefix is
        not included.
        """
        if isinstance(who, str):
            if who and isinstance(self._stem, str):
                return f"{self._stem}:{who}"
            who = who.encode()
        if isinstance(who, bytes):
            if not who:
                raise ValueError("a key must not be empty: all callers without one would share it")
            return self._bytes + b":" + who
        if who is EVERYBODY:
            return self._stem
        raise TypeError(f"a key must be text or bytes, not {who!r}")

    def key_of_address(self, address: str | None, ipv6_prefix: int = IPV6_PREFIX) -> Key:
        """Returns the key of a client by its address, as if no key function had found one."""
        return self.key_of_client(network(address, ipv6_prefix) if address else None)

    def key_of_client(self, found: str | None) -> Key:
        """Returns the key of a client by its name. None is a client without an address."""
        found = found or UNKNOWN
        if isinstance(self._stem, str):
            return f"{BY_ADDRESS}:{self._stem}:{found}"
        return f"{BY_ADDRESS}:".encode() + self._stem + f":{found}".encode()

    def _named(self, decision: Any) -> None:
        """Sets the name of a decision."""
        decision.__dict__["name"] = self.name

    def _concurrency(self) -> Concurrency:
        limit = self.limits[0]
        if len(self.limits) > 1 or not isinstance(limit, Concurrency):
            raise TypeError(f"{self._stem!r} is not one Concurrency limit")
        return limit


class Names:
    """Names in use by a limiter, and the limits bound to them."""

    def __init__(self) -> None:
        self._bound: WeakValueDictionary[str, Named] = WeakValueDictionary()

    def bind(self, bound: Named) -> None:
        """Registers a name. Raises ValueError if limits of another algorithm or window have it, as
        they would share usage, or the server would reject the call.
        """
        if bound.name is None:
            return
        existing = self._bound.setdefault(bound.name, bound)
        if _shapes(existing) != _shapes(bound):
            raise ValueError(
                f"{bound.name!r} is already the name of {spec(existing.limits)!r}: limits of "
                f"another kind or window, as {spec(bound.limits)!r}, need another name, or one "
                f"name for both: limiter.limit({bound.name!r}, first, second)"
            )


def _shapes(bound: Named) -> list[str]:
    return sorted(repr(limit.shape) for limit in bound.limits)
