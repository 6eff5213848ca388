<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** There is no room for what the call would store. Nothing was charged. */
final class FullException extends RateLimitException
{
}
