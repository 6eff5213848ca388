<?php

declare(strict_types=1);

namespace RedisRatelimit;

/**
 * What the server says to a call. Times are in seconds; a `wait` of null: never. While nobody can decide, `limit`,
 * `remaining` and `reset` are null, and `error` says why.
 */
final class Decision
{
    public function __construct(
        public readonly bool $allowed,
        public readonly ?int $limit,
        public readonly ?int $remaining,
        public readonly ?float $wait,
        public readonly ?float $reset,
        public readonly ?string $id = null,
        public readonly ?RateLimitException $error = null,
    ) {
    }

    /** @param list<int> $reply */
    public static function read(array $reply, ?string $id = null): self
    {
        [$allowed, $limit, $remaining, $wait, $reset] = $reply;

        return new self(1 === $allowed, $limit, $remaining, $wait < 0 ? null : $wait / 1000, $reset / 1000, $id);
    }

    /** The server did not decide. */
    public function isDegraded(): bool
    {
        return null !== $this->error;
    }

    /**
     * For HTTP: X-RateLimit-*, and Retry-After of a denial.
     *
     * @return array<string, string>
     */
    public function headers(): array
    {
        $told = [];
        if (null !== $this->limit) {
            $told['X-RateLimit-Limit'] = (string) $this->limit;
            $told['X-RateLimit-Remaining'] = (string) $this->remaining;
            $told['X-RateLimit-Reset'] = (string) (int) ceil($this->reset);
        }
        if (!$this->allowed && null !== $this->wait) {
            $told['Retry-After'] = (string) (int) ceil($this->wait);
        }

        return $told;
    }
}
