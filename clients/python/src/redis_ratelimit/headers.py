"""HTTP header fields and problem details of decisions."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from redis_ratelimit.decision import Decision
from redis_ratelimit.limits import Limit, Policy
from redis_ratelimit.quantities import MOST

# draft-ietf-httpapi-ratelimit-headers-10, section 4
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"


class Denial(NamedTuple):
    """Response to a request that is denied."""

    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def of(cls, decision: Decision, *, name: str | None = None, unix_reset: bool = False) -> Denial:
        """Returns the response to a denied call: 429, or 503 if the server is unavailable or has no
        room.
        """
        body = problem(decision, name=name)
        headers = fields(decision, name=name, unix_reset=unix_reset)
        headers |= {"Content-Type": "application/problem+json", "Content-Length": str(len(body))}
        return cls(status(decision), headers, body)


def fields(
    decision: Decision, *, name: str | None = None, unix_reset: bool = False
) -> dict[str, str]:
    """Returns the header fields of a response to an allowed or denied call.

    A decision on several limits must have `each`. `name` is the name of a limit without a name of
    its own, by default the name of the decision, or "default". Several limits without names are
    named after their numbers. X-RateLimit-Reset is in seconds from now, or with `unix_reset` in
    seconds since 1970.

    RateLimit and X-RateLimit-* describe usage on the server, which is unknown during an outage:
    they are left out then, as the limits of this process are not the client's. RateLimit-Policy
    stays, and Retry-After is the time until the server is tried again.
    """
    limits, name = decision.limits, name or decision.name or "default"
    headers = {}
    # A policy whose limits are all shadow limits reports MOST as its limit.
    has_usage = decision.source == "server" and not (_is_policy(limits) and decision.limit == MOST)
    if (policies := _policies(decision, limits, name)) and (has_usage or not _is_policy(limits)):
        headers["RateLimit-Policy"] = ", ".join(policies)
    if has_usage:
        headers["X-RateLimit-Limit"] = str(decision.limit)
        headers["X-RateLimit-Remaining"] = str(decision.remaining)
        now_ms = time.time_ns() // 1_000_000 if unix_reset else 0
        headers["X-RateLimit-Reset"] = str(_seconds(now_ms + (decision.reset_ms or 0)))
        headers["RateLimit"] = ", ".join(_states(decision, limits, name))
    if not decision.allowed and decision.wait_ms >= 0:  # -1: the call never passes
        headers["Retry-After"] = str(_seconds(decision.wait_ms))
    return headers


def status(decision: Decision) -> int:
    """Returns the status of a denial: 429, or 503 if the server is unavailable or has no room."""
    return 503 if decision.source == "none" else 429


def problem(decision: Decision, *, name: str | None = None) -> bytes:
    """Returns the body of a denial, as `application/problem+json` (RFC 9457)."""
    limits, name = decision.limits, name or decision.name or "default"
    if status(decision) == 503:
        kind, title = REDUCED_CAPACITY, "Requests cannot be counted at the moment"
    else:
        kind, title = QUOTA_EXCEEDED, "Too many requests"
    body: dict[str, object] = {"type": kind, "title": title, "status": status(decision)}
    if decision.source == "server" or (decision.source == "local" and not _is_policy(limits)):
        labelled = _labelled(decision, limits, name)
        # A ban denies although no limit does: name all limits then.
        body["violated-policies"] = [label for label, one in labelled if not one.allowed] or [
            label for label, _ in labelled
        ]
    return json.dumps(body).encode()


def _is_policy(limits: Sequence[Limit]) -> bool:
    return not limits or isinstance(limits[0], Policy)


def _labelled(decision: Decision, limits: Sequence[Limit], name: str) -> list[tuple[str, Decision]]:
    if not _is_policy(limits):
        if len(limits) == len(decision.each):
            return list(zip(_labels(limits, name), decision.each, strict=True))
        if len(limits) == 1:
            (label,) = _labels(limits, name)
            return [(label, decision)]
    return [(name, decision)]


def _labels(limits: Sequence[Limit], name: str) -> list[str]:
    if len(limits) == 1:
        return [limits[0].name or name]
    return [limit.label for limit in limits]


def _policies(decision: Decision, limits: Sequence[Limit], name: str) -> list[str]:
    if _is_policy(limits):
        # Only the server knows the window of a policy.
        return [f"{_string(name)};q={decision.limit}"]
    return [
        f"{_string(label)};q={int(limit.quota)};w={ceil(limit.window_seconds)}"
        for label, limit in zip(_labels(limits, name), limits, strict=True)
    ]


def _states(decision: Decision, limits: Sequence[Limit], name: str) -> list[str]:
    items = []
    for label, one in _labelled(decision, limits, name):
        item = f"{_string(label)};r={one.remaining}"
        # `t` is the time until full recovery, or after a denial until the same call passes.
        # Retry-After must not be before any `t`, so after a denial only limits that denied have
        # `t`.
        if decision.allowed:
            item += f";t={_seconds(one.reset_ms or 0)}"
        elif not one.allowed and one.wait_ms >= 0:
            item += f";t={_seconds(one.wait_ms)}"
        items.append(item)
    return items


def _string(text: str) -> str:
    """Returns a string of a structured field (RFC 9651): printable ASCII in quotes."""
    text = "".join(one if " " <= one <= "~" else "?" for one in text)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _seconds(milliseconds: int) -> int:
    return ceil(milliseconds / 1000)
