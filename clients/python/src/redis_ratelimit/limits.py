"""Limits, and the words of a command that describe them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import ClassVar

from redis_ratelimit.quantities import (
    Amount,
    Duration,
    Key,
    Word,
    amount,
    duration,
    keep_word,
    milliseconds,
    seconds,
)

# Approximate seconds of calendar windows.
_CALENDAR = {"1w": 7 * 86400, "1mo": 30 * 86400, "3mo": 91 * 86400, "1y": 365 * 86400}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


@dataclass(frozen=True)
class Limit(ABC):
    """Base class of limits.

    `cost` is the number of units that a call charges to this limit, by default the call's cost.
    `name` distinguishes limits on the same key and lets a limit change its window: 1 to 32 of A-Z,
    a-z, 0-9, _ and -. `keep` lets a call pass only if this much remains: an amount, or a share such
    as "20%". `shadow` is for limits of a policy: usage is counted, but nothing is denied.
    """

    algorithm: ClassVar[str]
    # Key of a sketch. The key of a call is then an item of the sketch.
    sketch_key: ClassVar[Key | None] = None
    # Index of the window or period among the arguments.
    _window_index: ClassVar[int] = 1

    _: KW_ONLY
    cost: Amount | None = None
    name: str | None = None
    keep: Amount | str | None = None
    shadow: bool = False
    # Built once, so that invalid arguments are rejected at construction.
    _words: tuple[Word, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise ValueError(f"name must be 1 to 32 of A-Z, a-z, 0-9, _ and -, not {self.name!r}")
        words = [self.algorithm, *self._arguments(), *self._options()]
        if self.keep is not None:
            words += ["KEEP", keep_word(self.keep)]
        # The dataclass is frozen.
        object.__setattr__(self, "_words", tuple(words))

    @abstractmethod
    def _arguments(self) -> list[Word]:
        """Returns the arguments of the algorithm as words."""

    @property
    @abstractmethod
    def quota(self) -> float:
        """Units in one window, for header fields and for limits without a server."""

    @property
    @abstractmethod
    def window_seconds(self) -> float:
        """Seconds until the entire quota has recovered."""

    def without_cost(self) -> Limit:
        """Returns the limit without a cost of its own."""
        return replace(self, cost=None)

    @property
    def label(self) -> str:
        """Name in header fields: the limit's name, or its algorithm and first two arguments."""
        if self.name is not None:
            return self.name
        return "-".join([self.algorithm.lower(), *map(str, self._arguments()[:2])])

    @property
    def canonical(self) -> Key:
        """Canonical words, the same in all packages: the start of the keys of an unnamed limit."""
        name = [] if self.name is None else ["AS", self.name]
        return " ".join(map(str, [self.algorithm, *self._canonical_arguments(), *name]))

    @property
    def shape(self) -> tuple[Word, ...]:
        """Algorithm and window, without amounts: these identify the usage at a key."""
        return (self.algorithm, *self._canonical_arguments()[1:])

    def _canonical_arguments(self) -> list[Word]:
        arguments = self._arguments()
        time = arguments[self._window_index]
        if time not in _CALENDAR:
            arguments[self._window_index] = milliseconds(str(time))
        return arguments

    def spec(self, holder: Key | None = None, item: Key | None = None) -> list[Word]:
        """Returns the words in a call. Concurrency limits need a holder, sketches an item."""
        del holder, item
        return list(self._words)

    def definition(self) -> list[Word]:
        """Returns the words in a policy. Raises ValueError for options that only calls have."""
        if self.keep is not None:
            raise ValueError("keep comes with a call and is in no policy")
        return [
            self.algorithm,
            *self._arguments(),
            *self._options(),
            *(["SHADOW"] if self.shadow else []),
        ]

    def _options(self) -> list[Word]:
        words: list[Word] = []
        if self.cost is not None:
            words += ["COST", amount(self.cost, "cost")]
        if self.name is not None:
            words += ["AS", self.name]
        return words


@dataclass(frozen=True)
class _Bucket(Limit):
    _window_index = 2

    capacity: Amount
    refill: Amount
    period: Duration = 1

    @property
    def shape(self) -> tuple[Word, ...]:
        # The usage of a bucket does not depend on its rate.
        return (self.algorithm,)

    def _arguments(self) -> list[Word]:
        return [
            amount(self.capacity, "capacity"),
            amount(self.refill, "refill", zero=False),
            duration(self.period, "period"),
        ]

    @property
    def quota(self) -> float:
        return float(self.capacity)

    @property
    def window_seconds(self) -> float:
        # With a capacity of 0, the time in which a forced unit drains.
        return (float(self.capacity) or 1.0) * seconds(self.period) / float(self.refill)


@dataclass(frozen=True)
class TokenBucket(_Bucket):
    """Token bucket: bursts of up to `capacity`, refilled by `refill` per `period`, by default one
    second.
    """

    algorithm = "TOKENBUCKET"


@dataclass(frozen=True)
class LeakyBucket(_Bucket):
    """Leaky bucket: a queue of up to `capacity`, which drains at `refill` per `period`. Hold an
    allowed call for `Decision.wait`.
    """

    algorithm = "LEAKYBUCKET"


@dataclass(frozen=True)
class _Window(Limit):
    limit: Amount
    window: Duration

    def _arguments(self) -> list[Word]:
        return [amount(self.limit, "limit"), duration(self.window, "window")]

    @property
    def quota(self) -> float:
        return float(self.limit)

    @property
    def window_seconds(self) -> float:
        return seconds(self.window)


@dataclass(frozen=True)
class Fixed(_Window):
    """Fixed window: at most `limit` in each window, which begins with the first call.

    `aligned` windows begin at multiples of their length since 1970 in UTC, and can be "1w", "1mo",
    "3mo" and "1y". `offset` shifts their boundaries, such as "+09:00"; `anchor`, a day from 1 to
    31, is the day on which months and quarters begin.
    """

    algorithm = "FIXED"

    _: KW_ONLY
    aligned: bool = False
    offset: str | None = None
    anchor: int | None = None

    def _arguments(self) -> list[Word]:
        words: list[Word] = [amount(self.limit, "limit"), self._window()]
        if self.aligned:
            words.append("ALIGNED")
        if self.offset is not None:
            words += ["OFFSET", self.offset]
        if self.anchor is not None:
            words += ["ANCHOR", str(self.anchor)]
        return words

    def _window(self) -> str:
        if self.aligned and isinstance(self.window, str) and self.window in _CALENDAR:
            return self.window
        if not self.aligned and (self.offset is not None or self.anchor is not None):
            raise ValueError("offset and anchor are for aligned windows")
        return duration(self.window, "window")

    @property
    def window_seconds(self) -> float:
        if isinstance(self.window, str) and self.window in _CALENDAR:
            return float(_CALENDAR[self.window])
        return seconds(self.window)


@dataclass(frozen=True)
class Sliding(_Window):
    """Sliding window: approximately `limit` in the last `window`, in constant memory. With
    `strict`, never more than `limit` in any window.
    """

    algorithm = "SLIDING"

    _: KW_ONLY
    strict: bool = False

    def _arguments(self) -> list[Word]:
        return [*super()._arguments(), *(["STRICT"] if self.strict else [])]


@dataclass(frozen=True)
class SlidingLog(_Window):
    """Sliding log: at most `limit` in the last `window`, to the microsecond. Stores each call."""

    algorithm = "SLIDINGLOG"


@dataclass(frozen=True)
class Concurrency(Limit):
    """Concurrency limit: at most `limit` leases at once, each for `ttl` unless it is renewed or
    released earlier.
    """

    algorithm = "CONCURRENCY"

    limit: Amount
    ttl: Duration

    def _arguments(self) -> list[Word]:
        return [amount(self.limit, "limit"), duration(self.ttl, "ttl")]

    @property
    def quota(self) -> float:
        return float(self.limit)

    @property
    def window_seconds(self) -> float:
        return seconds(self.ttl)

    def spec(self, holder: Key | None = None, item: Key | None = None) -> list[Word]:
        del item
        if holder is None:
            raise ValueError("a concurrency limit is held by somebody: the call needs a holder")
        words = super().spec()
        return [*words[:3], holder, *words[3:]]


@dataclass(frozen=True)
class Sketch(_Bucket):
    """Sketch: a token bucket for each of any number of items, such as addresses, in one key of a
    fixed size: `Sketch(50, 50, "1m", key="addresses")`. The key of a call is the item.

    An item never gets more than its limit, and may be denied too early if the sketch is too small.
    `size` applies when the key is created: "64kb" to "256mb", or bytes. Charges can be neither
    settled nor given back. In a policy a sketch has no key: the call names it, by
    `Policy(name, key="addresses")`.
    """

    algorithm = "SKETCH"

    _: KW_ONLY
    key: Key | None = None
    size: int | str | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            raise ValueError("a sketch has no name: it is alone in its key")
        super().__post_init__()
        object.__setattr__(self, "sketch_key", _checked_key(self.key))

    def _options(self) -> list[Word]:
        size: list[Word] = [] if self.size is None else ["SIZE", str(self.size)]
        return [*super()._options(), *size]

    def spec(self, holder: Key | None = None, item: Key | None = None) -> list[Word]:
        del holder
        if item is None:
            raise ValueError("a call by a sketch needs its key: Sketch(50, 50, '1m', key='name')")
        return [*self._words[:4], item, *self._words[4:]]

    def definition(self) -> list[Word]:
        if self.key is not None:
            raise ValueError("the key of a sketch comes with a call: Policy(name, key=...)")
        return super().definition()


def _checked_key(key: object) -> Key | None:
    if key is None or isinstance(key, (str, bytes)):
        return key
    raise TypeError(f"a key must be text or bytes, not {key!r}")


class Policy(Limit):
    """Policy: named limits stored on the server. Of several names, the first that exists applies:
    `Policy("user:42", "plan:pro", "default")`. For a policy that is a sketch, `key` is the key of
    the sketch, and the key of a call is the item.
    """

    algorithm = "POLICY"

    names: tuple[Key, ...]

    def __init__(
        self,
        *names: Key,
        cost: Amount | None = None,
        keep: Amount | str | None = None,
        key: Key | None = None,
    ) -> None:
        if not names:
            raise ValueError("a policy has a name")
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "sketch_key", _checked_key(key))
        super().__init__(cost=cost, keep=keep)

    def __repr__(self) -> str:
        return f"Policy({', '.join(map(repr, self.names))})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Policy)
            and self._words == other._words
            and self.sketch_key == other.sketch_key
        )

    def __hash__(self) -> int:
        return hash((self._words, self.sketch_key))

    def spec(self, holder: Key | None = None, item: Key | None = None) -> list[Word]:
        del holder
        return [*self._words, *([] if item is None else ["ITEM", item])]

    def _arguments(self) -> list[Word]:
        first, *others = self.names
        return [first, *(word for name in others for word in ("OR", name))]

    @property
    def canonical(self) -> Key:
        if all(isinstance(name, str) for name in self.names):
            return "+".join(map(str, self.names))
        return b"+".join(one.encode() if isinstance(one, str) else one for one in self.names)

    @property
    def shape(self) -> tuple[Word, ...]:
        return (self.algorithm,)

    @property
    def quota(self) -> float:
        raise ValueError("only the server knows the limits of a policy")

    @property
    def window_seconds(self) -> float:
        raise ValueError("only the server knows the limits of a policy")

    def without_cost(self) -> Limit:
        return Policy(*self.names, keep=self.keep, key=self.sketch_key)

    @property
    def label(self) -> str:
        return "default"

    def definition(self) -> list[Word]:
        raise ValueError("a policy is in no policy")


@dataclass(frozen=True)
class Ban:
    """Ban of a key: after `strikes` denials within `window`, all its calls are denied for `block`.
    With `longest`, a ban that begins within `longest` after another lasts twice as long, up to
    `longest`.
    """

    strikes: int
    window: Duration
    block: Duration
    longest: Duration | None = None

    def __post_init__(self) -> None:
        self.words()

    def words(self) -> list[Word]:
        return [
            "BAN",
            str(self.strikes),
            duration(self.window, "window"),
            duration(self.block, "block"),
            *([] if self.longest is None else ["MAX", duration(self.longest, "longest")]),
        ]


def spec_words(
    limits: Iterable[Limit], holder: Key | None = None, item: Key | None = None
) -> list[Word]:
    return [word for limit in limits for word in limit.spec(holder, item)]
