<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** Misconfiguration, such as a wrong password. The message says what to do. */
class SetupException extends RateLimitException
{
}
