<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Call on one key. */
final class KeyCall
{
    /**
     * @param list<Spec>              $specs
     * @param string                  $purpose CHARGE, CHECK, BACK or SETTLE
     * @param array{string, int}|null $once
     * @param array{string, int}|null $settle
     * @param bool                    $isPlain whether a key of one limit alone can serve it
     */
    public function __construct(
        public readonly array $specs,
        public readonly string $purpose,
        public readonly ?array $once,
        public readonly ?array $settle,
        public readonly bool $each,
        public bool $isPlain,
    ) {
    }
}
