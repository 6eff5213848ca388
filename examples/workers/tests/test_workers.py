"""Never more at work than there are places, whatever becomes of the workers.

How many are at work is counted by the service that they call.
"""

import asyncio
import os
import signal
from collections import Counter

import httpx
import pytest
from receiver import Call, Receiver
from redis.asyncio.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis_ratelimit import Concurrency
from redis_ratelimit.aio import Limiter
from staff import Staff
from worker import KEY

from support import poll
from support.clock import START_US, Clock
from support.server import Server

FOREVER = 3600.0


def first_attempt_hangs(call: Call) -> float:
    return FOREVER if call.job == "fatal" and call.attempt == 1 else 0.01


def test_never_more_than_the_limit_are_at_work(staff: Staff) -> None:
    names = [f"job {number}" for number in range(60)]
    with Receiver(takes=lambda _: 0.05) as receiver:
        staff.add_jobs(receiver.url, *names)
        staff.hire(6, limit=3, ttl=10)
        poll.until(lambda: receiver.done.total() == 60, "all are done", timeout=40)
        poll.until(lambda: staff.jobs_left() == (0, 0), "none is left")
    assert receiver.done == dict.fromkeys(names, 1)
    assert receiver.most == 3


def test_there_is_not_one_call_more_than_there_are_jobs(staff: Staff) -> None:
    """For places: one to get it and one to give it back. Whoever waits does not ask again."""
    count = 40
    with Receiver(takes=lambda _: 0.02) as receiver:
        # No job outlasts a third of the ttl, after which its place would be renewed.
        staff.hire(12, limit=3, ttl=FOREVER)
        poll.until(lambda: staff.waiting() == 9, "all have a place, or wait for one", timeout=60)
        before = staff.asked()
        staff.add_jobs(receiver.url, *(f"job {number}" for number in range(count)))
        poll.until(lambda: receiver.done.total() == count, "all are done", timeout=60)
        poll.until(lambda: staff.waiting() == 9 and len(staff.places()) == 3, "all have asked")
    calls = {name: n - before[name] for name, n in staff.asked().items() if n > before[name]}
    # The test has looked who holds a place.
    assert calls.pop("rl.info") >= 1
    assert calls == {"rl.acquire": count, "rl.release": count}
    assert receiver.most == 3


def test_all_workers_get_the_same_number_of_jobs(staff: Staff) -> None:
    """Waiting workers are served in order."""
    done: Counter[int] = Counter()

    def note(call: Call) -> float:
        done[call.worker] += 1
        return 0.02

    with Receiver(takes=note) as receiver:
        workers = staff.hire(6, limit=2, ttl=FOREVER)
        poll.until(lambda: staff.waiting() == 4, "all have a place, or wait for one", timeout=60)
        staff.add_jobs(receiver.url, *(f"job {number}" for number in range(60)))
        poll.until(lambda: receiver.done.total() == 60, "all are done", timeout=60)
    # Whose job takes a little longer is overtaken now and then, by one turn.
    assert {worker.pid for worker in workers} == set(done)
    assert max(done.values()) - min(done.values()) <= 3


def test_fifty_holders_at_once_have_exactly_the_places_there_are(staff: Staff) -> None:
    async def fifty() -> tuple[int, int]:
        at_work = most = turns = 0
        all_have_asked, all_are_taken = asyncio.Event(), asyncio.Event()

        async def one(name: str) -> None:
            nonlocal at_work, most, turns
            async with limiter.lease(KEY, Concurrency(5, ttl=5), name, wait=None):
                at_work += 1
                most = max(most, at_work)
                turns += 1
                if at_work == 5:
                    all_are_taken.set()
                await all_have_asked.wait()
                at_work -= 1

        async with (
            Limiter.from_url(staff.url, timeout=5) as limiter,
            asyncio.TaskGroup() as group,
        ):
            for number in range(50):
                group.create_task(one(f"holder {number}"))
            await asyncio.to_thread(
                poll.until, lambda: staff.waiting() == 45, "all others wait", 30
            )
            # Redis has answered; on a busy machine the answers may not have been read yet.
            await all_are_taken.wait()
            all_have_asked.set()
        return most, turns

    assert asyncio.run(fifty()) == (5, 50)


def test_a_killed_workers_place_and_job_come_back_after_its_ttl(staff: Staff, clock: Clock) -> None:
    clock.set(START_US)
    with Receiver(first_attempt_hangs) as receiver:
        staff.add_jobs(receiver.url, "fatal", "other")
        (victim,) = staff.hire(1, limit=1, ttl=3)
        poll.until(lambda: receiver.at_work, "it is at work")
        (dead,) = staff.places()
        victim.kill()
        poll.until(lambda: not receiver.at_work, "its call is gone")

        staff.hire(2, limit=1, ttl=3)
        poll.until(lambda: staff.waiting() == 2, "both wait", timeout=30)
        clock.advance("2.9s")
        # The place is still taken, by one who is dead.
        assert list(staff.places()) == [dead]
        assert staff.waiting() == 2
        assert receiver.begun.total() == 1

        clock.advance("0.2s")
        poll.until(lambda: receiver.done.total() == 2, "both jobs are done", timeout=30)
    assert receiver.begun == {"fatal": 2, "other": 1}
    assert receiver.most == 1


def test_a_worker_keeps_its_place_and_its_job_for_as_long_as_it_works(
    staff: Staff, clock: Clock
) -> None:
    clock.set(START_US)
    with Receiver(lambda _: FOREVER) as receiver:
        staff.add_jobs(receiver.url, "long")
        staff.hire(1, limit=2, ttl=3)
        poll.until(lambda: receiver.at_work, "it is at work")
        (holder,) = staff.places()
        # It has the other place, and looks for jobs that are left behind.
        looked = staff.calls("xautoclaim")
        staff.hire(1, limit=2, ttl=3)

        def has_renewed() -> bool:
            return staff.places()[holder] == clock.now // 1000 + 3000 and staff.idle_ms() == 0

        for _ in range(5):
            # It waits for a new job by the server's clock, which stands still: so let it come to
            # that first, or there is nobody whom the clock's advance wakes.
            poll.until(staff.is_one_waiting, "the other waits", timeout=30)
            clock.advance("2.9s")
            poll.until(has_renewed, "it has renewed", timeout=30)
        poll.until(lambda: staff.calls("xautoclaim") >= looked + 3, "the other has looked")
        # For 14.5 seconds.
        assert receiver.begun == {"long": 1}


def test_without_redis_work_stops_before_its_place_can_be_anothers(
    staff: Staff, server: Server
) -> None:
    with Receiver(first_attempt_hangs) as receiver:
        staff.add_jobs(receiver.url, "fatal")
        (worker,) = staff.hire(1, limit=1, ttl=2)
        poll.until(lambda: receiver.at_work, "it is at work")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            poll.until(lambda: not receiver.at_work, "it has stopped its work", timeout=30)
            assert worker.poll() is None
            assert not receiver.done
        finally:
            os.kill(server.pid, signal.SIGCONT)
        # It finds Redis, a place and the job again.
        poll.until(lambda: receiver.done.total() == 1, "the job is done", timeout=30)
    assert receiver.most == 1


def test_a_worker_whose_place_was_given_away_stops(staff: Staff, server: Server) -> None:
    """A failover may lose the worker's lease like this."""
    with Receiver(first_attempt_hangs) as receiver, server.client() as redis:
        staff.add_jobs(receiver.url, "fatal")
        staff.hire(1, limit=1, ttl=3)
        poll.until(lambda: receiver.at_work, "it is at work")
        with redis.pipeline(transaction=True) as both:
            both.delete(KEY)
            both.execute_command("RL.ACQUIRE", KEY, 1, "1h", "another")
            both.execute()
        poll.until(lambda: not receiver.at_work, "it has stopped its work", timeout=30)
        assert list(staff.places()) == ["another"]
        redis.execute_command("RL.RELEASE", KEY, "another")
        poll.until(lambda: receiver.done.total() == 1, "the job is done", timeout=30)


def test_a_frozen_worker_stops_as_soon_as_it_wakes(staff: Staff) -> None:
    """While it is frozen its call goes on: a lease stops nobody."""
    with Receiver(first_attempt_hangs) as receiver:
        staff.add_jobs(receiver.url, "fatal")
        (frozen,) = staff.hire(1, limit=1, ttl=2)
        poll.until(lambda: receiver.at_work, "it is at work")
        frozen.send_signal(signal.SIGSTOP)
        (other,) = staff.hire(1, limit=1, ttl=2)
        poll.until(lambda: receiver.done["fatal"] == 1, "another has done it", timeout=30)
        assert receiver.at_work == [Call("fatal", frozen.pid, 1)]

        frozen.send_signal(signal.SIGCONT)
        poll.until(lambda: not receiver.at_work, "it has stopped its work", timeout=30)
        other.kill()
        # It is as good as new.
        staff.add_jobs(receiver.url, "next")
        poll.until(lambda: receiver.done["next"] == 1, "it does the next", timeout=30)
    assert receiver.done == {"fatal": 1, "next": 1}


def test_a_worker_that_is_told_to_end_finishes_its_job_and_frees_its_place(staff: Staff) -> None:
    with Receiver(lambda _: 1.0) as receiver:
        staff.add_jobs(receiver.url, "last", "left")
        (worker,) = staff.hire(1, limit=1, ttl=FOREVER)
        poll.until(lambda: receiver.at_work, "it is at work")
        worker.terminate()
        assert worker.wait(timeout=30) == 0
    assert receiver.done == {"last": 1}
    assert staff.jobs_left() == (1, 0)
    assert staff.places() == {}


def test_a_worker_that_waits_for_a_place_ends_at_once(staff: Staff) -> None:
    with Receiver(lambda _: FOREVER) as receiver:
        staff.add_jobs(receiver.url, "long")
        staff.hire(1, limit=1, ttl=FOREVER)
        poll.until(lambda: receiver.at_work, "it is at work", timeout=30)
        holders = staff.places()
        (waits,) = staff.hire(1, limit=1, ttl=FOREVER)
        poll.until(lambda: staff.waiting() == 1, "it waits", timeout=30)
        waits.terminate()
        assert waits.wait(timeout=30) == 0
        poll.until(lambda: staff.waiting() == 0, "it waits no more")
        assert staff.places() == holders


def test_a_job_that_was_done_but_not_acknowledged_counts_once(staff: Staff, clock: Clock) -> None:
    """The worker dies between the two, so another one repeats the call with the same
    Idempotency-Key.
    """

    def first_caller_freezes(call: Call) -> float:
        if call.attempt == 1:
            os.kill(call.worker, signal.SIGSTOP)
        return 0.01

    clock.set(START_US)
    with Receiver(first_caller_freezes) as receiver:
        staff.add_jobs(receiver.url, "fatal")
        (victim,) = staff.hire(1, limit=1, ttl=3)
        poll.until(lambda: receiver.done["fatal"] == 1, "it is done", timeout=30)
        victim.kill()
        assert staff.jobs_left() == (1, 1)

        clock.advance("3.1s")
        staff.hire(1, limit=1, ttl=3)
        poll.until(lambda: staff.jobs_left() == (0, 0), "it is acknowledged", timeout=30)
    assert receiver.done == {"fatal": 1}
    assert receiver.repeated == {"fatal": 1}


def test_a_job_that_was_added_twice_counts_once(
    staff: Staff, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose reply is lost is sent again by the client, and then is in the queue twice."""
    replies = []

    async def lose_the_first(self: Connection, *words: object, **options: object) -> object:
        reply = await read_response(self, *words, **options)
        if isinstance(reply, str) and "-" in reply:  # an entry's id
            replies.append(reply)
            if len(replies) == 1:
                raise RedisConnectionError("the reply was lost")
        return reply

    read_response = Connection.read_response
    monkeypatch.setattr(Connection, "read_response", lose_the_first)
    with Receiver(lambda _: 0.01) as receiver:
        staff.add_jobs(receiver.url, "once")
        assert len(replies) == 2
        staff.hire(1, limit=1, ttl=10)
        poll.until(lambda: receiver.repeated.total() == 1, "it came again", timeout=30)
        poll.until(lambda: staff.jobs_left() == (0, 0), "none is left")
    assert receiver.done == {"once": 1}


def test_the_witness_never_sees_one_at_a_job_that_is_done() -> None:
    """The receiver counts in a separate thread, so a test may read between any two of its steps."""
    looks = []

    def look(what: str) -> None:
        looks.append((what, receiver.done["one"], list(receiver.at_work)))

    receiver = Receiver(lambda _: 0.01, look)
    with receiver:
        headers = {"Idempotency-Key": '"1"', "User-Agent": "worker/1"}
        httpx.post(receiver.url, content="one", headers=headers, trust_env=False)
    assert looks == [
        ("one: begun by worker 1, 1 at work", 0, [Call("one", 1, 1)]),
        ("one: done", 1, []),
    ]


def test_all_keys_begin_with_the_prefix_of_the_examples(staff: Staff, server: Server) -> None:
    with Receiver(lambda _: FOREVER) as receiver, server.client(decode_responses=True) as redis:
        staff.add_jobs(receiver.url, "long")
        staff.hire(1, limit=1, ttl=10)
        poll.until(lambda: receiver.at_work, "it is at work", timeout=30)
        assert set(redis.keys()) == {"rl:places", "rl:jobs"}
