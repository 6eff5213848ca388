"""What a verdict looks like in HTTP."""

from math import ceil

from http_sf import ser
from starlette.responses import JSONResponse

from ratelimit.limiter import Verdict

# draft-ietf-httpapi-ratelimit-headers-10, section 4
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"


def fields(verdict: Verdict) -> dict[str, str]:
    """The header fields, for a response that passes and for one that does not.

    RateLimit and X-RateLimit-* tell of what Redis has counted. While it is away nobody knows that,
    and they are left out: what this process allows meanwhile is no client's limit. RateLimit-Policy
    is as true as ever, and Retry-After is when Redis is asked again.
    """
    found = {}
    if verdict.decisions:
        found["RateLimit-Policy"] = ser(_policies(verdict))
    if verdict.decisions and verdict.is_by_redis:
        # The one to show where there is room for one: one that denied, else the one with the least
        # left. Units other than requests, if at all, only when they denied.
        _, shown = min(
            zip(verdict.charges, verdict.decisions, strict=True),
            key=lambda pair: (pair[1].allowed, pair[0].limit.unit != "requests", pair[1].remaining),
        )
        found["X-RateLimit-Limit"] = str(shown.limit)
        found["X-RateLimit-Remaining"] = str(shown.remaining)
        found["X-RateLimit-Reset"] = str(_seconds(shown.reset_ms))
        found["RateLimit"] = ser(_service_limits(verdict))
    if not verdict.allowed and verdict.wait_ms >= 0:  # -1: it never passes, so not to be retried
        found["Retry-After"] = str(_seconds(verdict.wait_ms))
    return found


def denial(verdict: Verdict) -> JSONResponse:
    """429, or 503 if it is Redis that is away. The body is that of RFC 9457."""
    status, kind, title = (
        (503, REDUCED_CAPACITY, "Requests cannot be counted at the moment")
        if verdict.is_outage
        else (429, QUOTA_EXCEEDED, "Too many requests")
    )
    problem = {"type": kind, "title": title, "status": status}
    if verdict.denied_by:
        problem["violated-policies"] = verdict.denied_by
    return JSONResponse(problem, status, fields(verdict), media_type="application/problem+json")


def _policies(verdict: Verdict) -> list:
    policies = []
    for charge in verdict.charges:
        limit = charge.limit
        parameters = {"q": limit.quota, "w": limit.window}
        if limit.unit != "requests":  # the default
            parameters["qu"] = limit.unit
        policies.append((limit.name, parameters))
    return policies


def _service_limits(verdict: Verdict) -> list:
    items = []
    for charge, decision in zip(verdict.charges, verdict.decisions, strict=True):
        parameters = {"r": decision.remaining}
        # When there is more: as much as there can be; after a denial, as much as was asked for.
        # Retry-After must not be before any of these, so those that did not deny say nothing then.
        if verdict.allowed:
            parameters["t"] = _seconds(decision.reset_ms)
        elif not decision.allowed and decision.wait_ms >= 0:
            parameters["t"] = _seconds(decision.wait_ms)
        items.append((charge.limit.name, parameters))
    return items


def _seconds(milliseconds: int) -> int:
    return ceil(milliseconds / 1000)
