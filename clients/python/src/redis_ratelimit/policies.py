"""Policies: named limits stored on the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis_ratelimit.call import Call
from redis_ratelimit.decision import text
from redis_ratelimit.limits import Ban, Limit
from redis_ratelimit.quantities import Amount, Duration, Key, Word, amount, duration


@dataclass(frozen=True)
class PolicyState:
    """State of a policy on the server."""

    # Version: the microsecond since 1970 at which the policy was set, which increases with each
    # set.
    version: int
    # Time at which this version was set, in milliseconds since 1970.
    set_at: int
    # Current scale, and its remaining milliseconds; -1: until it is changed.
    scale: float
    scale_ms: int
    # Limits in the syntax of RL.POLICYSET.
    specs: str
    # Counts of calls on this server by outcome: calls, admitted, denied, near, shadow_denied,
    # banned, repeated.
    counts: Mapping[str, int]


@dataclass(frozen=True)
class PolicyLine:
    """Entry in the list of policies."""

    name: str
    version: int
    specs: str
    # Current scale, and its remaining milliseconds; -1: until it is changed.
    scale: float
    scale_ms: int


@dataclass(frozen=True)
class Scale:
    version: int
    factor: float
    # Remaining milliseconds; -1: until it is changed.
    ms: int


class PolicyCalls:
    """Builder of the policy commands. In a cluster any primary accepts them. They are sent to the
    primary of a key with the policy's name, so that NX and VERSION always compare with the same
    primary.
    """

    def set(
        self,
        name: Key,
        limits: Sequence[Limit],
        ban: Ban | None,
        *,
        nx: bool,
        version: int | None,
    ) -> Call[int]:
        if not limits:
            raise ValueError("a policy needs a limit")
        words: list[Word] = ["RL.POLICYSET", name]
        if nx:
            words.append("NX")
        if version is not None:
            words += ["VERSION", str(version)]
        words += [word for limit in limits for word in limit.definition()]
        if ban is not None:
            words += ban.words()
        return Call(name, words, int, resendable_for=0, bypasses_breaker=True)

    def scale(self, name: Key, factor: Amount, time: Duration | None) -> Call[Scale]:
        words: list[Word] = ["RL.POLICYSCALE", name, amount(factor, "factor")]
        if time is not None:
            words += ["FOR", duration(time, "duration")]
        return Call(name, words, _scale, bypasses_breaker=True)

    def multiply(
        self,
        name: Key,
        factor: Amount,
        least: Amount | None,
        every: Duration | None,
        time: Duration | None,
    ) -> Call[Scale]:
        bound = [] if least is None else ["MIN", amount(least, "least")]
        return self._step(name, ["MUL", amount(factor, "factor"), *bound], every, time)

    def add(
        self,
        name: Key,
        step: Amount,
        most: Amount | None,
        every: Duration | None,
        time: Duration | None,
    ) -> Call[Scale]:
        bound = [] if most is None else ["MAX", amount(most, "most")]
        return self._step(name, ["ADD", amount(step, "step", zero=False), *bound], every, time)

    def _step(
        self, name: Key, step: list[Word], every: Duration | None, time: Duration | None
    ) -> Call[Scale]:
        words: list[Word] = ["RL.POLICYSCALE", name, *step]
        if every is not None:
            words += ["EVERY", duration(every, "every")]
        if time is not None:
            words += ["FOR", duration(time, "duration")]
        # Not idempotent: a second delivery would be a second step.
        return Call(name, words, _scale, resendable_for=0, bypasses_breaker=True)

    def get(self, name: Key) -> Call[PolicyState | None]:
        return Call(name, ["RL.POLICYGET", name], _state, bypasses_breaker=True)

    def list(self, match: str | None) -> Call[Sequence[PolicyLine]]:
        words: list[Word] = ["RL.POLICYLIST", *(["MATCH", match] if match is not None else [])]
        return Call(
            match or "",
            words,
            lambda reply: [_line(*line) for line in reply],
            bypasses_breaker=True,
        )

    def delete(self, names: Sequence[Key], version: int | None) -> Call[int]:
        if not names or (version is not None and len(names) > 1):
            raise ValueError("policies are deleted by their names, or one by its name and version")
        condition: list[Word] = [] if version is None else ["VERSION", str(version)]
        return Call(
            names[0],
            ["RL.POLICYDEL", *names, *condition],
            int,
            resendable_for=0,
            bypasses_breaker=True,
        )


def _scale(reply: Any) -> Scale:
    return Scale(reply[0], float(reply[1]), reply[2])


def _line(name: Any, version: int, specs: Any, scale: Any, scale_ms: int) -> PolicyLine:
    return PolicyLine(text(name), version, text(specs), float(scale), scale_ms)


def _state(reply: Any) -> PolicyState | None:
    if reply is None:
        return None
    fields = _map(reply)
    return PolicyState(
        fields["version"],
        fields["set_at"],
        float(fields["scale"]),
        fields["scale_ms"],
        text(fields["specs"]),
        _map(fields["counts"]),
    )


def _map(reply: Any) -> dict[str, Any]:
    """Decodes a map, which in RESP2 is a flat array of names and values."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {text(name): value for name, value in pairs}
