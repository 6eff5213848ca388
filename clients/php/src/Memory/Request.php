<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Request to one limit: TAKE, UPTO, FORCE, MAXWAIT, BACK, or PAST for a peek with a KEEP above the limit. */
final class Request
{
    public function __construct(
        public readonly string $mode = 'TAKE',
        public readonly int $cost = 0,
        public readonly int $maxWait = 0,
    ) {
    }

    public function looks(): bool
    {
        return 'PAST' === $this->mode || (0 === $this->cost && !\in_array($this->mode, ['UPTO', 'BACK'], true));
    }

    public function purpose(): string
    {
        return 'BACK' === $this->mode ? 'BACK' : ($this->looks() ? 'CHECK' : 'CHARGE');
    }
}
