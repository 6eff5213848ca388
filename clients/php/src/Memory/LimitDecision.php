<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Decision of one limit, or of all limits. */
final class LimitDecision
{
    public function __construct(
        public readonly Verdict $verdict,
        public readonly int $limit,
        public readonly int $remaining,
        public readonly int $reset,
        public readonly ?int $granted,
    ) {
    }

    /** @return list<int> */
    public function row(): array
    {
        $row = [
            $this->verdict->isAllowed() ? 1 : 0,
            intdiv($this->limit, Whole::UNIT),
            intdiv($this->remaining, Whole::UNIT),
            $this->verdict->wait(),
            Whole::ceilDiv($this->reset, 1000),
        ];

        return null === $this->granted ? $row : [...$row, intdiv($this->granted, Whole::UNIT)];
    }
}
