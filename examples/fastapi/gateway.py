"""A language-model gateway: requests and tokens a minute, in one call."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field
from redis_ratelimit import TokenBucket, fields
from starlette.datastructures import State
from starlette.responses import JSONResponse, Response
from tenants import denial, key_of

# Both on one key. A request costs one of the first, and as many of the last as it has tokens.
LIMITS = (
    TokenBucket(60, 60, "1m", name="llm-requests", cost=1),
    TokenBucket(10_000, 10_000, "1m", name="llm-tokens"),
)

# How long a reservation can be settled: longer than any request takes.
RESERVED_FOR = "10m"

router = APIRouter()


class Question(BaseModel):
    prompt: str
    max_tokens: int = Field(default=1000, ge=1, le=8000)


class Answer(NamedTuple):
    text: str
    # All that the provider bills: those of the prompt and those of the answer.
    tokens: int


Model = Callable[[Question], Awaitable[Answer]]


async def echo(question: Question) -> Answer:
    """Stands for a provider."""
    return Answer(question.prompt.upper(), 2 * count(question.prompt))


def count(text: str) -> int:
    """About what a tokenizer would say, which is all that an estimate needs."""
    return len(text) // 4 + 1


@router.post("/v1/chat")
async def chat(question: Question, request: Request) -> Response:
    state, caller = request.app.state, request.app.state.identify(request)
    if "user" not in caller:
        raise HTTPException(401, "an API key is needed")
    response = await answered(question, key_of("llm:{user}", caller), state)
    # Of the last limit. "tokens" is not (yet) among the quota units that the draft registers.
    response.headers["RateLimit-Policy"] += ';qu="tokens"'
    return response


async def answered(question: Question, key: str, state: State) -> Response:
    limiter, limits = state.limiter, state.llm_limits
    # The most that it can cost. What it does cost is known only afterwards.
    estimate = count(question.prompt) + question.max_tokens
    decision = await limiter.take(key, *limits, cost=estimate, ttl=RESERVED_FOR, each=True)
    if not decision:
        return denial(decision)
    used = 0
    try:
        answer = await state.model(question)
        used = answer.tokens
    finally:
        # If the model failed, nothing was used. A gateway that dies here leaves the estimate
        # charged, which recovers by itself.
        settled = await limiter.settle(key, *limits, id=decision.id, cost=used, each=True)
    told = fields(settled or decision)
    return JSONResponse({"text": answer.text, "tokens": answer.tokens}, headers=told)
