<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** A clock that stands still until it is moved, for `Limiter::local($clock)`. */
final class ManualClock
{
    private int $micros;

    /** Creates a clock that stands at an instant, by default the present one. */
    public function __construct(?\DateTimeInterface $now = null)
    {
        $this->set($now ?? new \DateTimeImmutable());
    }

    /** Moves the clock by so many seconds. */
    public function advance(int|float $seconds): void
    {
        $this->micros += (int) round($seconds * 1_000_000);
    }

    /** Sets the clock to an instant, earlier or later. */
    public function set(\DateTimeInterface $now): void
    {
        $this->micros = $now->getTimestamp() * 1_000_000 + (int) $now->format('u');
    }

    /** The microseconds since 1970. */
    public function micros(): int
    {
        return $this->micros;
    }
}
