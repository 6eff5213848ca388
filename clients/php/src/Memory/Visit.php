<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Call at one key: evaluation, charging and reply. */
final class Visit
{
    private const MOST_PARTS = 16;

    private readonly ?Remembered $repeated;
    /** @var list<Evaluation> */
    private array $evaluations = [];
    /** Units granted to a call with UPTO: the minimum over all limits. */
    private ?int $granted = null;
    /** Outcome: PASSES, DENIED, REPEATED, SETTLES, SETTLED or UNKNOWN. */
    private readonly string $outcome;
    private bool $isCharged = false;

    public function __construct(public readonly KeyCall $call, public readonly Key $key, private readonly int $now)
    {
        $kind = $call->specs[0]->rule::KIND;
        if ($key->isPlain && 1 === \count($call->specs) && $key->parts[0]->kind !== $kind) {
            throw Key::wrongType($key->parts[0]->kind, $kind);
        }
        $this->repeated = $key->recall($call, $now);
        foreach ($key->find($call->specs) as $index => $part) {
            $this->evaluations[] = $one = $this->evaluated($call->specs[$index], $part);
            if (null !== $one->granted) {
                $this->granted = min($this->granted ?? $one->granted, $one->granted);
            }
        }
        foreach ($this->evaluations as $one) {
            if (null !== $one->granted) {
                $one->granted = $one->change = $this->granted;
            }
        }
        $this->outcome = $this->decided();
    }

    public function denies(): bool
    {
        return 'DENIED' === $this->outcome;
    }

    public function knows(): bool
    {
        return null !== $this->repeated;
    }

    public function changes(): bool
    {
        return 'SETTLES' === $this->outcome || ('PASSES' === $this->outcome && [] !== $this->changing());
    }

    /** Throws an error if the key has no room for the call. */
    public function checkRoom(): void
    {
        if ($this->key->isPlain || 'PASSES' !== $this->outcome) {
            return;
        }
        $charging = array_filter($this->evaluations, static fn (Evaluation $one) => $one->change > 0);
        $charged = array_map(static fn (Evaluation $one) => $one->part, $charging);
        $added = \count(array_filter($charged, static fn (?Part $part) => null === $part));
        $staying = array_filter(
            $this->key->parts,
            fn (Part $part) => $part->stays($this->now) || \in_array($part, $charged, true),
        );
        if ($added > 0 && \count($staying) + $added > self::MOST_PARTS) {
            throw RefusedException::because('the key has 16 limits, as many as one key may have');
        }
    }

    /** Applies the changes. */
    public function commit(): void
    {
        [$key, $now, $changing] = [$this->key, $this->now, $this->changing()];
        if ($key->isUnused() && $this->call->isPlain) {
            [$spec, $one] = $changing[0];
            $key->parts = [$one->part = new Part($spec->rule)];
            $key->isPlain = true;
        }
        $staysPlain = $key->isPlain && !$this->remembers();
        foreach ($changing as [$spec, $one]) {
            $staysPlain = $staysPlain && null !== $one->part && null === $spec->name;
        }
        $this->isCharged = true;
        if ($staysPlain) {
            foreach ($changing as [$spec, $one]) {
                $one->part->change($spec->rule, $one->change, $now);
                $key->expire($one->part->recoversAt - $now, $now);
            }

            return;
        }
        $key->begin($now);
        if ('SETTLES' === $this->outcome) {
            $this->settle();
        } else {
            $this->chargeAll($changing);
        }
        $key->end($now);
        foreach ($key->find($this->call->specs) as $index => $part) {
            $this->evaluations[$index]->part = $part;
        }
        $key->expire($key->recoversIn($now), $now);
    }

    /** @return list<LimitDecision> decisions of the limits, with the current usage */
    public function decisions(): array
    {
        return array_map($this->decisionOf(...), $this->call->specs, $this->evaluations);
    }

    /**
     * Returns the combined decision of all limits.
     *
     * @param list<LimitDecision> $each
     */
    public function combined(array $each): LimitDecision
    {
        $denies = fn (int $index) => $this->denies()
            ? $this->evaluations[$index]->denies()
            : !$each[$index]->verdict->isAllowed();
        $denying = array_filter($each, $denies, \ARRAY_FILTER_USE_KEY);
        $candidates = [] === $denying ? $each : array_values($denying);
        $verdict = $candidates[0]->verdict;
        foreach ($candidates as $decision) {
            $verdict = $verdict->longer($decision->verdict);
        }
        $governing = [] === $denying ? $this->firstToRunOut($each) : null;
        foreach (null === $governing ? $candidates : [] as $decision) {
            // Compares by value: the same kind and time.
            $governing ??= $decision->verdict == $verdict ? $decision : null;
        }

        return new LimitDecision($verdict, $governing->limit, $governing->remaining, $governing->reset, $this->grantedIn($verdict));
    }

    /** @return list<array{Spec, Evaluation}> */
    private function changing(): array
    {
        $changing = [];
        foreach ($this->evaluations as $index => $one) {
            if (0 !== $one->change) {
                $changing[] = [$this->call->specs[$index], $one];
            }
        }

        return $changing;
    }

    private function evaluated(Spec $spec, ?Part $part): Evaluation
    {
        [$rule, $now] = [$spec->rule, $this->now];
        $request = null === $this->repeated ? $spec->request : new Request();
        if (null !== $this->repeated && $rule instanceof Concurrency) {
            $rule->isFirst = false;
        }
        [$usage, $cost] = [$part?->usage ?? $rule->unused(), $request->cost];
        if ('BACK' === $request->mode) {
            return new Evaluation($part, Verdict::allowed(), $usage->isUnused() ? 0 : -$cost);
        }
        $evaluated = match ($request->mode) {
            'UPTO' => Whole::UNIT,
            'PAST' => 1,
            default => $cost,
        };
        $verdict = $rule->verdict($usage, $now, $evaluated);
        if ('MAXWAIT' === $request->mode && Verdict::AFTER === $verdict->kind) {
            $verdict = $verdict->time <= $request->maxWait
                ? Verdict::allowed($verdict->time)
                : Verdict::after($verdict->time - $request->maxWait);
        }
        $passes = $verdict->isAllowed();
        if ('UPTO' === $request->mode) {
            $remaining = $rule->remaining($usage, $now);
            $granted = $passes ? min($remaining - $remaining % Whole::UNIT, $cost) : 0;

            return new Evaluation($part, $verdict, $granted, false, $granted);
        }
        $isForced = 'FORCE' === $request->mode;

        return new Evaluation($part, $verdict, $passes || $isForced ? $cost : 0, $isForced);
    }

    private function decided(): string
    {
        if (null !== $this->call->settle) {
            return null === $this->repeated ? 'UNKNOWN' : ($this->repeated->isSettled ? 'SETTLED' : 'SETTLES');
        }
        if (null !== $this->repeated) {
            return 'REPEATED';
        }
        foreach ('BACK' === $this->call->purpose ? [] : $this->evaluations as $one) {
            if ($one->denies()) {
                return 'DENIED';
            }
        }

        return 'PASSES';
    }

    private function remembers(): bool
    {
        return null !== $this->call->once && 'PASSES' === $this->outcome && $this->changes();
    }

    /** @param list<array{Spec, Evaluation}> $changing */
    private function chargeAll(array $changing): void
    {
        [$now, $charges, $remembers] = [$this->now, [], $this->remembers()];
        foreach ($changing as [$spec, $one]) {
            if (null === $one->part) {
                $this->key->parts[] = $one->part = new Part($spec->rule);
            }
            $part = $one->part;
            $part->identity ??= $spec->identity();
            $part->change($spec->rule, $one->change, $now);
            if ($remembers && $one->change > 0 && !$part->usage instanceof Leases) {
                $part->charges[] = $charge = new Charge($one->change, $part->usage->place(), $part->givenBack);
                $charges[] = [$part, $charge];
            }
        }
        if (!$remembers) {
            return;
        }
        [$hold, $isForced] = [0, false];
        foreach ($this->evaluations as $one) {
            $hold = $one->verdict->isAllowed() ? max($hold, $one->verdict->time) : $hold;
            $isForced = $isForced || $one->isForced;
        }
        [$id, $ttl] = $this->call->once;
        [$expiresAt, $holdUntil] = [min($now + $ttl, Whole::LATEST), min($now + $hold, Whole::LATEST)];
        $this->key->remembered[$id] = new Remembered($expiresAt, $holdUntil, $isForced, $this->granted, $charges);
    }

    private function settle(): void
    {
        $charges = $this->repeated->charges;
        $this->repeated->charges = [];
        $this->repeated->isSettled = true;
        foreach ($charges as [$part, $charge]) {
            $index = array_search($part, array_column($this->evaluations, 'part'), true);
            $spec = false === $index ? null : $this->call->specs[$index];
            $cost = $this->call->settle[1];
            if (null === $spec || $spec->hasOwnCost || $cost === $charge->cost) {
                $part->forget($charge);
            } else {
                $part->settle($spec->rule, $charge, $cost, $this->now);
            }
        }
    }

    private function decisionOf(Spec $spec, Evaluation $one): LimitDecision
    {
        [$rule, $now, $verdict] = [$spec->rule, $this->now, $one->verdict];
        $usage = $one->part?->usage ?? $rule->unused();
        if ($one->isForced && !$verdict->isAllowed()) {
            $verdict = Verdict::after($rule->debtAfter($usage, $now, $this->isCharged ? 0 : $one->change));
        }
        $verdict = $this->overridden($verdict, $spec);
        $granted = null;
        if ('UPTO' === $spec->request->mode) {
            $granted = 'REPEATED' === $this->outcome
                ? $this->grantedBefore($spec->request->cost, $verdict)
                : $one->granted ?? 0;
        }

        return new LimitDecision($verdict, $rule->limit + $spec->kept, $rule->remaining($usage, $now), $rule->reset($usage, $now), $granted);
    }

    /** Returns the verdict of a limit, which a settlement, a repeated call or a give-back overrides. */
    private function overridden(Verdict $verdict, Spec $spec): Verdict
    {
        switch ($this->outcome) {
            case 'UNKNOWN':
                return Verdict::never();
            case 'SETTLES':
            case 'SETTLED':
                return Verdict::allowed();
            case 'REPEATED':
                $forces = array_filter($this->call->specs, static fn (Spec $one) => 'FORCE' === $one->request->mode);
                $isPast = 'FORCE' === $spec->request->mode || [] === $forces;
                $isHeld = !$this->repeated->isForced || $verdict->isAllowed() || !$isPast;

                return $isHeld ? Verdict::allowed(max($this->repeated->holdUntil - $this->now, 0)) : $verdict;
            default:
                return 'BACK' === $this->call->purpose ? Verdict::allowed() : $verdict;
        }
    }

    /**
     * Returns the limit with the smallest `remaining / cost`.
     *
     * @param list<LimitDecision> $each
     */
    private function firstToRunOut(array $each): LimitDecision
    {
        $cost = static fn (Request $request) => \in_array($request->mode, ['BACK', 'PAST'], true) || 0 === $request->cost
            ? Whole::UNIT
            : $request->cost;
        [$first, $its] = [$each[0], $cost($this->call->specs[0]->request)];
        foreach ($each as $index => $decision) {
            $other = $cost($this->call->specs[$index]->request);
            if (Whole::isLess($decision->remaining, $other, $first->remaining, $its)) {
                [$first, $its] = [$decision, $other];
            }
        }

        return $first;
    }

    private function grantedIn(Verdict $verdict): ?int
    {
        foreach ($this->call->specs as $spec) {
            if ('UPTO' === $spec->request->mode) {
                return match ($this->outcome) {
                    'PASSES' => $this->granted ?? $spec->request->cost,
                    'REPEATED' => $this->grantedBefore($spec->request->cost, $verdict),
                    default => 0,
                };
            }
        }

        return null;
    }

    private function grantedBefore(int $most, Verdict $verdict): int
    {
        return $this->repeated->granted ?? ($verdict->isAllowed() ? $most : 0);
    }
}
