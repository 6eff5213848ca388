<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Value of a key. */
final class Key
{
    /** True if the key stores the usage of one limit alone. */
    public bool $isPlain = false;
    /** @var list<Part> */
    public array $parts = [];
    /** @var array<string, Remembered> records by idempotency key */
    public array $remembered = [];
    public int $written = 0;
    /** Expiry in milliseconds. */
    public int $expiresAt = 0;

    public function __clone()
    {
        $this->parts = array_map(static fn (Part $part) => clone $part, $this->parts);
        $this->remembered = array_map(static fn (Remembered $call) => clone $call, $this->remembered);
    }

    public function isUnused(): bool
    {
        foreach ($this->parts as $part) {
            if (!$part->usage->isUnused()) {
                return false;
            }
        }

        return [] === $this->remembered;
    }

    /** Returns the part with the leases. */
    public function leases(): ?Part
    {
        foreach ($this->parts as $part) {
            if ($part->usage instanceof Leases) {
                return $part;
            }
        }

        return null;
    }

    /**
     * Returns the stored usage for each limit of a call.
     *
     * @param list<Spec> $specs
     *
     * @return list<?Part>
     */
    public function find(array $specs): array
    {
        $found = [];
        foreach ($specs as $spec) {
            [$same, $unnamed] = [null, null];
            foreach ($this->parts as $part) {
                if ($part->kind !== $spec->rule::KIND) {
                    continue;
                }
                if (null !== $part->identity && (null === $spec->rule->key || $part->identity === $spec->identity())) {
                    $same ??= $part;
                } elseif (null === $part->identity && !\in_array($part, $found, true)) {
                    $unnamed ??= $part;
                }
            }
            $found[] = $same ?? $unnamed;
        }

        return $found;
    }

    /** Returns the record of an earlier call with the same id. */
    public function recall(KeyCall $call, int $now): ?Remembered
    {
        $repeated = $this->remembered[($call->once ?? $call->settle)[0] ?? ''] ?? null;

        return null !== $repeated && $now < $repeated->expiresAt ? $repeated : null;
    }

    /** Returns how far the clock was set back since the last change, or 0. */
    public function ahead(int $now): int
    {
        if ($this->isUnused()) {
            return 0;
        }

        return $this->isPlain ? $this->parts[0]->usage->ahead($now) : max($this->written - $now, 0);
    }

    /** Shifts all timestamps after the clock was set back to `$now`. */
    public function moveBack(int $now): void
    {
        $back = $this->ahead($now);
        foreach ($this->parts as $part) {
            $part->moveBack($now);
        }
        foreach ($this->remembered as $call) {
            $call->expiresAt -= $back;
            $call->holdUntil -= $back;
        }
        $this->written = min($this->written, $now);
        $this->expiresAt -= intdiv($back, 1000);
    }

    /** Begins a change: removes expired records. */
    public function begin(int $now): void
    {
        if ($this->isPlain) {
            // A plain key stores its time of recovery only as its expiry.
            $this->isPlain = false;
            $this->written = $now;
            $remaining = max($this->expiresAt - intdiv($now, 1000), 0) * 1000;
            $this->parts[0]->recoversAt = min($now + $remaining, Whole::LATEST);
        }
        foreach ($this->remembered as $id => $call) {
            if ($call->expiresAt > $now) {
                continue;
            }
            foreach ($call->charges as [$part, $charge]) {
                $part->forget($charge);
            }
            unset($this->remembered[$id]);
        }
    }

    public function end(int $now): void
    {
        $this->written = $now;
        $this->parts = array_values(array_filter($this->parts, static fn (Part $part) => $part->stays($now)));
    }

    public function recoversIn(int $now): int
    {
        $ends = [$now, ...array_column($this->parts, 'recoversAt'), ...array_values(array_column($this->remembered, 'expiresAt'))];

        return max($ends) - $now;
    }

    /** Sets the expiry of a key that recovers in `$reset`, unless the current one is close enough. */
    public function expire(int $reset, int $now): void
    {
        $recovered = $now + $reset;
        $latest = intdiv($recovered + intdiv($reset, 8) + Whole::UNIT, 1000) - 1;
        if ($this->expiresAt <= Whole::ceilDiv($recovered, 1000) || $this->expiresAt > $latest) {
            $this->expiresAt = $latest;
        }
    }

    /**
     * Releases leases. Returns how many were held.
     *
     * @param list<string> $holders
     */
    public function release(array $holders, int $now): int
    {
        $part = $this->leases();
        if (null === $part) {
            return $this->isPlain ? throw self::wrongType($this->parts[0]->kind, Concurrency::KIND) : 0;
        }
        $released = $part->usage->release($holders, $now);
        if ($released > 0) {
            $part->recoversAt = $now + $part->usage->recoversIn($now);
            if (!$this->isPlain) {
                $this->begin($now);
                $this->end($now);
            }
            $this->expire($this->recoversIn($now), $now);
        }

        return $released;
    }

    public static function wrongType(string $holds, string $needs): RefusedException
    {
        return RefusedException::because("Operation against a key holding {$holds}, where {$needs} is needed", 'WRONGTYPE');
    }
}
