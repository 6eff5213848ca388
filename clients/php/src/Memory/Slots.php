<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Usage of a strict sliding window: counts by the number of the slot. */
final class Slots extends Usage
{
    public int $window = 0;
    public int $written = 0;
    /** @var array<int, int> */
    public array $counts = [];

    public function width(): int
    {
        return max(Whole::ceilDiv($this->window, 60), 1);
    }

    /** Returns the time at which a slot leaves the window. */
    public function leaves(int $slot): int
    {
        return ($slot + 1) * $this->width() - 1 + $this->window;
    }

    /** @return array<int, int> slots within the window, newest first */
    public function counting(int $now): array
    {
        $counting = array_filter($this->counts, fn (int $slot) => $now < $this->leaves($slot), \ARRAY_FILTER_USE_KEY);
        krsort($counting);

        return $counting;
    }

    public function isUnused(): bool
    {
        return [] === $this->counts;
    }

    public function isSaturated(): bool
    {
        return \in_array(Whole::MOST, $this->counts, true);
    }

    public function ahead(int $now): int
    {
        return max($this->written - $now, 0);
    }

    public function moveBack(int $now): void
    {
        $moved = [];
        foreach ($this->counts as $old => $count) {
            $slot = $this->moved($old, $now);
            if ($now < $this->leaves($slot)) {
                $moved[$slot] = Whole::plus($moved[$slot] ?? 0, $count);
            }
        }
        $this->counts = $moved;
        $this->written = min($this->written, $now);
    }

    public function place(): int
    {
        return intdiv($this->written, $this->width()) * $this->width();
    }

    public function movedPlace(int $place, int $now): ?int
    {
        $slot = intdiv($place, $this->width());
        $stays = ($slot + 1) * $this->width() - 1 >= $this->ahead($now);

        return $stays ? $this->moved($slot, $now) * $this->width() : null;
    }

    public function takeBack(?int $place, int $units): int
    {
        return null === $place || $this->isSaturated() ? 0 : $this->lower(intdiv($place, $this->width()), $units);
    }

    /** Subtracts units from a slot. Returns how many. */
    public function lower(int $slot, int $units): int
    {
        $count = $this->counts[$slot] ?? 0;
        $taken = min($units, $count);
        $this->counts[$slot] = $count - $taken;
        if (0 === $this->counts[$slot]) {
            unset($this->counts[$slot]);
        }

        return $taken;
    }

    public function recoversIn(int $now): int
    {
        $newest = array_key_first($this->counting($now));

        return null === $newest ? 0 : $this->leaves($newest) - $now;
    }

    public function movedRecovery(int $recoversAt, int $ahead, int $now): int
    {
        return max($recoversAt - $ahead, $now + $this->recoversIn($now));
    }

    private function moved(int $slot, int $now): int
    {
        $end = max(($slot + 1) * $this->width() - 1 - $this->ahead($now), 0);

        return min(intdiv($end, $this->width()), intdiv($now, $this->width()));
    }
}
