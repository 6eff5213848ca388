"""Never more at work than there are places, whatever becomes of the workers.

How many are at work is counted by the service that they call.
"""

import asyncio
import os
import signal

from pool import Pool, connect
from receiver import Call, Receiver
from staff import Staff

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


def test_fifty_holders_at_once_have_exactly_the_places_there_are(staff: Staff) -> None:
    async def fifty() -> tuple[int, int]:
        at_work = most = turns = 0
        all_have_asked = asyncio.Event()

        async def one(name: str) -> None:
            nonlocal at_work, most, turns
            async with pool.place(name):
                at_work += 1
                most = max(most, at_work)
                turns += 1
                await all_have_asked.wait()
                at_work -= 1

        async with connect(staff.url) as redis, asyncio.TaskGroup() as group:
            pool = Pool(redis, "places", limit=5, ttl=5)
            for number in range(50):
                group.create_task(one(f"holder {number}"))
            await asyncio.to_thread(staff.wait_for_calls, "rl.acquire", 50)
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
        staff.wait_for_calls("rl.acquire", 6)
        clock.advance("2.9s")
        staff.wait_for_calls("rl.acquire", 6)
        # The place is still taken, by one who is dead.
        assert list(staff.places()) == [dead]
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
        staff.hire(1, limit=2, ttl=3)
        looked = staff.calls("xautoclaim")

        def has_renewed() -> bool:
            return staff.places()[holder] == clock.now // 1000 + 3000 and staff.idle_ms() == 0

        for _ in range(5):
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
    """As after a failover that has forgotten its lease."""
    with Receiver(first_attempt_hangs) as receiver, server.client() as redis:
        staff.add_jobs(receiver.url, "fatal")
        staff.hire(1, limit=1, ttl=3)
        poll.until(lambda: receiver.at_work, "it is at work")
        with redis.pipeline(transaction=True) as both:
            both.delete("places")
            both.execute_command("RL.ACQUIRE", "places", 1, "1h", "another")
            both.execute()
        poll.until(lambda: not receiver.at_work, "it has stopped its work", timeout=30)
        assert list(staff.places()) == ["another"]
        redis.execute_command("RL.RELEASE", "places", "another")
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
