<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** The base of all errors. */
class RateLimitException extends \RuntimeException
{
}
