"""Tokens are reserved with the request and settled afterwards."""

import asyncio
import threading
from dataclasses import replace

import httpx
from gateway import Answer, Question
from lossy_proxy import LossyProxy
from redis_ratelimit import Limit, Limiter, TokenBucket
from serving import TIMEOUT, Serve
from traffic import ALICE, PLAIN, ask, field

from support.server import Server

REQUESTS = TokenBucket(20, 1, "1h", name="llm-requests", cost=1)
TOKENS = TokenBucket(10_000, 1, "1h", name="llm-tokens")
GATEWAY = {"llm_limits": (REQUESTS, TOKENS), "limits": {}}


async def model_of_prompt(question: Question) -> Answer:
    """Model that uses the number of tokens in the prompt, or fails."""
    if question.prompt == "fail":
        raise ConnectionError("the provider hung up")
    return Answer("done", int(question.prompt))


def remaining(server: Server, limit: Limit) -> int:
    with server.client() as redis, Limiter(redis, timeout=TIMEOUT) as limiter:
        return limiter.peek("rl:{acme}:llm:alice", replace(limit, cost=0)).remaining


def test_unused_tokens_are_refunded(serve: Serve, server: Server) -> None:
    url = serve(model=model_of_prompt, **GATEWAY)
    response = ask(url, prompt="1200", max_tokens=4000)
    assert response.status_code == 200
    assert response.json() == {"text": "done", "tokens": 1200}
    assert remaining(server, TOKENS) == 8800
    assert remaining(server, REQUESTS) == 19
    limits = field(response, "RateLimit")
    assert limits["llm-requests"]["r"] == 19
    assert limits["llm-tokens"]["r"] == 8800
    assert field(response, "RateLimit-Policy")["llm-tokens"]["qu"] == "tokens"


def test_usage_above_the_estimate_is_charged_beyond_the_limit(serve: Serve, server: Server) -> None:
    url = serve(model=model_of_prompt, **GATEWAY)
    assert ask(url, prompt="12000", max_tokens=4000).status_code == 200
    response = ask(url, prompt="1", max_tokens=100)
    assert response.status_code == 429
    assert response.json()["violated-policies"] == ["llm-tokens"]
    assert response.headers["X-RateLimit-Limit"] == "10000"
    # The debt of 2000 and the estimate of 101 recover at one per hour.
    assert 2100 * 3600 <= int(response.headers["Retry-After"]) <= 2101 * 3600
    assert remaining(server, REQUESTS) == 19


def test_a_denied_estimate_costs_no_request(serve: Serve, server: Server) -> None:
    url = serve(model=model_of_prompt, **GATEWAY)
    assert [ask(url, prompt="8000", max_tokens=7999).status_code for _ in range(3)] == [
        200,
        429,
        429,
    ]
    assert remaining(server, REQUESTS) == 19
    assert remaining(server, TOKENS) == 2000


def test_denied_request_costs_no_tokens(serve: Serve, server: Server) -> None:
    url = serve(model=model_of_prompt, **GATEWAY)
    statuses = [ask(url, prompt="1", max_tokens=10).status_code for _ in range(21)]
    assert statuses == [200] * 20 + [429]
    assert remaining(server, TOKENS) == 10_000 - 20


def test_failed_model_costs_no_tokens(serve: Serve, server: Server) -> None:
    url = serve(model=model_of_prompt, **GATEWAY)
    assert ask(url, prompt="fail", max_tokens=4000).status_code == 500
    assert remaining(server, TOKENS) == 10_000
    assert remaining(server, REQUESTS) == 19


def test_concurrent_reservations_stay_within_the_limit(serve: Serve, server: Server) -> None:
    """Each request reserves 1001 tokens, so nine fit concurrently."""
    running = 0
    maximum = 0
    denied = threading.Event()

    async def answer_after_denials(_: Question) -> Answer:
        nonlocal running, maximum
        running += 1
        maximum = max(maximum, running)
        # Waits until all others are denied, so that none gets the tokens that this one refunds.
        await asyncio.to_thread(denied.wait, 30)
        running -= 1
        return Answer("done", 500)

    url = serve(model=answer_after_denials, llm_limits=(TOKENS,), limits={})

    async def send_all() -> list[int]:
        async with httpx.AsyncClient(headers=ALICE, **PLAIN) as client:

            async def send() -> int:
                question = {"prompt": "hi", "max_tokens": 1000}
                response = await client.post(f"{url}/v1/chat", json=question)
                statuses.append(response.status_code)
                if statuses.count(429) == 41:
                    denied.set()
                return response.status_code

            statuses: list[int] = []
            return await asyncio.gather(*(send() for _ in range(50)))

    statuses = asyncio.run(send_all())
    assert statuses.count(200) == 9
    assert maximum == 9
    assert remaining(server, TOKENS) == 10_000 - 9 * 500


def test_resent_call_is_charged_once(serve: Serve, server: Server) -> None:
    """The replies to the first reservation and to the first settlement are lost."""
    with LossyProxy(server.port, (b"ONCE", b"SETTLE")) as proxy:
        url = serve(model=model_of_prompt, redis_url=f"redis://127.0.0.1:{proxy.port}", **GATEWAY)
        response = ask(url, prompt="1200", max_tokens=4000)
    assert proxy.lost == [b"ONCE", b"SETTLE"]
    assert response.status_code == 200
    assert field(response, "RateLimit")["llm-tokens"]["r"] == 8800
    assert remaining(server, TOKENS) == 8800
    assert remaining(server, REQUESTS) == 19


def test_local_reservation_is_settled_locally(serve: Serve, server: Server) -> None:
    """Otherwise Redis would refund units that it never charged."""
    url = serve(model=model_of_prompt, **GATEWAY)
    assert ask(url, prompt="6000", max_tokens=7000).status_code == 200
    server.stop("kill")
    response = ask(url, prompt="2000", max_tokens=8000)
    assert response.status_code == 200
    assert "RateLimit" not in response.headers
    # 8000 remain locally. An estimate is max_tokens plus two for the prompt.
    assert ask(url, prompt="8000", max_tokens=7999).status_code == 429
    assert ask(url, prompt="8000", max_tokens=7998).status_code == 200


def test_request_without_an_api_key_is_401(serve: Serve) -> None:
    assert ask(serve(model=model_of_prompt, **GATEWAY), headers={}, prompt="1").status_code == 401
