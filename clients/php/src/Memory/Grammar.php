<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Parser of calls, with the server's error messages. */
final class Grammar
{
    private const OF_KEYS = ['COST', 'FORCE', 'MAXWAIT', 'KEEP', 'ONCE', 'SETTLE'];
    private const OF_A_CALL = [...self::OF_KEYS, 'UPTO', 'EACH'];
    private const OF_A_RATE = ['COST', 'UPTO', 'FORCE', 'KEEP', 'ONCE', 'SETTLE', 'AS'];
    private const OF_LEASES = ['COST', 'KEEP', 'AS', 'NX'];
    /** Options that may follow the numbers of each algorithm. */
    private const BEHIND = [
        'TOKENBUCKET' => [...self::OF_A_RATE, 'MAXWAIT'],
        'LEAKYBUCKET' => self::OF_A_RATE,
        'FIXED' => [...self::OF_A_RATE, 'ALIGNED', 'OFFSET', 'ANCHOR'],
        'SLIDING' => [...self::OF_A_RATE, 'STRICT'],
        'SLIDINGLOG' => self::OF_A_RATE,
        'CONCURRENCY' => self::OF_LEASES,
    ];

    /** Parses the arguments of a call for one key: `[options] spec [spec ...]`. */
    public static function call(Words $words, bool $isPeek): KeyCall
    {
        $common = new Common(Options::read($words, self::OF_A_CALL));
        $read = [self::spec($words)];
        while (!$words->isOver()) {
            $read[] = self::spec($words);
        }
        if (1 === \count($read)) {
            return self::only($common, $read[0], $isPeek);
        }
        $specs = array_map(static fn (array $one) => self::amongSeveral($common, $one), $read);
        foreach ($read as [, $own]) {
            if ($own->isBack) {
                throw RefusedException::because('cost must be 0 or more behind one of several limits');
            }
        }
        self::refuseTwins($specs);

        return self::made($common, $specs, $isPeek, $common->purpose);
    }

    /**
     * Parses the arguments of a call for several keys: `numkeys key [key ...] [options] spec [spec ...]`.
     *
     * @return list<array{string, KeyCall}> the keys with their calls
     */
    public static function keys(Words $words, bool $isPeek): array
    {
        $numkeys = $words->next('numkeys');
        if (1 !== preg_match('~^[1-9]\d{0,5}$~D', $numkeys)) {
            throw RefusedException::because('numkeys must be how many keys follow');
        }
        $keys = [];
        for ($left = (int) $numkeys; $left > 0; --$left) {
            $keys[] = $words->next('key');
        }
        $common = new Common(Options::read($words, self::OF_KEYS));
        $calls = [];
        foreach ($keys as $key) {
            $calls[] = [$key, self::made($common, [self::amongSeveral($common, self::spec($words))], $isPeek)];
        }
        if (!$words->isOver()) {
            throw RefusedException::because('syntax error: more words than specs for the keys');
        }
        if (\count(array_unique($keys)) < \count($keys)) {
            throw RefusedException::because('keys must be different from each other');
        }

        return $calls;
    }

    /**
     * Parses the arguments of RL.ACQUIRE: `limit ttl holder [options]`.
     *
     * @return array{KeyCall, bool} the call, and true if it requests a fencing token
     */
    public static function acquire(Words $words): array
    {
        $read = self::rule($words, 'CONCURRENCY', [...self::OF_LEASES, 'FENCE']);
        if (!$words->isOver()) {
            throw RefusedException::because("syntax error, unexpected '{$words->peek()}'");
        }

        return [self::only(new Common(new Options()), $read, false), isset($read[1]->flags['FENCE'])];
    }

    /** @return array{Rule, Options} */
    private static function spec(Words $words): array
    {
        $algorithm = $words->peek();
        $behind = self::BEHIND[$algorithm] ?? throw RefusedException::needsServer($algorithm)
            ?? RefusedException::because("syntax error, unexpected '{$algorithm}': a spec is needed");
        $words->next('spec');

        return self::rule($words, $algorithm, $behind);
    }

    /**
     * Parses the numbers of an algorithm and the options after them.
     *
     * @param list<string> $behind
     *
     * @return array{Rule, Options}
     */
    private static function rule(Words $words, string $algorithm, array $behind): array
    {
        $limit = $words->amount('limit');
        if ('FIXED' === $algorithm) {
            return self::fixed($words, $limit, $behind);
        }
        if (str_ends_with($algorithm, 'BUCKET')) {
            return self::bucket($words, $limit, 'LEAKYBUCKET' === $algorithm, $behind);
        }
        $window = $words->duration('window');
        $holder = 'CONCURRENCY' === $algorithm ? $words->name('holder') : null;
        $own = Options::read($words, $behind);
        if (null !== $holder && ($own->isBack || 0 === $own->cost)) {
            throw RefusedException::because('cost must be a number above 0');
        }
        $rule = match (true) {
            null !== $holder => new Concurrency($limit, $window, $holder),
            'SLIDINGLOG' === $algorithm => new SlidingLog($limit, $window),
            isset($own->flags['STRICT']) => new Strict($limit, $window),
            default => new Sliding($limit, $window),
        };

        return [$rule, $own];
    }

    /**
     * @param list<string> $behind
     *
     * @return array{Rule, Options}
     */
    private static function bucket(Words $words, int $capacity, bool $queues, array $behind): array
    {
        [$refill, $period] = [$words->amount('refill'), $words->duration('period')];
        $own = Options::read($words, $behind);
        if (0 === $refill) {
            throw RefusedException::because('refill must be a number from 0.000001 to 1000000000000');
        }
        $bucket = new Bucket($capacity, $refill, $period, $queues);
        if ($bucket->drainsIn($capacity) > intdiv(Whole::LATEST, 10)) {
            throw RefusedException::because('refill must be enough to refill the capacity within 36500d');
        }

        return [$bucket, $own];
    }

    /**
     * @param list<string> $behind
     *
     * @return array{Rule, Options}
     */
    private static function fixed(Words $words, int $limit, array $behind): array
    {
        $text = $words->next('window');
        $calendar = isset(Clocks::MONTHS[$text]) ? $text : null;
        $window = null === $calendar ? Words::durationOf($text) : 0;
        if (null === $window || (0 === $window && null === $calendar)) {
            throw RefusedException::because('window must be a duration, or with ALIGNED 1w, 1mo, 3mo or 1y');
        }
        $own = Options::read($words, $behind);
        if (!isset($own->flags['ALIGNED'])) {
            if (null !== $calendar || null !== $own->offset || null !== $own->anchor) {
                throw RefusedException::because("syntax error: windows of {$text} need ALIGNED");
            }

            return [new Fixed($limit, $window), $own];
        }
        if (null !== $own->anchor && !str_ends_with($calendar ?? '', 'mo')) {
            throw RefusedException::because('syntax error, unexpected ANCHOR: it is for months and quarters');
        }
        $clocks = new Clocks($window, $calendar, $own->offset ?? 0, $own->anchor ?? 1);

        return [new Fixed($limit, $window, $clocks), $own];
    }

    /** @param array{Rule, Options} $read */
    private static function only(Common $common, array $read, bool $isPeek): KeyCall
    {
        [$rule, $own] = $read;
        if (null !== $own->once || null !== $own->settle) {
            if (null !== $common->options->once || null !== $common->options->settle) {
                throw RefusedException::because('syntax error: the call has an id already');
            }
            Common::refuseBesideSettle($own);
            [$common->options->once, $common->options->settle] = [$own->once, $own->settle];
            $common = new Common($common->options);
        }
        $call = self::made($common, [$common->spec($rule, $own)], $isPeek);
        $looksBeside = 'BACK' === $call->purpose && 'BACK' !== $call->specs[0]->request->mode;
        $call->isPlain = $call->isPlain && !$call->each && !$looksBeside;

        return $call;
    }

    /** @param list<Spec> $specs */
    private static function made(Common $common, array $specs, bool $isPeek, ?string $purpose = null): KeyCall
    {
        $options = $common->options;
        if ($isPeek && null !== $options->settle) {
            throw RefusedException::because('syntax error: a peek settles nothing');
        }
        $once = $isPeek ? null : $options->once;
        $purpose ??= 'CHARGE' === $common->purpose ? $specs[0]->request->purpose() : $common->purpose;
        $isPlain = 1 === \count($specs) && null === $once && null === $options->settle && null === $specs[0]->name;

        return new KeyCall($specs, $purpose, $once, $options->settle, isset($options->flags['EACH']), $isPlain);
    }

    /** @param array{Rule, Options} $read */
    private static function amongSeveral(Common $common, array $read): Spec
    {
        [$rule, $own] = $read;
        if (null !== $own->once || null !== $own->settle || 'UPTO' === $own->mode) {
            throw RefusedException::because('syntax error: ONCE, SETTLE and UPTO stand before the first of several specs');
        }

        return $common->spec($rule, $own);
    }

    /** @param list<Spec> $specs */
    private static function refuseTwins(array $specs): void
    {
        if (\count($specs) > 8) {
            throw RefusedException::because('syntax error: a call has at most 8 specs');
        }
        $identities = array_map(
            static fn (Spec $spec) => $spec->rule::KIND.(null === $spec->rule->key ? '' : $spec->identity()),
            $specs,
        );
        if (\count(array_unique($identities)) < \count($identities)) {
            throw RefusedException::because('specs of one kind must have different windows or different names');
        }
    }
}
