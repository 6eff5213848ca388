<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Parameters of a limit. `$key` distinguishes limits of one algorithm on a key; leases have none. */
abstract class Rule
{
    public const KIND = '';

    public function __construct(public int $limit, public readonly ?string $key)
    {
    }

    abstract public function unused(): Usage;

    abstract public function verdict(Usage $usage, int $now, int $cost): Verdict;

    /** Returns the current usage, rounded up. */
    abstract public function present(Usage $usage, int $now): int;

    /** Returns the time until the usage has recovered. */
    abstract public function reset(Usage $usage, int $now): int;

    abstract public function charge(Usage $usage, int $now, int $cost): void;

    abstract public function giveBack(Usage $usage, int $now, int $units): void;

    /** Returns the usage from which earlier charges can still be settled, or null if usage keeps charges apart. */
    abstract public function low(Usage $usage, int $now): ?int;

    /** Returns true if MAXWAIT can admit a call with a wait. */
    public function waits(): bool
    {
        return false;
    }

    public function remaining(Usage $usage, int $now): int
    {
        return max($this->limit - $this->present($usage, $now), 0);
    }

    /** Returns the time until usage is within the limit after `$cost` more is charged. */
    public function debtAfter(Usage $usage, int $now, int $cost): int
    {
        if ($cost > 0) {
            $usage = clone $usage;
            $this->charge($usage, $now, $cost);
        }
        $verdict = $this->verdict($usage, $now, 0);

        return Verdict::AFTER === $verdict->kind ? $verdict->time : 0;
    }

    /** Returns true if a cost fits in addition to the usage. */
    protected function fits(int $used, int $cost): bool
    {
        return $cost <= $this->limit && $used <= $this->limit - $cost;
    }
}
