"""To WATCH, MULTI, scripts and client-side caches, a charge changes the key. A denial does not."""

import pytest
from redis import Redis, ResponseError, WatchError

from support.clock import Clock
from support.server import Server
from support.workload import Limiter, Word, each_limiter, state

pytestmark = pytest.mark.every_server


def changing_calls(limiter: Limiter) -> dict[str, tuple[Word, ...]]:
    """Returns calls that change the key "k", of which "holder" has used 6 units."""
    other = limiter.for_holder("other")
    calls = {
        "charge": other.take("k", 4),
        "give back": limiter.give_back("k", 1),
        "RL.TAKE": ("RL.TAKE", "k", *other.words(4)),
        "RL.MTAKE": ("RL.MTAKE", 2, "k", "n", *other.words(4), "FIXED", 1, "1h"),
    }
    if limiter.has_leases:
        return calls | {"renewal": limiter.take("k", 5)}
    return calls | {"forced": limiter.take("k", 5, "FORCE"), "up to": limiter.take("k", 5, "UPTO")}


def unchanging_calls(limiter: Limiter) -> dict[str, tuple[Word, ...]]:
    """Returns calls that do not change the key "k"."""
    other = limiter.for_holder("other")
    calls = {
        "denied": other.take("k", 5),
        "denied for good": other.take("k", 11),
        "denied RL.MTAKE": ("RL.MTAKE", 2, "k", "n", *other.words(4), "FIXED", 0, "1h"),
        "RL.PEEK": other.peek("k", 4),
        "RL.MPEEK": ("RL.MPEEK", 1, "k", *other.words(4)),
        "RL.INFO": ("RL.INFO", "k"),
    }
    if limiter.has_leases:
        return calls | {"nothing to release": ("RL.RELEASE", "k", "other")}
    return calls | {
        "COST 0": other.take("k", 0),
        "COST 0 FORCE": other.take("k", 0, "FORCE"),
    }


@each_limiter
def test_a_charge_aborts_transactions_that_watch_the_key(limiter: Limiter, server: Server) -> None:
    watcher, caller = server.client(), server.client()
    for name, call in changing_calls(limiter).items():
        caller.flushall()
        caller.execute_command(*limiter.take("k", 6))
        with watcher.pipeline() as pipeline:
            pipeline.watch("k")
            caller.execute_command(*call)
            pipeline.multi()
            pipeline.set("done", name)
            with pytest.raises(WatchError):
                pipeline.execute()


@each_limiter
def test_the_first_charge_of_a_missing_key_aborts_transactions_that_watch_it(
    limiter: Limiter, server: Server
) -> None:
    watcher, caller = server.client(), server.client()
    with watcher.pipeline() as pipeline:
        pipeline.watch("k")
        caller.execute_command(*limiter.take("k", 6))
        pipeline.multi()
        pipeline.ping()
        with pytest.raises(WatchError):
            pipeline.execute()


@each_limiter
def test_calls_without_change_abort_no_transaction_that_watches_the_key(
    limiter: Limiter, server: Server
) -> None:
    watcher, caller = server.client(), server.client()
    caller.execute_command(*limiter.take("k", 6))
    for name, call in unchanging_calls(limiter).items():
        with watcher.pipeline() as pipeline:
            pipeline.watch("k", "n", "missing")
            caller.execute_command(*call)
            caller.execute_command(*limiter.peek("missing"))
            if not limiter.has_leases:
                caller.execute_command(*limiter.take("missing", "-1"))
            caller.execute_command(*limiter.for_holder("other").take("missing", 11))
            pipeline.multi()
            pipeline.set("done", name)
            assert pipeline.execute() == [True], name


@each_limiter
def test_a_step_back_of_the_clock_that_a_denied_call_writes_is_a_change(
    limiter: Limiter, server: Server, clock: Clock
) -> None:
    watcher, caller = server.client(), server.client()
    caller.execute_command(*limiter.take("k", 6))
    clock.advance("-1h")
    other = limiter.for_holder("other")
    for call, is_change in [(other.peek("k", 5), False), (other.take("k", 5), True)]:
        with watcher.pipeline() as pipeline:
            pipeline.watch("k")
            assert caller.execute_command(*call)[0] == 0
            pipeline.multi()
            pipeline.ping()
            if is_change:
                with pytest.raises(WatchError):
                    pipeline.execute()
            else:
                assert pipeline.execute() == [True]


@each_limiter
def test_a_transaction_charges_the_sum_of_its_calls(limiter: Limiter, redis: Redis) -> None:
    calls = [limiter.for_holder(f"holder {number}").take("k", 3) for number in range(4)]
    expected = [redis.execute_command(*call) for call in calls]
    assert [allowed for allowed, *_ in expected] == [1, 1, 1, 0]
    stored = state(redis)
    redis.flushall()
    with redis.pipeline(transaction=True) as pipeline:
        for call in calls:
            pipeline.execute_command(*call)
        assert pipeline.execute() == expected
    assert state(redis) == stored


@each_limiter
def test_failed_call_in_a_transaction_does_not_affect_the_others(
    limiter: Limiter, redis: Redis
) -> None:
    with redis.pipeline(transaction=True) as pipeline:
        pipeline.execute_command(*limiter.take("k", 3))
        pipeline.execute_command("RL.TAKE", "k", "NONSENSE", 1, "1h")
        pipeline.execute_command(*limiter.for_holder("other").take("k", 3))
        first, error, last = pipeline.execute(raise_on_error=False)
    assert first[:3] == [1, 10, 7]
    assert isinstance(error, ResponseError)
    assert last[:3] == [1, 10, 4]


@each_limiter
def test_a_transaction_that_is_discarded_charges_nothing(limiter: Limiter, redis: Redis) -> None:
    with redis.client() as client:
        client.execute_command("MULTI")
        assert client.execute_command(*limiter.take("k", 3)) == b"QUEUED"
        client.execute_command("DISCARD")
    assert not redis.exists("k")


SCRIPT = "return redis.call(unpack(ARGV))"


@each_limiter
def test_a_script_gets_the_same_replies(limiter: Limiter, redis: Redis) -> None:
    other = limiter.for_holder("other")
    calls = [
        limiter.take("k", 6),
        other.take("k", 5),
        other.peek("k", 5),
        other.take("k", 4),
        ("RL.MTAKE", 2, "k", "n", *limiter.for_holder("third").words(4), "FIXED", 1, "1h"),
        ("RL.INFO", "k"),
        limiter.give_back("k", 2),
        limiter.give_back("missing", 2),
    ]
    expected = [redis.execute_command(*call) for call in calls]
    stored = state(redis)
    redis.flushall()
    assert [redis.eval(SCRIPT, 1, "k", *call) for call in calls] == expected
    assert state(redis) == stored


@each_limiter
def test_a_script_gets_errors(limiter: Limiter, redis: Redis) -> None:
    redis.set("string", "x")
    for call, text in [(limiter.take("string"), "WRONGTYPE"), (limiter.take("k", "x"), "cost")]:
        with pytest.raises(ResponseError, match=text):
            redis.eval(SCRIPT, 1, "k", *call)
        caught = redis.eval("return {redis.pcall(unpack(ARGV)).err}", 1, "k", *call)
        assert text in caught[0].decode()
    assert redis.keys() == [b"string"]


def test_a_read_only_script_may_peek_but_not_take(redis: Redis, server: Server) -> None:
    if server.version < (7,):
        pytest.skip("EVAL_RO came with 7.0")
    peek = ("RL.PEEK", "k", "FIXED", 10, "1h")
    mpeek = ("RL.MPEEK", 1, "k", "FIXED", 10, "1h")
    for call in (peek, mpeek):
        assert redis.execute_command("EVAL_RO", SCRIPT, 1, "k", *call)[0] == 1
    assert redis.execute_command("EVAL_RO", SCRIPT, 1, "k", "RL.INFO", "k") is None
    with pytest.raises(ResponseError, match=r"[Ww]rite"):
        redis.execute_command("EVAL_RO", SCRIPT, 1, "k", "RL.FIXED", "k", 10, "1h")
    assert not redis.exists("k")


@each_limiter
def test_a_cached_answer_is_invalidated_by_a_charge_and_by_nothing_else(
    limiter: Limiter, server: Server
) -> None:
    caller = server.client()
    reads = [limiter.peek("k"), ("RL.MPEEK", 1, "k", *limiter.words()), ("RL.INFO", "k")]
    for calls, expected in [(changing_calls(limiter), [b"k"]), (unchanging_calls(limiter), [])]:
        for name, call in calls.items():
            for read in reads:
                caller.flushall()
                caller.execute_command(*limiter.take("k", 6))
                assert invalidated_keys(server, read, caller, call) == expected, (name, read)


def invalidated_keys(
    server: Server, read: tuple[Word, ...], caller: Redis, call: tuple[Word, ...]
) -> list[bytes]:
    """Sends `read` from a caching client, then `call` from the caller. Returns the keys that the
    server invalidates.
    """
    keys: list[bytes] = []
    with server.client(protocol=3) as cache:
        connection = cache.connection_pool.get_connection()
        connection._parser.set_invalidation_push_handler(lambda push: keys.extend(push[1]))

        def send(*words: Word) -> None:
            connection.send_command(*words)
            connection.read_response()

        send("CLIENT", "TRACKING", "on")
        send(*read)
        caller.execute_command(*call)
        # An invalidation arrives before the next reply.
        send("PING")
        cache.connection_pool.release(connection)
    return keys
