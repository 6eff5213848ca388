<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Concurrency limit. */
final class Concurrency extends Rule
{
    public const KIND = 'rl-leases';

    /** True for a call with NX: only a holder without a lease passes. */
    public bool $isFirst = false;
    /** Fencing token for a lease that has none. */
    public ?int $token = null;

    public function __construct(int $limit, private readonly int $ttl, public readonly string $holder)
    {
        parent::__construct($limit, null);
    }

    public function unused(): Leases
    {
        return new Leases();
    }

    public function present(Usage $usage, int $now): int
    {
        return array_sum(array_column($usage->live($now), 1));
    }

    public function verdict(Usage $usage, int $now, int $cost): Verdict
    {
        $own = $usage->live($now)[$this->holder][1] ?? null;
        $others = $this->present($usage, $now) - ($own ?? 0);
        $isInOwnWay = $this->isFirst && null !== $own;
        $renews = null !== $own && $cost <= $own;
        if (($renews || $this->fits($others, $cost)) && !$isInOwnWay) {
            return Verdict::allowed();
        }
        if ($cost > $this->limit) {
            return Verdict::never();
        }
        foreach ($usage->live($now) as $holder => [$ends, $units]) {
            if ((string) $holder === $this->holder) {
                $isInOwnWay = false;
            } else {
                $others -= $units;
            }
            if (!$isInOwnWay && $this->fits($others, $cost)) {
                return Verdict::after($ends - max($now, $usage->written));
            }
        }

        return Verdict::never();
    }

    public function reset(Usage $usage, int $now): int
    {
        return $usage->recoversIn($now);
    }

    public function charge(Usage $usage, int $now, int $cost): void
    {
        $usage->tidy($now);
        $token = $usage->leases[$this->holder][2] ?? $this->token;
        $usage->leases[$this->holder] = [min($now + $this->ttl, Whole::LATEST), $cost, $token];
    }

    /** Does nothing, as only a holder can release its lease, and only as a whole. */
    public function giveBack(Usage $usage, int $now, int $units): void
    {
    }

    public function low(Usage $usage, int $now): int
    {
        return 0;
    }
}
