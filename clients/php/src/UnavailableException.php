<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** The server cannot decide at the moment: it is away, is loading, or has no primary. */
final class UnavailableException extends RateLimitException
{
}
