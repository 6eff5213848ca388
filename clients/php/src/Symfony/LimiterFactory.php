<?php

declare(strict_types=1);

namespace RedisRatelimit\Symfony;

use RedisRatelimit\Limit;
use RedisRatelimit\Limiter;
use Symfony\Component\RateLimiter\LimiterInterface;

/** Replacement of Symfony's RateLimiterFactory: no lock is needed, and each decision is one call. */
final class LimiterFactory
{
    public function __construct(
        private readonly string $id,
        private readonly Limiter $limiter,
        private readonly Limit $limit,
    ) {
    }

    public function create(?string $key = null): LimiterInterface
    {
        return new ModuleLimiter($this->limiter, $this->limit, null === $key ? $this->id : "{$this->id}:{$key}");
    }
}
