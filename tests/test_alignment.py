"""The module works with an allocator that aligns blocks to 8 bytes only."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support import modules
from support.clock import Clock
from support.server import MODULE, Server
from support.workload import keys, play, state, steps

pytestmark = pytest.mark.every_server


def test_module_works_with_blocks_aligned_to_eight_bytes(
    tmp_path: Path, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    shim = modules.build("misaligned", tmp_path)
    server = fresh_server(module=shim, module_args=str(MODULE))
    usual_server = fresh_server()
    redis, expected = server.client(), usual_server.client()
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
