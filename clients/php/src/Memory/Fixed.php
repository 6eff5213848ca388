<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Fixed window. Clocks are the boundaries of aligned windows; without them, a window opens with its first call. */
final class Fixed extends Rule
{
    public const KIND = 'rl-window';

    public function __construct(int $limit, private readonly int $window, private readonly ?Clocks $clocks = null)
    {
        parent::__construct($limit, "{$window} {$clocks?->key()}");
    }

    public function unused(): WindowPool
    {
        return new WindowPool();
    }

    public function present(Usage $usage, int $now): int
    {
        return $now < $this->end($usage, $now) ? $usage->used : 0;
    }

    public function verdict(Usage $usage, int $now, int $cost): Verdict
    {
        if ($this->fits($this->present($usage, $now), $cost)) {
            return Verdict::allowed();
        }

        return $cost > $this->limit ? Verdict::never() : Verdict::after($this->end($usage, $now) - $now);
    }

    public function reset(Usage $usage, int $now): int
    {
        return $usage->isUnused() ? 0 : max($this->end($usage, $now) - $now, 0);
    }

    public function charge(Usage $usage, int $now, int $cost): void
    {
        $this->advance($usage, $now);
        $usage->used = Whole::plus($usage->used, $cost);
    }

    public function giveBack(Usage $usage, int $now, int $units): void
    {
        $this->advance($usage, $now);
        $usage->used = max($usage->used - $units, 0);
    }

    public function low(Usage $usage, int $now): int
    {
        return Whole::MOST === $usage->used ? 0 : $this->present($usage, $now);
    }

    private function end(WindowPool $usage, int $now): int
    {
        $instant = min($usage->at, $now);
        if (null !== $this->clocks && ($usage->isAligned || null !== $this->clocks->calendar)) {
            return $this->clocks->end($instant);
        }

        return $instant + $this->window;
    }

    private function advance(WindowPool $usage, int $now): void
    {
        $usage->used = $this->present($usage, $now);
        if (null !== $this->clocks || $usage->isUnused()) {
            $usage->at = $now;
        }
        $usage->isAligned = null !== $this->clocks;
    }
}
