<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Options before the first spec, which apply to all specs. */
final class Common
{
    public readonly string $purpose;

    public function __construct(public readonly Options $options)
    {
        self::refuseBesideSettle($options);
        $this->purpose = match (true) {
            null !== $options->settle => 'SETTLE',
            $options->isBack => 'BACK',
            default => 0 === $options->cost ? 'CHECK' : 'CHARGE',
        };
        $this->refuseKeep($options, $options->request($options->mode, $options->maxWait));
        $this->refuseOnce($options);
    }

    public static function refuseBesideSettle(Options $options): void
    {
        if (null !== $options->settle && (null !== $options->cost || null !== $options->mode || null !== $options->keep)) {
            throw RefusedException::because('syntax error: SETTLE says the cost');
        }
    }

    public function spec(Rule $rule, Options $own): Spec
    {
        $isApart = null !== $own->cost || $rule instanceof Concurrency;
        $request = $this->request($rule, $own, $isApart);
        $this->refuseOnce($own);
        $keeping = null !== $own->keep || ($isApart && !\is_string($this->options->keep)) ? $own : $this->options;
        $this->refuseKeep($keeping, $request);
        $keep = $keeping->kept($rule->limit);
        if ($keep > $rule->limit && $request->looks()) {
            $request = new Request('PAST');
        }
        $kept = min($keep, $rule->limit);
        $rule->limit -= $kept;
        if ($rule instanceof Concurrency) {
            $rule->isFirst = isset($own->flags['NX']);
        }

        return new Spec($rule, $request, $kept, $own->name, null !== $own->cost);
    }

    private function refuseKeep(Options $options, Request $request): void
    {
        $keepsNothing = \in_array($this->purpose, ['SETTLE', 'BACK'], true) || \in_array($request->mode, ['FORCE', 'BACK'], true);
        if (null !== $options->keep && $keepsNothing) {
            throw RefusedException::because('syntax error, unexpected KEEP: it keeps nothing of such a call');
        }
    }

    private function refuseOnce(Options $own): void
    {
        if (null !== $this->options->once && $own->isBack) {
            throw RefusedException::because('cost must be 0 or more with ONCE');
        }
    }

    private function request(Rule $rule, Options $own, bool $isApart): Request
    {
        if ('SETTLE' === $this->purpose) {
            return null === $own->mode || $isApart
                ? new Request()
                : throw RefusedException::because("syntax error, unexpected {$own->mode}: SETTLE says the cost");
        }
        if ($isApart) {
            return 'CHARGE' === $this->purpose ? $own->request($own->mode, $own->maxWait) : new Request();
        }
        if (null !== $own->mode) {
            return $this->options->request($own->mode, $own->maxWait);
        }
        $isForOthers = 'MAXWAIT' === $this->options->mode && !$rule->waits();

        return $this->options->request($isForOthers ? null : $this->options->mode, $this->options->maxWait);
    }
}
