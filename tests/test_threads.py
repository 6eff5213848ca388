"""Other modules can call this one from threads of their own, which hold the server's lock."""

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from support import modules
from support.policies import policies
from support.saving import load_aof, reload
from support.server import Server
from support.waiting import DENIED, GRANTED, Queue

pytestmark = pytest.mark.every_server

Start = Callable[..., Server]


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return modules.build("threads", tmp_path_factory.mktemp("threads"), "-pthread")


@pytest.fixture
def primary(threads: Path, fresh_server: Start) -> Server:
    return fresh_server(others=[threads], appendonly="yes")


@pytest.fixture
def redis(primary: Server) -> Redis:
    return primary.client()


def in_thread(redis: Redis, *words: str | int) -> object:
    """Calls a command from a thread of another module."""
    return redis.execute_command("THREADS.CALL", *words)


def test_a_thread_finds_the_policies_of_its_server(redis: Redis) -> None:
    redis.execute_command("RL.POLICYSET", "gold", "TOKENBUCKET", 10, 10, "1h")
    assert in_thread(redis, "RL.LIMIT", "k", "gold")[:3] == [1, 10, 9]
    assert redis.execute_command("RL.LIMIT", "k", "gold")[:3] == [1, 10, 8]


def test_policy_set_by_a_thread_is_visible_and_persisted(primary: Server, redis: Redis) -> None:
    in_thread(redis, "RL.POLICYSET", "gold", "TOKENBUCKET", 10, 10, "1h")
    replica = primary.replica()
    assert redis.execute_command("RL.LIMIT", "k", "gold")[:3] == [1, 10, 9]
    in_thread(redis, "RL.POLICYSCALE", "gold", "0.5")
    assert redis.execute_command("RL.LIMIT", "k", "gold")[:3] == [1, 5, 3]
    replica.wait_for_sync()
    with replica.client() as follower:
        assert policies(follower) == policies(redis) != {}
    in_thread(redis, "RL.POLICYDEL", "gold")
    assert redis.execute_command("RL.POLICYLIST") == []


def test_a_snapshot_that_a_thread_saves_has_the_policies(
    threads: Path, fresh_server: Start
) -> None:
    primary = fresh_server(others=[threads])
    redis = primary.client()
    redis.execute_command("RL.POLICYSET", "gold", "TOKENBUCKET", 10, 10, "1h")
    assert in_thread(redis, "SAVE") == b"OK"
    primary.restart("kill")
    assert redis.execute_command("RL.LIMIT", "k", "gold")[:3] == [1, 10, 9]


@pytest.mark.parametrize("load", [reload, load_aof], ids=["reload", "aof"])
def test_charges_by_a_thread_are_persisted(
    load: Callable[[Server], None], primary: Server, redis: Redis
) -> None:
    redis.execute_command("RL.POLICYSET", "gold", "TOKENBUCKET", 10, 10, "1h", "FIXED", 100, "1d")
    in_thread(redis, "RL.LIMIT", "k", "gold", "COST", 3)
    in_thread(redis, "RL.TOKENBUCKET", "l", 10, 10, "1h", "COST", 4)
    load(primary)
    assert redis.execute_command("RL.LIMIT", "k", "gold")[2] == 6
    assert redis.execute_command("RL.TOKENBUCKET", "l", 10, 10, "1h")[2] == 5


def test_release_by_a_thread_serves_the_waiting_call(primary: Server, redis: Redis) -> None:
    with Queue(primary) as queue:
        queue.acquire("holder")
        first, second = queue.join_all("first", "second")
        assert in_thread(redis, "RL.RELEASE", "k", "holder") == 1
        assert first.reply() == GRANTED
        assert in_thread(redis, "DEL", "k") == 1
        assert second.reply() == GRANTED


def test_call_of_a_thread_does_not_overtake_waiting_calls(primary: Server, redis: Redis) -> None:
    with Queue(primary) as queue:
        queue.acquire("holder")
        waiter = queue.join("next")
        assert in_thread(redis, "RL.ACQUIRE", "k", 1, "60s", "thread") == DENIED
        # A module's call cannot block, so it gets an answer at once.
        assert in_thread(redis, "RL.ACQUIRE", "k", 1, "60s", "thread", "BLOCK", 0) == DENIED
        assert in_thread(redis, "RL.RELEASE", "k", "next") == 0
        assert waiter.reply() == DENIED


def test_denials_by_a_thread_and_by_clients_are_counted_together(redis: Redis) -> None:
    for call in (in_thread, Redis.execute_command) * 3:
        call(redis, "RL.FIXED", "k", 1, "1h")
    (key, denied, *_), *others = redis.execute_command("RL.TOP")
    assert (key, denied, others) == (b"k", 5, [])
