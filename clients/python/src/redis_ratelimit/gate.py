"""Common part of the adapters for frameworks: the limits of a request, and its response."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from redis_ratelimit import headers
from redis_ratelimit.addresses import IPV6_PREFIX, checked_prefix, client
from redis_ratelimit.decision import Decision
from redis_ratelimit.headers import Denial
from redis_ratelimit.limits import Limit, Policy
from redis_ratelimit.named import BaseBound
from redis_ratelimit.quantities import Amount, Key
from redis_ratelimit.rates import AnyLimit, by_key, listed


class Unlimited(Enum):
    """Type of `UNLIMITED`."""

    UNLIMITED = "unlimited"


# Result of a function of the request, in place of a key or a limit: the request has no limit.
UNLIMITED: Final = Unlimited.UNLIMITED

# Result of a key function: the caller. None and an empty key stand for the client's address.
MaybeKey: TypeAlias = Key | Unlimited | None

# Result of a limit function: limits of the request, or limits by their keys.
Limits: TypeAlias = AnyLimit | Sequence[AnyLimit] | BaseBound | Mapping[Key, AnyLimit] | Unlimited

# Argument of an adapter: limits, or a function of the request.
LimitArgument: TypeAlias = AnyLimit | Sequence[AnyLimit] | BaseBound | Callable[..., Any]


class Response(NamedTuple):
    """Response to a request: the argument of `refund`."""

    status_code: int
    headers: Mapping[str, str]


class Charge(NamedTuple):
    """Charge of one request: either of `bound` at `key` or, if `bound` is None, of `limits`."""

    bound: BaseBound | None
    key: Key
    limits: Mapping[Key, Limit]


class BaseGate:
    """Limits of requests. Subclasses use a limiter for threads or for asyncio.

    limit       a limit, a rate such as "100/minute", a policy, several of them, or a limit that is
                bound to its limiter; or a function of the request that returns one of these, or
                `{key: limit}`, or UNLIMITED.
    key         a function of the request; without it the limit is by the client's address.
    cost        a number, or a function of the request.
    name        the name of a limit that is not bound.
    unix_reset  X-RateLimit-Reset is in seconds since 1970.
    ipv6_prefix length of the IPv6 networks that are counted as one client.
    refund      a function of the response: `True` gives the charge back.
    denied      a function of the request and its `Denial` that returns the framework's response.
    """

    def __init__(
        self,
        limit: LimitArgument,
        *,
        limiter: Any = None,
        key: Callable[..., Any] | None = None,
        cost: Amount | Callable[..., Amount] | None = None,
        name: str | None = None,
        unix_reset: bool = False,
        ipv6_prefix: int = IPV6_PREFIX,
        refund: Callable[[Any], bool] | None = None,
        denied: Callable[..., Any] | None = None,
    ) -> None:
        self._limiter = limiter
        self._key = key
        self._cost = cost
        self._name = name
        self._unix_reset = unix_reset
        self._ipv6_prefix = checked_prefix(ipv6_prefix)
        self._refund = refund
        self._denied = denied
        self._bound: BaseBound | None = None
        if isinstance(limit, BaseBound):
            self._bound = limit
            if name is not None:
                raise TypeError(f"the limit is bound already: its name cannot be {name!r}")
            return
        if limiter is None:
            raise TypeError(
                "a limiter is needed, or a limit that has one: limiter.limit('api', limit)"
            )
        if callable(limit):
            self._limit_of = limit
        else:
            self._bound = limiter.limit(*self._with_name(listed(limit)))

    def _with_name(self, limits: Sequence[Limit]) -> Sequence[AnyLimit]:
        return limits if self._name is None else (self._name, *limits)

    def _charge(self, limits: Limits, caller: Any, address: str | None) -> Charge | None:
        """Returns the charge of a request, or None if the request has no limit. `caller` is the
        result of the key function, and None without a key function.
        """
        if limits is UNLIMITED or caller is UNLIMITED:
            return None
        if isinstance(limits, Mapping):
            if self._key is not None:
                raise TypeError("limits by their keys need no key function")
            return Charge(None, "", {_checked_key(key): one for key, one in by_key(limits).items()})
        bound = limits if isinstance(limits, BaseBound) else self._bound_to(limits)
        if self._key is not None and caller is not None and caller not in {"", b""}:
            return Charge(bound, bound.key_of(caller), {})
        client_name = client(address, self._ipv6_prefix)
        if self._key is None and client_name is not None:
            return Charge(bound, bound.key_of(client_name), {})
        return Charge(bound, bound.key_of_client(client_name), {})

    def _bound_to(self, limits: Any) -> BaseBound:
        """Binds the result of a limit function, which may differ from request to request."""
        if self._name is None:
            raise TypeError(
                "a function that returns limits needs a name, under which all of them count: "
                "name='api'; or it returns limits by their keys: {f'user:{user}': limit}"
            )
        bound: BaseBound = self._limiter._bind_unchecked(self._name, listed(limits))
        return bound

    def _options(self, charge: Charge, cost: Any) -> dict[str, Any]:
        options: dict[str, Any] = {} if cost is None else {"cost": cost}
        if self._refund is not None:
            options["refundable"] = True
        # A policy may have limits that clients must not see.
        if charge.bound is not None and not isinstance(charge.bound.limits[0], Policy):
            options["each"] = True
        return options

    def is_refunded(self, decision: Decision, response: Any) -> bool:
        """Returns `True` if the charge is to be given back, now that the response is known."""
        return (
            self._refund is not None
            and decision.allowed
            and not decision.degraded
            and bool(self._refund(response))
        )

    @property
    def may_refund(self) -> bool:
        """`True` if a charge may be given back."""
        return self._refund is not None

    def fields(self, decision: Decision) -> dict[str, str]:
        """Returns the header fields of a response."""
        return headers.fields(decision, name=self._name, unix_reset=self._unix_reset)

    def denial(self, decision: Decision) -> Denial:
        """Returns the response to a request that is denied."""
        return Denial.of(decision, name=self._name, unix_reset=self._unix_reset)


def _checked_key(key: Any) -> Key:
    if isinstance(key, (str, bytes)) and key:
        return key
    raise TypeError(f"limits by their keys need keys of text or bytes, not {key!r}")
