<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** Lack of room for the data of the call. Nothing was charged. */
final class FullException extends RateLimitException
{
}
