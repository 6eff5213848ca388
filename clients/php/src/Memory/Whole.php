<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Arithmetic in whole numbers from 0 to 2^63-1, where usage saturates: the server's millionths and microseconds. */
final class Whole
{
    public const MOST = \PHP_INT_MAX;
    public const UNIT = 1_000_000;
    public const DAY = 86_400 * self::UNIT;
    /** Upper bound at which times saturate. */
    public const LATEST = 365_000 * self::DAY;

    public static function plus(int $one, int $other): int
    {
        return $one > self::MOST - $other ? self::MOST : $one + $other;
    }

    public static function ceilDiv(int $number, int $by): int
    {
        return intdiv($number, $by) + (0 === $number % $by ? 0 : 1);
    }

    /** Returns `$one * $other / $by`, rounded down, exact even if the product has 126 bits. */
    public static function share(int $one, int $other, int $by): int
    {
        return self::divided($one, $other, $by)[0];
    }

    /** Returns `$one * $other / $by`, rounded up. */
    public static function shareUp(int $one, int $other, int $by): int
    {
        [$quotient, $rest] = self::divided($one, $other, $by);

        return 0 === $rest ? $quotient : self::plus($quotient, 1);
    }

    /** Returns `true` if `$one / $by` is less than `$other / $otherBy`, by Euclid's algorithm. */
    public static function isLess(int $one, int $by, int $other, int $otherBy): bool
    {
        while (true) {
            [$left, $right] = [intdiv($one, $by), intdiv($other, $otherBy)];
            if ($left !== $right) {
                return $left < $right;
            }
            [$leftRest, $rightRest] = [$one % $by, $other % $otherBy];
            if (0 === $leftRest || 0 === $rightRest) {
                return $leftRest < $rightRest;
            }
            [$one, $by, $other, $otherBy] = [$otherBy, $rightRest, $by, $leftRest];
        }
    }

    public static function gcd(int $one, int $other): int
    {
        return 0 === $other ? $one : self::gcd($other, $one % $other);
    }

    /** @return array{int, int} the quotient, which saturates, and the remainder */
    private static function divided(int $one, int $other, int $by): array
    {
        // PHP converts a product that overflows to a float.
        $product = $one * $other;
        if (\is_int($product)) {
            return [intdiv($product, $by), $product % $by];
        }
        [$step, $stepRest] = [intdiv($one, $by), $one % $by];
        [$quotient, $rest] = [0, 0];
        // From the highest bit of the factor on: double, and add `$one` where the bit is set.
        for ($bit = 62; $bit >= 0; --$bit) {
            $carry = $rest >= $by - $rest ? 1 : 0;
            $rest = 1 === $carry ? $rest - ($by - $rest) : $rest + $rest;
            $quotient = self::plus(self::plus($quotient, $quotient), $carry);
            if (0 === ($other >> $bit & 1)) {
                continue;
            }
            $carry = $stepRest >= $by - $rest ? 1 : 0;
            $rest = 1 === $carry ? $rest - ($by - $stepRest) : $rest + $stepRest;
            $quotient = self::plus(self::plus($quotient, $step), $carry);
        }

        return [$quotient, $rest];
    }
}
