"""Limits that are bound to a limiter, under a name or without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from redis_ratelimit.addresses import IPV6_PREFIX, UNKNOWN, network
from redis_ratelimit.limits import Concurrency, Limit
from redis_ratelimit.quantities import Key
from redis_ratelimit.rates import EXAMPLES, AnyLimit, is_rate, limits_of

# Prefix of the keys of clients that are identified by their address.
BY_ADDRESS = "ip"


class _Everybody:
    """Type of `EVERYBODY`."""

    def __repr__(self) -> str:
        return "EVERYBODY"


# Default of `who`: the key that all callers share. Not None, which a function for an unknown caller
# may return.
EVERYBODY: Final[Any] = _Everybody()


def canonical_words(limits: Sequence[Limit]) -> Key:
    """Returns the canonical words of limits, the same in all packages."""
    parts = [limit.canonical for limit in limits]
    if all(isinstance(part, str) for part in parts):
        return "+".join(map(str, parts))
    return b"+".join(part.encode() if isinstance(part, str) else part for part in parts)


def name_and_limits(arguments: Sequence[AnyLimit]) -> tuple[str | None, tuple[Limit, ...]]:
    """Returns the name, if any, and the limits from the arguments of `limiter.limit`, such as
    `limit("api", Fixed(100, "1m"))`.
    """
    name: str | None = None
    limits = tuple(arguments)
    if limits and isinstance(limits[0], str) and not is_rate(limits[0]):
        name, *others = limits  # type: ignore[assignment]
        limits = tuple(others)
    if not limits:
        raise ValueError(f"a limit is needed, after its name: limit('api', {EXAMPLES})")
    return name, limits_of(limits)


class BaseBound:
    """Limits bound to a limiter. `options` are the defaults of every `take`.

    The keys begin with the name. Without a name they begin with the canonical words of the limits,
    so that two limits of one client have two keys.
    """

    def __init__(
        self, limiter: Any, name: str | None, limits: Sequence[Limit], options: dict[str, Any]
    ) -> None:
        if not limits:
            raise ValueError(f"a limit is needed, such as {EXAMPLES}")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"a name must be text, not {name!r}")
        self.name = name
        self.limits = tuple(limits)
        self.limiter = limiter
        self._options = options
        # Set while the name is in use (`Names`).
        self._name_in_use: _NameInUse | None = None
        self._stem = canonical_words(self.limits) if name is None else name
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
        """Returns the key of a client, by its address, for which a key function returns no key."""
        return self.key_of_client(network(address, ipv6_prefix) if address else None)

    def key_of_client(self, client_name: str | None) -> Key:
        """Returns the key of a client with this name, or of all clients without an address."""
        client_name = client_name or UNKNOWN
        if isinstance(self._stem, str):
            return f"{BY_ADDRESS}:{self._stem}:{client_name}"
        return f"{BY_ADDRESS}:".encode() + self._stem + f":{client_name}".encode()

    def _set_name(self, decision: Any) -> None:
        """Sets the name of a decision."""
        decision.__dict__["name"] = self.name

    def _concurrency_limit(self) -> Concurrency:
        limit = self.limits[0]
        if len(self.limits) > 1 or not isinstance(limit, Concurrency):
            raise TypeError(f"{self._stem!r} is not one Concurrency limit")
        return limit


class _NameInUse:
    """Use of a name, shared by all limits that are bound to it."""

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        # Limits that were bound to the name first.
        self.first = limits


class Names:
    """Names in use by a limiter: each while limits that are bound to it exist."""

    def __init__(self) -> None:
        self._by_name: WeakValueDictionary[str, _NameInUse] = WeakValueDictionary()

    def bind(self, bound: BaseBound) -> None:
        """Registers a name. Raises ValueError if limits of another algorithm or window have the
        name: they would share usage, or the server would reject the calls.
        """
        if bound.name is None:
            return
        in_use = self._by_name.setdefault(bound.name, _NameInUse(bound.limits))
        if _shapes(in_use.first) != _shapes(bound.limits):
            raise ValueError(
                f"{bound.name!r} is already the name of {canonical_words(in_use.first)!r}: "
                f"limits of another kind or window, as {canonical_words(bound.limits)!r}, need "
                f"another name, or one name for both: limiter.limit({bound.name!r}, first, second)"
            )
        bound._name_in_use = in_use


def _shapes(limits: tuple[Limit, ...]) -> list[str]:
    return sorted(repr(limit.shape) for limit in limits)
