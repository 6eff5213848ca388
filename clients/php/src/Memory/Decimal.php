<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Exact number of the words of a call, never a float. */
final class Decimal
{
    public const NUMBER = '(\d+)(?:\.(\d+))?(?:e([+-]?\d{1,4}))?';

    /**
     * @param int  $floor  whole units
     * @param bool $isMore true if the value is above the whole units
     */
    private function __construct(public readonly int $floor, private readonly bool $isMore)
    {
    }

    /**
     * Returns a number times a factor of at most 86400000000, or null if it is out of range.
     *
     * @param array<int, string> $match of NUMBER
     */
    public static function scaled(array $match, int $factor): ?self
    {
        [$whole, $fraction, $exponent] = [$match[1], $match[2] ?? '', (int) ($match[3] ?? 0)];
        $digits = ltrim($whole.$fraction, '0');
        $point = \strlen($digits) - \strlen($fraction) + $exponent;
        if ('' === $digits) {
            return new self(0, false);
        }
        if ($point > 15) {
            return null;
        }
        $before = $point <= 0 ? '0' : str_pad(substr($digits, 0, $point), $point, '0');
        $behind = $point <= 0 ? str_repeat('0', min(-$point, 30)).$digits : substr($digits, $point);
        // Multiplies the fraction digit by digit from the right.
        [$carry, $isMore] = [0, false];
        foreach (array_reverse('' === $behind ? [] : str_split($behind)) as $digit) {
            $product = (int) $digit * $factor + $carry;
            $isMore = $isMore || 0 !== $product % 10;
            $carry = intdiv($product, 10);
        }
        $floor = (int) $before * $factor + $carry;

        return \is_int($floor) ? new self($floor, $isMore) : null;
    }

    public function ceil(): int
    {
        return $this->floor + ($this->isMore ? 1 : 0);
    }

    public function exceeds(int $bound): bool
    {
        return $this->floor > $bound || ($this->floor === $bound && $this->isMore);
    }

    public function isWhole(): bool
    {
        return !$this->isMore && 0 === $this->floor % Whole::UNIT;
    }
}
