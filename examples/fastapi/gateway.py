"""Language-model gateway: limits requests and tokens per minute in one call."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field
from redis_ratelimit import TokenBucket, fields
from starlette.datastructures import State
from starlette.responses import JSONResponse, Response
from tenants import denial, key_of

# Limits of one key. A request costs one unit of the first, and its tokens of the second.
LIMITS = (
    TokenBucket(60, 60, "1m", name="llm-requests", cost=1),
    TokenBucket(10_000, 10_000, "1m", name="llm-tokens"),
)

# Time within which a reservation can be settled. Longer than any request takes.
RESERVATION_LIFETIME = "10m"

router = APIRouter()


class Question(BaseModel):
    prompt: str
    max_tokens: int = Field(default=1000, ge=1, le=8000)


class Answer(NamedTuple):
    text: str
    # Tokens that the provider bills, for the prompt and the answer.
    tokens: int


Model = Callable[[Question], Awaitable[Answer]]


async def echo(question: Question) -> Answer:
    """Placeholder for a provider."""
    return Answer(question.prompt.upper(), 2 * estimate_tokens(question.prompt))


def estimate_tokens(text: str) -> int:
    """Estimates the number of tokens."""
    return len(text) // 4 + 1


@router.post("/v1/chat")
async def chat(question: Question, request: Request) -> Response:
    state, caller = request.app.state, request.app.state.identify(request)
    if "user" not in caller:
        raise HTTPException(401, "an API key is needed")
    response = await respond(question, key_of("llm:{user}", caller), state)
    # Quota unit of the second limit. The draft does not register "tokens".
    response.headers["RateLimit-Policy"] += ';qu="tokens"'
    return response


async def respond(question: Question, key: str, state: State) -> Response:
    limiter, limits = state.limiter, state.llm_limits
    # Estimate of the largest cost. The actual cost is known only after the response.
    estimate = estimate_tokens(question.prompt) + question.max_tokens
    decision = await limiter.take(key, *limits, cost=estimate, ttl=RESERVATION_LIFETIME, each=True)
    if not decision:
        return denial(decision)
    used = 0
    try:
        answer = await state.model(question)
        used = answer.tokens
    finally:
        # A failed model has used nothing. If this process dies here, the estimate stays charged and
        # recovers with the limit.
        settled = await limiter.settle(key, *limits, id=decision.id, cost=used, each=True)
    headers = fields(settled or decision)
    return JSONResponse({"text": answer.text, "tokens": answer.tokens}, headers=headers)
