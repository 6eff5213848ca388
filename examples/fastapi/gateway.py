"""A language-model gateway: requests and tokens a minute, in one call."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from ratelimit import DeniedError, Limit, fields

# Both on one key. "tokens" is not (yet) among the quota units that the draft registers.
LIMITS = (
    Limit.bucket("llm-requests", "llm:{user}", burst=60, rate=60, seconds=60, cost=1),
    Limit.bucket("llm-tokens", "llm:{user}", burst=10_000, rate=10_000, seconds=60, unit="tokens"),
)

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
async def chat(question: Question, request: Request, response: Response) -> dict[str, str | int]:
    state = request.app.state
    # The most that it can cost. What it does cost is known only afterwards.
    estimate = count(question.prompt) + question.max_tokens
    verdict = await state.limiter.reserve(state.llm_limits, state.identify(request), estimate)
    if not verdict.allowed:
        raise DeniedError(verdict)
    used = 0
    try:
        answer = await state.model(question)
        used = answer.tokens
    finally:
        # If the model failed, nothing was used. A gateway that dies here leaves the estimate
        # charged, which recovers by itself.
        verdict = await state.limiter.settle(verdict, used)
    response.headers.update(fields(verdict))
    return {"text": answer.text, "tokens": answer.tokens}
