<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Evaluation of a call by one limit, before anything is changed. */
final class Evaluation
{
    /** @param int $change what is charged, or given back if it is below 0 */
    public function __construct(
        public ?Part $part,
        public readonly Verdict $verdict,
        public int $change,
        public readonly bool $isForced = false,
        public ?int $granted = null,
    ) {
    }

    public function denies(): bool
    {
        return !$this->isForced && !$this->verdict->isAllowed();
    }
}
