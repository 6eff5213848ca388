<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** The call is wrong as it is. */
final class CallException extends RateLimitException
{
}
