<?php

declare(strict_types=1);

namespace RedisRatelimit;

/**
 * Decision of the server on a call. Times are in seconds; a `wait` of null means never. Without a decision, `limit`,
 * `remaining` and `reset` are null, and `error` is the reason.
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

    /** Returns true if the server did not decide. */
    public function isDegraded(): bool
    {
        return null !== $this->error;
    }

    /**
     * Returns the HTTP header fields: X-RateLimit-*, and Retry-After for a denial.
     *
     * @return array<string, string>
     */
    public function headers(): array
    {
        $headers = [];
        if (null !== $this->limit) {
            $headers['X-RateLimit-Limit'] = (string) $this->limit;
            $headers['X-RateLimit-Remaining'] = (string) $this->remaining;
            $headers['X-RateLimit-Reset'] = (string) (int) ceil($this->reset);
        }
        if (!$this->allowed && null !== $this->wait) {
            $headers['Retry-After'] = (string) (int) ceil($this->wait);
        }

        return $headers;
    }
}
