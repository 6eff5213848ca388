<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** Base class of all exceptions of this package. */
class RateLimitException extends \RuntimeException
{
}
