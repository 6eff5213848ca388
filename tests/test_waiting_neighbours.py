"""A lease granted while another module changes its key or ends its client harms no caller."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import ConnectionError as RedisConnectionError

from support import poll
from support.waiting import GRANTED, Queue, error_of
from support.waiting_clients import Start, drain
from support.workload import Word, state

pytestmark = pytest.mark.every_server


# Another module that handles the event of a grant


@pytest.fixture
def queue(neighbour: Path, fresh_server: Start) -> Iterator[Queue]:
    """Connects to a server with a module that runs commands on events. "a" holds the lease."""
    with Queue(fresh_server(others=[neighbour])) as queue:
        queue.acquire("a")
        yield queue
        queue.server.check()


def run_on_event(queue: Queue, event: str, *command: Word) -> None:
    """Makes the other module run the command when the event of key "k" is sent."""
    queue.client.execute_command("NEIGHBOUR.ON", event, "k", *command)


def test_a_lease_granted_to_a_killed_client_is_given_back(queue: Queue) -> None:
    b, c = queue.join_all("b", "c")
    run_on_event(queue, "rl.take", "CLIENT", "KILL", "ID", b.id)
    queue.release("a")
    assert c.reply() == GRANTED
    with pytest.raises(RedisConnectionError):
        b.reply()
    assert queue.holders() == {b"c": b"1"}


def test_a_returned_grant_of_the_last_lease_leaves_no_key(queue: Queue) -> None:
    b = queue.join("b")
    run_on_event(queue, "rl.take", "CLIENT", "KILL", "ID", b.id)
    queue.release("a")
    poll.until(lambda: queue.is_empty and not queue.client.exists("k"), "the key is removed")


def test_a_lease_that_its_holder_had_before_is_not_taken_away(queue: Queue) -> None:
    """The caller waited for more units, and was killed as it got them. Another client may still use
    the lease by the name of the holder.
    """
    queue.acquire("a", "COST", 5, limit=8)
    queue.acquire("b", limit=8)
    more = queue.join("b", "COST", 6, limit=8)
    run_on_event(queue, "rl.take", "CLIENT", "KILL", "ID", more.id)
    queue.release("a")
    poll.until(lambda: queue.is_empty, "the caller has left the queue")
    queue.settle()
    assert b"b" in queue.holders()


@pytest.mark.parametrize(
    "command", ["DEL k", "FLUSHALL", "RL.RELEASE k b", "RENAME k j", "PEXPIRE k -1"]
)
def test_a_module_that_releases_a_lease_during_its_grant_serves_the_next(
    queue: Queue, command: str
) -> None:
    b, c = queue.join_all("b", "c")
    run_on_event(queue, "rl.take", *command.split())
    queue.release("a")
    assert b.reply() == GRANTED
    assert c.reply() == GRANTED
    assert queue.holders() == {b"c": b"1"}


def test_a_module_may_replace_the_key_as_a_lease_is_granted(queue: Queue) -> None:
    b, c = queue.join_all("b", "c")
    run_on_event(queue, "rl.take", "SET", "k", "mine")
    queue.release("a")
    assert b.reply() == GRANTED
    assert "WRONGTYPE" in error_of(c.reply)
    assert queue.client.get("k") == b"mine"


@pytest.mark.parametrize("event", ["del", "rl.take"])
def test_module_that_handles_an_event_does_not_overtake_waiting_calls(
    queue: Queue, event: str
) -> None:
    b, c = queue.join_all("b", "c")
    run_on_event(queue, event, "RL.ACQUIRE", "k", 1, "60s", "late")
    queue.release("a")
    assert b.reply() == GRANTED
    assert queue.holders() == {b"b": b"1"}
    queue.release("b")
    assert c.reply() == GRANTED


def test_another_waiting_client_may_be_killed_during_a_grant(queue: Queue) -> None:
    waiters = {name: queue.join(name) for name in "bcd"}
    run_on_event(queue, "rl.take", "CLIENT", "KILL", "ID", waiters.pop("c").id)
    drain(queue, waiters)


@pytest.mark.parametrize("name", ["b", "c"])
@pytest.mark.parametrize("error", [(), ("ERROR",)], ids=["TIMEOUT", "ERROR"])
def test_a_waiting_client_may_be_unblocked_during_its_grant(
    queue: Queue, name: str, error: tuple[Word, ...]
) -> None:
    waiters = {name: queue.join(name) for name in "bcd"}
    run_on_event(queue, "rl.take", "CLIENT", "UNBLOCK", waiters[name].id, *error)
    queue.release("a")
    first = waiters.pop("b")
    if name == "b":
        # The unblocked call gets no lease: the granted units are given back.
        poll.until(lambda: first.is_answered, "the call is answered")
        if error:
            assert error_of(first.reply).startswith("UNBLOCKED")
        else:
            assert first.reply()[0] == 0
        assert waiters.pop("c").reply() == GRANTED
        drain(queue, waiters, "c")
    else:
        assert first.reply() == GRANTED
        victim = waiters.pop("c")
        poll.until(lambda: victim.is_answered, "the call is answered")
        drain(queue, waiters, "b")
    assert first.call("PING") == b"PONG"


def test_replica_has_the_same_keys_after_a_module_interferes(
    neighbour: Path, fresh_server: Start
) -> None:
    primary = fresh_server(others=[neighbour])
    if primary.version < (7,):
        pytest.skip("Redis 6.2 propagates the command of the other module before the grant")
    replica = primary.replica()
    for command in ("DEL k", "SET k mine", "RL.RELEASE k b", "RL.BAN k 1m", "CLIENT KILL ID {b}"):
        with Queue(primary) as queue:
            queue.client.flushall()
            queue.acquire("a")
            b, c = queue.join_all("b", "c")
            run_on_event(queue, "rl.take", *command.format(b=b.id).split())
            queue.release("a")
            poll.until(lambda b=b: b.is_answered, "the call is answered, or its client is gone")
            queue.settle()
            # Replaces the command, so that no later event runs it.
            queue.client.execute_command("NEIGHBOUR.ON", "nothing", "at all", "PING")
            replica.wait_for_sync()
            with replica.client() as client:
                assert state(client) == state(queue.client), command
            queue.client.delete("k")
            if not c.is_answered:
                assert c.reply() == GRANTED
