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
def watched(neighbour: Path, fresh_server: Start) -> Iterator[Queue]:
    """Starts a server with a module that runs a command on an event."""
    with Queue(fresh_server(others=[neighbour])) as queue:
        queue.acquire("a")
        yield queue
        queue.server.check()


def on(queue: Queue, event: str, *order: Word) -> None:
    queue.client.execute_command("NEIGHBOUR.ON", event, "k", *order)


def test_a_lease_granted_to_a_killed_client_is_given_back(watched: Queue) -> None:
    b, c = watched.join_all("b", "c")
    on(watched, "rl.take", "CLIENT", "KILL", "ID", b.id)
    watched.release("a")
    assert c.reply() == GRANTED
    with pytest.raises(RedisConnectionError):
        b.reply()
    assert watched.holders() == {b"c": b"1"}


def test_a_returned_grant_of_the_last_lease_leaves_no_key(watched: Queue) -> None:
    b = watched.join("b")
    on(watched, "rl.take", "CLIENT", "KILL", "ID", b.id)
    watched.release("a")
    poll.until(lambda: watched.is_empty and not watched.client.exists("k"), "it is given back")


def test_a_lease_that_its_holder_had_before_is_not_taken_away(watched: Queue) -> None:
    """The caller waited for more units, and was killed as it got them: another client may use its
    name.
    """
    watched.acquire("a", "COST", 5, limit=8)
    watched.acquire("b", limit=8)
    more = watched.join("b", "COST", 6, limit=8)
    on(watched, "rl.take", "CLIENT", "KILL", "ID", more.id)
    watched.release("a")
    poll.until(lambda: watched.is_empty, "it has gone")
    watched.settle()
    assert b"b" in watched.holders()


@pytest.mark.parametrize(
    "order", ["DEL k", "FLUSHALL", "RL.RELEASE k b", "RENAME k j", "PEXPIRE k -1"]
)
def test_a_module_that_releases_a_lease_during_its_grant_serves_the_next(
    watched: Queue, order: str
) -> None:
    b, c = watched.join_all("b", "c")
    on(watched, "rl.take", *order.split())
    watched.release("a")
    assert b.reply() == GRANTED
    assert c.reply() == GRANTED
    assert watched.holders() == {b"c": b"1"}


def test_a_module_may_replace_the_key_as_a_lease_is_granted(watched: Queue) -> None:
    b, c = watched.join_all("b", "c")
    on(watched, "rl.take", "SET", "k", "mine")
    watched.release("a")
    assert b.reply() == GRANTED
    assert "WRONGTYPE" in error_of(c.reply)
    assert watched.client.get("k") == b"mine"


@pytest.mark.parametrize("event", ["del", "rl.take"])
def test_module_that_handles_an_event_does_not_overtake_waiting_calls(
    watched: Queue, event: str
) -> None:
    b, c = watched.join_all("b", "c")
    on(watched, event, "RL.ACQUIRE", "k", 1, "60s", "late")
    watched.release("a")
    assert b.reply() == GRANTED
    assert watched.holders() == {b"b": b"1"}
    watched.release("b")
    assert c.reply() == GRANTED


def test_another_waiting_client_may_be_killed_during_a_grant(watched: Queue) -> None:
    waiters = {name: watched.join(name) for name in "bcd"}
    on(watched, "rl.take", "CLIENT", "KILL", "ID", waiters.pop("c").id)
    drain(watched, waiters)


@pytest.mark.parametrize("name", ["b", "c"])
@pytest.mark.parametrize("error", [(), ("ERROR",)], ids=["TIMEOUT", "ERROR"])
def test_a_waiting_client_may_be_unblocked_during_its_grant(
    watched: Queue, name: str, error: tuple[Word, ...]
) -> None:
    waiters = {name: watched.join(name) for name in "bcd"}
    on(watched, "rl.take", "CLIENT", "UNBLOCK", waiters[name].id, *error)
    watched.release("a")
    first = waiters.pop("b")
    if name == "b":
        # It gets no lease: the granted units are given back.
        poll.until(lambda: first.is_answered, "it is answered")
        if error:
            assert error_of(first.reply).startswith("UNBLOCKED")
        else:
            assert first.reply()[0] == 0
        assert waiters.pop("c").reply() == GRANTED
        drain(watched, waiters, "c")
    else:
        assert first.reply() == GRANTED
        victim = waiters.pop("c")
        poll.until(lambda: victim.is_answered, "it is answered")
        drain(watched, waiters, "b")
    assert first.call("PING") == b"PONG"


def test_replica_has_the_same_keys_after_mtake(neighbour: Path, fresh_server: Start) -> None:
    primary = fresh_server(others=[neighbour])
    if primary.version < (7,):
        pytest.skip("Redis 6.2 propagates what a neighbour does before what the call has done")
    replica = primary.replica()
    for order in ("DEL k", "SET k mine", "RL.RELEASE k b", "RL.BAN k 1m", "CLIENT KILL ID {b}"):
        with Queue(primary) as queue:
            queue.client.flushall()
            queue.acquire("a")
            b, c = queue.join_all("b", "c")
            on(queue, "rl.take", *order.format(b=b.id).split())
            queue.release("a")
            poll.until(lambda b=b: b.is_answered, "it is answered, or gone")
            queue.settle()
            queue.client.execute_command("NEIGHBOUR.ON", "nothing", "at all", "PING")
            replica.wait_for_sync()
            with replica.client() as client:
                assert state(client) == state(queue.client), order
            queue.client.delete("k")
            if not c.is_answered:
                assert c.reply() == GRANTED
