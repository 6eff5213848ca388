"""A panic in the module gives one client an error and the log a line, and replicas stay in sync.

A debug build can be made to panic at the n-th point of the next command.
"""

from collections.abc import Callable
from itertools import product

import pytest
from redis import Redis, ResponseError

from support.clock import Clock
from support.server import DEBUG_MODULE, Server
from support.waiting import DENIED, GRANTED, Queue
from support.workload import LIMITERS, Limiter, Word, each_limiter, state

pytestmark = pytest.mark.every_server

INTERNAL_ERROR = "internal error in module ratelimit"


@pytest.fixture
def debug(fresh_server: Callable[..., Server]) -> Server:
    return fresh_server(module=DEBUG_MODULE)


@pytest.fixture
def redis(debug: Server) -> Redis:
    return debug.client()


def test_a_panic_in_a_command_is_an_error_and_a_line_in_the_log(
    debug: Server, redis: Redis
) -> None:
    redis.execute_command("RL.FIXED", "before", 5, "1m")
    for _ in range(3):
        with pytest.raises(ResponseError, match=INTERNAL_ERROR):
            redis.execute_command("RL.PANIC", 0)
    assert "on purpose" in debug.log()
    assert redis.execute_command("RL.FIXED", "before", 5, "1m")[:3] == [1, 5, 3]


def test_panic_after_a_reply_does_not_reply_again(debug: Server, redis: Redis) -> None:
    calls = redis.pipeline(transaction=False).execute_command("RL.PANIC", "reply").echo("next")
    assert calls.execute() == [b"OK", b"next"]
    assert debug.log().count("on purpose") == 1


def test_panic_in_an_event_handler_is_a_line_in_the_log(debug: Server, redis: Redis) -> None:
    redis.execute_command("RL.PANIC", 1)
    assert redis.flushall()
    assert debug.log().count("on purpose") == 1
    assert redis.ping()


def panics(redis: Redis, point: int, *call: Word) -> bool:
    """Returns `True` if the call panics at its n-th point. Checks that the next call gets its own
    reply.
    """
    redis.execute_command("RL.PANIC", point)
    calls = redis.pipeline(transaction=False).execute_command(*call).echo("next")
    reply, echo = calls.execute(raise_on_error=False)
    assert echo == b"next"
    redis.execute_command("RL.PANIC", "never")
    if isinstance(reply, ResponseError):
        assert INTERNAL_ERROR in str(reply)
        return True
    return False


@each_limiter
@pytest.mark.parametrize("existing", [False, True], ids=["new key", "existing key"])
def test_replicas_stay_in_sync_wherever_a_call_panics(
    existing: bool, limiter: Limiter, debug: Server, redis: Redis, clock: Clock
) -> None:
    replica = debug.replica(module=DEBUG_MODULE)
    other = limiter.for_holder("other")
    # A charge, a give-back of everything, and a denied call that writes a clock step.
    calls = [(other.take("k", 1), 0), (limiter.give_back("k"), 0), (other.take("k", 9), -1_000_000)]
    # A later call must not repeat what the panicked call did.
    later_calls = [limiter.for_holder("third").take, limiter.give_back]
    with replica.client() as reader:
        for (call, step), later_call in product(calls, later_calls):
            for point in range(1, 20):
                redis.flushall()
                if existing:
                    redis.execute_command(*limiter.take("k", 4))
                clock.advance(step)
                panicked = panics(redis, point, *call)
                replica.wait_for_sync()
                assert state(reader) == state(redis), point
                if dump := redis.dump("k"):
                    redis.restore("restored", redis.pttl("k"), dump)
                replies = [redis.execute_command(*later_call(key)) for key in ("k", "restored")]
                assert replies[0] == replies[1], point
                assert redis.dump("k") == redis.dump("restored"), point
                replica.wait_for_sync()
                assert state(reader) == state(redis), point
                if not panicked:
                    break
            assert not panicked
            assert point > 1


# Calls that turn a plain key into a composite key.
CONVERSIONS = [
    "RL.TAKE k FIXED 10 1h SLIDINGLOG 10 1h",
    "RL.TAKE k FIXED 10 1h ONCE id 1h",
    "RL.FIXED k 0 1h AS name COST 2 FORCE",
    "RL.BAN k 1h",
    "RL.MTAKE 3 other k third FIXED 10 1h FIXED 10 1h AS name FIXED 10 1h",
]


@pytest.mark.parametrize(
    "call", CONVERSIONS, ids=["two limits", "an id", "a name", "a ban", "RL.MTAKE"]
)
def test_replicas_stay_in_sync_wherever_a_conversion_panics(
    call: str, debug: Server, redis: Redis, clock: Clock
) -> None:
    replica = debug.replica(module=DEBUG_MODULE)
    with replica.client() as reader:
        for point in range(1, 40):
            redis.flushall()
            redis.execute_command("RL.FIXED", "k", 10, "1h", "COST", 4)
            panicked = panics(redis, point, *call.split())
            for _ in range(2):
                replica.wait_for_sync()
                assert state(reader) == state(redis), point
                # The key works as a plain and as a composite key.
                redis.execute_command("RL.FIXED", "k", 10, "1h", "COST", -1)
                clock.advance("1s")
            if not panicked:
                break
        assert not panicked
        assert point > 1


@pytest.mark.parametrize("existing", [(), ("b",), ("a", "b", "c")], ids=str)
def test_replicas_stay_in_sync_wherever_an_mtake_panics(
    existing: tuple[str, ...], debug: Server, redis: Redis, clock: Clock
) -> None:
    replica = debug.replica(module=DEBUG_MODULE)
    specs = [word for name in range(3) for word in LIMITERS[name].words(3)]
    partly_charged = 0
    with replica.client() as reader:
        for point in range(1, 100):
            redis.flushall()
            for name, limiter in zip("abc", LIMITERS, strict=False):
                if name in existing:
                    redis.execute_command(*limiter.take(name, 1))
            clock.advance("7m")
            before = state(redis)
            panicked = panics(redis, point, "RL.MTAKE", 3, *"abc", *specs)
            replica.wait_for_sync()
            after = state(redis)
            assert state(reader) == after, point
            if not panicked:
                break
            partly_charged += after != before
    assert not panicked
    assert partly_charged > 0


def test_release_build_has_no_command_that_panics(server: Server) -> None:
    with pytest.raises(ResponseError, match="unknown command"):
        server.client().execute_command("RL.PANIC", 0)


def answer_of(call: Callable[[], object]) -> object:
    """Returns the reply, or a marker if the call panicked."""
    try:
        return call()
    except ResponseError as error:
        return INTERNAL_ERROR if INTERNAL_ERROR in str(error) else error


def test_all_calls_are_answered_wherever_serving_a_queue_panics(debug: Server) -> None:
    replica = debug.replica(module=DEBUG_MODULE)
    with Queue(debug) as queue, replica.client() as reader:
        for point in range(1, 60):
            queue.client.flushall()
            queue.acquire("a")
            waiters = queue.join_all("b", "c")
            queue.client.execute_command("RL.PANIC", point)
            answers = [answer_of(lambda: queue.release("a"))]
            queue.client.execute_command("RL.PANIC", "never")
            queue.release("a")
            for holder, waiter in zip("bc", waiters, strict=True):
                answers.append(answer_of(waiter.reply))
                # A waiter may have a lease, although its call got an error.
                queue.release(holder)
            replica.wait_for_sync()
            assert state(reader) == state(queue.client), point
            if answers == [1, GRANTED, GRANTED]:
                break
            # One of the three replies is an error.
            assert answers.count(INTERNAL_ERROR) == 1, answers
            assert all(answer in (INTERNAL_ERROR, 1, GRANTED) for answer in answers), answers
        assert answers == [1, GRANTED, GRANTED]
        assert point > 4


# Calls that end the wait of the holder "b".
REPLACING_CALL = ("RL.ACQUIRE", "k", 1, "60s", "b", "BLOCK", 0)
RELEASING_CALL = ("RL.RELEASE", "k", "b")


@pytest.mark.parametrize(("call", "reply"), [(REPLACING_CALL, GRANTED), (RELEASING_CALL, 0)])
def test_all_calls_are_answered_wherever_the_end_of_a_wait_panics(
    debug: Server, call: tuple[Word, ...], reply: object
) -> None:
    answers_with_panic = []
    with Queue(debug) as queue:
        for point in range(1, 60):
            queue.client.flushall()
            queue.acquire("a")
            b = queue.join("b")
            queue.client.execute_command("RL.PANIC", point)
            later = queue.send(*call)
            queue.settle()
            queue.client.execute_command("RL.PANIC", "never")
            queue.release("a")
            queue.release("b")
            answers = [answer_of(b.reply), answer_of(later.reply)]
            if answers == [DENIED, reply]:
                break
            answers_with_panic.append(answers)
            assert answers.count(INTERNAL_ERROR) == 1, answers
        assert answers == [DENIED, reply]
    # The error goes to the caller whose wait ended.
    assert [INTERNAL_ERROR, reply] in answers_with_panic
    assert [GRANTED, INTERNAL_ERROR] in answers_with_panic


@pytest.mark.parametrize("has_ended", [False, True], ids=["waiting", "wait has ended"])
def test_a_panic_while_a_client_is_unblocked_causes_exactly_one_reply(
    debug: Server, has_ended: bool
) -> None:
    panic_count = 0
    with Queue(debug) as queue:
        for point in range(1, 60):
            queue.client.flushall()
            queue.acquire("a")
            b = queue.join("b")
            calls = queue.client.pipeline(transaction=False)
            if has_ended:
                calls.execute_command("RL.RELEASE", "k", "b")
            calls.execute_command("RL.PANIC", point)
            calls.execute_command("CLIENT", "UNBLOCK", b.id)
            calls.execute_command("RL.PANIC", "never")
            calls.execute()
            answer = answer_of(b.reply)
            assert b.call("ECHO", "next") == b"next"
            queue.settle()
            assert queue.is_empty
            assert queue.acquire("c") == DENIED
            if answer == DENIED:
                break
            assert answer == INTERNAL_ERROR
            panic_count += 1
        assert answer == DENIED
    assert panic_count > 0
