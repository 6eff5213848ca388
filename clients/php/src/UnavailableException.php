<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** Outage: the server is unreachable, loading, or without a primary. */
final class UnavailableException extends RateLimitException
{
}
