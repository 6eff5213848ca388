<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** Something is set up in a way that cannot work, such as a wrong password. It says what to do. */
class SetupException extends RateLimitException
{
}
