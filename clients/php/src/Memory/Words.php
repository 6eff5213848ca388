<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Reader of the words of a call, from left to right. */
final class Words
{
    private const MOST_UNITS = 1_000_000_000_000;
    private const MICROSECONDS = [
        'us' => 1,
        'ms' => 1000,
        '' => Whole::UNIT,
        's' => Whole::UNIT,
        'm' => 60 * Whole::UNIT,
        'h' => 3600 * Whole::UNIT,
        'd' => Whole::DAY,
    ];

    private int $at = 0;

    /** @param list<string> $words */
    public function __construct(private readonly array $words)
    {
    }

    public function isOver(): bool
    {
        return $this->at >= \count($this->words);
    }

    /** Returns the next word in upper case, or "" at the end. */
    public function peek(): string
    {
        return strtoupper($this->words[$this->at] ?? '');
    }

    public function next(string $description): string
    {
        return $this->words[$this->at++] ?? throw RefusedException::because("{$description} is missing");
    }

    public function name(string $description): string
    {
        $name = $this->next($description);
        if ('' === $name || \strlen($name) > 256) {
            throw RefusedException::because("{$description} must be 1 to 256 bytes");
        }

        return $name;
    }

    /** Reads an amount in millionths, rounded down. */
    public function amount(string $description): int
    {
        return self::amountOf($this->next($description), $description)->floor;
    }

    /** Reads an amount in millionths, rounded up. */
    public function cost(string $description): int
    {
        return self::amountOf($this->next($description), $description)->ceil();
    }

    public function duration(string $description, bool $mayBeZero = false): int
    {
        $found = self::durationOf($this->next($description));
        if (null === $found || (0 === $found && !$mayBeZero)) {
            throw RefusedException::because("{$description} must be a duration from 1us to 3650d, such as 60s");
        }

        return $found;
    }

    public static function amountOf(string $text, string $description): Decimal
    {
        $isNumber = 1 === preg_match('~^'.Decimal::NUMBER.'$~D', $text, $match);
        $found = $isNumber ? Decimal::scaled($match, Whole::UNIT) : null;
        if (null === $found || $found->exceeds(self::MOST_UNITS * Whole::UNIT)) {
            throw RefusedException::because("{$description} must be a number from 0 to 1000000000000, not '{$text}'");
        }

        return $found;
    }

    /** Returns a duration in microseconds, rounded up. Null unless it is 0 or from 1us to 3650d. */
    public static function durationOf(string $text): ?int
    {
        if (1 !== preg_match('~^'.Decimal::NUMBER.'(us|ms|s|m|h|d|)$~D', $text, $match)) {
            return null;
        }
        $found = Decimal::scaled($match, self::MICROSECONDS[$match[4]]);
        if (null === $found || (0 === $found->floor && $found->ceil() > 0) || $found->exceeds(3650 * Whole::DAY)) {
            return null;
        }

        return $found->ceil();
    }
}
