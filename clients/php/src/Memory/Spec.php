<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** A limit, lowered by what is kept of it, and what is asked of it. */
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

    /** Returns the name or the words by which a key finds the limit. */
    public function identity(): string
    {
        return null === $this->name ? "by {$this->rule->key}" : "as {$this->name}";
    }
}
