"""Requests through LiteLLM's proxy, and what the server has counted of them."""

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


def after(requests: int, tokens: int) -> dict[str, int]:
    return {"requests": 60 - requests, "tokens": 10_000 - tokens, "parallel": 10}


@contextmanager
def started(caller: Caller, model: str, **more: Any) -> Iterator[socket.socket]:
    """A request whose answer is not waited for; the client hangs up at the end of the block."""
    url = caller.http.base_url
    body = httpx.Request("POST", "http://x", json=caller.body(model, **more)).read()
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


# What is charged


def test_an_answer_costs_the_tokens_that_the_model_told(proxy: Proxy) -> None:
    alice = proxy.caller()
    assert alice.ask("answer").status_code == 200
    assert alice.left() == after(1, USED)


def test_a_stream_costs_the_tokens_that_the_model_told(proxy: Proxy) -> None:
    alice = proxy.caller()
    with alice.stream("answer") as answer:
        assert list(answer.iter_lines())[-2] == "data: [DONE]"
    assert alice.left() == after(1, USED)


MESSAGES = {"max_tokens": 100, "messages": [{"role": "user", "content": "x" * 40}]}


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        ("/v1/completions", {"prompt": "x" * 40}, USED),
        # Of these LiteLLM asks for no usage: 10 tokens of the prompt, and 5 of the answer.
        ("/v1/completions", {"prompt": "x" * 40, "stream": True}, 15),
        ("/v1/embeddings", {"input": ["x" * 40]}, PROMPT_TOKENS),
        ("/v1/responses", {"input": "x" * 40}, USED),
        ("/v1/responses", {"input": "x" * 40, "stream": True}, USED),
        ("/v1/messages", MESSAGES, USED),
        ("/v1/messages", {"stream": True, **MESSAGES}, USED),
    ],
)
def test_other_apis_are_limited_too(
    proxy: Proxy, path: str, body: dict[str, Any], tokens: int
) -> None:
    alice = proxy.caller()
    answer = alice.post(path, {"model": "answer", **body})
    assert answer.status_code == 200, answer.text
    assert alice.left() == after(1, tokens)


def test_while_a_request_is_under_way_its_estimate_is_charged_and_its_place_taken(
    proxy: Proxy,
) -> None:
    alice = proxy.caller()
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(alice.ask, "wait")
        poll.until(lambda: proxy.models.waiting == 1, "the model has the request", timeout=60)
        # 11 tokens of the prompt, and 100 that the model may answer with.
        assert alice.left() == {"requests": 59, "tokens": 10_000 - 111, "parallel": 9}
        proxy.models.may_answer.set()
        assert answer.result().status_code == 200
    assert alice.left() == after(1, USED)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["fail", "refuse", "late"])
def test_a_request_that_fails_costs_no_tokens_and_keeps_no_place(
    proxy: Proxy, model: str, stream: bool
) -> None:
    alice = proxy.caller()
    assert alice.ask(model, stream=stream).is_error
    assert alice.left() == after(1, 0)


def test_a_request_that_litellm_itself_refuses_costs_no_tokens(proxy: Proxy) -> None:
    alice = proxy.caller()
    assert alice.ask("no-such-model").status_code == 400
    assert alice.left()["tokens"] == 10_000
    assert alice.left()["parallel"] == 10


def test_retries_are_within_one_request(proxy: Proxy) -> None:
    alice = proxy.caller()
    before = proxy.models.requests
    assert alice.ask("once").status_code == 200
    assert proxy.models.requests == before + 2
    assert alice.left() == after(1, USED)


def test_a_stream_that_tells_no_usage_is_charged_all_the_same(proxy: Proxy) -> None:
    alice = proxy.caller()
    with alice.stream("mute") as answer:
        answer.read()
    left = alice.left()
    assert (left["requests"], left["parallel"]) == (59, 10)
    # By LiteLLM's own count, or by the length of the text.
    assert 0 < 10_000 - left["tokens"] < 111


def test_a_stream_that_breaks_off_is_charged_for_what_came(proxy: Proxy) -> None:
    alice = proxy.caller()
    with started(alice, "tear", stream=True) as connection:
        read_until(connection, b"two ")
        proxy.models.may_answer.set()
        read_until(connection, b"error")
        # 11 tokens of the prompt, and 2 that have come.
        assert alice.left() == after(1, 13)


# Clients that hang up


def test_a_client_that_hangs_up_in_a_stream_keeps_no_place(proxy: Proxy) -> None:
    alice = proxy.caller()
    with started(alice, "drip", stream=True) as connection:
        read_until(connection, b"two ")
        assert alice.left()["parallel"] == 9
    poll.until(lambda: alice.left()["parallel"] == 10, "its place is free", timeout=60)
    # The model is still at it: 11 tokens of the prompt, and 2 that have come.
    assert proxy.models.waiting == 1
    assert alice.left() == after(1, 13)


def test_a_client_that_hangs_up_before_a_stream_begins_keeps_no_place(proxy: Proxy) -> None:
    alice = proxy.caller()
    with started(alice, "wait", stream=True):
        poll.until(lambda: proxy.models.waiting == 1, "the model has the request", timeout=60)
        assert alice.left()["parallel"] == 9
    proxy.models.may_answer.set()
    poll.until(lambda: alice.left()["parallel"] == 10, "its place is free", timeout=60)


def test_a_client_that_hangs_up_keeps_its_place_until_the_model_has_answered(
    proxy: Proxy,
) -> None:
    # LiteLLM lets the request go on, so the place is taken indeed.
    alice = proxy.caller()
    with started(alice, "wait"):
        poll.until(lambda: proxy.models.waiting == 1, "the model has the request", timeout=60)
    assert alice.left()["parallel"] == 9
    proxy.models.may_answer.set()
    poll.until(lambda: alice.left() == after(1, USED), "it is settled", timeout=60)


def test_many_that_hang_up_leak_nothing(proxy: Proxy) -> None:
    alice = proxy.caller()
    for _ in range(15):  # there are ten places
        with started(alice, "drip", stream=True) as connection:
            read_until(connection, b"two ")
        poll.until(lambda: alice.left()["parallel"] == 10, "its place is free", timeout=60)
    assert alice.left()["requests"] == 45


# What is denied


def test_eight_callers_get_exactly_the_limit(proxy: Proxy) -> None:
    proxy.policy("twenty", "FIXED 20 1h COST 1 AS calls")
    alice = proxy.caller("twenty")
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda _: alice.ask("answer").status_code, range(40)))
    assert sorted(answers) == [200] * 20 + [429] * 20


def test_clients_are_told_of_the_limit_that_governs_and_when_to_come_again(proxy: Proxy) -> None:
    proxy.policy("few", "FIXED 9 1h COST 1 AS requests TOKENBUCKET 120 60 1m AS tokens")
    alice = proxy.caller("few")
    passed = alice.ask("answer")
    assert passed.status_code == 200
    # It is settled, and then the limit with the fewest units governs: 87 tokens are left.
    assert passed.headers["x-ratelimit-limit"] == "9"
    assert passed.headers["x-ratelimit-remaining"] == "8"
    assert passed.headers["x-ratelimit-reset"] == "3600"
    assert passed.headers["ratelimit-policy"] == '"llm";q=9'
    assert passed.headers["ratelimit"] == '"llm";r=8;t=3600'
    before = proxy.models.requests
    denied = alice.ask("answer")
    assert denied.status_code == 429
    # 33 of 120 are used, 111 are asked for, and one a second comes back.
    assert denied.headers["retry-after"] == "24"
    assert denied.headers["x-ratelimit-limit"] == "120"
    assert denied.headers["x-ratelimit-remaining"] == "87"
    assert denied.headers["ratelimit"] == '"llm";r=87;t=24'
    assert "over the limit, try again in 24 seconds" in denied.text
    # Nothing was charged, and the model was not asked.
    assert alice.left() == {"requests": 8, "tokens": 87}
    assert proxy.models.requests == before


def test_what_can_never_pass_has_no_time_to_come_again(proxy: Proxy) -> None:
    alice = proxy.caller()
    denied = alice.ask("answer", max_tokens=20_000)
    assert denied.status_code == 429
    assert "retry-after" not in denied.headers
    assert "larger than the limit allows" in denied.text
    assert alice.left() == FULL


def test_parallel_requests_are_limited_and_a_place_is_free_at_once(proxy: Proxy) -> None:
    proxy.policy("two", "CONCURRENCY 2 10m AS parallel")
    alice = proxy.caller("two")
    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(alice.ask, "wait") for _ in range(2)]
        poll.until(lambda: proxy.models.waiting == 2, "the model has both", timeout=60)
        denied = alice.ask("answer")
        assert (denied.status_code, denied.headers["retry-after"]) == (429, "600")
        assert "over the limit, try again in 600 seconds" in denied.text
        proxy.models.may_answer.set()
        assert [one.result().status_code for one in asked] == [200, 200]
    # Its own request before is over when a client has the answer.
    for stream in (False, True):
        for _ in range(5):
            assert alice.ask("answer", stream=stream).status_code == 200
    assert alice.left() == {"parallel": 2}


def test_the_name_of_a_call_is_the_proxys_own(proxy: Proxy) -> None:
    # LiteLLM takes the id of a request from the client. Ours is no such free pass.
    proxy.policy("one", "FIXED 1 1h COST 1 AS requests")
    alice = proxy.caller("one")
    assert alice.headers["x-litellm-call-id"] == "mine"
    answers = [alice.ask("answer").status_code for _ in range(3)]
    assert answers == [200, 429, 429]


def test_what_costs_no_tokens_passes(proxy: Proxy) -> None:
    alice = proxy.caller()
    models = alice.http.get("/v1/models", headers=alice.headers)
    assert models.status_code == 200
    assert proxy.admin.keys(f"llm:{alice.hashed}") == []
