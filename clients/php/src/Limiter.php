<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** Charges limits on the server, and says what holds while the server is away. */
final class Limiter
{
    /** Above this share of a limit, charging a call twice would matter. */
    private const MATTERS = 0.01;

    /** Longer than a call is sent again. */
    private const REMEMBERED = '30s';

    private const MERGED = 'a sketch cannot tell apart again what it has merged: no item is settled or charged once';

    private readonly Connection $connection;

    /** @var array<string, true> policies with a concurrency limit: the idempotency key is the holder */
    private array $held = [];

    /**
     * @param \Redis|\RedisCluster|\Predis\ClientInterface|Memory $client
     *                                             its time limits are those of a call: give it short ones
     * @param 'open'|'closed'|'raise' $onOutage    while the server does not decide: all passes, nothing does, or an
     *                                             UnavailableException
     * @param 'raise'|'outage'        $setupErrors what somebody has to mend: a SetupException, or as in an outage
     * @param bool                    $once        whether calls bring an idempotency key where charging them twice would
     *                                             matter. false: none does, and no call is sent again
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
     * A limiter that decides in this process, as the server does: for tests. Without a clock that the test moves the time
     * is real.
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
     * @param string|bool|null  $once    an idempotency key of yours, true for a new one, or false for none
     * @param string|null       $ttl     for how long the charge can be settled, such as '10m'
     * @param bool              $force   charge what was used already, even past a limit
     * @param bool              $refundable give the charge an idempotency key, whatever it costs, so that `settle` can
     *                                   refund it
     * @param string|null       $maxWait let pass also what will fit within this time. Token buckets only
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
            return $this->asked($key, $limits, $options, $id, $isRepeatable);
        } catch (CallException $error) {
            $isMissing = str_starts_with($error->getMessage(), 'the policy has a CONCURRENCY limit');
            if (null !== $id || null !== $once || !$this->once || !$isMissing) {
                throw $error;
            }
            foreach ($limits as $limit) {
                $this->held[implode(' ', $limit->words)] = true;
            }

            return $this->take($key, $limits, $cost, true, $ttl, $force, $maxWait);
        } catch (FullException $error) {
            $said = $error->getPrevious()?->getMessage() ?? '';
            if (null === $id || \is_string($once) || !Replies::mayPassWithoutId($said)) {
                return $this->without($error);
            }
            // Rather than deny what is in order: this one may be charged twice, if it is sent twice.
            try {
                return $this->asked($key, $limits, $options, null, false);
            } catch (UnavailableException|SetupException|FullException $error) {
                return $this->without($error);
            }
        } catch (UnavailableException|SetupException $error) {
            return $this->without($error);
        }
    }

    /**
     * Says what `take` would, and charges nothing.
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
     * Corrects a charge by its idempotency key. Denied only if the server does not know it, or no longer.
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

    /** Forgets all that a key has used; of a sketch, by the key of its own, all of its items. Whether there was anything. */
    public function reset(string $key): bool
    {
        return 1 === $this->call(['DEL', $this->prefix.$key], true);
    }

    /**
     * What the first named limit of a key has used, and in how many seconds it has recovered. Of a key that is not there,
     * nothing. While the server does not decide: nothing, or with `closed` more than there is.
     *
     * @return array{int, float}
     */
    public function usage(string $key): array
    {
        try {
            $told = self::map($this->call(['RL.INFO', $this->prefix.$key], true) ?: []);
        } catch (UnavailableException|SetupException $error) {
            return [$this->without($error)->allowed ? 0 : \PHP_INT_MAX, 0.0];
        }
        $first = self::map($told['parts'][0] ?? []);
        $left = ($first['recovers_at'] ?? 0) / 1000 - $this->connection->now();

        return $left > 0 ? [(int) $first['used'], $left] : [0, 0.0];
    }

    /**
     * A map of the protocol: names and values in turn.
     *
     * @param list<mixed> $told
     *
     * @return array<string, mixed>
     */
    private static function map(array $told): array
    {
        $map = [];
        foreach (array_chunk($told, 2) as [$name, $value]) {
            $map[$name] = $value;
        }

        return $map;
    }

    /** For the start: a SetupException says what is wrong, and an UnavailableException that the server is away. */
    public function check(): void
    {
        $this->call(['RL.PEEK', 'redis-ratelimit:check', 'FIXED', '1', '1s'], true);
    }

    /**
     * @param list<Limit>                $limits
     * @param list<string|int|float>     $options
     * @param array{string, string}|null $id
     */
    private function asked(string $key, array $limits, array $options, ?array $id, bool $isRepeatable): Decision
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
            // Without a reply of the server's: it may have been lost.
            if (!$isRepeatable || !$error->getPrevious() instanceof \Exception || Replies::isReply($error->getPrevious()->getMessage())) {
                throw $error;
            }

            return $this->connection->call($words);
        }
    }

    /** What holds in place of the server's decision. A key without room is no outage, and denies. */
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
            // The form of its own that needs no permission to choose limits.
            return ['RL.LIMIT', $this->keyOf($key, $limits), ...\array_slice($limits[0]->spec($key), 1), ...$options];
        }

        return ['RL.TAKE', $this->keyOf($key, $limits), ...$options, ...self::specs($key, $limits)];
    }

    /**
     * The key on the server: of a sketch its own, and what the call names is an item.
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

    /** Without an exponent. */
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
     * The idempotency key of a call, and for how long it is remembered.
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
            $isNeeded = $isNeeded || isset($this->held[implode(' ', $limit->words)])
                || (null !== $limit->quota && $cost > $limit->quota * self::MATTERS);
        }
        if (true !== $once && null === $ttl && !($isNeeded && $cost > 0)) {
            return null;
        }

        return [bin2hex(random_bytes(16)), $ttl ?? ($cost > 1 ? '1m' : self::REMEMBERED)];
    }
}
