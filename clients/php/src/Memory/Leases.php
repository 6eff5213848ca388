<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Leases by holder: expiry, units and fencing token. */
final class Leases extends Usage
{
    public int $written = 0;
    /** @var array<string, array{int, int, ?int}> */
    public array $leases = [];

    /** @return array<string, array{int, int, ?int}> leases that have not expired, in the order of their expiry */
    public function live(int $now): array
    {
        $at = min(max($now, $this->written), Whole::LATEST);
        $live = array_filter($this->leases, static fn (array $lease) => $at < $lease[0]);
        uksort($live, static fn ($one, $other) => [$live[$one][0], (string) $one] <=> [$live[$other][0], (string) $other]);

        return $live;
    }

    public function tidy(int $now): void
    {
        $this->leases = $this->live($now);
        $this->written = $now;
    }

    /**
     * Releases leases. Returns how many were held.
     *
     * @param list<string> $holders
     */
    public function release(array $holders, int $now): int
    {
        $present = array_intersect_key($this->live($now), array_flip($holders));
        if ([] !== $present) {
            $this->leases = array_diff_key($this->leases, $present);
            $this->tidy($now);
        }

        return \count($present);
    }

    public function recoversIn(int $now): int
    {
        return max(max([0, ...array_column($this->leases, 0)]) - max($now, $this->written), 0);
    }

    public function isUnused(): bool
    {
        return [] === $this->leases;
    }

    public function ahead(int $now): int
    {
        return max($this->written - $now, 0);
    }

    public function moveBack(int $now): void
    {
        $back = $this->ahead($now);
        $moved = static fn (array $lease) => [$lease[0] - $back, $lease[1], $lease[2]];
        $this->leases = array_map($moved, $this->live($this->written));
        $this->written = min($this->written, $now);
    }

    public function takeBack(?int $place, int $units): int
    {
        return 0;
    }
}
