"""Decisions: what the server answers."""

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

# Where it was made: on the server, by the limits of this process, or nowhere (`on_outage` "open" or
# "closed", or there is no room on the server).
Source: TypeAlias = Literal["server", "local", "none"]

NEVER = -1


@dataclass(frozen=True)
class Decision:
    """Whether a call passes, and what is left. It is true if the call passes."""

    allowed: bool
    # In whole units. Of several limits: of the one that denies longest, else of the one that would
    # run out first. None: nobody decided, during an outage.
    limit: int | None
    remaining: int | None
    # Allowed: hold the request so long before it is acted on, usually 0. Denied: the same passes
    # after so long, if no other comes before; -1 if it never does.
    wait_ms: int
    # Until the limit has fully recovered; None with `limit`.
    reset_ms: int | None
    # With `upto`: how many units.
    granted: int | None = None
    # What each limit says for itself, if that was asked for.
    each: tuple[Decision, ...] = ()
    # The name of the limit: that under which it is bound, or of one in `each` its own.
    name: str | None = None
    # The policy that ruled, if `each` was asked for.
    policy: str | None = None
    # With `policy`: whether a limit of it has FORCE, so that a denial may be a charge.
    forced: bool | None = field(default=None, compare=False)
    source: Source = "server"
    # A denial of the server that this process remembered: the server was not asked again.
    remembered: bool = False
    # What the server knows the charge by: for `settle`.
    id: str | bytes | None = None
    # Of a lease with `fence` that is granted: its token.
    token: int | None = None
    # Why the server did not decide: an UnavailableError or a FullError.
    error: RateLimitError | None = field(default=None, compare=False)
    # The limits of the call.
    limits: tuple[Limit, ...] = field(default=(), compare=False, repr=False)
    # Settles it, if it can be settled.
    _settle: Callable[[float | Decimal], Any] | None = field(
        default=None, compare=False, repr=False
    )

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def degraded(self) -> bool:
        """Whether the server did not decide it: `limit`, `remaining` and `reset` are those of this
        process, or None.
        """
        return self.source != "server"

    def but(self, **changes: Any) -> Decision:
        """The decision with these changes: `dataclasses.replace`, faster."""
        made = object.__new__(Decision)
        made.__dict__.update(self.__dict__)
        made.__dict__.update(changes)
        return made

    def require(self) -> Decision:
        """Itself, if the call passes; else DeniedError."""
        if not self.allowed:
            raise DeniedError(self)
        return self

    def settle(self, cost: float | Decimal) -> Any:
        """Corrects the charge to what the call turned out to cost, as `Limiter.settle`; with
        asyncio it is awaited. ValueError if the server remembers nothing of the call.
        """
        if self._settle is None:
            why = "was denied" if not self.allowed else "has no id: take it with refundable=True"
            raise ValueError(f"this charge cannot be settled, as it {why}")
        return self._settle(cost)

    @property
    def wait(self) -> float | None:
        """`wait_ms` in seconds; None: never."""
        return None if self.wait_ms == NEVER else self.wait_ms / 1000

    @property
    def reset(self) -> float | None:
        """`reset_ms` in seconds."""
        return None if self.reset_ms is None else self.reset_ms / 1000


class DeniedError(RateLimitError):
    """There is no room, and none came while it was waited for.

    `status`, `headers` and `body` are those of the response. The adapters for frameworks have
    handlers that send it.
    """

    def __init__(self, decision: Decision, response: Denial | None = None) -> None:
        why = f"the limit is {decision.limit}" if decision.error is None else str(decision.error)
        super().__init__(f"denied; {why}")
        self.decision = decision
        self._response = response

    @property
    def response(self) -> Denial:
        """Response to the request: 429, or 503 if the server is away or has no room."""
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


def read(reply: Sequence[Any]) -> Decision:
    """Five integers; a sixth is how many units were granted, and text is the limit's name."""
    allowed, limit, remaining, wait_ms, reset_ms, *more = reply
    granted = more[0] if more and isinstance(more[0], int) else None
    name = text(more[-1]) if more and not isinstance(more[-1], int) else None
    return Decision(bool(allowed), limit, remaining, wait_ms, reset_ms, granted, name=name)


def read_fenced(reply: Sequence[Any]) -> Decision:
    """Five integers, and the token of the lease; 0 if there is none."""
    *decision, token = reply
    return read(decision).but(token=token or None)


def read_each(reply: Sequence[Any], costs: Sequence[float]) -> Decision:
    """What all decide, what each says, and perhaps the policy that ruled. There are no costs of a
    policy, as only the server knows them.
    """
    allowed, wait_ms, decisions, *policy = reply
    decision = together(bool(allowed), wait_ms, [read(one) for one in decisions], costs)
    if not policy:
        return decision
    forced = any(text(word) == "FORCE" for word in policy[2:])
    return replace(decision, policy=text(policy[0]), forced=forced)


def together(
    allowed: bool, wait_ms: int, each: Sequence[Decision], costs: Sequence[float] = ()
) -> Decision:
    """One decision for all, as the server makes it: with the numbers of the limit that denies with
    this wait, else of the one that would run out first under calls like this; without costs, of the
    one that has the least share left.
    """
    # One in the shadow of a policy may deny though the call passes: it does not govern.
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
    """Names are any bytes; what is no UTF-8 is shown escaped."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")
