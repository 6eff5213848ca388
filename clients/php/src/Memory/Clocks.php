<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/**
 * Boundaries of aligned windows: multiples of their length, or weeks, months, quarters and years.
 *
 * Days and months are counted from the 1st of March of year 0, so that a leap day is the last day of its year (Howard
 * Hinnant, "chrono-Compatible Low-Level Date Algorithms").
 */
final class Clocks
{
    /** Length of each calendar window in months; 0 for a week. */
    public const MONTHS = ['1w' => 0, '1mo' => 1, '3mo' => 3, '1y' => 12];

    private const DAYS_BEFORE_EPOCH = 719_468;

    /**
     * @param int $offset difference from UTC in microseconds
     * @param int $anchor day on which months begin
     */
    public function __construct(
        private readonly int $window,
        public readonly ?string $calendar,
        private readonly int $offset,
        private readonly int $anchor,
    ) {
    }

    /** Returns words that distinguish windows of the same length. */
    public function key(): string
    {
        return "{$this->calendar} {$this->offset} {$this->anchor}";
    }

    /** Returns the end of the window that contains an instant. */
    public function end(int $instant): int
    {
        if (null === $this->calendar) {
            $passed = ($instant + $this->offset) % $this->window;

            return $instant + $this->window - ($passed < 0 ? $passed + $this->window : $passed);
        }
        $local = $instant + self::DAYS_BEFORE_EPOCH * Whole::DAY + $this->offset;
        $next = $this->next(intdiv($local, Whole::DAY), self::MONTHS[$this->calendar]);

        return $instant + $next * Whole::DAY - $local;
    }

    /** Returns the day on which the next window begins. */
    private function next(int $day, int $months): int
    {
        // Day 0 was a Wednesday, and month 0 a March.
        if (0 === $months) {
            return $day + 7 - ($day + 2) % 7;
        }
        $month = self::monthOf($day);
        $first = $month - ($month + 2) % $months;
        $begins = $this->beginsIn($first);

        return $day < $begins ? $begins : $this->beginsIn($first + $months);
    }

    private function beginsIn(int $month): int
    {
        return min(self::firstDay($month) + $this->anchor, self::firstDay($month + 1)) - 1;
    }

    private static function monthOf(int $day): int
    {
        [$era, $ofEra] = [intdiv($day, 146_097), $day % 146_097];
        $leapDays = intdiv($ofEra, 1460) - intdiv($ofEra, 36_524) + intdiv($ofEra, 146_096);
        $year = $era * 400 + intdiv($ofEra - $leapDays, 365);

        return $year * 12 + intdiv(($day - self::firstDay($year * 12)) * 5 + 2, 153);
    }

    private static function firstDay(int $month): int
    {
        [$year, $ofYear] = [intdiv($month, 12), $month % 12];
        $leapDays = intdiv($year, 4) + intdiv($year, 400) - intdiv($year, 100);

        return $year * 365 + $leapDays + intdiv($ofYear * 153 + 2, 5);
    }
}
