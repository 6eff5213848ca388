<?php

declare(strict_types=1);

namespace RedisRatelimit;

/**
 * What an error reply of the server means: whose it is to mend, and what to do. The packages for other languages have
 * this table too, and `clients/replies.json` holds all of them to it.
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

    /** The first row that the reply begins with rules. */
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
     * Its kind, and what to do. What is unknown is the module's word on a call, or a code that nobody told us of.
     *
     * @return array{string, string}
     */
    public static function kindOf(string $reply): array
    {
        foreach (self::TABLE as [$begins, $kind, $remedy]) {
            if (str_starts_with($reply, $begins)) {
                return [$kind, $remedy];
            }
        }

        return [str_starts_with($reply, 'ERR ') ? 'caller' : 'operator', ''];
    }

    /** Whether a text is one of the server's, and not of what a client library says of a connection. */
    public static function isReply(string $text): bool
    {
        return 1 === preg_match('/^[A-Z]{2,} /', $text);
    }

    /** In the words of whoever has to do something about it. */
    public static function explained(string $reply): RateLimitException
    {
        [$kind, $remedy] = self::kindOf($reply);
        // What was sent is in the reply to an unknown command, and is of no help.
        $said = self::MODULE === $remedy ? '' : rtrim(preg_replace('/^ERR /', '', $reply), '.');
        $why = implode(': ', array_filter([$said, $remedy], static fn (string $part) => '' !== $part));

        return match ($kind) {
            'outage' => new UnavailableException($why),
            'full' => new FullException($why),
            'operator' => str_starts_with($reply, 'NOPOLICY ') ? new NoPolicyException($why) : new SetupException($why),
            default => new CallException($why),
        };
    }

    /** Whether a call that there is no room for may be in order but for its idempotency key. */
    public static function mayPassWithoutId(string $reply): bool
    {
        return str_starts_with($reply, 'OOM ')
            || (str_starts_with($reply, 'ERR the key has ') && str_contains($reply, ' entries, as many as ratelimit.max-ids '));
    }
}
