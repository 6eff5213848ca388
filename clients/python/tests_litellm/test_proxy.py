"""Requests through LiteLLM's proxy, and the usage that the server counted for them."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from model import OUTPUT_TOKENS, PROMPT_TOKENS
from support import poll

from conftest import Caller, Proxy

USED = PROMPT_TOKENS + OUTPUT_TOKENS
FULL = {"requests": 60, "tokens": 10_000, "parallel": 10}


def remaining_after(requests: int, tokens: int) -> dict[str, int]:
    return {"requests": 60 - requests, "tokens": 10_000 - tokens, "parallel": 10}


@contextmanager
def open_request(caller: Caller, model: str, **options: Any) -> Iterator[socket.socket]:
    """Starts a request without waiting for its response; the client disconnects at the end of the
    block.
    """
    url = caller.http.base_url
    body = httpx.Request("POST", "http://x", json=caller.body(model, **options)).read()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {url.host}\r\n"
        f"Authorization: Bearer {caller.key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((url.host, url.port or 80), timeout=60) as connection:
        connection.sendall(head.encode() + body)
        yield connection


def read_until(connection: socket.socket, text: bytes) -> None:
    read = b""
    while text not in read:
        part = connection.recv(65536)
        assert part, f"the stream ended without {text!r}: {read!r}"
        read += part


# Charges


def test_response_costs_the_reported_tokens(proxy: Proxy) -> None:
    alice = proxy.caller()
    assert alice.ask("answer").status_code == 200
    assert alice.remaining() == remaining_after(1, USED)


def test_stream_costs_the_reported_tokens(proxy: Proxy) -> None:
    alice = proxy.caller()
    with alice.stream("answer") as answer:
        assert list(answer.iter_lines())[-2] == "data: [DONE]"
    assert alice.remaining() == remaining_after(1, USED)


MESSAGES = {"max_tokens": 100, "messages": [{"role": "user", "content": "x" * 40}]}


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        ("/v1/completions", {"prompt": "x" * 40}, USED),
        # LiteLLM requests no usage for these: 10 tokens of the prompt, and 5 of the response.
        ("/v1/completions", {"prompt": "x" * 40, "stream": True}, 15),
        ("/v1/embeddings", {"input": ["x" * 40]}, PROMPT_TOKENS),
        ("/v1/responses", {"input": "x" * 40}, USED),
        ("/v1/responses", {"input": "x" * 40, "stream": True}, USED),
        ("/v1/messages", MESSAGES, USED),
        ("/v1/messages", {"stream": True, **MESSAGES}, USED),
    ],
)
def test_other_apis_are_limited(proxy: Proxy, path: str, body: dict[str, Any], tokens: int) -> None:
    alice = proxy.caller()
    answer = alice.post(path, {"model": "answer", **body})
    assert answer.status_code == 200, answer.text
    assert alice.remaining() == remaining_after(1, tokens)


def test_request_in_flight_has_its_estimate_charged_and_a_lease(
    proxy: Proxy,
) -> None:
    alice = proxy.caller()
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(alice.ask, "wait")
        poll.until(lambda: proxy.models.waiting == 1, "the model has the request", timeout=60)
        # 11 tokens of the prompt, and the maximum of 100 for the response.
        assert alice.remaining() == {"requests": 59, "tokens": 10_000 - 111, "parallel": 9}
        proxy.models.may_answer.set()
        assert answer.result().status_code == 200
    assert alice.remaining() == remaining_after(1, USED)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["fail", "refuse", "late"])
def test_failed_request_costs_no_tokens_and_releases_its_lease(
    proxy: Proxy, model: str, stream: bool
) -> None:
    alice = proxy.caller()
    assert alice.ask(model, stream=stream).is_error
    assert alice.remaining() == remaining_after(1, 0)


def test_request_rejected_by_litellm_costs_no_tokens(proxy: Proxy) -> None:
    alice = proxy.caller()
    assert alice.ask("no-such-model").status_code == 400
    assert alice.remaining()["tokens"] == 10_000
    assert alice.remaining()["parallel"] == 10


def test_retries_are_within_one_request(proxy: Proxy) -> None:
    alice = proxy.caller()
    before = proxy.models.requests
    assert alice.ask("once").status_code == 200
    assert proxy.models.requests == before + 2
    assert alice.remaining() == remaining_after(1, USED)


def test_stream_without_reported_usage_is_charged(proxy: Proxy) -> None:
    alice = proxy.caller()
    with alice.stream("mute") as answer:
        answer.read()
    remaining = alice.remaining()
    assert (remaining["requests"], remaining["parallel"]) == (59, 10)
    # By LiteLLM's own count, or by the length of the text.
    assert 0 < 10_000 - remaining["tokens"] < 111


def test_broken_stream_is_charged_for_received_tokens(proxy: Proxy) -> None:
    alice = proxy.caller()
    with open_request(alice, "tear", stream=True) as connection:
        read_until(connection, b"two ")
        proxy.models.may_answer.set()
        read_until(connection, b"error")
        # 11 tokens of the prompt, and 2 received ones.
        assert alice.remaining() == remaining_after(1, 13)


# Clients that disconnect


def test_disconnect_in_a_stream_releases_the_lease(proxy: Proxy) -> None:
    alice = proxy.caller()
    with open_request(alice, "drip", stream=True) as connection:
        read_until(connection, b"two ")
        assert alice.remaining()["parallel"] == 9
    poll.until(lambda: alice.remaining()["parallel"] == 10, "its lease is released", timeout=60)
    # The model has not finished: 11 tokens of the prompt, and 2 received ones.
    assert proxy.models.waiting == 1
    assert alice.remaining() == remaining_after(1, 13)


def test_disconnect_before_a_stream_releases_the_lease(proxy: Proxy) -> None:
    alice = proxy.caller()
    with open_request(alice, "wait", stream=True):
        poll.until(lambda: proxy.models.waiting == 1, "the model has the request", timeout=60)
        assert alice.remaining()["parallel"] == 9
    proxy.models.may_answer.set()
    poll.until(lambda: alice.remaining()["parallel"] == 10, "its lease is released", timeout=60)


def test_lease_is_kept_after_a_disconnect_until_the_model_responds(
    proxy: Proxy,
) -> None:
    # LiteLLM lets the request continue, so the lease is in use.
    alice = proxy.caller()
    with open_request(alice, "wait"):
        poll.until(lambda: proxy.models.waiting == 1, "the model has the request", timeout=60)
    assert alice.remaining()["parallel"] == 9
    proxy.models.may_answer.set()
    poll.until(
        lambda: alice.remaining() == remaining_after(1, USED), "the request is settled", timeout=60
    )


def test_many_disconnects_leak_no_lease(proxy: Proxy) -> None:
    alice = proxy.caller()
    for _ in range(15):  # there are ten leases
        with open_request(alice, "drip", stream=True) as connection:
            read_until(connection, b"two ")
        poll.until(lambda: alice.remaining()["parallel"] == 10, "its lease is released", timeout=60)
    assert alice.remaining()["requests"] == 45


# Denials


def test_eight_callers_get_exactly_the_limit(proxy: Proxy) -> None:
    proxy.policy("twenty", "FIXED 20 1h COST 1 AS calls")
    alice = proxy.caller("twenty")
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda _: alice.ask("answer").status_code, range(40)))
    assert sorted(answers) == [200] * 20 + [429] * 20


def test_response_shows_the_governing_limit_and_retry_after(proxy: Proxy) -> None:
    proxy.policy("few", "FIXED 9 1h COST 1 AS requests TOKENBUCKET 120 60 1m AS tokens")
    alice = proxy.caller("few")
    passed = alice.ask("answer")
    assert passed.status_code == 200
    # After settling, the limit with the fewest units governs: 87 tokens are left.
    assert passed.headers["x-ratelimit-limit"] == "9"
    assert passed.headers["x-ratelimit-remaining"] == "8"
    assert passed.headers["x-ratelimit-reset"] == "3600"
    assert passed.headers["ratelimit-policy"] == '"llm";q=9'
    assert passed.headers["ratelimit"] == '"llm";r=8;t=3600'
    before = proxy.models.requests
    denied = alice.ask("answer")
    assert denied.status_code == 429
    # 33 of 120 are used, 111 are needed, and one a second recovers.
    assert denied.headers["retry-after"] == "24"
    assert denied.headers["x-ratelimit-limit"] == "120"
    assert denied.headers["x-ratelimit-remaining"] == "87"
    assert denied.headers["ratelimit"] == '"llm";r=87;t=24'
    assert "over the limit, try again in 24 seconds" in denied.text
    # Nothing was charged, and the model received no request.
    assert alice.remaining() == {"requests": 8, "tokens": 87}
    assert proxy.models.requests == before


def test_request_above_the_limit_has_no_retry_after(proxy: Proxy) -> None:
    alice = proxy.caller()
    denied = alice.ask("answer", max_tokens=20_000)
    assert denied.status_code == 429
    assert "retry-after" not in denied.headers
    assert "larger than the limit allows" in denied.text
    assert alice.remaining() == FULL


def test_parallel_requests_are_limited_and_released_at_once(proxy: Proxy) -> None:
    proxy.policy("two", "CONCURRENCY 2 10m AS parallel")
    alice = proxy.caller("two")
    with ThreadPoolExecutor() as threads:
        pending = [threads.submit(alice.ask, "wait") for _ in range(2)]
        poll.until(lambda: proxy.models.waiting == 2, "the model has both requests", timeout=60)
        denied = alice.ask("answer")
        assert (denied.status_code, denied.headers["retry-after"]) == (429, "600")
        assert "over the limit, try again in 600 seconds" in denied.text
        proxy.models.may_answer.set()
        assert [one.result().status_code for one in pending] == [200, 200]
    # The lease is released before the client has the response.
    for stream in (False, True):
        for _ in range(5):
            assert alice.ask("answer", stream=stream).status_code == 200
    assert alice.remaining() == {"parallel": 2}


def test_request_id_of_the_client_is_not_used_as_id(proxy: Proxy) -> None:
    # LiteLLM takes the id of a request from the client, so it must not be the idempotency key.
    proxy.policy("one", "FIXED 1 1h COST 1 AS requests")
    alice = proxy.caller("one")
    assert alice.headers["x-litellm-call-id"] == "mine"
    answers = [alice.ask("answer").status_code for _ in range(3)]
    assert answers == [200, 429, 429]


def test_calls_without_tokens_pass(proxy: Proxy) -> None:
    alice = proxy.caller()
    models = alice.http.get("/v1/models", headers=alice.headers)
    assert models.status_code == 200
    assert proxy.admin.keys(f"llm:{alice.key_hash}") == []
