"""Concurrent jobs never exceed the limit, whatever happens to the workers.

The service that the workers call counts concurrent calls.
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
from worker import KEY
from worker_pool import WorkerPool

from support import poll
from support.clock import START_US, Clock
from support.server import Server

HOUR = 3600.0


def first_attempt_hangs(call: Call) -> float:
    return HOUR if call.job == "fatal" and call.attempt == 1 else 0.01


def test_concurrent_jobs_stay_within_the_limit(pool: WorkerPool) -> None:
    names = [f"job {number}" for number in range(60)]
    with Receiver(duration_of=lambda _: 0.05) as receiver:
        pool.add_jobs(receiver.url, *names)
        pool.start(6, limit=3, ttl=10)
        poll.until(lambda: receiver.done.total() == 60, "all are done", timeout=40)
        poll.until(lambda: pool.jobs_left() == (0, 0), "none is left")
    assert receiver.done == dict.fromkeys(names, 1)
    assert receiver.maximum == 3


def test_each_job_takes_one_acquire_and_one_release(pool: WorkerPool) -> None:
    """Waiting workers make no further calls."""
    count = 40
    with Receiver(duration_of=lambda _: 0.02) as receiver:
        # No job lasts for a third of the ttl, after which its lease would be renewed.
        pool.start(12, limit=3, ttl=HOUR)
        poll.until(
            lambda: pool.waiting_for_lease() == 9,
            "all workers have a lease or wait for one",
            timeout=60,
        )
        before = pool.module_calls()
        pool.add_jobs(receiver.url, *(f"job {number}" for number in range(count)))
        poll.until(lambda: receiver.done.total() == count, "all are done", timeout=60)
        poll.until(
            lambda: pool.waiting_for_lease() == 9 and len(pool.leases()) == 3,
            "all workers wait again",
        )
    calls = {name: n - before[name] for name, n in pool.module_calls().items() if n > before[name]}
    # RL.INFO is a call of the test.
    assert calls.pop("rl.info") >= 1
    assert calls == {"rl.acquire": count, "rl.release": count}
    assert receiver.maximum == 3


def test_all_workers_get_the_same_number_of_jobs(pool: WorkerPool) -> None:
    """Waiting workers are served in order."""
    done: Counter[int] = Counter()

    def count_job(call: Call) -> float:
        done[call.worker] += 1
        return 0.02

    with Receiver(duration_of=count_job) as receiver:
        workers = pool.start(6, limit=2, ttl=HOUR)
        poll.until(
            lambda: pool.waiting_for_lease() == 4,
            "all workers have a lease or wait for one",
            timeout=60,
        )
        pool.add_jobs(receiver.url, *(f"job {number}" for number in range(60)))
        poll.until(lambda: receiver.done.total() == 60, "all are done", timeout=60)
    # A worker whose job takes a little longer is sometimes overtaken by one job.
    assert {worker.pid for worker in workers} == set(done)
    assert max(done.values()) - min(done.values()) <= 3


def test_concurrent_holders_get_exactly_the_limit(pool: WorkerPool) -> None:
    async def hold_fifty() -> tuple[int, int]:
        running = maximum = leases = 0
        all_have_waited, all_are_taken = asyncio.Event(), asyncio.Event()

        async def hold(name: str) -> None:
            nonlocal running, maximum, leases
            async with limiter.lease(KEY, Concurrency(5, ttl=5), name, wait=None):
                running += 1
                maximum = max(maximum, running)
                leases += 1
                if running == 5:
                    all_are_taken.set()
                await all_have_waited.wait()
                running -= 1

        async with (
            Limiter.from_url(pool.url, timeout=5) as limiter,
            asyncio.TaskGroup() as group,
        ):
            for number in range(50):
                group.create_task(hold(f"holder {number}"))
            await asyncio.to_thread(
                poll.until, lambda: pool.waiting_for_lease() == 45, "all others wait", 30
            )
            # On a busy machine, the replies of Redis may not have been read yet.
            await all_are_taken.wait()
            all_have_waited.set()
        return maximum, leases

    assert asyncio.run(hold_fifty()) == (5, 50)


def test_lease_and_job_of_a_killed_worker_are_free_after_its_ttl(
    pool: WorkerPool, clock: Clock
) -> None:
    clock.set(START_US)
    with Receiver(first_attempt_hangs) as receiver:
        pool.add_jobs(receiver.url, "fatal", "other")
        (victim,) = pool.start(1, limit=1, ttl=3)
        poll.until(lambda: receiver.running, "the job is running")
        (dead,) = pool.leases()
        victim.kill()
        poll.until(lambda: not receiver.running, "the call of the killed worker has ended")

        pool.start(2, limit=1, ttl=3)
        poll.until(lambda: pool.waiting_for_lease() == 2, "both wait", timeout=30)
        clock.advance("2.9s")
        # The dead worker still holds its lease.
        assert list(pool.leases()) == [dead]
        assert pool.waiting_for_lease() == 2
        assert receiver.begun.total() == 1

        clock.advance("0.2s")
        poll.until(lambda: receiver.done.total() == 2, "both jobs are done", timeout=30)
    assert receiver.begun == {"fatal": 2, "other": 1}
    assert receiver.maximum == 1


def test_worker_renews_its_lease_and_job_while_it_works(pool: WorkerPool, clock: Clock) -> None:
    clock.set(START_US)
    with Receiver(lambda _: HOUR) as receiver:
        pool.add_jobs(receiver.url, "long")
        pool.start(1, limit=2, ttl=3)
        poll.until(lambda: receiver.running, "the job is running")
        (holder,) = pool.leases()
        # A second worker has the other lease and looks for abandoned jobs.
        before = pool.calls("xautoclaim")
        pool.start(1, limit=2, ttl=3)

        def has_renewed() -> bool:
            return pool.leases()[holder] == clock.now // 1000 + 3000 and pool.idle_ms() == 0

        for _ in range(5):
            # The second worker waits for a job by the server's clock, which stands still. It must
            # wait before the clock advances.
            poll.until(pool.is_a_worker_waiting_for_a_job, "the other waits", timeout=30)
            clock.advance("2.9s")
            poll.until(has_renewed, "the lease and the job are renewed", timeout=30)
        poll.until(
            lambda: pool.calls("xautoclaim") >= before + 3, "the other worker has looked for jobs"
        )
        # The job was not repeated within 14.5 seconds.
        assert receiver.begun == {"long": 1}


def test_work_stops_in_an_outage_before_its_lease_expires(pool: WorkerPool, server: Server) -> None:
    with Receiver(first_attempt_hangs) as receiver:
        pool.add_jobs(receiver.url, "fatal")
        (worker,) = pool.start(1, limit=1, ttl=2)
        poll.until(lambda: receiver.running, "the job is running")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            poll.until(lambda: not receiver.running, "the work has stopped", timeout=30)
            assert worker.poll() is None
            assert not receiver.done
        finally:
            os.kill(server.pid, signal.SIGCONT)
        # The worker acquires a lease and takes the job again.
        poll.until(lambda: receiver.done.total() == 1, "the job is done", timeout=30)
    assert receiver.maximum == 1


def test_worker_stops_if_another_holder_has_its_lease(pool: WorkerPool, server: Server) -> None:
    """A failover may lose the worker's lease like this."""
    with Receiver(first_attempt_hangs) as receiver, server.client() as redis:
        pool.add_jobs(receiver.url, "fatal")
        pool.start(1, limit=1, ttl=3)
        poll.until(lambda: receiver.running, "the job is running")
        with redis.pipeline(transaction=True) as transaction:
            transaction.delete(KEY)
            transaction.execute_command("RL.ACQUIRE", KEY, 1, "1h", "another")
            transaction.execute()
        poll.until(lambda: not receiver.running, "the work has stopped", timeout=30)
        assert list(pool.leases()) == ["another"]
        redis.execute_command("RL.RELEASE", KEY, "another")
        poll.until(lambda: receiver.done.total() == 1, "the job is done", timeout=30)


def test_a_frozen_worker_stops_as_soon_as_it_wakes(pool: WorkerPool) -> None:
    """The call of a frozen worker continues, because a lease cannot stop a process."""
    with Receiver(first_attempt_hangs) as receiver:
        pool.add_jobs(receiver.url, "fatal")
        (frozen,) = pool.start(1, limit=1, ttl=2)
        poll.until(lambda: receiver.running, "the job is running")
        frozen.send_signal(signal.SIGSTOP)
        (other,) = pool.start(1, limit=1, ttl=2)
        poll.until(lambda: receiver.done["fatal"] == 1, "another has done it", timeout=30)
        assert receiver.running == [Call("fatal", frozen.pid, 1)]

        frozen.send_signal(signal.SIGCONT)
        poll.until(lambda: not receiver.running, "the work has stopped", timeout=30)
        other.kill()
        # The worker continues with other jobs.
        pool.add_jobs(receiver.url, "next")
        poll.until(lambda: receiver.done["next"] == 1, "the worker does the next job", timeout=30)
    assert receiver.done == {"fatal": 1, "next": 1}


def test_terminated_worker_finishes_its_job_and_releases_its_lease(pool: WorkerPool) -> None:
    with Receiver(lambda _: 1.0) as receiver:
        pool.add_jobs(receiver.url, "last", "left")
        (worker,) = pool.start(1, limit=1, ttl=HOUR)
        poll.until(lambda: receiver.running, "the job is running")
        worker.terminate()
        assert worker.wait(timeout=30) == 0
    assert receiver.done == {"last": 1}
    assert pool.jobs_left() == (1, 0)
    assert pool.leases() == {}


def test_terminated_worker_without_a_lease_ends_at_once(pool: WorkerPool) -> None:
    with Receiver(lambda _: HOUR) as receiver:
        pool.add_jobs(receiver.url, "long")
        pool.start(1, limit=1, ttl=HOUR)
        poll.until(lambda: receiver.running, "the job is running", timeout=30)
        holders = pool.leases()
        (waiting_worker,) = pool.start(1, limit=1, ttl=HOUR)
        poll.until(lambda: pool.waiting_for_lease() == 1, "the worker waits", timeout=30)
        waiting_worker.terminate()
        assert waiting_worker.wait(timeout=30) == 0
        poll.until(lambda: pool.waiting_for_lease() == 0, "the wait has ended")
        assert pool.leases() == holders


def test_unacknowledged_job_is_executed_once(pool: WorkerPool, clock: Clock) -> None:
    """The worker dies between its call and the acknowledgement, so another worker repeats the call
    with the same Idempotency-Key.
    """

    def freeze_first_caller(call: Call) -> float:
        if call.attempt == 1:
            os.kill(call.worker, signal.SIGSTOP)
        return 0.01

    clock.set(START_US)
    with Receiver(freeze_first_caller) as receiver:
        pool.add_jobs(receiver.url, "fatal")
        (victim,) = pool.start(1, limit=1, ttl=3)
        poll.until(lambda: receiver.done["fatal"] == 1, "the job is done", timeout=30)
        victim.kill()
        assert pool.jobs_left() == (1, 1)

        clock.advance("3.1s")
        pool.start(1, limit=1, ttl=3)
        poll.until(lambda: pool.jobs_left() == (0, 0), "the job is acknowledged", timeout=30)
    assert receiver.done == {"fatal": 1}
    assert receiver.repeated == {"fatal": 1}


def test_job_that_was_added_twice_is_executed_once(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client resends an XADD without a reply, so that the job is in the queue twice."""
    replies = []

    async def lose_first_reply(self: Connection, *arguments: object, **options: object) -> object:
        reply = await read_response(self, *arguments, **options)
        if isinstance(reply, str) and "-" in reply:  # an entry's id
            replies.append(reply)
            if len(replies) == 1:
                raise RedisConnectionError("the reply was lost")
        return reply

    read_response = Connection.read_response
    monkeypatch.setattr(Connection, "read_response", lose_first_reply)
    with Receiver(lambda _: 0.01) as receiver:
        pool.add_jobs(receiver.url, "once")
        assert len(replies) == 2
        pool.start(1, limit=1, ttl=10)
        poll.until(lambda: receiver.repeated.total() == 1, "the job was repeated", timeout=30)
        poll.until(lambda: pool.jobs_left() == (0, 0), "none is left")
    assert receiver.done == {"once": 1}


def test_receiver_never_shows_a_completed_job_as_running() -> None:
    """The receiver counts in a separate thread, so a test may read between any two of its steps."""
    records = []

    def record(text: str) -> None:
        records.append((text, receiver.done["one"], list(receiver.running)))

    receiver = Receiver(lambda _: 0.01, record)
    with receiver:
        headers = {"Idempotency-Key": '"1"', "User-Agent": "worker/1"}
        httpx.post(receiver.url, content="one", headers=headers, trust_env=False)
    assert records == [
        ("one: begun by worker 1, 1 at work", 0, [Call("one", 1, 1)]),
        ("one: done", 1, []),
    ]


def test_keys_begin_with_the_prefix_of_the_examples(pool: WorkerPool, server: Server) -> None:
    with Receiver(lambda _: HOUR) as receiver, server.client(decode_responses=True) as redis:
        pool.add_jobs(receiver.url, "long")
        pool.start(1, limit=1, ttl=10)
        poll.until(lambda: receiver.running, "the job is running", timeout=30)
        assert set(redis.keys()) == {"rl:places", "rl:jobs"}
