<?php

declare(strict_types=1);

namespace RedisRatelimit;

/**
 * Connection by a client of phpredis or Predis for one server, a RedisCluster of phpredis, or the memory of this
 * process.
 */
final class Connection
{
    public function __construct(private readonly \Redis|\RedisCluster|\Predis\ClientInterface|Memory $client)
    {
    }

    /** Returns the seconds since 1970 by the clock that decides. */
    public function now(): float
    {
        return $this->client instanceof Memory ? $this->client->now() : microtime(true);
    }

    /**
     * Sends a command and returns its reply. The key is the first argument.
     *
     * @param list<string> $words
     *
     * @throws RateLimitException for an error reply, or without a reply
     */
    public function call(array $words): mixed
    {
        try {
            [$reply, $error] = match (true) {
                $this->client instanceof Memory => $this->byMemory($words),
                $this->client instanceof \Predis\ClientInterface => $this->byPredis($words),
                default => $this->byPhpredis($words),
            };
        } catch (\RedisException|\RedisClusterException|\Predis\PredisException $thrown) {
            // phpredis throws some error replies, and all errors of the connection.
            $text = $thrown->getMessage();
            if (!Replies::isReply($text)) {
                throw new UnavailableException($text, 0, $thrown);
            }
            [$reply, $error] = [null, $text];
        }
        if (null !== $error) {
            $why = Replies::explained($error);
            throw new ($why::class)($why->getMessage(), 0, new \RuntimeException($error));
        }

        return $reply;
    }

    /**
     * @param list<string> $words
     *
     * @return array{mixed, ?string}
     */
    private function byMemory(array $words): array
    {
        try {
            return [$this->client->call($words), null];
        } catch (Memory\RefusedException $error) {
            return [null, $error->getMessage()];
        }
    }

    /**
     * @param list<string> $words
     *
     * @return array{mixed, ?string}
     */
    private function byPhpredis(array $words): array
    {
        $this->client->clearLastError();
        // The client of a cluster needs the key that selects the node.
        $reply = $this->client instanceof \RedisCluster
            ? $this->client->rawCommand($words[1], ...$words)
            : $this->client->rawCommand(...$words);

        return [$reply, $this->client->getLastError()];
    }

    /**
     * @param list<string> $words
     *
     * @return array{mixed, ?string}
     */
    private function byPredis(array $words): array
    {
        $failed = false;
        $reply = $this->client->executeRaw($words, $failed);

        return $failed ? [null, (string) $reply] : [$reply, null];
    }
}
