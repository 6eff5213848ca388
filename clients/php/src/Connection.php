<?php

declare(strict_types=1);

namespace RedisRatelimit;

/** A client of phpredis or Predis, for one server; or a RedisCluster of phpredis; or the memory of this process. */
final class Connection
{
    public function __construct(private readonly \Redis|\RedisCluster|\Predis\ClientInterface|Memory $client)
    {
    }

    /** Seconds since 1970, as whatever decides has them. */
    public function now(): float
    {
        return $this->client instanceof Memory ? $this->client->now() : microtime(true);
    }

    /**
     * The reply. The key is the first argument.
     *
     * @param list<string> $words
     *
     * @throws RateLimitException what the server says in place of one, or that it said nothing
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
            // phpredis throws some of the server's errors, and all of the connection's.
            $said = $thrown->getMessage();
            if (!Replies::isReply($said)) {
                throw new UnavailableException($said, 0, $thrown);
            }
            [$reply, $error] = [null, $said];
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
        // A cluster's client is told the key that decides the node.
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
