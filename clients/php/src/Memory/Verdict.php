<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Verdict on a cost. Of two, the one with the greater kind, or the longer time, is the stricter one. */
final class Verdict
{
    public const ALLOWED = 0;
    public const AFTER = 1;
    public const NEVER = 2;

    /** @param int $time time to hold an allowed call, or after which a denied call passes */
    private function __construct(public readonly int $kind, public readonly int $time)
    {
    }

    public static function allowed(int $hold = 0): self
    {
        return new self(self::ALLOWED, $hold);
    }

    public static function after(int $wait): self
    {
        return new self(self::AFTER, max($wait, 0));
    }

    public static function never(): self
    {
        return new self(self::NEVER, 0);
    }

    public function isAllowed(): bool
    {
        return self::ALLOWED === $this->kind;
    }

    public function longer(self $other): self
    {
        return [$other->kind, $other->time] > [$this->kind, $this->time] ? $other : $this;
    }

    /** Returns the wait in milliseconds. */
    public function wait(): int
    {
        return self::NEVER === $this->kind ? -1 : Whole::ceilDiv($this->time, 1000);
    }
}
