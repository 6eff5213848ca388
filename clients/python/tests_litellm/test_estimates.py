"""Estimated and actual cost of a call of LiteLLM's proxy, and its caller."""

import os
import subprocess
import sys
from typing import Any

import pytest
from litellm.proxy._types import UserAPIKeyAuth

from redis_ratelimit.litellm import CALL_TYPES, caller, policy_names
from redis_ratelimit.tokens import Tokens, estimate

ALICE = UserAPIKeyAuth(api_key="sk-alice")
BODY = {"messages": [{"role": "user", "content": "x" * 36}], "max_tokens": 90}  # 10 + 90 tokens


# Estimates


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (BODY, 100),
        (BODY | {"n": 2}, 190),
        (BODY | {"max_tokens": None}, 1010),
        (BODY | {"max_tokens": -5}, 1010),
        (BODY | {"max_tokens": "many"}, 1010),
        (BODY | {"max_tokens": 10**15}, 10**12),
        (BODY | {"max_completion_tokens": 20}, 100),
        ({"prompt": "x" * 8, "max_tokens": 4000, "max_completion_tokens": 1}, 4002),
        ({"prompt": "x" * 8, "max_tokens": 1, "max_output_tokens": 50}, 52),
        (BODY | {"max_tokens": None, "max_completion_tokens": 20}, 30),
        (BODY | {"tools": [{"name": "y" * 40}]}, 110),
        ({"prompt": ["x" * 40, "y" * 40], "max_tokens": 5}, 25),
        ({"input": "x" * 40}, 1010),
        ({"messages": [{"content": [{"image_url": "data:," + "x" * 4000}]}], "max_tokens": 1}, 1),
        ({}, 1000),
    ],
)
def test_estimate_is_the_maximum_cost_of_a_request(body: dict[str, Any], tokens: int) -> None:
    assert estimate(body, 1000) == tokens


def test_usage_is_found_across_chunk_boundaries() -> None:
    text = (
        b'data: {"message": {"usage": {"input_tokens": 1234, "output_tokens": 1}}}\n\n'
        b'data: {"delta": {"text": "\\"output_tokens\\": 999999"}}\n\n'
        b'data: {"usage": {"output_tokens": 567}}\n\n'
    )
    for size in (1, 2, 7, 50, 1000):
        tokens = Tokens(0)
        for start in range(0, len(text), size):
            tokens.add(text[start : start + size])
        assert tokens.reported == 1801


def test_caller_and_policy_names() -> None:
    user = UserAPIKeyAuth(
        api_key="sk-alice", team_id="blue", metadata={"ratelimit_policy": "plan:pro"}
    )
    assert policy_names(user) == ["plan:pro", "llm:team:blue", "llm"]
    assert policy_names(ALICE) == ["llm"]
    assert "alice" not in caller(ALICE)
    assert "secret" not in caller(UserAPIKeyAuth(api_key="secret"))
    assert caller(UserAPIKeyAuth(user_id="bob")) == "bob"
    assert caller(UserAPIKeyAuth()) == "anonymous"


def test_default_instance_reads_the_environment() -> None:
    script = (
        "import redis_ratelimit.litellm as adapter; limits = adapter.limits\n"
        "assert adapter.limits is limits\n"
        "print(limits._limiter._transport.address)\n"
        "assert not hasattr(adapter, 'other')"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"RATELIMIT_URL": "redis://h:1234", "LITELLM_LOCAL_MODEL_COST_MAP": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "h:1234\n", result.stderr


def test_call_types_are_known_to_litellm() -> None:
    from litellm.types.utils import CallTypes  # noqa: PLC0415  only looked at here

    call_types = {kind.value for kind in CallTypes} | {"embeddings", "aembeddings"}
    assert CALL_TYPES - call_types <= {"aanthropic_messages"}
