"""Limits for Celery's tasks, over all workers: Celery's own `rate_limit` is of one worker each.

    @app.task(base=RateLimitedTask, limit=limiter.limit("mails", Fixed(100, "1m")))
    def mail(address): ...

A task over its limit is sent again for when it can pass. That is no retry of the task's own: its
`max_retries` does not count it.
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
    """`limit` is a limit under a name, and `key` says of the task's arguments whose it is; without
    it all tasks share the limit. `cost` is what a task charges. A task that can never pass, as it
    costs more than the limit, is rejected.
    """

    abstract = True
    limit: Bound | None = None
    key: Callable[..., Key] | None = None
    cost: Amount | None = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        if self.request.called_directly:
            # A function of the caller's: no task of a worker's.
            return super().__call__(*args, **named)
        if self.limit is not None:
            self._admit(self.limit, type(self).key, args, named)
        # Not the base class's call, in which the request would be another.
        return self.run(*args, **named)

    def _admit(
        self, limit: Bound, key: Callable[..., Key] | None, args: Any, named: dict[str, Any]
    ) -> None:
        who = EVERYBODY if key is None else key(*args, **named)
        options: TakeOptions = {} if self.cost is None else {"cost": self.cost}
        while not (decision := limit.take(who, **options)).allowed:
            if decision.wait is None:
                raise Reject("it costs more than its limit ever allows", requeue=False)
            seconds = max(decision.wait, 0.001)
            if not self.request.is_eager:
                self._later(seconds)
            # Nobody else would do it later.
            time.sleep(seconds)

    def _later(self, seconds: float) -> None:
        tries = self.request.retries
        # What `retry` counts is for errors of the task.
        self.request.retries = tries - 1
        try:
            raise self.retry(countdown=seconds)
        finally:
            self.request.retries = tries
