<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Sliding window log. */
final class SlidingLog extends Rule
{
    public const KIND = 'rl-reqlog';

    public function __construct(int $limit, private readonly int $window)
    {
        parent::__construct($limit, "{$window}");
    }

    public function unused(): Entries
    {
        return new Entries();
    }

    public function present(Usage $usage, int $now): int
    {
        return array_sum(array_column($this->counting($usage, $now), 1));
    }

    public function verdict(Usage $usage, int $now, int $cost): Verdict
    {
        if ($this->fits($this->present($usage, $now), $cost)) {
            return Verdict::allowed();
        }
        if ($cost > $this->limit) {
            return Verdict::never();
        }
        $newer = 0;
        foreach (array_reverse($usage->entries) as [$at, $units]) {
            $newer = Whole::plus($newer, $units);
            if (!$this->fits($newer, $cost)) {
                return Verdict::after($at + $this->window - $now);
            }
        }

        return Verdict::allowed();
    }

    public function reset(Usage $usage, int $now): int
    {
        return $usage->isUnused() ? 0 : max($usage->place() + $this->window - $now, 0);
    }

    public function charge(Usage $usage, int $now, int $cost): void
    {
        $usage->entries = $this->counting($usage, $now);
        $usage->add($now, min($cost, Whole::MOST - $usage->total()));
    }

    public function giveBack(Usage $usage, int $now, int $units): void
    {
        $usage->entries = $this->counting($usage, $now);
        $usage->lower($units);
    }

    public function low(Usage $usage, int $now): ?int
    {
        return Whole::MOST === $usage->total() ? 0 : null;
    }

    /** @return list<array{int, int}> */
    private function counting(Entries $usage, int $now): array
    {
        return array_values(array_filter($usage->entries, fn (array $entry) => $entry[0] + $this->window > $now));
    }
}
