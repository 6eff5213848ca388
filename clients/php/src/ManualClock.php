<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** Clock that stands still until it is moved, for `Limiter::local($clock)`. */
final class ManualClock
{
    private int $micros;

    /** Creates a clock that stands at a time, by default now. */
    public function __construct(?\DateTimeInterface $now = null)
    {
        $this->set($now ?? new \DateTimeImmutable());
    }

    /** Moves the clock forward. */
    public function advance(int|float $seconds): void
    {
        $this->micros += (int) round($seconds * 1_000_000);
    }

    /** Sets the clock to an earlier or later time. */
    public function set(\DateTimeInterface $now): void
    {
        $this->micros = $now->getTimestamp() * 1_000_000 + (int) $now->format('u');
    }

    /** Returns the microseconds since 1970. */
    public function micros(): int
    {
        return $this->micros;
    }
}
