<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** State of one limit. The default is "never used". */
abstract class Usage
{
    abstract public function isUnused(): bool;

    /** Returns how far the clock was set back since the last change, or 0. */
    abstract public function ahead(int $now): int;

    /** Shifts all timestamps after the clock was set back to `$now`. */
    abstract public function moveBack(int $now): void;

    /** Takes back up to `$units` of a charge. Returns how many. */
    abstract public function takeBack(?int $place, int $units): int;

    /** Returns the instant of the newest charge, if usage keeps charges apart. */
    public function place(): ?int
    {
        return null;
    }

    /** Returns the place of a charge after `moveBack`; null if it is before the epoch. */
    public function movedPlace(int $place, int $now): ?int
    {
        $back = $this->ahead($now);

        return $place >= $back ? $place - $back : null;
    }

    /** Returns the instant of recovery after the clock was set back to `$now`. */
    public function movedRecovery(int $recoversAt, int $ahead, int $now): int
    {
        return max($recoversAt - $ahead, 0);
    }
}
