"""The calls to the server do not grow with the number of viewers."""

from collections.abc import Callable

import pytest
from api_client import READS, TOKENS, Console
from console_fixtures import Start, console
from console_process import ConsoleProcess
from redis import Redis

from support import poll
from support.clock import Clock
from support.server import Server

__all__ = ["console"]

TOP = "/api/top?since=5m&count=20&minutes=15"


@pytest.fixture
def process(server: Server, clock: Clock, start: Start) -> ConsoleProcess:
    """Console whose wall clock is that of the server."""
    return start(server.port, environment=TOKENS | clock.environment)


@pytest.fixture
def viewers(process: ConsoleProcess) -> list[Console]:
    return [Console(process), Console(process, READS)]


@pytest.fixture
def calls(redis: Redis) -> Callable[[str], int]:
    """Returns a function for the number of calls of a command on the server since its last call."""
    last: dict[str, int] = {}

    def since_last_time(command: str) -> int:
        count = redis.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]
        before, last[command] = last.get(command, 0), count
        return count - before

    for command in ("rl.top", "rl.policylist", "rl.policyget", "rl.info"):
        since_last_time(command)
    return since_last_time


def test_viewers_share_denied_keys_and_complete_minutes(
    viewers: list[Console],
    redis: Redis,
    clock: Clock,
    policy: Callable[..., int],
    calls: Callable[[str], int],
) -> None:
    redis.execute_command("RL.TOP", "RESET")
    policy("login", "FIXED 1 1d")
    calls("rl.top")

    def deny_and_read(denied: int) -> list[int]:
        """Makes denied calls, and returns the series that both viewers get several times."""
        for _ in range(denied):
            redis.execute_command("RL.LIMIT", "user:1", "login", "FORCE")
            redis.execute_command("RL.LIMIT", "user:1", "login")
        answers = [viewer(TOP).json for viewer in viewers * 3]
        assert all(answer == answers[0] for answer in answers)
        return answers[0][0]["minutes"]

    poll.until(lambda: viewers[0]("/api/history?minutes=15").json["points"], "the sampler runs")
    assert deny_and_read(3)[-2:] == [0, 3]
    assert calls("rl.top") == 1 + 15, "the list, and all minutes once"
    assert deny_and_read(2)[-2:] == [0, 3]
    assert calls("rl.top") == 0, "shared for two seconds"
    clock.advance("2s")
    assert deny_and_read(1)[-2:] == [0, 6]
    assert calls("rl.top") == 2, "the list, and the running minute"
    clock.advance("1m")
    assert deny_and_read(4)[-3:] == [0, 6, 4]
    poll.until(lambda: viewers[0]("/api/history?minutes=15").json["keys"], "the minute is kept")
    # The history reads its list and the running minute too.
    assert calls("rl.top") == 2 + 2 + 2, "the minute that is over is read once"
    clock.advance("3s")
    assert deny_and_read(0)[-3:] == [0, 6, 4]
    assert calls("rl.top") == 2


def test_viewers_share_the_list_of_policies_until_it_changes(
    viewers: list[Console],
    clock: Clock,
    policy: Callable[..., int],
    calls: Callable[[str], int],
) -> None:
    policy("a", "FIXED 1 1d")
    policy("b", "FIXED 2 1d")

    def listed() -> list[str]:
        answers = [viewer("/api/policies").json for viewer in viewers * 3]
        assert all(answer == answers[0] for answer in answers)
        return [policy["specs"] for policy in answers[0]]

    poll.until(lambda: viewers[0]("/api/now").json["count"] == 2, "the sample has the policies")
    assert listed() == ["FIXED 1 1d", "FIXED 2 1d"]
    assert (calls("rl.policylist"), calls("rl.policyget")) == (1, 2)
    clock.advance("5s")
    listed()
    assert calls("rl.policylist") == 1
    # A change through the console is seen at once, another change after the next sample.
    assert viewers[0].put("c", "FIXED 3 1d").status == 201
    assert listed() == ["FIXED 1 1d", "FIXED 2 1d", "FIXED 3 1d"]
    assert calls("rl.policylist") in {1, 2}, "again if the sample comes in between"
    policy("d", "FIXED 4 1d")
    poll.until(lambda: len(viewers[1]("/api/policies").json) == 4, "the sample has another digest")


def test_viewers_share_the_list_of_bans_until_it_changes(
    viewers: list[Console], redis: Redis, clock: Clock, calls: Callable[[str], int]
) -> None:
    redis.execute_command("RL.TOP", "RESET")
    redis.execute_command("RL.BAN", "user:1", "1h")
    for _ in range(2):
        redis.execute_command("RL.FIXED", "user:1", 1, "1h")

    def banned() -> list[list[str]]:
        lists = [viewer("/api/bans").json["bans"] for viewer in viewers * 3]
        assert all(bans == lists[0] for bans in lists)
        return [ban["key"] for ban in lists[0]]

    calls("rl.info")
    assert banned() == ["user:1"]
    assert calls("rl.info") == 1
    # A request that changes nothing leaves the list as it is.
    assert viewers[0]("/api/check", "POST", {"specs": "FIXED 1 1h"}).status == 200
    assert banned() == ["user:1"]
    assert calls("rl.info") == 0
    clock.advance("5s")
    assert banned() == ["user:1"]
    assert calls("rl.info") == 1
    assert viewers[0]("/api/key/lift", "POST", {"key": "user:1"}).status == 200
    assert banned() == []
