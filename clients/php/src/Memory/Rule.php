<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Numbers of a limit, which a call brings. `$key` tells it from others of its kind on a key; leases have none. */
abstract class Rule
{
    public const KIND = '';

    public function __construct(public int $limit, public readonly ?string $key)
    {
    }

    abstract public function unused(): Usage;

    abstract public function verdict(Usage $usage, int $now, int $cost): Verdict;

    /** Returns the units in use now, rounded up. */
    abstract public function present(Usage $usage, int $now): int;

    /** The time until the usage has recovered. */
    abstract public function reset(Usage $usage, int $now): int;

    abstract public function charge(Usage $usage, int $now, int $cost): void;

    abstract public function giveBack(Usage $usage, int $now, int $units): void;

    /** The usage from which earlier charges can still be settled; null if each has a place of its own. */
    abstract public function low(Usage $usage, int $now): ?int;

    /** Returns `true` if a denied caller may be told to wait (MAXWAIT). */
    public function waits(): bool
    {
        return false;
    }

    public function remaining(Usage $usage, int $now): int
    {
        return max($this->limit - $this->present($usage, $now), 0);
    }

    /** The time until usage is within the limit once `$cost` more is charged. */
    public function debtAfter(Usage $usage, int $now, int $cost): int
    {
        if ($cost > 0) {
            $usage = clone $usage;
            $this->charge($usage, $now, $cost);
        }
        $verdict = $this->verdict($usage, $now, 0);

        return Verdict::AFTER === $verdict->kind ? $verdict->time : 0;
    }

    /** Returns `true` if a cost fits beside what is used. */
    protected function fits(int $used, int $cost): bool
    {
        return $cost <= $this->limit && $used <= $this->limit - $cost;
    }
}
