<?php

declare(strict_types=1);

namespace RedisRatelimit\Laravel;

use Closure;
use Illuminate\Cache\RateLimiter as Base;
use RedisRatelimit\Limit;
use RedisRatelimit\Limiter;

/**
 * Replacement of Laravel's rate limiter, for its facade, its middleware `throttle` and its throttled logins: the
 * attempts of a key and their end are one key of the server, and each method is one call.
 */
class RateLimiter extends Base
{
    /** Limit above any count. */
    private const MOST = 1_000_000_000_000;

    public function __construct(private readonly Limiter $limiter)
    {
    }

    /**
     * Charges an attempt before the callback, so that concurrent attempts are counted exactly. An exception of the
     * callback undoes the attempt.
     */
    public function attempt($key, $maxAttempts, Closure $callback, $decaySeconds = 60)
    {
        $key = $this->cleanRateLimiterKey($key);
        $limit = self::limit($maxAttempts, $decaySeconds);
        $decision = $this->limiter->take($key, $limit, once: true, ttl: '1h');
        if (!$decision->allowed) {
            return false;
        }
        try {
            return $callback() ?: true;
        } catch (\Throwable $error) {
            if (null !== $decision->id) {
                $this->limiter->settle($key, $limit, $decision->id, 0);
            }
            throw $error;
        }
    }

    public function tooManyAttempts($key, $maxAttempts)
    {
        return $this->attempts($key) >= $maxAttempts;
    }

    public function hit($key, $decaySeconds = 60)
    {
        return $this->increment($key, $decaySeconds);
    }

    public function increment($key, $decaySeconds = 60, $amount = 1)
    {
        $limit = self::limit(self::MOST, $decaySeconds);
        $decision = $this->limiter->take($this->cleanRateLimiterKey($key), $limit, $amount);

        // Without a decision, the attempt counts as the first one.
        return $decision->isDegraded() ? $amount : self::MOST - $decision->remaining;
    }

    public function attempts($key)
    {
        return $this->limiter->usage($this->cleanRateLimiterKey($key))[0];
    }

    public function resetAttempts($key)
    {
        return $this->limiter->reset($this->cleanRateLimiterKey($key));
    }

    public function clear($key)
    {
        $this->resetAttempts($key);
    }

    public function availableIn($key)
    {
        return (int) ceil($this->limiter->usage($this->cleanRateLimiterKey($key))[1]);
    }

    /** Returns a limit that always has the same usage, whatever its numbers. */
    private static function limit(int $attempts, int $seconds): Limit
    {
        return Limit::fixed($attempts, "{$seconds}s")->named('attempts');
    }
}
