<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Strict sliding window of 60 slots. */
final class Strict extends Rule
{
    public const KIND = 'rl-strict';

    public function __construct(int $limit, private readonly int $window)
    {
        parent::__construct($limit, "{$window}");
    }

    public function unused(): Slots
    {
        return new Slots();
    }

    public function present(Usage $usage, int $now): int
    {
        return array_reduce($usage->counting($now), Whole::plus(...), 0);
    }

    public function verdict(Usage $usage, int $now, int $cost): Verdict
    {
        if ($cost > $this->limit) {
            return Verdict::never();
        }
        $total = 0;
        foreach ($usage->counting($now) as $slot => $count) {
            $total = Whole::plus($total, $count);
            if (!$this->fits($total, $cost)) {
                return Verdict::after($usage->leaves($slot) - $now);
            }
        }

        return Verdict::allowed();
    }

    public function reset(Usage $usage, int $now): int
    {
        return $usage->recoversIn($now);
    }

    public function charge(Usage $usage, int $now, int $cost): void
    {
        $this->advance($usage, $now);
        $slot = intdiv($now, $usage->width());
        $usage->counts[$slot] = Whole::plus($usage->counts[$slot] ?? 0, $cost);
    }

    public function giveBack(Usage $usage, int $now, int $units): void
    {
        $this->advance($usage, $now);
        foreach (array_reverse(array_keys($usage->counting($now))) as $slot) {
            $units -= $usage->lower($slot, $units);
        }
    }

    public function low(Usage $usage, int $now): ?int
    {
        return $usage->window !== $this->window || $usage->isSaturated() ? 0 : null;
    }

    private function advance(Slots $usage, int $now): void
    {
        [$counting, $present] = [$usage->counting($now), $this->present($usage, $now)];
        $stays = $usage->window === $this->window;
        $usage->window = $this->window;
        $usage->written = $now;
        $anew = $present > 0 ? [intdiv($now, $usage->width()) => $present] : [];
        $usage->counts = $stays ? $counting : $anew;
    }
}
