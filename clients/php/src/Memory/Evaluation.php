<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Verdict of one limit on a call, before anything is changed. */
final class Evaluation
{
    /** @param int $change units to charge, or to give back if negative */
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
