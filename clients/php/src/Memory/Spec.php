<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Limit and the request to it. KEEP lowers the limit. */
final class Spec
{
    public function __construct(
        public readonly Rule $rule,
        public readonly Request $request,
        public readonly int $kept,
        public readonly ?string $name,
        public readonly bool $hasOwnCost,
    ) {
    }

    /** Returns the name or the words that identify the limit on a key. */
    public function identity(): string
    {
        return null === $this->name ? "by {$this->rule->key}" : "as {$this->name}";
    }
}
