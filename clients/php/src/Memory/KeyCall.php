<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Parsed call for one key. */
final class KeyCall
{
    /**
     * @param list<Spec>              $specs
     * @param string                  $purpose CHARGE, CHECK, BACK or SETTLE
     * @param array{string, int}|null $once
     * @param array{string, int}|null $settle
     * @param bool                    $isPlain true if a key that stores one limit alone can serve the call
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
