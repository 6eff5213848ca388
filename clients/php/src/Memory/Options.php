<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Options before the specs, or of one spec. */
final class Options
{
    private const MODES = ['UPTO', 'FORCE', 'MAXWAIT'];

    public ?int $cost = null;
    /** True for a negative cost, which is given back. */
    public bool $isBack = false;
    /** True if the cost is a whole number of units. */
    public bool $isWhole = true;
    public ?string $mode = null;
    public int $maxWait = 0;
    /** Amount, or the text of a share. */
    public int|string|null $keep = null;
    public ?string $name = null;
    /** @var array<string, true> */
    public array $flags = [];
    public ?int $offset = null;
    public ?int $anchor = null;
    /** @var array{string, int}|null idempotency key and its lifetime */
    public ?array $once = null;
    /** @var array{string, int}|null idempotency key and the actual cost */
    public ?array $settle = null;

    /**
     * Parses options in any order, up to a word that is not in `$among`.
     *
     * @param list<string> $among
     */
    public static function read(Words $words, array $among): self
    {
        [$options, $places] = [new self(), []];
        while (\in_array($word = $words->peek(), $among, true)) {
            $words->next($word);
            // Some options exclude each other.
            $place = match (true) {
                \in_array($word, self::MODES, true) => 'MODE',
                \in_array($word, ['ONCE', 'SETTLE'], true) => 'ID',
                default => $word,
            };
            if (isset($places[$place])) {
                throw RefusedException::because("syntax error, unexpected {$word}");
            }
            $places[$place] = true;
            $options->take($word, $words);
        }

        return $options;
    }

    /** Returns the request for a mode and the cost, 1 by default. */
    public function request(?string $mode, int $maxWait): Request
    {
        $cost = $this->cost ?? Whole::UNIT;
        if ($this->isBack) {
            return null === $mode
                ? new Request('BACK', $cost)
                : throw RefusedException::because("cost must be 0 or more with {$mode}");
        }
        if ('UPTO' === $mode && !($this->isWhole && $cost > 0)) {
            throw RefusedException::because('cost must be a whole number from 1 with UPTO');
        }

        return new Request($mode ?? 'TAKE', $cost, $maxWait);
    }

    /** Returns the units of a limit that must remain. */
    public function kept(int $limit): int
    {
        if (!\is_string($this->keep)) {
            return $this->keep ?? 0;
        }
        // In hundredths of a percent, with as many digits as fit.
        [$whole, $fraction] = [...explode('.', $this->keep), ''];
        $places = min(\strlen($fraction), 15);
        $digits = (int) ($whole.substr($fraction, 0, $places));

        return Whole::shareUp($limit, $digits, 100 * 10 ** $places);
    }

    private function take(string $word, Words $words): void
    {
        if (\in_array($word, self::MODES, true)) {
            $this->mode = $word;
        }
        match ($word) {
            'COST' => $this->takeCost($words->next('cost')),
            'MAXWAIT' => $this->maxWait = $words->duration('maxwait', true),
            'KEEP' => $this->takeKeep($words->next('keep')),
            'AS' => $this->name = self::checked('name', $words, '~^[A-Za-z0-9_-]{1,32}$~D'),
            'OFFSET' => $this->takeOffset(self::checked('offset', $words, '~^[+-]\d\d:[0-5]\d$~D')),
            'ANCHOR' => $this->anchor = (int) self::checked('anchor', $words, '~^(0?[1-9]|[12]\d|3[01])$~D'),
            'ONCE' => $this->once = [$words->name('id'), $words->duration('ttl')],
            'SETTLE' => $this->settle = [$words->name('id'), $words->cost('amount')],
            default => $this->flags[$word] = true,
        };
    }

    private static function checked(string $description, Words $words, string $form): string
    {
        $word = $words->next($description);

        return 1 === preg_match($form, $word) ? $word : throw RefusedException::because("{$description} cannot be '{$word}'");
    }

    private function takeCost(string $text): void
    {
        $isNegative = str_starts_with($text, '-');
        $found = Words::amountOf($isNegative ? substr($text, 1) : $text, 'cost');
        $this->isBack = $isNegative && $found->ceil() > 0;
        $this->cost = $this->isBack ? $found->floor : $found->ceil();
        $this->isWhole = $found->isWhole();
    }

    private function takeKeep(string $text): void
    {
        if (!str_ends_with($text, '%')) {
            $this->keep = Words::amountOf($text, 'keep')->ceil();

            return;
        }
        $share = substr($text, 0, -1);
        if (1 !== preg_match('~^\d+(\.\d+)?$~D', $share) || Words::amountOf($share, 'keep')->exceeds(100 * Whole::UNIT)) {
            throw RefusedException::because('keep must be a share from 0% to 100%');
        }
        $this->keep = $share;
    }

    private function takeOffset(string $text): void
    {
        [$hours, $minutes] = explode(':', substr($text, 1));
        $distance = (int) $hours * 60 + (int) $minutes;
        if ($distance > 14 * 60) {
            throw RefusedException::because('offset must be from -14:00 to +14:00, such as +09:00');
        }
        $this->offset = ('-' === $text[0] ? -$distance : $distance) * 60 * Whole::UNIT;
    }
}
