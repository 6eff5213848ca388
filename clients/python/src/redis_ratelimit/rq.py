"""Limits for RQ's jobs across all workers: `@ratelimit(limiter.limit("mails", Fixed(100, "1m")))`.

A job over its limit is rescheduled for the time when it can pass, which needs a worker with a
scheduler: `rq worker --with-scheduler`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

from rq.job import Retry, get_current_job

from redis_ratelimit.bound import Bound
from redis_ratelimit.decision import DeniedError
from redis_ratelimit.named import EVERYBODY
from redis_ratelimit.quantities import Amount, Key

if TYPE_CHECKING:
    from redis_ratelimit.options import TakeOptions

Job = TypeVar("Job", bound=Callable[..., Any])

# Number of retries of a job, practically without a bound.
MAX_RETRIES = 10**9


def ratelimit(
    limit: Bound,
    *,
    key: Key | Callable[..., Key] = EVERYBODY,
    cost: Amount | None = None,
) -> Callable[[Job], Job]:
    """Decorates the function of a job. Called as a plain function, it raises DeniedError.

    key    key of the limit, or a function of the job's arguments; without it all jobs share the
           limit.
    cost   units that a job charges.
    """
    options: TakeOptions = {} if cost is None else {"cost": cost}

    def limited(job: Job) -> Job:
        @wraps(job)
        def run(*args: Any, **kwargs: Any) -> Any:
            caller = key(*args, **kwargs) if callable(key) else key
            decision = limit.take(caller, **options)
            if decision.allowed:
                return job(*args, **kwargs)
            wait = decision.wait
            if wait is None or get_current_job() is None:
                raise DeniedError(decision)
            return Retry(MAX_RETRIES, interval=max(ceil(wait), 1))

        return run  # type: ignore[return-value]

    return limited
