<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** Limit, such as `Limit::fixed(100, '1m')`. */
final class Limit
{
    private const RATE = '~^\s*(\d+(?:\.\d+)?)\s*(?:/|\bper\b)\s*(\d*)\s*(?:(s|sec|second)|(m|min|minute)|(h|hr|hour)|(d|day)|(w|week))s?\s*$~iD';

    /**
     * @param list<string|int|float> $words
     * @param float|null             $quota units; null for a policy, whose limits only the server knows
     * @param string|null            $key   key of a sketch: the key of a call is then an item of the sketch
     */
    private function __construct(
        public readonly array $words,
        public readonly ?float $quota,
        public readonly ?string $key = null,
    ) {
    }

    /** Creates a token bucket: bursts of up to `$capacity`, refilled by `$refill` per `$period`, continuously. */
    public static function tokenBucket(int|float $capacity, int|float $refill, string $period): self
    {
        return new self(['TOKENBUCKET', $capacity, $refill, $period], $capacity);
    }

    /**
     * Creates a leaky bucket: a queue of up to `$capacity` that drains at `$leak` per `$period`. Hold a call for its
     * `wait`.
     */
    public static function leakyBucket(int|float $capacity, int|float $leak, string $period): self
    {
        return new self(['LEAKYBUCKET', $capacity, $leak, $period], $capacity);
    }

    /** Creates a fixed window: at most `$limit` in each window, which begins with the first call. */
    public static function fixed(int|float $limit, string $window): self
    {
        return new self(['FIXED', $limit, $window], $limit);
    }

    /** Parses a rate such as '100/minute' or '5 per 15 minutes' to a fixed window. */
    public static function rate(string $text): self
    {
        if (1 !== preg_match(self::RATE, $text, $match)) {
            throw new \InvalidArgumentException("not a rate, such as '100/minute': '{$text}'");
        }
        [$count, $unit] = ['' === $match[2] ? 1 : (int) $match[2], 'smhdw'[\count($match) - 4]];
        if ('w' === $unit) {
            [$count, $unit] = [7 * $count, 'd'];
        }
        $seconds = $count * ['s' => 1, 'm' => 60, 'h' => 3600, 'd' => 86400][$unit];
        if ($seconds < 1 || $seconds > 3650 * 86400) {
            throw new \InvalidArgumentException("a window is from 1 second to 3650 days: '100/minute', not '{$text}'");
        }

        return self::fixed(str_contains($match[1], '.') ? (float) $match[1] : (int) $match[1], "{$count}{$unit}");
    }

    /** Creates a sliding window: approximately `$limit` in the trailing window, or if `$strict` never more. */
    public static function sliding(int|float $limit, string $window, bool $strict = false): self
    {
        return new self(['SLIDING', $limit, $window, ...($strict ? ['STRICT'] : [])], $limit);
    }

    /**
     * Creates a sliding log: at most `$limit` in the trailing window, to the microsecond; the server stores each call.
     */
    public static function slidingLog(int|float $limit, string $window): self
    {
        return new self(['SLIDINGLOG', $limit, $window], $limit);
    }

    /**
     * Creates a sketch: a token bucket for each of any number of items, such as addresses, in the key `$key` of a fixed
     * size. The key of a call is the item. An item never gets more than its limit, and may be denied too early if the
     * sketch is too small.
     *
     * @param string|int|null $size size when the key is created: '64kb' to '256mb', or bytes
     */
    public static function sketch(
        int|float $capacity,
        int|float $refill,
        string $period,
        string $key,
        string|int|null $size = null,
    ): self {
        $words = ['SKETCH', $capacity, $refill, $period, ...(null === $size ? [] : ['SIZE', $size])];

        return new self($words, $capacity, $key);
    }

    /** Refers to the first policy on the server that exists among these names. */
    public static function policy(string $name, string ...$others): self
    {
        $words = ['POLICY', $name];
        foreach ($others as $other) {
            array_push($words, 'OR', $other);
        }

        return new self($words, null);
    }

    /** Sets the name, which distinguishes the limit from others on its key: 1 to 32 of A-Z, a-z, 0-9, _ and -. */
    public function named(string $name): self
    {
        if (null !== $this->key) {
            throw new \InvalidArgumentException('a sketch has no name: it is alone in its key');
        }

        return new self([...$this->words, 'AS', $name], $this->quota);
    }

    /** Sets the key of the sketch, for a policy that is a sketch. The key of a call is then the item. */
    public function itemsIn(string $key): self
    {
        if (!$this->isPolicy()) {
            throw new \InvalidArgumentException('only a policy gets its key like this: a sketch is made with it');
        }

        return new self($this->words, $this->quota, $key);
    }

    /**
     * Returns the words in a call with the key `$item`.
     *
     * @return list<string|int|float>
     */
    public function spec(string $item): array
    {
        return match (true) {
            null === $this->key => $this->words,
            $this->isPolicy() => [...$this->words, 'ITEM', $item],
            default => [...\array_slice($this->words, 0, 4), $item, ...\array_slice($this->words, 4)],
        };
    }

    public function isPolicy(): bool
    {
        return 'POLICY' === $this->words[0];
    }
}
