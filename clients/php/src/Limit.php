<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** One limit, such as `Limit::fixed(100, '1m')`. */
final class Limit
{
    /**
     * @param list<string|int|float> $words
     * @param float|null             $quota units; null: a policy's, which only the server knows
     */
    private function __construct(public readonly array $words, public readonly ?float $quota)
    {
    }

    /** A burst of up to `$capacity`, refilled by `$refill` per `$period`, continuously. */
    public static function tokenBucket(int|float $capacity, int|float $refill, string $period): self
    {
        return new self(['TOKENBUCKET', $capacity, $refill, $period], $capacity);
    }

    /** A queue of up to `$capacity` that leaves at `$leak` per `$period`: hold a call for its `wait`. */
    public static function leakyBucket(int|float $capacity, int|float $leak, string $period): self
    {
        return new self(['LEAKYBUCKET', $capacity, $leak, $period], $capacity);
    }

    /** At most `$limit` in each window, which begins with the first call. */
    public static function fixed(int|float $limit, string $window): self
    {
        return new self(['FIXED', $limit, $window], $limit);
    }

    /** At most about `$limit` in the trailing window; if `$strict`, never more. */
    public static function sliding(int|float $limit, string $window, bool $strict = false): self
    {
        return new self(['SLIDING', $limit, $window, ...($strict ? ['STRICT'] : [])], $limit);
    }

    /** At most `$limit` in the trailing window, to the microsecond; the server stores each call. */
    public static function slidingLog(int|float $limit, string $window): self
    {
        return new self(['SLIDINGLOG', $limit, $window], $limit);
    }

    /** The policy that the server keeps under the first of these names that exists. */
    public static function policy(string $name, string ...$others): self
    {
        $words = ['POLICY', $name];
        foreach ($others as $other) {
            array_push($words, 'OR', $other);
        }

        return new self($words, null);
    }

    /** Tells the limit from others on its key, by 1 to 32 of A-Z, a-z, 0-9, _ and -. */
    public function named(string $name): self
    {
        return new self([...$this->words, 'AS', $name], $this->quota);
    }

    public function isPolicy(): bool
    {
        return 'POLICY' === $this->words[0];
    }
}
