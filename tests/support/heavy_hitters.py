"""Denied calls, and their keys in RL.TOP."""

import pytest
from redis import Redis

from support.binaries import NO_MODULE_CONFIG
from support.server import Server


def deny(redis: Redis, *names: str | bytes) -> None:
    """Denies each key once per occurrence, by a cost above the limit."""
    with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.execute_command("RL.FIXED", name, 1, "1h", "COST", 2)
        assert {answer[0] for answer in pipeline.execute()} <= {0}


def rows(redis: Redis, *words: str | int) -> list[list[bytes | int | None]]:
    return redis.execute_command("RL.TOP", *words)


def top(redis: Redis, *words: str | int) -> list[tuple[bytes, int, int]]:
    """Returns each key with its number of denials and the possible error of that number."""
    found = rows(redis, *words)
    assert all(len(row) == 5 and row[4] is None for row in found), "only a sketch has items"
    return [tuple(row[:3]) for row in found]


def exact(**denied: int) -> list[tuple[bytes, int, int]]:
    """Returns the result of `top` for keys with these numbers of denials, without an error."""
    return [(name.encode(), count, 0) for name, count in denied.items()]


def set_top_keys(redis: Redis, server: Server, count: int) -> None:
    if not server.binary.has_module_config:
        pytest.skip(NO_MODULE_CONFIG)
    redis.config_set("ratelimit.top-keys", count)


def used_memory(redis: Redis) -> int:
    return redis.info("memory")["used_memory"]
