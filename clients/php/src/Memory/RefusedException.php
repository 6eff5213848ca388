<?php

declare(strict_types=1);

namespace RedisRatelimit\Memory;

/** Error reply, as a server sends it. */
final class RefusedException extends \RuntimeException
{
    public static function because(string $text, string $code = 'ERR'): self
    {
        return new self("{$code} {$text}");
    }

    /** Returns the error of a command or word that needs a server; null for any other. */
    public static function needsServer(string $word): ?self
    {
        $feature = match (true) {
            \in_array($word, ['POLICY', 'RL.LIMIT', 'RL.DELAY'], true), str_starts_with($word, 'RL.POLICY') => 'policies',
            \in_array($word, ['BAN', 'RL.BAN'], true) => 'bans',
            \in_array($word, ['SKETCH', 'RL.SKETCH'], true) => 'sketches',
            default => null,
        };

        return null === $feature ? null : self::because("a limiter in memory has no {$feature}: they need a server with the module");
    }
}
