<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** Malformed call. */
final class CallException extends RateLimitException
{
}
