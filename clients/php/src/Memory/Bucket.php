<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Token bucket, or with `$queues` a leaky bucket, which delays allowed calls. */
final class Bucket extends Rule
{
    public const KIND = 'rl-bucket';

    public function __construct(
        int $capacity,
        private readonly int $refill,
        private readonly int $period,
        private readonly bool $queues,
    ) {
        parent::__construct($capacity, "{$period}");
    }

    public function unused(): Pool
    {
        return new Pool();
    }

    public function waits(): bool
    {
        return !$this->queues;
    }

    public function drainsIn(int $units): int
    {
        return min(Whole::shareUp($units, $this->period, $this->refill), Whole::LATEST);
    }

    public function present(Usage $usage, int $now): int
    {
        return max($usage->used - Whole::share(max($now - $usage->at, 0), $this->refill, $this->period), 0);
    }

    public function verdict(Usage $usage, int $now, int $cost): Verdict
    {
        if ($this->fits($this->present($usage, $now), $cost)) {
            return Verdict::allowed($this->queues ? $this->reset($usage, $now) : 0);
        }
        if ($cost > $this->limit) {
            return Verdict::never();
        }

        return Verdict::after($this->drainsIn($usage->used - ($this->limit - $cost)) - max($now - $usage->at, 0));
    }

    public function reset(Usage $usage, int $now): int
    {
        return max($this->drainsIn($usage->used) - max($now - $usage->at, 0), 0);
    }

    public function charge(Usage $usage, int $now, int $cost): void
    {
        $this->advance($usage, $now);
        $usage->used = Whole::plus($usage->used, $cost);
    }

    public function giveBack(Usage $usage, int $now, int $units): void
    {
        if ($this->present($usage, $now) <= $units) {
            $usage->used = $usage->at = 0;

            return;
        }
        $this->advance($usage, $now);
        $usage->used -= $units;
    }

    public function low(Usage $usage, int $now): int
    {
        $drained = Whole::shareUp(max($now - $usage->at, 0), $this->refill, $this->period);

        return Whole::MOST === $usage->used ? 0 : max($usage->used - $drained, 0);
    }

    /** Subtracts the drained usage, in steps of a whole number of millionths. */
    private function advance(Pool $usage, int $now): void
    {
        if (0 === $this->present($usage, $now)) {
            $usage->used = 0;
            $usage->at = $now;

            return;
        }
        $divisor = Whole::gcd($this->period, $this->refill);
        $steps = intdiv($now - $usage->at, intdiv($this->period, $divisor));
        $usage->used -= $steps * intdiv($this->refill, $divisor);
        $usage->at += $steps * intdiv($this->period, $divisor);
    }
}
