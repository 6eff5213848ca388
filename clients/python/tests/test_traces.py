"""The limiter in memory replies what the server replies: `clients/traces.json`."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from redis_ratelimit.memory.server import Memory
from redis_ratelimit.resp import RefusedError

TRACES = json.loads((Path(__file__).parents[2] / "traces.json").read_text())


def reply_or_error_code(memory: Memory, call: str) -> Any:
    try:
        return text(memory.call(call.split()))
    except RefusedError as error:
        return str(error).partition(" ")[0]


def text(reply: Any) -> Any:
    if isinstance(reply, list):
        return [text(one) for one in reply]
    return reply.decode() if isinstance(reply, bytes) else reply


@pytest.mark.parametrize("name", TRACES["traces"])
def test_memory_replies_like_the_server(name: str) -> None:
    now = TRACES["start"]
    memory = Memory(lambda: Fraction(now, 1_000_000))  # type: ignore[arg-type]
    for index, (advance, call, reply) in enumerate(TRACES["traces"][name]):
        now += advance
        assert reply_or_error_code(memory, call) == reply, f"call {index}: {call}"
