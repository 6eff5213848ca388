"""Decisions of a limiter, and the decoding of the server's replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from redis_ratelimit.errors import RateLimitError

if TYPE_CHECKING:
    from redis_ratelimit.headers import Denial
    from redis_ratelimit.limits import Limit

# Origin of a decision: the server, the limits of this process, or none (`on_outage` is "open" or
# "closed", or the server has no room).
Source: TypeAlias = Literal["server", "local", "none"]

NEVER = -1


@dataclass(frozen=True)
class Decision:
    """Decision on a call. It is true if the call is allowed."""

    allowed: bool
    # Limit and remaining units, in whole units. Among several limits, those of the governing limit:
    # the limit that denies longest, or else the limit that would run out first. None if `source` is
    # "none".
    limit: int | None
    remaining: int | None
    # Milliseconds. Allowed: hold the request this long before acting on it, usually 0. Denied: the
    # same call passes after this wait unless others come first; -1 if it never passes.
    wait_ms: int
    # Milliseconds until the limit has fully recovered; None if `limit` is None.
    reset_ms: int | None
    # Units granted to a call with `upto`.
    granted: int | None = None
    # Decisions of the single limits, for a call with `each`.
    each: tuple[Decision, ...] = ()
    # Name of the limit: the name that it is bound to, or within `each` its own.
    name: str | None = None
    # Name of the policy that decided, for a call with `each`.
    policy: str | None = None
    # With `policy`: `True` if one of its limits has FORCE, so that a denied call may be charged.
    forced: bool | None = field(default=None, compare=False)
    source: Source = "server"
    # `True` for a denial that this process remembered without asking the server again.
    remembered: bool = False
    # Idempotency key of the charge, for `settle`.
    id: str | bytes | None = None
    # Fencing token of a granted lease.
    token: int | None = None
    # Reason why the server did not decide: an UnavailableError, a FullError, or a SetupError if the
    # limiter treats a misconfiguration as an outage.
    error: RateLimitError | None = field(default=None, compare=False)
    # Limits of the call.
    limits: tuple[Limit, ...] = field(default=(), compare=False, repr=False)
    # Function that settles the charge, if it can be settled.
    _settle: Callable[[float | Decimal], Any] | None = field(
        default=None, compare=False, repr=False
    )

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def degraded(self) -> bool:
        """`True` if the server did not decide: `limit`, `remaining` and `reset` are those of this
        process, or None.
        """
        return self.source != "server"

    def but(self, **changes: Any) -> Decision:
        """Returns a copy with these changes; faster than `dataclasses.replace`."""
        decision = object.__new__(Decision)
        decision.__dict__.update(self.__dict__)
        decision.__dict__.update(changes)
        return decision

    def require(self) -> Decision:
        """Returns the decision itself, or raises DeniedError if the call is denied."""
        if not self.allowed:
            raise DeniedError(self)
        return self

    def settle(self, cost: float | Decimal) -> Any:
        """Corrects the charge to the actual cost, as `Limiter.settle`; with asyncio it is awaited.
        Raises ValueError if the charge has no idempotency key.
        """
        if self._settle is None:
            why = "was denied" if not self.allowed else "has no id: take it with refundable=True"
            raise ValueError(f"this charge cannot be settled, as it {why}")
        return self._settle(cost)

    @property
    def wait(self) -> float | None:
        """`wait_ms` in seconds, or None if the call never passes."""
        return None if self.wait_ms == NEVER else self.wait_ms / 1000

    @property
    def reset(self) -> float | None:
        """`reset_ms` in seconds."""
        return None if self.reset_ms is None else self.reset_ms / 1000


class DeniedError(RateLimitError):
    """Denial of a call by its limits.

    `status`, `headers` and `body` describe the response to the request. The adapters for frameworks
    have handlers that send it.
    """

    def __init__(self, decision: Decision, response: Denial | None = None) -> None:
        why = f"the limit is {decision.limit}" if decision.error is None else str(decision.error)
        super().__init__(f"denied; {why}")
        self.decision = decision
        self._response = response

    @property
    def response(self) -> Denial:
        """Response to the request: 429, or 503 if the server is unavailable or has no room."""
        if self._response is None:
            from redis_ratelimit.headers import Denial  # noqa: PLC0415  it needs this module

            self._response = Denial.of(self.decision)
        return self._response

    @property
    def status(self) -> int:
        """HTTP status of the response."""
        return self.response.status

    @property
    def headers(self) -> dict[str, str]:
        """Header fields of the response."""
        return self.response.headers

    @property
    def body(self) -> bytes:
        """Body of the response, `application/problem+json`."""
        return self.response.body


def decode(reply: Sequence[Any]) -> Decision:
    """Decodes a reply: five integers, then the granted units and the limit's name, if any."""
    allowed, limit, remaining, wait_ms, reset_ms, *more = reply
    granted = more[0] if more and isinstance(more[0], int) else None
    name = text(more[-1]) if more and not isinstance(more[-1], int) else None
    return Decision(bool(allowed), limit, remaining, wait_ms, reset_ms, granted, name=name)


def decode_fenced(reply: Sequence[Any]) -> Decision:
    """Decodes a reply of five integers and the fencing token of the lease, 0 if there is none."""
    *decision, token = reply
    return decode(decision).but(token=token or None)


def decode_each(reply: Sequence[Any], costs: Sequence[float]) -> Decision:
    """Decodes a reply with the decision of each limit and, for a policy, its name. `costs` are
    empty for a policy, whose costs only the server knows.
    """
    allowed, wait_ms, decisions, *policy = reply
    each = [decode(decision) for decision in decisions]
    decision = combine(each, costs, allowed=bool(allowed), wait_ms=wait_ms)
    if not policy:
        return decision
    forced = any(text(word) == "FORCE" for word in policy[2:])
    return replace(decision, policy=text(policy[0]), forced=forced)


def combine(
    each: Sequence[Decision], costs: Sequence[float] = (), *, allowed: bool, wait_ms: int
) -> Decision:
    """Combines the decisions of several limits, as the server does. The numbers are those of the
    governing limit: the limit that denies with this wait, or else the limit that would run out
    first under calls with these costs; without costs, the limit with the least share left.
    """
    # A shadow limit of a policy may deny although the call passes: it does not govern.
    agreeing = [one for one in each if one.allowed == allowed] or each
    if not allowed:
        governing = next((one for one in agreeing if one.wait_ms == wait_ms), agreeing[0])
    else:
        units: Sequence[float] = costs or [one.limit or 1 for one in each]
        _, governing = min(
            (
                ((one.remaining or 0) / (unit or 1), one)
                for one, unit in zip(each, units, strict=True)
                if one in agreeing
            ),
            key=itemgetter(0),
        )
    granted = [one.granted for one in each if one.granted is not None]
    return replace(
        governing,
        allowed=allowed,
        wait_ms=wait_ms,
        granted=min(granted) if granted else None,
        each=tuple(each),
        name=None,
    )


def text(value: str | bytes) -> str:
    """Returns a name as text. Names are any bytes; invalid UTF-8 is escaped."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")
