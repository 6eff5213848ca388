"""A defect that panics answers an error; the server lives. (A debug build has a command for it.)"""

from collections.abc import Callable

import pytest
from redis import ResponseError

from support.server import DEBUG_MODULE, Server


def test_a_panic_in_a_command_is_an_error_and_a_line_in_the_log(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server(module=DEBUG_MODULE)
    redis = server.client()
    redis.execute_command("RL.FIXED", "before", 5, "1m")
    for _ in range(3):
        with pytest.raises(ResponseError, match="internal error in module ratelimit"):
            redis.execute_command("RL.PANIC", "key")
    assert "on purpose" in server.log()
    assert redis.execute_command("RL.FIXED", "before", 5, "1m")[:3] == [1, 5, 3]


def test_the_module_that_is_shipped_has_no_command_for_it(server: Server) -> None:
    with pytest.raises(ResponseError, match="unknown command"):
        server.client().execute_command("RL.PANIC", "key")
