<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Usage of one limit of a key. Without an identity it is found by its type alone. */
final class Part
{
    public readonly string $kind;
    public Usage $usage;
    public ?string $identity = null;
    public int $recoversAt = 0;
    /** @var list<Charge> charges that may be settled, oldest first */
    public array $charges = [];
    /** Units given back explicitly since the first charge. */
    public int $givenBack = 0;

    public function __construct(Rule $rule)
    {
        $this->kind = $rule::KIND;
        $this->usage = $rule->unused();
    }

    public function __clone()
    {
        $this->usage = clone $this->usage;
        $this->charges = array_map(static fn (Charge $charge) => clone $charge, $this->charges);
    }

    /** Charges `$change` units, or gives them back if it is negative. */
    public function change(Rule $rule, int $change, int $now): void
    {
        if ([] !== $this->charges) {
            $this->lower($rule, max(-$change, 0), $now);
        }
        if ($change > 0) {
            $rule->charge($this->usage, $now, $change);
        } else {
            $rule->giveBack($this->usage, $now, -$change);
        }
        $this->changed($rule, $now);
    }

    /** Corrects usage as if `$cost` had been charged from the beginning. */
    public function settle(Rule $rule, Charge $charge, int $cost, int $now): void
    {
        $most = $charge->low ?? Whole::MOST;
        if (null !== $charge->place) {
            $isLost = Whole::MOST === $this->givenBack;
            $since = $isLost ? $charge->cost : $this->givenBack - $charge->givenBack;
            $most = min($most, max($charge->cost - $since, 0));
        }
        $taken = $this->usage->takeBack($charge->place, min(max($charge->cost - $cost, 0), $most));
        $this->lowerOthers($charge, $taken);
        $this->forget($charge);
        if ($cost > $charge->cost) {
            $this->change($rule, $cost - $charge->cost, $now);
        }
        $this->changed($rule, $now);
    }

    public function forget(Charge $charge): void
    {
        $this->charges = array_values(array_filter($this->charges, static fn (Charge $one) => $one !== $charge));
        if ([] === $this->charges) {
            $this->givenBack = 0;
        }
    }

    public function moveBack(int $now): void
    {
        foreach ($this->charges as $charge) {
            if (null !== $charge->place) {
                $charge->place = $this->usage->movedPlace($charge->place, $now);
            }
        }
        $ahead = $this->usage->ahead($now);
        if ($ahead > 0) {
            $this->usage->moveBack($now);
        }
        $this->recoversAt = $this->usage->movedRecovery($this->recoversAt, $ahead, $now);
    }

    public function stays(int $now): bool
    {
        return [] !== $this->charges || ($now < $this->recoversAt && !$this->usage->isUnused());
    }

    /** Records the usage from which earlier charges can still be settled. */
    private function lower(Rule $rule, int $back, int $now): void
    {
        $low = $this->usage->isUnused() ? 0 : $rule->low($this->usage, $now);
        if (null === $low) {
            $this->givenBack = Whole::plus($this->givenBack, $back);

            return;
        }
        foreach ($this->charges as $charge) {
            $charge->low = min($charge->low ?? Whole::MOST, max($low - $back, 0));
        }
    }

    /** Lowers the recorded lows of the other charges after one was settled to a lower cost. */
    private function lowerOthers(Charge $settled, int $taken): void
    {
        if (null === $settled->low) {
            return;
        }
        [$low, $place] = [max($settled->low - $taken, 0), array_search($settled, $this->charges, true)];
        foreach ($this->charges as $index => $charge) {
            if ($index < $place) {
                $charge->low = min($charge->low ?? $low, $low);
            } elseif (null !== $charge->low) {
                $charge->low = max($charge->low - $taken, 0);
            }
        }
    }

    private function changed(Rule $rule, int $now): void
    {
        $this->recoversAt = min($now + $rule->reset($this->usage, $now), Whole::LATEST);
        if ($this->usage->isUnused()) {
            $this->usage = $rule->unused();
        }
    }
}
