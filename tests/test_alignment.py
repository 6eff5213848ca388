"""An allocator that aligns to only 8 bytes is enough."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support import modules
from support.clock import Clock
from support.server import MODULE, Server
from support.workload import keys, play, state, steps

pytestmark = pytest.mark.every_server


def test_blocks_that_are_aligned_to_eight_bytes_are_enough(
    tmp_path: Path, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    shim = modules.build("misaligned", tmp_path)
    server = fresh_server(module=shim, module_args=str(MODULE))
    usual = fresh_server()
    redis, expected = server.client(), usual.client()
    for number in range(300):
        acquire = ("RL.ACQUIRE", "pool", 1000, "1h", f"holder {number}")
        assert redis.execute_command(*acquire) == expected.execute_command(*acquire)
    release = ("RL.RELEASE", "pool", *(f"holder {number}" for number in range(250)))
    assert redis.execute_command(*release) == expected.execute_command(*release) == 250
    replies = play(steps(12, 2000), clock, redis, expected)
    assert replies[0] == replies[1]
    stored = state(redis)
    assert len(stored) > len(keys()) / 2
    assert stored == state(expected)
    for name in stored:
        redis.copy(name, b"copy of " + name)
        assert redis.memory_usage(name) > 0
    server.restart("save")
    assert redis.dbsize() == 2 * len(stored)
    redis.flushall()
    server.check()
