<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** Limiter that charges limits on the server, and falls back during an outage. */
final class Limiter
{
    /** Largest share of a limit that may be charged twice. */
    private const NEGLIGIBLE_SHARE = 0.01;

    /** Lifetime of an idempotency key: longer than a call may be resent. */
    private const REMEMBERED = '30s';

    private const MERGED = 'a sketch cannot tell apart again what it has merged: no item is settled or charged once';

    private readonly Connection $connection;

    /** @var array<string, true> policies with a concurrency limit, whose calls need an idempotency key as the holder */
    private array $concurrencyPolicies = [];

    /**
     * @param \Redis|\RedisCluster|\Predis\ClientInterface|Memory $client
     *                                             its timeouts are those of a call: make them short
     * @param 'open'|'closed'|'raise' $onOutage    fallback while the server does not decide: allow every call, deny
     *                                             every call, or throw an UnavailableException
     * @param 'raise'|'outage'        $setupErrors reaction to a misconfiguration: throw a SetupException, or fall back as
     *                                             in an outage
     * @param bool                    $once        true to give calls an idempotency key where charging them twice would
     *                                             matter. false: calls have none, and no call is resent
     */
    public function __construct(
        \Redis|\RedisCluster|\Predis\ClientInterface|Memory $client,
        private readonly string $onOutage = 'open',
        private readonly string $setupErrors = 'raise',
        private readonly bool $once = true,
        private readonly string $prefix = '',
    ) {
        if (!\in_array($onOutage, ['open', 'closed', 'raise'], true)) {
            throw new \InvalidArgumentException("onOutage must be open, closed or raise, not {$onOutage}");
        }
        $this->connection = new Connection($client);
    }

    /**
     * Creates a limiter for tests, which decides in this process as the server does. Without a clock that the test
     * moves, time is real.
     */
    public static function local(?ManualClock $clock = null, string $prefix = ''): self
    {
        $micros = null === $clock ? static fn () => (int) round(microtime(true) * 1_000_000) : $clock->micros(...);

        return new self(new Memory($micros), prefix: $prefix);
    }

    /**
     * Charges all limits of a key, or none.
     *
     * @param Limit|string|list<Limit|string> $limits
     *                                   a limit can be a rate such as '100/minute'
     * @param string|bool|null  $once    your idempotency key, true for a new one, or false for none
     * @param string|null       $ttl     time within which the charge can be settled, such as '10m'
     * @param bool              $force   charge even past a limit, for units that were used already
     * @param bool              $refundable give the charge an idempotency key at any cost, so that `settle` can refund it
     * @param string|null       $maxWait also allow a call that fits within this time. Token buckets only
     */
    public function take(
        string $key,
        Limit|string|array $limits,
        int|float $cost = 1,
        string|bool|null $once = null,
        ?string $ttl = null,
        bool $force = false,
        ?string $maxWait = null,
        bool $refundable = false,
    ): Decision {
        if ($refundable && !\is_string($once)) {
            $once = true;
        }
        $limits = $this->checked($limits, $cost);
        if (\is_string($once) || true === $once || null !== $ttl) {
            self::refuseSketches($limits);
        }
        $options = 1 === $cost ? [] : ['COST', $cost];
        if ($force) {
            $options[] = 'FORCE';
        }
        if (null !== $maxWait) {
            array_push($options, 'MAXWAIT', $maxWait);
        }
        $id = $this->idOf($limits, $cost, $once, $ttl);
        $isRepeatable = null !== $id || (null === $once && $this->once);
        try {
            return $this->send($key, $limits, $options, $id, $isRepeatable);
        } catch (CallException $error) {
            $isMissing = str_starts_with($error->getMessage(), 'the policy has a CONCURRENCY limit');
            if (null !== $id || null !== $once || !$this->once || !$isMissing) {
                throw $error;
            }
            foreach ($limits as $limit) {
                $this->concurrencyPolicies[implode(' ', $limit->words)] = true;
            }

            return $this->take($key, $limits, $cost, true, $ttl, $force, $maxWait);
        } catch (FullException $error) {
            $text = $error->getPrevious()?->getMessage() ?? '';
            if (null === $id || \is_string($once) || !Replies::mayPassWithoutId($text)) {
                return $this->without($error);
            }
            // The key has no room for the id. Rather than deny the call, risk a double charge if it is resent.
            try {
                return $this->send($key, $limits, $options, null, false);
            } catch (UnavailableException|SetupException|FullException $error) {
                return $this->without($error);
            }
        } catch (UnavailableException|SetupException $error) {
            return $this->without($error);
        }
    }

    /**
     * Returns the decision that `take` would make, and charges nothing.
     *
     * @param Limit|string|list<Limit|string> $limits
     */
    public function peek(string $key, Limit|string|array $limits, int|float $cost = 1): Decision
    {
        $limits = $this->checked($limits, $cost);
        $words = ['RL.PEEK', $this->keyOf($key, $limits), 'COST', $cost, ...self::specs($key, $limits)];
        try {
            return Decision::read($this->call($words, true));
        } catch (UnavailableException|SetupException|FullException $error) {
            return $this->without($error);
        }
    }

    /**
     * Corrects a charge by its idempotency key. Denied only if the idempotency key is unknown or expired.
     *
     * @param Limit|string|list<Limit|string> $limits
     */
    public function settle(string $key, Limit|string|array $limits, ?string $id, int|float $cost): Decision
    {
        $limits = $this->checked($limits, $cost);
        self::refuseSketches($limits);
        if (null === $id) {
            throw new \InvalidArgumentException('the charge has no idempotency key: make it refundable, by take(..., refundable: true)');
        }
        try {
            return Decision::read($this->call($this->words($key, $limits, ['SETTLE', $id, $cost]), true), $id);
        } catch (UnavailableException|SetupException|FullException $error) {
            return $this->without($error, false);
        }
    }

    /** Deletes the usage of a key, or of all items of a sketch by its own key. Returns true if there was any. */
    public function reset(string $key): bool
    {
        return 1 === $this->call(['DEL', $this->prefix.$key], true);
    }

    /**
     * Returns the usage of the first named limit of a key, and the seconds until it has recovered. Returns zeros for a
     * key that does not exist, and without a decision; with `closed`, usage above any limit instead.
     *
     * @return array{int, float}
     */
    public function usage(string $key): array
    {
        try {
            $reply = self::map($this->call(['RL.INFO', $this->prefix.$key], true) ?: []);
        } catch (UnavailableException|SetupException $error) {
            return [$this->without($error)->allowed ? 0 : \PHP_INT_MAX, 0.0];
        }
        $first = self::map($reply['parts'][0] ?? []);
        $remaining = ($first['recovers_at'] ?? 0) / 1000 - $this->connection->now();

        return $remaining > 0 ? [(int) $first['used'], $remaining] : [0, 0.0];
    }

    /**
     * Decodes a map of the protocol, in which names and values alternate.
     *
     * @param list<mixed> $reply
     *
     * @return array<string, mixed>
     */
    private static function map(array $reply): array
    {
        $map = [];
        foreach (array_chunk($reply, 2) as [$name, $value]) {
            $map[$name] = $value;
        }

        return $map;
    }

    /**
     * Checks the server at the start. Throws a SetupException that says what to do, or an UnavailableException if the
     * server is unreachable.
     */
    public function check(): void
    {
        $this->call(['RL.PEEK', 'redis-ratelimit:check', 'FIXED', '1', '1s'], true);
    }

    /**
     * @param list<Limit>                $limits
     * @param list<string|int|float>     $options
     * @param array{string, string}|null $id
     */
    private function send(string $key, array $limits, array $options, ?array $id, bool $isRepeatable): Decision
    {
        $named = null === $id ? $options : [...$options, 'ONCE', ...$id];

        return Decision::read($this->call($this->words($key, $limits, $named), $isRepeatable), $id[0] ?? null);
    }

    /** @param list<string|int|float> $words */
    private function call(array $words, bool $isRepeatable): mixed
    {
        $words = array_map(static fn (string|int|float $word) => \is_float($word) ? self::number($word) : (string) $word, $words);
        try {
            return $this->connection->call($words);
        } catch (UnavailableException $error) {
            // There is no reply of the server: it may have been lost.
            if (!$isRepeatable || !$error->getPrevious() instanceof \Exception || Replies::isReply($error->getPrevious()->getMessage())) {
                throw $error;
            }

            return $this->connection->call($words);
        }
    }

    /** Returns the fallback decision. A full key is not an outage, and denies. */
    private function without(RateLimitException $error, ?bool $allowed = null): Decision
    {
        if (!$error instanceof UnavailableException) {
            error_log("Redis refuses a call: {$error->getMessage()}");
        }
        $isOutage = $error instanceof UnavailableException
            || ($error instanceof SetupException && 'outage' === $this->setupErrors);
        if (!$error instanceof FullException && (!$isOutage || 'raise' === $this->onOutage)) {
            throw $error;
        }
        $allowed ??= $isOutage && 'open' === $this->onOutage;

        return new Decision($allowed, null, null, $allowed ? 0.0 : 1.0, null, null, $error);
    }

    /**
     * @param list<Limit>            $limits
     * @param list<string|int|float> $options
     *
     * @return list<string|int|float>
     */
    private function words(string $key, array $limits, array $options): array
    {
        if (1 === \count($limits) && $limits[0]->isPolicy()) {
            // RL.LIMIT can be permitted to users who may not choose limits themselves.
            return ['RL.LIMIT', $this->keyOf($key, $limits), ...\array_slice($limits[0]->spec($key), 1), ...$options];
        }

        return ['RL.TAKE', $this->keyOf($key, $limits), ...$options, ...self::specs($key, $limits)];
    }

    /**
     * Returns the key on the server. For a sketch this is its own key, as the key of the call is an item.
     *
     * @param list<Limit> $limits
     */
    private function keyOf(string $key, array $limits): string
    {
        return $this->prefix.($limits[0]->key ?? $key);
    }

    /** @param list<Limit> $limits */
    private static function hasSketch(array $limits): bool
    {
        foreach ($limits as $limit) {
            if (null !== $limit->key) {
                return true;
            }
        }

        return false;
    }

    /** @param list<Limit> $limits */
    private static function refuseSketches(array $limits): void
    {
        if (self::hasSketch($limits)) {
            throw new \InvalidArgumentException(self::MERGED);
        }
    }

    /**
     * @param list<Limit> $limits
     *
     * @return list<string|int|float>
     */
    private static function specs(string $key, array $limits): array
    {
        return array_merge(...array_map(static fn (Limit $limit) => $limit->spec($key), $limits));
    }

    /** Formats a number without an exponent. */
    private static function number(float $units): string
    {
        return rtrim(rtrim(number_format($units, 6, '.', ''), '0'), '.');
    }

    /**
     * @param Limit|string|list<Limit|string> $limits
     *
     * @return list<Limit>
     */
    private function checked(Limit|string|array $limits, int|float $cost): array
    {
        $limits = \is_array($limits) ? $limits : [$limits];
        $limits = array_map(self::limitOf(...), $limits);
        if ([] === $limits) {
            throw new \InvalidArgumentException("a call needs a limit, such as Limit::fixed(100, '1m')");
        }
        if (\count($limits) > 1 && self::hasSketch($limits)) {
            throw new \InvalidArgumentException('a sketch is alone in its key');
        }
        if (!($cost >= 0 && $cost <= 1e12)) {
            throw new \InvalidArgumentException("cost must be a number from 0 to 10^12, not {$cost}");
        }

        return $limits;
    }

    private static function limitOf(mixed $limit): Limit
    {
        return match (true) {
            $limit instanceof Limit => $limit,
            \is_string($limit) => Limit::rate($limit),
            default => throw new \InvalidArgumentException("a limit is such as Limit::fixed(100, '1m') or '100/minute', not a ".get_debug_type($limit)),
        };
    }

    /**
     * Returns the idempotency key of a call and its lifetime, if it needs one.
     *
     * @param list<Limit> $limits
     *
     * @return array{string, string}|null
     */
    private function idOf(array $limits, int|float $cost, string|bool|null $once, ?string $ttl): ?array
    {
        if (\is_string($once)) {
            return [$once, $ttl ?? '10m'];
        }
        if (false === $once || (null === $once && !$this->once) || self::hasSketch($limits)) {
            return null;
        }
        $isNeeded = $cost > 1;
        foreach ($limits as $limit) {
            $isNeeded = $isNeeded || isset($this->concurrencyPolicies[implode(' ', $limit->words)])
                || (null !== $limit->quota && $cost > $limit->quota * self::NEGLIGIBLE_SHARE);
        }
        if (true !== $once && null === $ttl && !($isNeeded && $cost > 0)) {
            return null;
        }

        return [bin2hex(random_bytes(16)), $ttl ?? ($cost > 1 ? '1m' : self::REMEMBERED)];
    }
}
