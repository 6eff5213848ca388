<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** State of one limit. A new one has never been used. */
abstract class Usage
{
    abstract public function isUnused(): bool;

    /** Returns the time by which the clock was set back since the last change, or 0. */
    abstract public function ahead(int $now): int;

    /** Moves all instants along with a clock that was set back to `$now`. */
    abstract public function moveBack(int $now): void;

    /** Takes up to so many units of a charge back. Returns how many. */
    abstract public function takeBack(?int $place, int $units): int;

    /** The instant of the newest charge, where each charge is counted apart. */
    public function place(): ?int
    {
        return null;
    }

    /** Returns a place after `moveBack`; null if it would be before the epoch. */
    public function movedPlace(int $place, int $now): ?int
    {
        $back = $this->ahead($now);

        return $place >= $back ? $place - $back : null;
    }

    /** The instant of recovery after a clock was set back to `$now`. */
    public function movedRecovery(int $recoversAt, int $ahead, int $now): int
    {
        return max($recoversAt - $ahead, 0);
    }
}
