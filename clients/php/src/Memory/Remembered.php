<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Call recorded by its idempotency key. */
final class Remembered
{
    public bool $isSettled = false;

    /** @param list<array{Part, Charge}> $charges */
    public function __construct(
        public int $expiresAt,
        public int $holdUntil,
        public readonly bool $isForced,
        public readonly ?int $granted,
        public array $charges,
    ) {
    }
}
