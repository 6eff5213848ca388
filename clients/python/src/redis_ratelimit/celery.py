"""Limits for Celery's tasks across all workers. Celery's own `rate_limit` counts for each worker.

    @app.task(base=RateLimitedTask, limit=limiter.limit("mails", Fixed(100, "1m")))
    def mail(address): ...

A task over its limit is rescheduled for the time when it can pass. This does not count towards the
`max_retries` of the task.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.exceptions import Reject

from redis_ratelimit.bound import Bound
from redis_ratelimit.named import EVERYBODY
from redis_ratelimit.quantities import Amount, Key

if TYPE_CHECKING:
    from redis_ratelimit.options import TakeOptions


class RateLimitedTask(Task):
    """Base class of tasks with a limit.

    `limit` is a bound limit. `key` returns the key for the arguments of a task; without it all
    tasks share the limit. `cost` is the number of units that a task charges. A task that costs more
    than the limit is rejected.
    """

    abstract = True
    limit: Bound | None = None
    key: Callable[..., Key] | None = None
    cost: Amount | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.request.called_directly:
            # Called as a plain function, not by a worker.
            return super().__call__(*args, **kwargs)
        if self.limit is not None:
            self._admit(self.limit, type(self).key, args, kwargs)
        # `Task.__call__` would push a request of its own.
        return self.run(*args, **kwargs)

    def _admit(
        self, limit: Bound, key: Callable[..., Key] | None, args: Any, kwargs: dict[str, Any]
    ) -> None:
        caller = EVERYBODY if key is None else key(*args, **kwargs)
        options: TakeOptions = {} if self.cost is None else {"cost": self.cost}
        while not (decision := limit.take(caller, **options)).allowed:
            if decision.wait is None:
                raise Reject("it costs more than its limit ever allows", requeue=False)
            seconds = max(decision.wait, 0.001)
            if not self.request.is_eager:
                self._reschedule(seconds)
            # An eager task has no worker that could run it later.
            time.sleep(seconds)

    def _reschedule(self, seconds: float) -> None:
        tries = self.request.retries
        # Undo the increment by `retry`, as `max_retries` is for errors of the task.
        self.request.retries = tries - 1
        try:
            raise self.retry(countdown=seconds)
        finally:
            self.request.retries = tries
