"""The fast path of a key's first call gives the same replies, stored values, events and counts as
the slow path, which a server with an AOF takes. This holds for any expired value of the key, and if
other modules act on the events of its expiry or creation.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis, ResponseError, WatchError

from support.clock import Clock
from support.listening import all_messages
from support.saving import wait_until_saved
from support.server import Server
from support.workload import state

pytestmark = pytest.mark.every_server

START_AOF = ["CONFIG", "SET", "appendonly", "yes"]
# The fast path recognizes a bucket by arguments that were parsed before.
KNOWN = ["RL.TOKENBUCKET", "known", 5, 5, "1s"]
CALLS = ["RL.TOKENBUCKET k 5 5 1s", "RL.LIMIT k bucket", "RL.DELAY k bucket"]


def answer(redis: Redis, call: str) -> object:
    """Returns the reply to a call, or the error."""
    try:
        return redis.execute_command(*call.split())
    except ResponseError as error:
        return str(error)


def twice(redis: Redis, call: str) -> object:
    return [answer(redis, call) for _ in range(2)]


def in_a_transaction(redis: Redis, call: str) -> object:
    pipeline = redis.pipeline()
    for _ in range(2):
        pipeline.execute_command(*call.split())
    return pipeline.execute()


def in_a_script(redis: Redis, call: str) -> object:
    words = ", ".join("KEYS[1]" if word == "k" else f"'{word}'" for word in call.split())
    return redis.eval(f"return redis.call({words})", 1, "k")


def with_memory_full(redis: Redis, call: str) -> object:
    redis.config_set("maxmemory", 1)
    answers = [answer(redis, call), redis.exists("k")]
    redis.config_set("maxmemory", 0)
    return answers


def at_a_key_that_others_watch(redis: Redis, call: str) -> object:
    pipeline = redis.pipeline()
    pipeline.watch("k")
    found = answer(redis, call)
    pipeline.multi()
    pipeline.set("other", "x")
    with pytest.raises(WatchError):
        pipeline.execute()
    return found


def at_a_string(redis: Redis, call: str) -> object:
    redis.set("k", "mine")
    return answer(redis, call)


def with_a_capacity_below_a_unit(redis: Redis, call: str) -> object:
    redis.execute_command("RL.POLICYSCALE", "bucket", 0.1)
    found = answer(redis, call.replace("5 5 1s", "0.5 5 1s"))
    redis.execute_command("RL.POLICYSCALE", "bucket", 1)
    return found


WAYS = [
    twice,
    in_a_transaction,
    in_a_script,
    with_memory_full,
    at_a_key_that_others_watch,
    at_a_string,
    with_a_capacity_below_a_unit,
]
# Calls that create an earlier value of the key. It has expired when the tested call reads the key.
BEFORE = ["PING", "RL.TOKENBUCKET k 9 9 1m", "RL.TAKE k FIXED 5 1m FIXED 6 2m", "SET k x PX 1000"]


def start_servers(fresh_server: Callable[..., Server], **settings: object) -> list[Server]:
    """Starts a server without a replica or an AOF, and a server with an AOF."""
    settings |= {"module_args": "denial-events yes", "notify_keyspace_events": "KEA"}
    servers = [fresh_server(**settings), fresh_server(**settings, appendonly="yes")]
    for server in servers:
        with server.client() as redis:
            redis.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
            redis.execute_command("RL.POLICYSET", "bucket", "TOKENBUCKET", 5, 5, "1s")
            redis.execute_command(*KNOWN)
    return servers


def counts_of_calls(redis: Redis) -> object:
    """Returns the server's counts of calls, by command, kind, key and policy."""
    sections = [redis.info(f"ratelimit_{name}") for name in ("commands", "kinds")]
    top = redis.execute_command("RL.TOP", "COUNT", 100)
    return sections, top, redis.execute_command("RL.POLICYGET", "bucket")[-1]


@pytest.mark.parametrize("call", CALLS)
def test_a_first_call_is_the_same_with_and_without_an_aof(
    call: str, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    clients = [server.client() for server in start_servers(fresh_server)]
    listeners = [client.pubsub() for client in clients]
    for listener in listeners:
        listener.psubscribe("__key*__:*")
    for way in WAYS:
        for before in BEFORE:
            for redis in clients:
                redis.flushall()
                redis.execute_command(*before.split())
            clock.advance("1h")
            answers = [way(redis, call) for redis in clients]
            assert answers[0] == answers[1], (way, before)
            assert state(clients[0]) == state(clients[1]), (way, before)
    assert counts_of_calls(clients[0]) == counts_of_calls(clients[1])
    messages = [all_messages(listener) for listener in listeners]
    assert len(messages[0]) > 100
    assert messages[0] == messages[1]
    assert clients[0].info("ratelimit")["ratelimit_effects_propagated"] == 0
    assert clients[1].info("ratelimit")["ratelimit_effects_propagated"] > 20


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("event", "command"),
    [
        ("expired", "SET k mine"),
        ("expired", "RL.TOKENBUCKET k 9 9 1m"),
        ("expired", "RL.POLICYDEL bucket"),
        ("expired", "RL.POLICYSET bucket FIXED 3 1m"),
        ("new", "PEXPIRE k 77000"),
        ("new", "RL.TOKENBUCKET k 5 5 1s"),
        ("rl.take", "DEL k"),
    ],
)
def test_a_first_call_is_the_same_on_both_paths_if_another_module_acts_on_an_event(
    event: str,
    command: str,
    call: str,
    neighbour: Path,
    fresh_server: Callable[..., Server],
    clock: Clock,
) -> None:
    servers = start_servers(fresh_server, others=[neighbour])
    clients = [server.client() for server in servers]
    listeners = [client.pubsub() for client in clients]
    for redis, listener in zip(clients, listeners, strict=True):
        redis.execute_command("RL.FIXED", "k", 5, "1m")
        listener.psubscribe("__key*__:*")
        redis.execute_command("NEIGHBOUR.ON", event, "k", *command.split())
    clock.advance("1h")
    answers = [twice(redis, call) for redis in clients]
    assert answers[0] == answers[1]
    assert state(clients[0]) == state(clients[1])
    assert all_messages(listeners[0]) == all_messages(listeners[1])


@pytest.mark.parametrize("call", CALLS)
def test_a_first_call_reaches_an_aof_that_started_before_the_old_key_expired(
    call: str, neighbour: Path, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    redis = fresh_server(others=[neighbour], appendfsync="always").client()
    redis.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    redis.execute_command("RL.POLICYSET", "bucket", "TOKENBUCKET", 5, 5, "1s")
    redis.execute_command(*KNOWN)
    redis.execute_command("RL.FIXED", "k", 5, "1m")
    redis.execute_command("NEIGHBOUR.ON", "expired", "k", *START_AOF)
    clock.advance("1h")
    redis.execute_command(*call.split())
    stored = state(redis)
    assert stored
    wait_until_saved(redis)
    # Replaying the call instead of its effect would decide it again.
    clock.advance("100ms")
    redis.execute_command("DEBUG", "LOADAOF")
    assert state(redis) == stored
