<?php

declare(strict_types=1);

namespace RedisRatelimit\Symfony;

use RedisRatelimit\Decision;
use RedisRatelimit\Limit;
use RedisRatelimit\Limiter;
use Symfony\Component\RateLimiter\Exception\MaxWaitDurationExceededException;
use Symfony\Component\RateLimiter\Exception\ReserveNotSupportedException;
use Symfony\Component\RateLimiter\LimiterInterface;
use Symfony\Component\RateLimiter\RateLimit;
use Symfony\Component\RateLimiter\Reservation;

/** Limiter of Symfony that the module decides. */
final class ModuleLimiter implements LimiterInterface
{
    /** Maximum wait of a reservation without one. */
    private const ANY_TIME = 365 * 86400;

    public function __construct(
        private readonly Limiter $limiter,
        private readonly Limit $limit,
        private readonly string $key,
    ) {
    }

    public function consume(int $tokens = 1): RateLimit
    {
        // Zero tokens are a peek in Symfony.
        $decision = 0 === $tokens
            ? $this->limiter->peek($this->key, $this->limit, 0)
            : $this->limiter->take($this->key, $this->limit, $tokens);

        return $this->rateLimit($decision, $tokens);
    }

    /** Reserves tokens of token buckets. */
    public function reserve(int $tokens = 1, ?float $maxTime = null): Reservation
    {
        if ('TOKENBUCKET' !== $this->limit->words[0]) {
            throw new ReserveNotSupportedException(self::class);
        }
        if ($tokens > $this->limit->quota) {
            throw new \InvalidArgumentException("{$tokens} tokens are more than the {$this->limit->quota} there can be");
        }
        $maxWait = (int) round(($maxTime ?? self::ANY_TIME) * 1000).'ms';
        $decision = $this->limiter->take($this->key, $this->limit, $tokens, maxWait: $maxWait);
        $rateLimit = $this->rateLimit($decision, $tokens);
        if (!$decision->allowed) {
            throw new MaxWaitDurationExceededException("the tokens are there in {$decision->wait} seconds", $rateLimit);
        }

        return new Reservation(microtime(true) + $decision->wait, $rateLimit);
    }

    public function reset(): void
    {
        if (null !== $this->limit->key) {
            throw new \InvalidArgumentException('one item of a sketch cannot be reset: what it has merged it cannot tell apart again');
        }
        $this->limiter->reset($this->key);
    }

    private function rateLimit(Decision $decision, int $tokens): RateLimit
    {
        // A call that never passes, with more tokens than the limit: the furthest date that Symfony supports.
        $wait = $decision->wait ?? self::ANY_TIME;
        $retryAfter = \DateTimeImmutable::createFromFormat('U.u', number_format(microtime(true) + $wait, 6, '.', ''));

        return new RateLimit($decision->remaining ?? ($decision->allowed ? $tokens : 0), $retryAfter, $decision->allowed, $decision->limit ?? $tokens);
    }
}
