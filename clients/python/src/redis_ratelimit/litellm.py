"""Limits requests, tokens and parallel requests of LiteLLM's proxy by one policy of the server:

    RL.POLICYSET llm TOKENBUCKET 60 60 1m COST 1 AS requests
        TOKENBUCKET 10000 10000 1m AS tokens CONCURRENCY 10 10m AS parallel

    # config.yaml
    litellm_settings:
      callbacks: redis_ratelimit.litellm.limits    # reads RATELIMIT_URL

or, in a file beside config.yaml that `callbacks` names, `limits = RateLimits("redis://...", ...)`.

Before a request is sent, one call charges the estimate of its tokens and acquires a lease. After
the response, the end of the stream, or a failure, one call settles the actual tokens and releases
the lease. LiteLLM's retries and fallbacks belong to one request. A charge that is never settled,
because the proxy died, recovers by itself; the lease expires after the ttl of CONCURRENCY, which
must be longer than any request takes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger

from redis_ratelimit import headers
from redis_ratelimit.aio import Limiter
from redis_ratelimit.decision import Decision
from redis_ratelimit.errors import NoPolicyError, SetupError
from redis_ratelimit.limits import Limit, Policy
from redis_ratelimit.quantities import MOST, Duration, seconds
from redis_ratelimit.tokens import Tokens, estimate, prompt_tokens

if TYPE_CHECKING:
    from litellm.proxy._types import UserAPIKeyAuth

log = logging.getLogger("redis_ratelimit")

# Call types of LiteLLM that cost tokens. All others have no limit.
CALL_TYPES = frozenset(
    prefix + name
    for name in (
        "completion",
        "text_completion",
        "embedding",
        "embeddings",
        "responses",
        "anthropic_messages",
        "generate_content",
        "generate_content_stream",
    )
    for prefix in ("", "a")
)

# Upper bound of requests that wait to be settled during an outage. The charges of further requests
# recover by themselves.
_MAX_UNSETTLED = 1000

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass
class Reservation:
    """Charge of a request, until it is settled."""

    key: str
    policy: Policy
    id: str
    estimate: int
    tokens: Tokens
    task: asyncio.Task[Any] | None
    decision: Decision | None = None
    # `True` if the request may have reached a model.
    is_admitted: bool = False
    is_settled: bool = False
    is_streamed: bool = False


# Reservation of the request on which this task, or its parent, works. The litellm_call_id of the
# request cannot identify it, as the client chooses that id.
_current: ContextVar[Reservation | None] = ContextVar("reservation", default=None)


def caller(user: UserAPIKeyAuth) -> str:
    """Returns the caller that LiteLLM authenticated: the hash of the key, or else the user."""
    key = user.token or user.api_key
    if not key:
        return str(user.user_id or "anonymous")
    # LiteLLM hashes its own keys, but not those of an application's custom authentication.
    return key if _SHA256.fullmatch(key) else sha256(key.encode()).hexdigest()


def policy_names(user: UserAPIKeyAuth) -> Sequence[str]:
    """Returns the names of policies, of which the first that exists applies: the policy in the
    metadata of the caller's key, the policy of the team, and the policy for all.
    """
    key_policy = (user.metadata or {}).get("ratelimit_policy")
    team = f"llm:team:{user.team_id}" if user.team_id else None
    return [name for name in (key_policy, team, "llm") if name]


class RateLimits(CustomLogger):
    """Callback for LiteLLM's proxy.

    limiter     a limiter, or the URL of a server, for a limiter that allows all requests during an
                outage.
    caller      function that returns the caller, by default `caller`.
    names       function that returns the names of policies, by default `policy_names`.
    policies    policies by name, which are set on the server where they are missing:
                `{"llm": [TokenBucket(60, 60, "1m", cost=1, name="requests"), ...]}`.
    estimate    function that estimates the tokens of a request from its body and `default_output`,
                by default `estimate`.
    default_output
                maximum number of tokens of a response, if the request does not set one.
    remembered  time within which a request can be settled.
    """

    def __init__(
        self,
        limiter: Limiter | str,
        *,
        caller: Callable[[UserAPIKeyAuth], str] = caller,
        names: Callable[[UserAPIKeyAuth], Sequence[str]] = policy_names,
        policies: Mapping[str, Sequence[Limit]] | None = None,
        estimate: Callable[[Mapping[str, Any], int], int] = estimate,
        default_output: int = 1000,
        remembered: Duration = "1h",
    ) -> None:
        super().__init__()
        self._limiter = Limiter.from_url(limiter) if isinstance(limiter, str) else limiter
        self._caller = caller
        self._names = names
        self._policies = policies or {}
        self._estimate = estimate
        self._default_output = default_output
        self._remembered = remembered
        self._unsettled = 0
        # Strong references, as asyncio keeps only weak ones to its tasks.
        self._tasks: set[asyncio.Task[None]] = set()

    # Hooks of LiteLLM

    async def async_pre_call_hook(
        self, user_api_key_dict: UserAPIKeyAuth, cache: object, data: dict[str, Any], call_type: str
    ) -> None:
        """Charges the estimate, or raises an HTTPException with status 429."""
        previous, task = _current.get(), asyncio.current_task()
        # A web server may run a request in the context of the previous one, so compare the tasks.
        if call_type not in CALL_TYPES or (
            previous and previous.task is task and not previous.is_settled
        ):
            return
        names = self._names(user_api_key_dict)
        reservation = Reservation(
            key=f"llm:{self._caller(user_api_key_dict)}",
            policy=Policy(*names),
            id=uuid4().hex,
            estimate=self._estimate(data, 0 if "embed" in call_type else self._default_output),
            tokens=Tokens(prompt_tokens(data)),
            task=task,
        )
        _current.set(reservation)
        # LiteLLM calls no hook if the task of the request is cancelled.
        if task is not None:
            task.add_done_callback(lambda _: self._task_ended(reservation))
        decision = reservation.decision = await self._take(reservation)
        if decision.allowed:
            # A leaky bucket delays allowed requests.
            await asyncio.sleep(decision.wait or 0)
            reservation.is_admitted = True
            return
        reservation.is_settled = decision.source == "server"
        raise HTTPException(
            status_code=headers.status(decision),
            detail=_reason(decision),
            headers=fields(decision),
        )

    async def async_post_call_success_hook(
        self, data: dict[str, Any], user_api_key_dict: UserAPIKeyAuth, response: Any
    ) -> None:
        """Settles before the client receives the response, so that the lease is free for its next
        request.
        """
        reservation = _current.get()
        if reservation is None or reservation.is_streamed or hasattr(response, "__aiter__"):
            return
        reservation.tokens.add(response)
        await self._settle(reservation, default=reservation.estimate)

    async def async_post_call_failure_hook(
        self,
        request_data: dict[str, Any],
        original_exception: Exception,
        user_api_key_dict: UserAPIKeyAuth,
        traceback_str: str | None = None,
    ) -> None:
        """Settles after the last retry and the last fallback failed."""
        reservation = _current.get()
        if reservation is not None:
            await self._settle(reservation, default=0)

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: UserAPIKeyAuth, response: AsyncIterator[Any], request_data: Any
    ) -> AsyncIterator[Any]:
        """Counts the tokens of a stream, and settles before the client receives its end."""
        reservation = _current.get()
        if reservation is None or reservation.is_settled:
            async for chunk in response:
                yield chunk
            return
        # The request ends with the stream, not with the task that requested the stream.
        reservation.is_streamed = True
        # If the client disconnects, even before the first token, the model has read the prompt.
        default = reservation.tokens.prompt
        try:
            async for chunk in response:
                reservation.tokens.add(chunk)
                yield chunk
        except Exception:
            # An error of the model, which bills only the tokens that it sent.
            default = 0
            raise
        else:
            await self._settle(reservation, default=reservation.estimate)
        finally:
            # A cancelled generator cannot await, so settle in a task.
            if not reservation.is_settled:
                self._start(self._settle(reservation, default=default))

    async def async_post_call_response_headers_hook(
        self,
        data: dict[str, Any],
        user_api_key_dict: UserAPIKeyAuth,
        response: Any,
        request_headers: dict[str, str] | None = None,
        litellm_call_info: dict[str, Any] | None = None,
    ) -> dict[str, str] | None:
        reservation = _current.get()
        if reservation is None or reservation.decision is None:
            return None
        return fields(reservation.decision)

    # Charging and settling

    async def _take(self, reservation: Reservation) -> Decision:
        try:
            return await self._charge(reservation)
        except NoPolicyError:
            missing = [name for name in reservation.policy.names if name in self._policies]
            if not missing:
                raise
            for name in missing:
                await self._limiter.policies.set(name, *self._policies[str(name)], nx=True)
            return await self._charge(reservation)

    async def _charge(self, reservation: Reservation) -> Decision:
        return await self._limiter.take(
            reservation.key,
            reservation.policy,
            cost=reservation.estimate,
            once=reservation.id,
            ttl=self._remembered,
        )

    def _task_ended(self, reservation: Reservation) -> None:
        """Settles the request when its task ends without a hook. A request that was cancelled while
        a model worked on it has cost at least its prompt.
        """
        if reservation.is_settled or reservation.is_streamed:
            return
        task = reservation.task
        is_cancelled = task is not None and task.cancelled() and reservation.is_admitted
        default = reservation.tokens.prompt if is_cancelled else 0
        self._start(self._settle(reservation, default=default))

    async def _settle(self, reservation: Reservation, *, default: int) -> None:
        if reservation.is_settled:
            return
        reservation.is_settled = True
        tokens = reservation.tokens
        counts = (tokens.reported, tokens.estimated, default)
        used = next(count for count in counts if count is not None)
        if await self._try_to_settle(reservation, used):
            return
        if self._unsettled < _MAX_UNSETTLED:
            self._start(self._settle_later(reservation, used))
        else:
            log.info("%s was not settled for %d tokens", reservation.id, used)

    async def _try_to_settle(self, reservation: Reservation, used: int) -> bool:
        try:
            decision = await self._limiter.settle(
                reservation.key,
                reservation.policy,
                id=reservation.id,
                cost=min(used, MOST),
            )
        except NoPolicyError:
            # The policies were deleted, so no charge by them is left to settle.
            return True
        except SetupError:
            # The limiter has logged the error. The request itself was served.
            return False
        if decision.source == "none":
            return False
        # A denial means that the server no longer remembers the request.
        if decision.allowed:
            reservation.decision = decision
        return True

    async def _settle_later(self, reservation: Reservation, used: int) -> None:
        """Retries settling after an outage, with increasing pauses, until the charge expires."""
        self._unsettled += 1
        pause = 1.0
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds(self._remembered)
        try:
            while clock() < deadline:
                await asyncio.sleep(pause)
                if await self._try_to_settle(reservation, used):
                    return
                pause = min(pause * 2, 60.0)
        finally:
            self._unsettled -= 1
        log.info("%s was not settled for %d tokens", reservation.id, used)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def fields(decision: Decision) -> dict[str, str]:
    """Returns the header fields of a response, which describe the governing limit only, as a policy
    may have limits that clients must not see.

    The names are in lower case like LiteLLM's own: it would send two fields that differ by case.
    """
    return {name.lower(): value for name, value in headers.fields(decision, name="llm").items()}


def _reason(decision: Decision) -> str:
    if decision.source == "none":
        return "requests cannot be counted at the moment"
    if decision.wait is None:
        return "the request is larger than the limit allows"
    return f"over the limit, try again in {ceil(decision.wait)} seconds"


def __getattr__(name: str) -> Any:
    """Creates `limits` from the environment variable RATELIMIT_URL."""
    if name != "limits":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    instance = globals()["limits"] = RateLimits(
        os.environ.get("RATELIMIT_URL", "redis://localhost:6379")
    )
    return instance
