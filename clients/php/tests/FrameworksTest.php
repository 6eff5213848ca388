<?php

declare(strict_types=1);

use PHPUnit\Framework\TestCase;
use RedisRatelimit\Laravel\RateLimiter;
use RedisRatelimit\Limit;
use RedisRatelimit\Limiter;
use RedisRatelimit\Symfony\LimiterFactory;
use Symfony\Component\RateLimiter\Exception\MaxWaitDurationExceededException;
use Symfony\Component\RateLimiter\Exception\RateLimitExceededException;
use Symfony\Component\RateLimiter\Exception\ReserveNotSupportedException;

final class FrameworksTest extends TestCase
{
    private static Server $server;

    private Redis $redis;

    public static function setUpBeforeClass(): void
    {
        self::$server = new Server();
    }

    protected function setUp(): void
    {
        $this->redis = self::$server->client();
        $this->redis->flushAll();
    }

    public function testSymfonyLimiter(): void
    {
        $factory = new LimiterFactory('api', new Limiter($this->redis), Limit::sliding(3, '1h'));
        $limiter = $factory->create('10.0.0.1');
        self::assertSame(3, $limiter->consume(0)->getRemainingTokens());
        foreach ([2, 1, 0] as $remaining) {
            $limit = $limiter->consume()->ensureAccepted();
            self::assertSame([$remaining, 3], [$limit->getRemainingTokens(), $limit->getLimit()]);
        }
        $denied = $limiter->consume();
        self::assertFalse($denied->isAccepted());
        self::assertGreaterThan(time(), $denied->getRetryAfter()->getTimestamp());
        self::assertTrue($factory->create('10.0.0.2')->consume(3)->isAccepted());
        self::assertFalse($factory->create('10.0.0.3')->consume(4)->isAccepted());
        $limiter->reset();
        self::assertTrue($limiter->consume()->isAccepted());
        $this->expectException(ReserveNotSupportedException::class);
        $limiter->reserve();
    }

    public function testSymfonyLimiterWithASketch(): void
    {
        $factory = new LimiterFactory('api', new Limiter($this->redis), Limit::sketch(2.5, 2, '1h', 'addresses'));
        foreach (['10.0.0.1', '10.0.0.2'] as $address) {
            $limiter = $factory->create($address);
            foreach ([true, true, false] as $accepted) {
                self::assertSame($accepted, $limiter->consume()->isAccepted());
            }
        }
        self::assertSame(['addresses'], $this->redis->keys('*'));
        $this->expectException(InvalidArgumentException::class);
        $limiter->reset();
    }

    public function testSymfonyReservations(): void
    {
        $factory = new LimiterFactory('mails', new Limiter($this->redis), Limit::tokenBucket(2, 1, '1h'));
        $limiter = $factory->create();
        self::assertSame(0.0, $limiter->reserve(2)->getWaitDuration());
        self::assertEqualsWithDelta(3600, $limiter->reserve()->getWaitDuration(), 60);
        // A promised reservation is charged.
        self::assertEqualsWithDelta(7200, $limiter->reserve()->getWaitDuration(), 60);
        try {
            $limiter->reserve(1, 3600);
            self::fail('it is longer than may be waited');
        } catch (MaxWaitDurationExceededException $error) {
            self::assertFalse($error->getRateLimit()->isAccepted());
        }
        $this->expectException(RateLimitExceededException::class);
        $limiter->consume()->ensureAccepted();
    }

    public function testMoreTokensThanTheLimitAreNeverAvailable(): void
    {
        $factory = new LimiterFactory('mails', new Limiter($this->redis), Limit::tokenBucket(2, 1, '1h'));
        $this->expectException(InvalidArgumentException::class);
        $factory->create()->reserve(3);
    }

    public function testLaravelLimiter(): void
    {
        $limiter = new RateLimiter(new Limiter($this->redis));
        self::assertSame([0, 0], [$limiter->attempts('ann'), $limiter->availableIn('ann')]);
        self::assertSame([1, 2], [$limiter->hit('ann', 3600), $limiter->hit('ann', 3600)]);
        self::assertSame([2, 1], [$limiter->attempts('ann'), $limiter->remaining('ann', 3)]);
        self::assertSame([false, true], [$limiter->tooManyAttempts('ann', 3), $limiter->tooManyAttempts('ann', 2)]);
        self::assertEqualsWithDelta(3600, $limiter->availableIn('ann'), 60);
        self::assertSame(['ann'], $this->redis->keys('*'));
        $limiter->clear('ann');
        self::assertSame(0, $limiter->attempts('ann'));
    }

    public function testLaravelAttempts(): void
    {
        $limiter = new RateLimiter(new Limiter($this->redis));
        $attempt = fn () => $limiter->attempt('mail', 2, fn () => 'sent', 3600);
        self::assertSame(['sent', 'sent', false], [$attempt(), $attempt(), $attempt()]);
        $limiter->clear('mail');
        try {
            $limiter->attempt('mail', 2, fn () => throw new LogicException('broken'), 3600);
            self::fail('the error of the callback is passed on');
        } catch (LogicException) {
            self::assertSame(0, $limiter->attempts('mail'));
        }
    }

    public function testFallbackInAnOutage(): void
    {
        $server = new Server();
        $open = new RateLimiter(new Limiter($server->client(1)));
        $closed = new RateLimiter(new Limiter($server->client(1), 'closed'));
        $symfony = new LimiterFactory('api', new Limiter($server->client(1)), Limit::fixed(3, '1h'));
        $server->stop();
        self::assertFalse($open->tooManyAttempts('ann', 3));
        self::assertTrue($closed->tooManyAttempts('ann', 3));
        self::assertTrue($symfony->create('ann')->consume()->isAccepted());
    }
}
