"""Hooks of LiteLLM's proxy, called directly, in outages and with cancelled requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from fastapi import HTTPException
from litellm.proxy._types import UserAPIKeyAuth
from support import poll
from support.server import Server

import redis_ratelimit.litellm
from redis_ratelimit.aio import Limiter
from redis_ratelimit.errors import NoPolicyError
from redis_ratelimit.limits import Concurrency, Fixed, LeakyBucket, TokenBucket
from redis_ratelimit.litellm import RateLimits, caller

ALICE = UserAPIKeyAuth(api_key="sk-alice")
BODY = {"messages": [{"role": "user", "content": "x" * 36}], "max_tokens": 90}  # 10 + 90 tokens
LLM = [TokenBucket(1000, 1000, "1m", name="tokens"), Concurrency(10, "10m", name="parallel")]


@pytest.fixture(autouse=True)
def empty_server(admin: redis.Redis) -> Iterator[None]:
    delete_everything(admin)
    yield
    # A leftover policy would apply in the tests of the proxy.
    delete_everything(admin)


def delete_everything(admin: redis.Redis) -> None:
    admin.flushall()
    if names := [name for name, *_ in admin.execute_command("RL.POLICYLIST")]:
        admin.execute_command("RL.POLICYDEL", *names)


def run(
    server: Server,
    work: Callable[[RateLimits], Awaitable[None]],
    *,
    timeout: float = 20,
    on_outage: Any = "open",
    **options: Any,
) -> None:
    async def main() -> None:
        limiter = Limiter.from_url(
            f"redis://127.0.0.1:{server.port}", timeout=timeout, on_outage=on_outage, pause=0.01
        )
        async with limiter:
            await work(RateLimits(limiter, **{"policies": {"llm": LLM}, **options}))

    asyncio.run(main())


def remaining(admin: redis.Redis) -> dict[str, int]:
    key = f"llm:{caller(ALICE)}"
    reply = admin.execute_command("RL.PEEK", key, "EACH", "POLICY", "llm", "COST", 0)
    return {one[5]: one[2] for one in reply[2]}


async def pre_call(
    limits: RateLimits, body: dict[str, Any] = BODY, kind: str = "acompletion"
) -> None:
    await limits.async_pre_call_hook(ALICE, None, dict(body), kind)


async def post_call(limits: RateLimits, tokens: int) -> None:
    response = SimpleNamespace(usage=SimpleNamespace(total_tokens=tokens))
    await limits.async_post_call_success_hook({}, ALICE, response)


async def header_fields(limits: RateLimits) -> dict[str, str] | None:
    """Returns the header fields of a response."""
    return await limits.async_post_call_response_headers_hook({}, ALICE, None)


async def in_a_task(work: Awaitable[None]) -> None:
    """Runs work in a task, as a web server runs a request."""
    await asyncio.create_task(work)  # type: ignore[arg-type]


async def wait_until_idle(limits: RateLimits) -> None:
    """Waits until no task is running."""
    while limits._tasks:
        await asyncio.sleep(0.001)


def test_missing_policy_is_set_once(server: Server, admin: redis.Redis) -> None:
    async def work(limits: RateLimits) -> None:
        for _ in range(2):
            await in_a_task(pre_call(limits))
        await wait_until_idle(limits)

    run(server, work)
    name, first, *_ = admin.execute_command("RL.POLICYLIST")[0]
    assert name == "llm"
    assert first == admin.execute_command("RL.POLICYSET", "llm", "NX", "FIXED", 3, "1h")
    second = admin.execute_command("RL.POLICYSET", "llm", "FIXED", 3, "1h", "AS", "tokens")
    with pytest.raises(HTTPException):
        run(server, lambda limits: in_a_task(pre_call(limits)))
    assert admin.execute_command("RL.POLICYLIST")[0][:2] == ["llm", second]


def test_missing_policy_is_an_error(server: Server) -> None:
    with pytest.raises(NoPolicyError, match="no policy 'llm'"):
        run(server, lambda limits: in_a_task(pre_call(limits)), policies=None)


def test_cancelled_request_releases_its_lease(server: Server, admin: redis.Redis) -> None:
    async def hanging_request(limits: RateLimits) -> None:
        await pre_call(limits)
        assert remaining(admin) == {"tokens": 900, "parallel": 9}
        await asyncio.sleep(3600)

    async def work(limits: RateLimits) -> None:
        task = asyncio.create_task(hanging_request(limits))
        while not admin.keys():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until_idle(limits)

    run(server, work)
    # The model has read the prompt.
    assert remaining(admin) == {"tokens": 990, "parallel": 10}


def test_request_cancelled_before_sending_costs_nothing(server: Server, admin: redis.Redis) -> None:
    async def work(limits: RateLimits) -> None:
        tasks = [asyncio.create_task(pre_call(limits)) for _ in range(2)]
        # The leaky bucket delays the second one.
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        await wait_until_idle(limits)

    queue = [LeakyBucket(1000, 1, "1m", name="tokens"), Concurrency(10, "10m", name="parallel")]
    run(server, work, policies={"llm": queue})
    assert remaining(admin) == {"tokens": 1000, "parallel": 10}


@pytest.mark.parametrize("ending", ["close", "cancel"])
def test_stream_whose_client_leaves_before_the_first_token_costs_its_prompt(
    server: Server, admin: redis.Redis, ending: str
) -> None:
    async def chunks(begun: asyncio.Event) -> AsyncIterator[Any]:
        begun.set()
        if ending == "close":
            # Some models begin with a chunk without text.
            yield {"choices": [{"delta": {"role": "assistant"}}]}
        await asyncio.sleep(3600)

    async def streamed_request(limits: RateLimits, begun: asyncio.Event) -> None:
        await pre_call(limits)
        stream = limits.async_post_call_streaming_iterator_hook(ALICE, chunks(begun), {})
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    async def work(limits: RateLimits) -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(streamed_request(limits, begun))
        await begun.wait()
        if ending == "cancel":
            task.cancel()
        await asyncio.wait([task])
        await wait_until_idle(limits)

    run(server, work)
    assert remaining(admin) == {"tokens": 990, "parallel": 10}


def test_stream_whose_model_fails_before_the_first_token_costs_nothing(
    server: Server, admin: redis.Redis
) -> None:
    async def chunks() -> AsyncIterator[Any]:
        raise ZeroDivisionError
        yield

    async def work(limits: RateLimits) -> None:
        async def streamed_request() -> None:
            await pre_call(limits)
            stream = limits.async_post_call_streaming_iterator_hook(ALICE, chunks(), {})
            with pytest.raises(ZeroDivisionError):
                await anext(stream)

        await in_a_task(streamed_request())
        await wait_until_idle(limits)

    run(server, work)
    assert remaining(admin) == {"tokens": 1000, "parallel": 10}


@pytest.mark.parametrize("ending", ["close", "cancel"])
def test_abandoned_stream_releases_its_lease(
    server: Server, admin: redis.Redis, ending: str
) -> None:
    async def chunks() -> AsyncIterator[Any]:
        yield {"choices": [{"delta": {"content": "x" * 8}}]}
        await asyncio.sleep(3600)

    async def streamed_request(limits: RateLimits, read: asyncio.Event) -> None:
        await pre_call(limits)
        stream = limits.async_post_call_streaming_iterator_hook(ALICE, chunks(), {})
        await anext(stream)
        read.set()
        if ending == "close":
            await stream.aclose()  # type: ignore[attr-defined]
        else:
            await anext(stream)

    async def work(limits: RateLimits) -> None:
        read = asyncio.Event()
        task = asyncio.create_task(streamed_request(limits, read))
        await read.wait()
        if ending == "cancel":
            task.cancel()
        await asyncio.wait([task])
        await wait_until_idle(limits)

    run(server, work)
    # 10 tokens of the prompt, and 2 of the chunk.
    assert remaining(admin) == {"tokens": 988, "parallel": 10}


def test_request_is_settled_once(server: Server, admin: redis.Redis) -> None:
    async def request(limits: RateLimits) -> None:
        await pre_call(limits)
        await post_call(limits, 30)
        await post_call(limits, 40)
        await limits.async_post_call_failure_hook({}, RuntimeError(), ALICE)

    async def work(limits: RateLimits) -> None:
        await in_a_task(request(limits))
        await wait_until_idle(limits)

    run(server, work)
    assert remaining(admin) == {"tokens": 970, "parallel": 10}


def test_usage_above_the_estimate_is_charged(server: Server, admin: redis.Redis) -> None:
    async def request(limits: RateLimits) -> None:
        await pre_call(limits)
        await post_call(limits, 700)

    run(server, lambda limits: in_a_task(request(limits)))
    assert remaining(admin) == {"tokens": 300, "parallel": 10}


def test_repeated_hook_of_a_request_charges_nothing(server: Server, admin: redis.Redis) -> None:
    async def request(limits: RateLimits) -> None:
        await pre_call(limits)
        await pre_call(limits)
        assert remaining(admin) == {"tokens": 900, "parallel": 9}
        await post_call(limits, 30)

    run(server, lambda limits: in_a_task(request(limits)))
    assert remaining(admin) == {"tokens": 970, "parallel": 10}


def test_request_in_the_context_of_another_is_charged_itself(
    server: Server, admin: redis.Redis
) -> None:
    async def request(limits: RateLimits) -> None:
        await pre_call(limits)
        # A web server may run a request in the context of the previous one on the connection.
        task = asyncio.create_task(pre_call(limits))
        await asyncio.wait([task])
        assert remaining(admin)["tokens"] == 800

    admin.execute_command(
        "RL.POLICYSET", "llm", *["FIXED", "1000", "1h", "COST", "100", "AS", "tokens"]
    )
    run(server, lambda limits: in_a_task(request(limits)))


def test_pending_settlements_in_an_outage_are_bounded(
    server: Server, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_ratelimit.litellm, "_MAX_UNSETTLED", 3)

    async def request(limits: RateLimits) -> None:
        await pre_call(limits)
        await post_call(limits, 30)

    async def work(limits: RateLimits) -> None:
        admin.config_set("min-replicas-to-write", 1)
        for _ in range(10):
            await in_a_task(request(limits))
            await asyncio.sleep(0)
        assert len(limits._tasks) == 3
        admin.config_set("min-replicas-to-write", 0)
        await wait_until_idle(limits)

    run(server, work)


def test_calls_without_tokens_are_not_charged(server: Server, admin: redis.Redis) -> None:
    run(server, lambda limits: pre_call(limits, kind="aspeech"))
    assert admin.keys() == []


def test_leaky_bucket_delays_requests(server: Server, admin: redis.Redis) -> None:
    async def work(limits: RateLimits) -> None:
        loop = asyncio.get_running_loop()
        # One request every 20 milliseconds, by the event loop's clock.
        began = loop.time()
        for _ in range(3):
            await in_a_task(pre_call(limits))
        assert loop.time() - began >= 0.060 - 0.001

    run(server, work, policies={"llm": [LeakyBucket(10, 50, "1s", cost=1, name="queue")]})
    assert admin.dbsize() == 1


def test_response_shows_the_governing_limit_but_no_shadow_limit(
    server: Server,
) -> None:
    async def allowed_request(limits: RateLimits) -> None:
        await pre_call(limits)
        assert await header_fields(limits) == {
            "ratelimit-policy": '"llm";q=250',
            "ratelimit": '"llm";r=150;t=3600',
            "x-ratelimit-limit": "250",
            "x-ratelimit-remaining": "150",
            "x-ratelimit-reset": "3600",
        }
        await post_call(limits, 60)
        assert (await header_fields(limits) or {})["x-ratelimit-remaining"] == "190"

    async def denied_request(limits: RateLimits) -> None:
        with pytest.raises(HTTPException) as raised:
            await pre_call(limits, BODY | {"max_tokens": 190})  # 200 tokens
        assert raised.value.status_code == 429
        assert raised.value.detail == "over the limit, try again in 3600 seconds"
        assert raised.value.headers == {
            "ratelimit-policy": '"llm";q=250',
            "ratelimit": '"llm";r=190;t=3600',
            "x-ratelimit-limit": "250",
            "x-ratelimit-remaining": "190",
            "x-ratelimit-reset": "3600",
            "retry-after": "3600",
        }

    async def work(limits: RateLimits) -> None:
        await in_a_task(allowed_request(limits))
        await in_a_task(denied_request(limits))

    # The shadow limit would run out first, and denies the second request, too.
    trial = Fixed(120, "1h", name="trial", shadow=True)
    run(server, work, policies={"llm": [Fixed(250, "1h", name="tokens"), trial]})


def test_response_shows_nothing_of_a_shadow_policy(server: Server) -> None:
    async def allowed_request(limits: RateLimits) -> None:
        await pre_call(limits)
        assert await header_fields(limits) == {}
        await post_call(limits, 60)
        assert await header_fields(limits) == {}

    async def work(limits: RateLimits) -> None:
        # The second request is over the shadow limit.
        for _ in range(2):
            await in_a_task(allowed_request(limits))

    trial = Fixed(120, "1h", name="trial", shadow=True)
    run(server, work, policies={"llm": [trial]})


# Outages


def test_outage_allows_requests_or_responds_503(server: Server) -> None:
    async def allowed_request(limits: RateLimits) -> None:
        await pre_call(limits)
        await post_call(limits, 30)

    async def denied_request(limits: RateLimits) -> None:
        with pytest.raises(HTTPException) as raised:
            await pre_call(limits)
        assert raised.value.status_code == 503
        assert "retry-after" in (raised.value.headers or {})
        assert "x-ratelimit-limit" not in (raised.value.headers or {})

    server.stop()
    try:
        run(server, lambda limits: in_a_task(allowed_request(limits)))
        run(server, lambda limits: in_a_task(denied_request(limits)), on_outage="closed")
    finally:
        server.start()


@pytest.mark.parametrize("is_outage", [True, False])
def test_failed_settlement_is_retried(
    server: Server, admin: redis.Redis, *, is_outage: bool
) -> None:
    def refuse(*, refuses: bool) -> None:
        if is_outage:
            admin.config_set("min-replicas-to-write", int(refuses))
        else:  # A misconfiguration, which must not fail a request that was served.
            names = ["-rl.limit", "-rl.take"] if refuses else ["+@all"]
            admin.execute_command("ACL SETUSER", "default", *names)

    async def request(limits: RateLimits) -> None:
        await pre_call(limits)
        refuse(refuses=True)
        # The client gets its response nevertheless.
        await post_call(limits, 30)
        assert remaining(admin) == {"tokens": 900, "parallel": 9}
        refuse(refuses=False)

    async def work(limits: RateLimits) -> None:
        await in_a_task(request(limits))
        await wait_until_idle(limits)

    run(server, work)
    assert remaining(admin) == {"tokens": 970, "parallel": 10}


def test_charge_with_a_lost_reply_is_settled(server: Server, admin: redis.Redis) -> None:
    async def request(limits: RateLimits) -> None:
        await pre_call(limits)
        await post_call(limits, 30)
        with server.suspended():
            # The server has received the call but does not reply, so the outcome is unknown.
            await pre_call(limits)
        poll.until(
            lambda: remaining(admin) == {"tokens": 870, "parallel": 9},
            "the server has charged the request",
            timeout=20,
        )
        await limits.async_post_call_failure_hook({}, RuntimeError(), ALICE)

    async def work(limits: RateLimits) -> None:
        await in_a_task(request(limits))
        await wait_until_idle(limits)

    run(server, work, timeout=0.2)
    assert remaining(admin) == {"tokens": 970, "parallel": 10}


@pytest.mark.parametrize(("body", "tokens"), [({"input": "x" * 40}, 10), ({"input": [1, 2]}, 1)])
def test_embedding_has_no_output_tokens(
    server: Server, admin: redis.Redis, body: dict[str, Any], tokens: int
) -> None:
    async def request(limits: RateLimits) -> None:
        await pre_call(limits, body, "aembedding")
        assert remaining(admin)["tokens"] == 1000 - tokens

    run(server, lambda limits: in_a_task(request(limits)))
