<?php

declare(strict_types=1);

namespace RedisRatelimit;

/**
 * Classification of the server's error replies: their cause, and a remedy. The packages for other languages have the
 * same table; `clients/replies.json` tests every package.
 */
final class Replies
{
    private const PASSWORD = 'give the connection its user and password, as in redis://user:password@host';
    private const NO_PASSWORD = 'the server has no password for this user: leave it out of the URL';
    private const PERMISSION = 'let the connection\'s user run this command on these keys, by ACL SETUSER';
    private const PROTECTED = 'the server is in protected mode: give it a password';
    private const MODULE = 'the redis-ratelimit module is not loaded: start the server with --loadmodule /path/to/libredis_ratelimit.so policies yes';
    private const TYPE = 'the key was made by something else or under another algorithm: give the limit another key, or delete this one';
    private const TAG = 'give the keys of one call one tag, as in {acme}:user and {acme}:all';
    private const CLUSTER = 'this server is a node of a cluster: use a client for clusters';
    private const NO_CLUSTER = 'this server is no cluster: use a client for one server';
    private const DATABASE = 'choose another database in the URL';

    /** Prefixes of replies, their causes and remedies. The first prefix that matches applies. */
    private const TABLE = [
        ['LOADING ', 'outage', ''],
        ['BUSY ', 'outage', ''],
        ['MASTERDOWN ', 'outage', ''],
        ['CLUSTERDOWN ', 'outage', ''],
        ['TRYAGAIN ', 'outage', ''],
        ['READONLY ', 'outage', ''],
        ['REDIRECT ', 'outage', ''],
        ['NOREPLICAS ', 'outage', ''],
        ['MISCONF ', 'outage', ''],
        ['UNBLOCKED ', 'outage', ''],
        ['ERR max number of clients', 'outage', ''],
        ['ERR internal error in module', 'outage', ''],
        ['NOAUTH ', 'operator', self::PASSWORD],
        ['WRONGPASS ', 'operator', self::PASSWORD],
        ['ERR invalid password', 'operator', self::PASSWORD],
        ['ERR AUTH ', 'operator', self::NO_PASSWORD],
        ['ERR Client sent AUTH', 'operator', self::NO_PASSWORD],
        ['NOPERM ', 'operator', self::PERMISSION],
        ['DENIED ', 'operator', self::PROTECTED],
        ['ERR unknown command', 'operator', self::MODULE],
        ['WRONGTYPE ', 'operator', self::TYPE],
        ['CROSSSLOT ', 'operator', self::TAG],
        ['NOPOLICY ', 'operator', 'set it, by RL.POLICYSET'],
        ['MOVED ', 'operator', self::CLUSTER],
        ['ASK ', 'operator', self::CLUSTER],
        ['ERR This instance has cluster support disabled', 'operator', self::NO_CLUSTER],
        ['ERR DB index is out of range', 'operator', self::DATABASE],
        ['ERR invalid DB index', 'operator', self::DATABASE],
        ['ERR SELECT is not allowed in cluster mode', 'operator', self::DATABASE],
        ['ERR this server keeps policies only if', 'operator', ''],
        ['ERR the policy was set by a later version', 'operator', 'update the module of this server'],
        ['ERR the policy already has the highest', 'operator', ''],
        ['OOM ', 'full', 'give the server more memory, by maxmemory'],
        ['ERR the key has ', 'full', ''],
        ['ERR there are ', 'full', ''],
    ];

    /**
     * Returns the cause of an error reply, and a remedy. Unknown replies that begin with ERR are the module's errors
     * about malformed calls.
     *
     * @return array{string, string}
     */
    public static function causeOf(string $reply): array
    {
        foreach (self::TABLE as [$begins, $kind, $remedy]) {
            if (str_starts_with($reply, $begins)) {
                return [$kind, $remedy];
            }
        }

        return [str_starts_with($reply, 'ERR ') ? 'caller' : 'operator', ''];
    }

    /** Returns true if a text is an error reply of the server, and not an error of a client library. */
    public static function isReply(string $text): bool
    {
        return 1 === preg_match('/^[A-Z]{2,} /', $text);
    }

    /** Returns an error reply as an exception of this package, with its remedy. */
    public static function explained(string $reply): RateLimitException
    {
        [$kind, $remedy] = self::causeOf($reply);
        // The reply to an unknown command repeats the entire command, which does not help.
        $text = self::MODULE === $remedy ? '' : rtrim(preg_replace('/^ERR /', '', $reply), '.');
        $why = implode(': ', array_filter([$text, $remedy], static fn (string $part) => '' !== $part));

        return match ($kind) {
            'outage' => new UnavailableException($why),
            'full' => new FullException($why),
            'operator' => str_starts_with($reply, 'NOPOLICY ') ? new NoPolicyException($why) : new SetupException($why),
            default => new CallException($why),
        };
    }

    /** Returns true if a call was rejected for lack of room, and may pass without an idempotency key. */
    public static function mayPassWithoutId(string $reply): bool
    {
        return str_starts_with($reply, 'OOM ')
            || (str_starts_with($reply, 'ERR the key has ') && str_contains($reply, ' entries, as many as ratelimit.max-ids '));
    }
}
