"""A waiting call that two events end at the same time, such as a release and a `CLIENT KILL`, is
answered once.

Both events are sent together: in one packet, in one transaction, from a script, and from two
connections. Either may win. In every case there is one reply, the connection is in step, and no
lease is held without its holder's knowledge.
"""

from collections.abc import Callable, Sequence

import pytest
from redis import ConnectionError as RedisConnectionError
from redis import Redis, ResponseError

from support.clock import Clock
from support.scale import scaled
from support.waiting import Caller, Queue
from support.workload import Word

Call = tuple[Word, ...]
Send = Callable[[Queue, Call, Call], None]

POOL = ("RL.POLICYSET", "pool", "CONCURRENCY", 2, "60s")
# Events that serve the waiting call of "b", or end its wait.
ENDS: dict[str, Call] = {
    "the lease is released": ("RL.RELEASE", "k", "a"),
    "its holder gives up": ("RL.RELEASE", "k", "b"),
    "its holder gives up as the lease is released": ("RL.RELEASE", "k", "a", "b"),
    "the key is deleted": ("DEL", "k"),
    "all keys are deleted": ("FLUSHALL",),
    "databases are swapped": ("SWAPDB", 0, 1),
    "another value takes its place": ("SET", "k", "mine"),
    "the limit is raised": ("RL.ACQUIRE", "k", 2, "60s", "a"),
    "the limit is lowered to 0": ("RL.ACQUIRE", "k", 0, "60s", "a"),
    "a policy brings another limit": ("RL.LIMIT", "k", "pool", "ONCE", "a", "60s"),
}
ends = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)

# Commands that act on the waiting client, without its id.
CLIENT_COMMANDS: dict[str, Call] = {
    "the client is unblocked": ("CLIENT", "UNBLOCK"),
    "the client is unblocked with an error": ("CLIENT", "UNBLOCK", "ERROR"),
    "the client is killed": ("CLIENT", "KILL", "ID"),
}
client_commands = pytest.mark.parametrize(
    "client_command", CLIENT_COMMANDS.values(), ids=CLIENT_COMMANDS
)


def with_id(client: Caller, call: Call) -> Call:
    """Inserts the client's id: `CLIENT UNBLOCK id [ERROR]`, `CLIENT KILL ID id`."""
    return (*call[:2], client.id, *call[2:]) if "UNBLOCK" in call else (*call, client.id)


# Ways to send two events


def send_pipeline(client: Redis, calls: Sequence[Call], *, transaction: bool) -> list[object]:
    pipeline = client.pipeline(transaction=transaction)
    for call in calls:
        pipeline.execute_command(*call)
    return pipeline.execute(raise_on_error=False)


def in_one_packet(queue: Queue, first: Call, second: Call) -> None:
    send_pipeline(queue.client, [first, second], transaction=False)


def in_one_transaction(queue: Queue, first: Call, second: Call) -> None:
    send_pipeline(queue.client, [first, second], transaction=True)


def from_a_script(queue: Queue, first: Call, second: Call) -> None:
    def scripted(call: Call) -> Call:
        # Scripts cannot call CLIENT.
        return call if call[0] == "CLIENT" else ("EVAL", f"return redis.call({words(call)})", 0)

    def words(call: Call) -> str:
        return ", ".join(f"'{word}'" for word in call)

    in_one_packet(queue, scripted(first), scripted(second))


def from_two_connections(queue: Queue, first: Call, second: Call) -> None:
    callers = [queue.caller().send(*call) for call in (first, second)]
    for caller in callers:
        reply_of(caller)
        caller.hang_up()


SENDS = [in_one_packet, in_one_transaction, from_a_script, from_two_connections]
sends = pytest.mark.parametrize("send", SENDS, ids=lambda send: send.__name__)


def reply_of(caller: Caller) -> object:
    try:
        return caller.reply()
    except (ResponseError, RedisConnectionError) as error:
        return error


def race(queue: Queue, send: Send, end: Call, client_command: Call, *, end_first: bool) -> None:
    """Sends both events at once, and checks that "b" is answered once whichever wins."""
    queue.client.flushall()
    queue.client.execute_command(*POOL)
    queue.acquire("a")
    b = queue.join("b")
    calls = (end, with_id(b, client_command))
    send(queue, *(calls if end_first else calls[::-1]))
    answer = reply_of(b)
    # The client may have been killed after its reply.
    echo = reply_of(b.send("ECHO", "in step"))
    is_killed = "KILL" in client_command and isinstance(echo, RedisConnectionError)
    assert echo == b"in step" or is_killed, answer
    queue.until(lambda: queue.is_empty, "nobody waits any more")
    queue.settle()
    if queue.client.type("k") != b"string":
        assert queue.release("b") == (isinstance(answer, list) and answer[0] == 1), answer
    queue.client.execute_command("FLUSHALL")
    b.hang_up()


@ends
@client_commands
@sends
def test_a_call_ended_by_two_events_at_once_is_answered_once(
    queue: Queue, send: Send, end: Call, client_command: Call
) -> None:
    for end_first in (True, False):
        race(queue, send, end, client_command, end_first=end_first)


@pytest.mark.parametrize("error", [(), ("ERROR",)], ids=["TIMEOUT", "ERROR"])
def test_a_call_unblocked_from_another_connection_is_answered_once(
    queue: Queue, error: Call
) -> None:
    b, release, unblock = (queue.caller() for _ in range(3))
    unblocked = 0
    for _ in range(scaled(300, 20_000)):
        queue.acquire("a")
        queue.join("b", caller=b)
        release.send("RL.RELEASE", "k", "a", "b")
        unblock.send("CLIENT", "UNBLOCK", b.id, *error)
        assert release.reply() == 1
        unblocked += unblock.reply() == 1
        reply_of(b)
        assert b.call("ECHO", "in step") == b"in step"
        queue.release("b")
    assert queue.is_empty
    assert unblocked > 0


def test_a_call_unblocked_at_its_deadline_is_answered_once(queue: Queue, clock: Clock) -> None:
    b, unblock = queue.caller(), queue.caller()
    queue.acquire("a", ttl="1h")
    for _ in range(scaled(50, 2_000)):
        queue.join("b", caller=b, ttl="1h", block="1s")
        clock.advance("1s")
        unblock.send("CLIENT", "UNBLOCK", b.id)
        assert unblock.reply() in (0, 1)
        answer = reply_of(b)
        assert isinstance(answer, list)
        assert answer[0] == 0
        assert b.call("ECHO", "in step") == b"in step"
        queue.acquire("a", ttl="1h")


@ends
@pytest.mark.parametrize("end_first", [True, False], ids=["the event first", "REPLICAOF first"])
def test_a_call_answered_as_the_server_becomes_a_replica_gets_one_reply(
    own_queue: Queue, end: Call, end_first: bool
) -> None:
    """Redis 6.2 and 7.0 send the answer or an error and close the connection, as for BLPOP."""
    queue = own_queue
    queue.client.execute_command(*POOL)
    queue.acquire("a")
    b = queue.join("b")
    replicate = ("REPLICAOF", "127.0.0.1", 1)
    calls = [end, replicate] if end_first else [replicate, end]
    send_pipeline(queue.client, calls, transaction=False)
    answer = reply_of(b)
    assert isinstance(answer, ResponseError | list)
    assert isinstance(reply_of(b.send("ECHO", "")), bytes | RedisConnectionError)
    queue.client.execute_command("REPLICAOF", "NO", "ONE")
    queue.until(lambda: queue.is_empty, "nobody waits any more")
    if queue.client.type("k") != b"string":
        assert queue.release("b") == (isinstance(answer, list) and answer[0] == 1)
