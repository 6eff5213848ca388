"""Words of a call: numbers, durations and options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor

from redis_ratelimit.memory.rule import DAY
from redis_ratelimit.resp import RefusedError

UNIT = 1_000_000
_MAX_UNITS = 10**12
_MAX_NAME_BYTES = 256

_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d{1,9})?)"
_AMOUNT = re.compile(_NUMBER)
_DURATION = re.compile(_NUMBER + "(us|ms|s|m|h|d|)")
_SHARE = re.compile(_NUMBER + "%")
_OFFSET = re.compile(r"([+-])(\d\d):([0-5]\d)")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_MICROSECONDS = {
    "us": 1,
    "ms": 1_000,
    "": UNIT,
    "s": UNIT,
    "m": 60 * UNIT,
    "h": 3600 * UNIT,
    "d": DAY,
}

_MODES = {"UPTO", "FORCE", "MAXWAIT"}


def refusal(text: str) -> RefusedError:
    return RefusedError(f"ERR {text}")


class Words:
    """Reader of the words of a call, from left to right."""

    def __init__(self, words: Sequence[str | bytes]) -> None:
        self._words = [word if isinstance(word, bytes) else word.encode() for word in words]
        self._position = 0

    def has_next(self) -> bool:
        return self._position < len(self._words)

    def peek(self) -> str:
        """Returns the next word in upper case, or an empty string at the end."""
        return self._words[self._position].decode("latin-1").upper() if self.has_next() else ""

    def raw(self, description: str) -> bytes:
        if not self.has_next():
            raise refusal(f"{description} is missing")
        self._position += 1
        return self._words[self._position - 1]

    def text(self, description: str) -> str:
        return self.raw(description).decode("latin-1")

    def name(self, description: str) -> bytes:
        name = self.raw(description)
        if not 1 <= len(name) <= _MAX_NAME_BYTES:
            raise refusal(f"{description} must be 1 to {_MAX_NAME_BYTES} bytes")
        return name

    def amount(self, description: str, *, round_up: bool = False) -> int:
        """Returns an amount in millionths, rounded down unless `round_up`."""
        return _amount(self.text(description), description, round_up=round_up)

    def duration(self, description: str, *, zero: bool = False) -> int:
        """Returns a duration in microseconds, rounded up."""
        duration = duration_of(self.text(description))
        if duration is None or (duration == 0 and not zero):
            raise refusal(f"{description} must be a duration from 1us to 3650d, such as 60s")
        return duration


def _amount(text: str, description: str, *, round_up: bool) -> int:
    match = _AMOUNT.fullmatch(text)
    exact = None if match is None else Fraction(match[1])
    if exact is None or exact > _MAX_UNITS:
        raise refusal(f"{description} must be a number from 0 to {_MAX_UNITS}, not {text!r}")
    return ceil(exact * UNIT) if round_up else floor(exact * UNIT)


def duration_of(text: str) -> int | None:
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    exact = Fraction(match[1]) * _MICROSECONDS[match[2]]
    return ceil(exact) if (exact == 0 or exact >= 1) and exact <= 3650 * DAY else None


@dataclass
class Options:
    """Options of a call before its specs, or options of one spec."""

    cost: int | None = None
    # `True` if the cost is negative: `cost` is then the number of units to give back.
    gives_back: bool = False
    # `True` if the cost is a whole number of units.
    is_whole: bool = True
    mode: str = ""
    max_wait: int = 0
    # Amount, or the text of a share.
    keep: int | str | None = None
    name: str | None = None
    flags: set[str] = field(default_factory=set)
    offset: int | None = None
    anchor: int | None = None
    once: tuple[bytes, int] | None = None
    settle: tuple[bytes, int] | None = None

    @classmethod
    def read(cls, words: Words, allowed: set[str]) -> Options:
        """Parses options in any order, up to a word that is not in `allowed`."""
        options, used = cls(), set[str]()
        while (word := words.peek()) in allowed and words.has_next():
            words.raw(word)
            # Some options exclude each other.
            group = "MODE" if word in _MODES else "ID" if word in {"ONCE", "SETTLE"} else word
            if group in used:
                raise refusal(f"syntax error, unexpected {word}")
            used.add(group)
            options._parse_option(word, words)
        return options

    def _parse_option(self, word: str, words: Words) -> None:
        reader = getattr(self, f"_parse_{word.lower()}", None)
        if word in _MODES:
            self.mode = word
        if reader is None:
            self.flags.add(word)
        else:
            reader(words)

    def _parse_cost(self, words: Words) -> None:
        text = words.text("cost")
        number = text.removeprefix("-")
        cost = _amount(number, "cost", round_up=True)
        self.gives_back = number != text and cost > 0
        self.cost = _amount(number, "cost", round_up=False) if self.gives_back else cost
        self.is_whole = Fraction(number).denominator == 1

    def _parse_maxwait(self, words: Words) -> None:
        self.max_wait = words.duration("maxwait", zero=True)

    def _parse_keep(self, words: Words) -> None:
        text = words.text("keep")
        share = _SHARE.fullmatch(text)
        if share is not None and Fraction(share[1]) > 100:
            raise refusal("keep must be a share from 0% to 100%")
        self.keep = _amount(text, "keep", round_up=True) if share is None else share[1]

    def _parse_as(self, words: Words) -> None:
        self.name = words.text("name")
        if not _NAME.fullmatch(self.name):
            raise refusal(f"name must be 1 to 32 of A-Z, a-z, 0-9, _ and -, not {self.name!r}")

    def _parse_offset(self, words: Words) -> None:
        match = _OFFSET.fullmatch(words.text("offset"))
        minutes = None if match is None else int(match[2]) * 60 + int(match[3])
        if match is None or minutes is None or minutes > 14 * 60:
            raise refusal("offset must be from -14:00 to +14:00, such as +09:00")
        self.offset = minutes * 60 * UNIT * (-1 if match[1] == "-" else 1)

    def _parse_anchor(self, words: Words) -> None:
        text = words.text("anchor")
        if not re.fullmatch(r"\d{1,2}", text) or not 1 <= int(text) <= 31:
            raise refusal("anchor must be a day from 1 to 31")
        self.anchor = int(text)

    def _parse_once(self, words: Words) -> None:
        self.once = (words.name("id"), words.duration("ttl"))

    def _parse_settle(self, words: Words) -> None:
        self.settle = (words.name("id"), words.amount("amount", round_up=True))

    def request(self, mode: str, max_wait: int) -> Request:
        """Returns the request for a mode and the cost, by default 1."""
        cost = UNIT if self.cost is None else self.cost
        if self.gives_back:
            if mode:
                raise refusal(f"cost must be 0 or more with {mode}")
            return Request("BACK", cost)
        if mode == "UPTO" and not (self.is_whole and cost):
            raise refusal("cost must be a whole number from 1 with UPTO")
        return Request(mode or "TAKE", cost, max_wait)


@dataclass
class Request:
    """Request to one limit. `mode` is TAKE, UPTO, FORCE, MAXWAIT, BACK, or PAST for a peek with a
    KEEP above the limit.
    """

    mode: str
    cost: int
    max_wait: int = 0

    @property
    def is_peek(self) -> bool:
        return self.mode == "PAST" or (self.cost == 0 and self.mode not in {"UPTO", "BACK"})
