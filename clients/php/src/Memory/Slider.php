<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Usage of a sliding window counter: the counts of two windows, and their length. */
final class Slider extends Usage
{
    public function __construct(
        public int $start = 0,
        public int $window = 0,
        public int $previous = 0,
        public int $current = 0,
    ) {
    }

    /** Returns the usage with the window that contains `$now` as the current one. */
    public function rolled(int $now): self
    {
        $passed = 0 === $this->window ? 2 : intdiv(max($now - $this->start, 0), $this->window);

        return match ($passed) {
            0 => $this,
            1 => new self($this->start + $this->window, $this->window, $this->current),
            default => new self(),
        };
    }

    public function present(int $now): int
    {
        if (0 === $this->window) {
            return 0;
        }
        $overlap = max($this->window - max($now - $this->start, 0), 0);

        return Whole::plus(Whole::shareUp($this->previous, $overlap, $this->window), $this->current);
    }

    public function isSaturated(): bool
    {
        return Whole::MOST === $this->previous || Whole::MOST === $this->current;
    }

    public function isUnused(): bool
    {
        return 0 === $this->previous && 0 === $this->current;
    }

    public function ahead(int $now): int
    {
        return max($this->start - $now, 0);
    }

    public function moveBack(int $now): void
    {
        $this->start = min($this->start, $now);
    }

    public function place(): int
    {
        return $this->start;
    }

    public function takeBack(?int $place, int $units): int
    {
        if (null === $place || $this->isSaturated()) {
            return 0;
        }
        $taken = 0;
        if ($place === $this->start) {
            $taken = min($units, $this->current);
            $this->current -= $taken;
        } elseif ($place + $this->window === $this->start) {
            $taken = min($units, $this->previous);
            $this->previous -= $taken;
        }

        return $taken;
    }
}
