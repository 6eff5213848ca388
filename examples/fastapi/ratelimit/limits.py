"""What a limit is, what is asked of it, and what Redis answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from string import Formatter
from typing import NamedTuple, Self
from urllib.parse import quote

# What every key begins with.
PREFIX = "rl"


@dataclass(frozen=True)
class Limit:
    """One limit. It is part of every call, so that changing it is a matter of a deployment."""

    # As clients see it in the RateLimit-Policy field.
    name: str
    # Whose it is: "user:{user}". It applies to callers of whom all of that is known.
    key: str
    # As RL.MTAKE takes it: "TOKENBUCKET 200 100 60s".
    spec: str
    # The same for clients, and for while Redis is away: so many units in so many seconds.
    quota: int
    window: int
    unit: str = "requests"
    # What a request costs of it, if that is always the same. Else it is as much as the request asks
    # for, and can be settled afterwards.
    cost: int | None = None

    @classmethod
    def bucket(
        cls,
        name: str,
        key: str,
        *,
        burst: int,
        rate: int,
        seconds: int = 1,
        unit: str = "requests",
        cost: int | None = None,
    ) -> Self:
        """A burst, refilled by `rate` every `seconds`."""
        # As a quota: what the whole burst takes to come back.
        window = ceil(burst * seconds / rate)
        return cls(name, key, f"TOKENBUCKET {burst} {rate} {seconds}s", burst, window, unit, cost)

    @classmethod
    def sliding(cls, name: str, key: str, *, limit: int, seconds: int) -> Self:
        """So many in the last so many seconds."""
        return cls(name, key, f"SLIDING {limit} {seconds}s", limit, seconds)

    @property
    def words(self) -> list[str]:
        return self.spec.split()

    @property
    def words_of_part(self) -> list[str]:
        """As one of several on a key, where its name says which part is its own."""
        cost = [] if self.cost is None else ["COST", str(self.cost)]
        return [*self.words, *cost, "AS", self.name]

    def applies_to(self, caller: Mapping[str, str]) -> bool:
        return {field for _, field, _, _ in Formatter().parse(self.key) if field} <= caller.keys()


class Charge(NamedTuple):
    """What a request asks of one limit."""

    key: str
    limit: Limit
    cost: int


class Decision(NamedTuple):
    """What one limit says by itself: the reply of RL.TOKENBUCKET and the others."""

    allowed: int
    limit: int
    remaining: int
    # If it denied: the same passes after this long, -1 if never.
    wait_ms: int
    # Until the limit is as if it had never been used.
    reset_ms: int


def key_of(prefix: str, limit: Limit, caller: Mapping[str, str]) -> str:
    """`rl:{tenant}:limit:whose`. Only what is between the braces decides the slot in a cluster."""
    names = {field: _escaped(name) for field, name in caller.items()}
    return f"{prefix}:{{{names['tenant']}}}:{limit.key.format_map(names)}"


def _escaped(name: str) -> str:
    """No two names become one, and none brings braces or colons along, and with them another's key:
    as JavaScript's encodeURIComponent does. An empty name would make an empty tag, which is none.
    """
    return quote(name, safe="!~*'()", errors="surrogatepass") or "%"
