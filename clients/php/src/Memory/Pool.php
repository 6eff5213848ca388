<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Usage as one number at one instant. */
class Pool extends Usage
{
    public int $used = 0;
    public int $at = 0;

    public function isUnused(): bool
    {
        return 0 === $this->used;
    }

    public function ahead(int $now): int
    {
        return max($this->at - $now, 0);
    }

    public function moveBack(int $now): void
    {
        $this->at = min($this->at, $now);
    }

    public function takeBack(?int $place, int $units): int
    {
        $taken = Whole::MOST === $this->used ? 0 : min($units, $this->used);
        $this->used -= $taken;

        return $taken;
    }
}
