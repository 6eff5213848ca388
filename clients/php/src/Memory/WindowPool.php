<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Usage of a fixed window. `at` is the time when it opened or, if aligned, was last charged. */
final class WindowPool extends Pool
{
    public bool $isAligned = false;

    public function movedRecovery(int $recoversAt, int $ahead, int $now): int
    {
        return $this->isAligned ? $recoversAt : parent::movedRecovery($recoversAt, $ahead, $now);
    }
}
