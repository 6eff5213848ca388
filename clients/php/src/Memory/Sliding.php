<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Sliding window counter. */
final class Sliding extends Rule
{
    public const KIND = 'rl-slider';

    public function __construct(int $limit, private readonly int $window)
    {
        parent::__construct($limit, "{$window}");
    }

    public function unused(): Slider
    {
        return new Slider();
    }

    public function present(Usage $usage, int $now): int
    {
        return $usage->rolled($now)->present($now);
    }

    public function verdict(Usage $usage, int $now, int $cost): Verdict
    {
        $rolled = $usage->rolled($now);
        if ($this->fits($rolled->present($now), $cost)) {
            return Verdict::allowed();
        }
        if (0 === $rolled->window || $cost > $this->limit) {
            return Verdict::never();
        }
        $room = $this->limit - $cost;
        $wait = $room >= $rolled->current
            ? self::fades($rolled->previous, $room - $rolled->current, $rolled->window)
            : $rolled->window + self::fades($rolled->current, $room, $rolled->window);

        return Verdict::after($wait - max($now - $rolled->start, 0));
    }

    public function reset(Usage $usage, int $now): int
    {
        $rolled = $usage->rolled($now);
        $windows = $rolled->current > 0 ? 2 : ($rolled->previous > 0 ? 1 : 0);

        return max($windows * $rolled->window - max($now - $rolled->start, 0), 0);
    }

    public function charge(Usage $usage, int $now, int $cost): void
    {
        $this->advance($usage, $now);
        $usage->current = Whole::plus($usage->current, $cost);
    }

    public function giveBack(Usage $usage, int $now, int $units): void
    {
        $this->advance($usage, $now);
        $rest = max($units - $usage->current, 0);
        $usage->current = max($usage->current - $units, 0);
        $overlap = $usage->window - max($now - $usage->start, 0);
        if ($overlap > 0) {
            $usage->previous = max($usage->previous - Whole::share($rest, $usage->window, $overlap), 0);
        }
    }

    public function low(Usage $usage, int $now): ?int
    {
        $isNew = $usage->window !== $this->window || $usage->rolled($now)->isUnused();

        return $isNew || $usage->isSaturated() ? 0 : null;
    }

    /** Returns the time within a window at which the weighted previous count falls to `$room`. */
    private static function fades(int $count, int $room, int $window): int
    {
        return 0 === $count ? 0 : max($window - Whole::share($room, $window, $count), 0);
    }

    private function advance(Slider $usage, int $now): void
    {
        $rolled = $usage->rolled($now);
        if ($rolled->window !== $this->window || $rolled->isUnused()) {
            $rolled = new Slider($now, $this->window, 0, $rolled->present($now));
        }
        [$usage->start, $usage->window] = [$rolled->start, $rolled->window];
        [$usage->previous, $usage->current] = [$rolled->previous, $rolled->current];
    }
}
