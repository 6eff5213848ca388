<?php

declare(strict_types=1);

namespace RedisRatelimit;

use RedisRatelimit\Memory\Concurrency;
use RedisRatelimit\Memory\Grammar;
use RedisRatelimit\Memory\Key;
use RedisRatelimit\Memory\KeyCall;
use RedisRatelimit\Memory\RefusedException;
use RedisRatelimit\Memory\Verdict;
use RedisRatelimit\Memory\Visit;
use RedisRatelimit\Memory\Whole;
use RedisRatelimit\Memory\Words;

/**
 * Keys in this process, in place of a client, for tests. It replies to the module's commands as the server does, except
 * that sketches, policies and bans are errors.
 */
final class Memory
{
    /** Minimum number of keys at which expired keys are removed. */
    private const SWEPT_AT = 1000;

    /** @var array<string, Key> */
    private array $keys = [];
    private int $sweptAt = self::SWEPT_AT;
    private int $lastToken = 0;

    /** @param \Closure(): int $micros returns the microseconds since 1970 */
    public function __construct(private readonly \Closure $micros)
    {
    }

    /**
     * Returns the reply to a call.
     *
     * @param list<string> $command
     *
     * @throws RefusedException for an error reply
     */
    public function call(array $command): mixed
    {
        [$words, $now] = [new Words($command), min(max(($this->micros)(), 0), Whole::LATEST)];
        $command = $words->peek();
        $words->next('command');
        $needs = RefusedException::needsServer($command);
        if (null !== $needs) {
            throw $needs;
        }
        $isPeek = \in_array($command, ['RL.PEEK', 'RL.MPEEK'], true);
        if (\in_array($command, ['RL.MTAKE', 'RL.MPEEK'], true)) {
            return $this->keysReply(Grammar::keys($words, $isPeek), $now, $isPeek);
        }
        $name = $words->next('key');

        return match ($command) {
            'RL.TAKE', 'RL.PEEK' => $this->keyReply($name, Grammar::call($words, $isPeek), $now, $isPeek),
            'RL.ACQUIRE' => $this->acquire($name, $words, $now),
            'RL.RELEASE' => $this->release($name, $words, $now),
            'RL.INFO' => $this->info($name, $now),
            'DEL' => $this->delete($name, $now),
            default => throw RefusedException::because("a limiter in memory does not know '{$command}'"),
        };
    }

    /** Returns the seconds since 1970. */
    public function now(): float
    {
        return ($this->micros)() / Whole::UNIT;
    }

    private function find(string $name, int $now): ?Key
    {
        if (isset($this->keys[$name]) && intdiv($now, 1000) > $this->keys[$name]->expiresAt) {
            unset($this->keys[$name]);
        }

        return $this->keys[$name] ?? null;
    }

    /** Returns the key, or a new one, shifted if the clock was set back. A peek changes nothing. */
    private function open(string $name, int $now, bool $isPeek): Key
    {
        $key = $this->find($name, $now) ?? new Key();
        if ($key->ahead($now) > 0) {
            $key = $isPeek ? clone $key : $key;
            $key->moveBack($now);
        }

        return $key;
    }

    private function store(string $name, Key $key, int $now): void
    {
        if ($key->isUnused()) {
            unset($this->keys[$name]);
        } else {
            $this->keys[$name] = $key;
        }
        if (\count($this->keys) >= $this->sweptAt) {
            $this->keys = array_filter($this->keys, static fn (Key $one) => intdiv($now, 1000) <= $one->expiresAt);
            $this->sweptAt = self::SWEPT_AT + 2 * \count($this->keys);
        }
    }

    /**
     * Evaluates a call on every key, and charges all or none.
     *
     * @param list<array{string, KeyCall}> $keys
     *
     * @return array{list<Visit>, bool} the visits, and true if the call was committed
     */
    private function visit(array $keys, int $now, bool $isPeek): array
    {
        $visits = [];
        foreach ($keys as [$name, $call]) {
            $visits[] = new Visit($call, $this->open($name, $now, $isPeek), $now);
        }
        $settles = null !== $keys[0][1]->settle;
        $says = static fn (Visit $visit) => $settles ? $visit->knows() : $visit->denies();
        // A settlement is committed if any key knows its id.
        $isAllowed = $settles === ([] !== array_filter($visits, $says));
        foreach ($isAllowed ? $visits : [] as $visit) {
            $visit->checkRoom();
        }
        foreach ($visits as $index => $visit) {
            if (!$isPeek && $visit->changes() && ($isAllowed || $settles)) {
                $visit->commit();
                $this->store($keys[$index][0], $visit->key, $now);
            }
        }

        return [$visits, $isAllowed];
    }

    /** @return list<mixed> */
    private function keyReply(string $name, KeyCall $call, int $now, bool $isPeek): array
    {
        [[$visit]] = $this->visit([[$name, $call]], $now, $isPeek);
        $each = $visit->decisions();
        $combined = $visit->combined($each);
        if (!$call->each) {
            return $combined->row();
        }
        $rows = [];
        foreach ($each as $index => $decision) {
            $as = $call->specs[$index]->name;
            $rows[] = null === $as ? $decision->row() : [...$decision->row(), $as];
        }

        return [$combined->verdict->isAllowed() ? 1 : 0, $combined->verdict->wait(), $rows];
    }

    /**
     * @param list<array{string, KeyCall}> $keys
     *
     * @return list<mixed>
     */
    private function keysReply(array $keys, int $now, bool $isPeek): array
    {
        [$visits, $isAllowed] = $this->visit($keys, $now, $isPeek);
        [$wait, $rows] = [Verdict::allowed(), []];
        foreach ($visits as $visit) {
            $decision = $visit->combined($visit->decisions());
            $isHeld = null !== $visit->call->settle || $visit->denies();
            if ($isAllowed ? $decision->verdict->isAllowed() : $isHeld) {
                $wait = $wait->longer($decision->verdict);
            }
            $rows[] = $decision->row();
        }

        return [$isAllowed ? 1 : 0, $wait->wait(), $rows];
    }

    /** @return list<int> */
    private function acquire(string $name, Words $words, int $now): array
    {
        [$call, $fences] = Grammar::acquire($words);
        $rule = $call->specs[0]->rule;
        \assert($rule instanceof Concurrency);
        if ($fences) {
            $rule->token = $this->lastToken = max($now, $this->lastToken + 1);
        }
        $row = $this->keyReply($name, $call, $now, false);
        if (!$fences) {
            return $row;
        }
        $live = ($this->keys[$name] ?? null)?->leases()?->usage->live($now) ?? [];

        return [...$row, 1 === $row[0] ? $live[$rule->holder][2] : 0];
    }

    private function release(string $name, Words $words, int $now): int
    {
        $holders = [$words->name('holder')];
        while (!$words->isOver()) {
            $holders[] = $words->name('holder');
        }
        $key = $this->open($name, $now, false);
        $released = $key->release($holders, $now);
        if ($released > 0) {
            $this->store($name, $key, $now);
        }

        return $released;
    }

    private function delete(string $name, int $now): int
    {
        $found = null !== $this->find($name, $now);
        unset($this->keys[$name]);

        return $found ? 1 : 0;
    }

    /**
     * Returns the recovery and the usage of the first limit of a key, which is what the package reads of RL.INFO.
     *
     * @return list<mixed>|null
     */
    private function info(string $name, int $now): ?array
    {
        $key = $this->find($name, $now);
        if (null === $key || $key->isPlain || [] === $key->parts) {
            return null;
        }
        $part = $key->parts[0];
        $used = $part->usage->used ?? 0;

        return ['parts', [['recovers_at', intdiv($part->recoversAt, 1000), 'used', (string) ($used / Whole::UNIT)]]];
    }
}
