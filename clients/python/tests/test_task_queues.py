"""Limits of tasks in Celery and RQ, by one line."""

import time
from collections.abc import Iterator
from typing import Any

import celery
import celery.contrib.testing.worker
import pytest
import redis
import rq
from celery import Celery
from support.clock import Clock

from redis_ratelimit import DeniedError, Fixed, Limiter, TokenBucket
from redis_ratelimit import rq as for_rq
from redis_ratelimit.celery import RateLimitedTask


@pytest.fixture
def limiter(url: str) -> Iterator[Limiter]:
    with Limiter.from_url(url, timeout=10) as limiter:
        yield limiter


def test_celery_task_is_rescheduled(limiter: Limiter, clock: Clock) -> None:
    """A task over its limit is rescheduled, which does not count as one of its retries."""
    clock.run()
    app = Celery("tests", broker="memory://", backend="cache+memory://")
    runs: list[tuple[str, int]] = []

    @app.task(
        base=RateLimitedTask,
        bind=True,
        max_retries=0,
        limit=limiter.limit("mails", TokenBucket(2, 1, "100ms")),
        key=staticmethod(lambda to: to),
    )
    def mail(self: Any, to: str) -> str:
        runs.append((to, self.request.retries))
        return f"mail to {to}"

    with celery.contrib.testing.worker.start_worker(
        app, perform_ping_check=False, shutdown_timeout=30
    ):
        results = [mail.delay("ann") for _ in range(5)]
        assert [one.get(timeout=30) for one in results] == ["mail to ann"] * 5
    assert runs == [("ann", 0)] * 5
    # A plain function call is not limited.
    assert mail("ann") == "mail to ann"


def test_eager_celery_task_waits(limiter: Limiter, clock: Clock) -> None:
    """Eager tasks, as in tests of an application, wait."""
    clock.run()
    app = Celery("tests", broker="memory://")
    app.conf.task_always_eager = True

    @app.task(base=RateLimitedTask, limit=limiter.limit("mails", TokenBucket(1, 1, "100ms")))
    def mail() -> int:
        return 7

    started_at = time.monotonic()
    assert [mail.delay().get() for _ in range(2)] == [7, 7]
    assert time.monotonic() - started_at > 0.05


def send(to: str) -> str:
    return f"mail to {to}"


def test_rq_job_is_rescheduled(limiter: Limiter, url: str) -> None:
    global send  # noqa: PLW0603  RQ finds it by its name
    send = for_rq.ratelimit(limiter.limit("mails", Fixed(2, "1h")), key=lambda to: to)(send)
    with redis.Redis.from_url(url) as connection:
        queue = rq.Queue("mails", connection=connection)
        jobs = [queue.enqueue(f"{__name__}.send", "ann") for _ in range(3)]
        rq.SimpleWorker([queue], connection=connection).work(burst=True, logging_level="ERROR")
        assert [job.return_value() for job in jobs] == ["mail to ann", "mail to ann", None]
        assert jobs[2].get_status(refresh=True) == rq.job.JobStatus.SCHEDULED
        (due,) = [
            queue.scheduled_job_registry.get_scheduled_time(one)
            for one in queue.scheduled_job_registry.get_job_ids()
        ]
        assert 3500 < due.timestamp() - time.time() <= 3601
    with pytest.raises(DeniedError):
        send("ann")
