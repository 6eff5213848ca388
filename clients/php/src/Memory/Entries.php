<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Usage of a sliding log: the times and costs of charges, oldest first. */
final class Entries extends Usage
{
    /** @var list<array{int, int}> */
    public array $entries = [];

    public function total(): int
    {
        return array_reduce(array_column($this->entries, 1), Whole::plus(...), 0);
    }

    public function isUnused(): bool
    {
        return [] === $this->entries;
    }

    public function ahead(int $now): int
    {
        return max(($this->place() ?? 0) - $now, 0);
    }

    public function moveBack(int $now): void
    {
        [$back, $entries] = [$this->ahead($now), $this->entries];
        $this->entries = [];
        foreach ($entries as [$at, $cost]) {
            $this->add(max($at - $back, 0), $cost);
        }
    }

    public function place(): ?int
    {
        return [] === $this->entries ? null : $this->entries[array_key_last($this->entries)][0];
    }

    public function add(int $at, int $cost): void
    {
        if ($at === $this->place()) {
            $this->entries[array_key_last($this->entries)][1] += $cost;
        } elseif ($cost > 0) {
            $this->entries[] = [$at, $cost];
        }
    }

    /** Subtracts units from the entry of an instant, or from all entries, oldest first. Returns how many. */
    public function lower(int $units, ?int $place = null): int
    {
        $rest = $units;
        foreach ($this->entries as $index => [$at, $cost]) {
            $taken = null === $place || $at === $place ? min($rest, $cost) : 0;
            $this->entries[$index][1] -= $taken;
            $rest -= $taken;
        }
        $this->entries = array_values(array_filter($this->entries, static fn (array $entry) => $entry[1] > 0));

        return $units - $rest;
    }

    public function takeBack(?int $place, int $units): int
    {
        return null === $place || Whole::MOST === $this->total() ? 0 : $this->lower($units, $place);
    }
}
