<?php

declare(strict_types=1);

use Illuminate\Cache\RateLimiter as Base;
use PHPUnit\Framework\TestCase;
use RedisRatelimit\CallException;
use RedisRatelimit\Laravel\RateLimiter;
use RedisRatelimit\Limit;
use RedisRatelimit\Limiter;
use RedisRatelimit\ManualClock;
use RedisRatelimit\Memory;
use RedisRatelimit\Memory\RefusedException;
use RedisRatelimit\Memory\Whole;
use RedisRatelimit\SetupException;

/** Limiter without a server, whose decisions must match `clients/traces.json`, recorded from a server. */
final class MemoryTest extends TestCase
{
    private ManualClock $clock;
    private Limiter $limiter;

    protected function setUp(): void
    {
        $this->clock = new ManualClock(new DateTimeImmutable('2024-02-29T12:00:00Z'));
        $this->limiter = Limiter::local($this->clock);
        ini_set('error_log', '/dev/null');
    }

    public static function traces(): iterable
    {
        $file = json_decode(file_get_contents(__DIR__.'/../../traces.json'), true);
        foreach ($file['traces'] as $name => $steps) {
            yield $name => [$file['start'], $steps];
        }
    }

    /** @dataProvider traces */
    public function testMemoryRepliesLikeTheServer(int $now, array $steps): void
    {
        $memory = new Memory(static function () use (&$now): int {
            return $now;
        });
        foreach ($steps as $place => [$advance, $call, $reply]) {
            $now += $advance;
            try {
                $replied = $memory->call(explode(' ', $call));
            } catch (RefusedException $error) {
                $replied = explode(' ', $error->getMessage())[0];
            }
            self::assertSame($reply, $replied, "call {$place}: {$call}");
        }
    }

    public function testProductsOf126BitsAreDividedExactly(): void
    {
        $most = \PHP_INT_MAX;
        self::assertSame($most, Whole::share($most, $most, $most));
        self::assertSame($most, Whole::share($most, $most, 1));
        self::assertSame([$most - 2, $most - 1], [Whole::share($most - 1, $most - 1, $most), Whole::shareUp($most - 1, $most - 1, $most)]);
        // 10^18 * 315360000000000 / 999999999999999999.999999, computed with Python.
        self::assertSame(315360000000000, Whole::share(10 ** 18, 315360000000000, 999999999999999999));
        self::assertSame(315360000000001, Whole::shareUp(10 ** 18, 315360000000000, 999999999999999999));
        self::assertTrue(Whole::isLess($most - 1, $most, $most, $most));
        self::assertFalse(Whole::isLess(10 ** 18, 3, 10 ** 18, 3));
    }

    public static function limits(): array
    {
        return [
            'token bucket' => [Limit::tokenBucket(2, 1, '1m')],
            'fixed window' => [Limit::fixed(2, '1m')],
            'sliding window' => [Limit::sliding(2, '1m')],
            'strict window' => [Limit::sliding(2, '1m', true)],
            'sliding log' => [Limit::slidingLog(2, '1m')],
            'rate' => [Limit::rate('2/minute')],
        ];
    }

    /** @dataProvider limits */
    public function testDeniedCallPassesAfterItsWait(Limit $limit): void
    {
        foreach ([true, true, false] as $allowed) {
            self::assertSame($allowed, $this->limiter->take('k', $limit)->allowed);
        }
        $this->clock->advance($this->limiter->take('k', $limit)->wait - 0.001);
        self::assertFalse($this->limiter->take('k', $limit)->allowed);
        $this->clock->advance(0.001);
        self::assertTrue($this->limiter->take('k', $limit)->allowed);
        self::assertTrue($this->limiter->take('other', $limit)->allowed);
    }

    public function testLeakyBucketDelaysCalls(): void
    {
        foreach ([0.0, 2.0, 4.0, 2.0] as $wait) {
            self::assertSame($wait, $this->limiter->take('k', Limit::leakyBucket(3, 1, '2s'))->wait);
        }
    }

    public function testAllLimitsAreChargedOrNone(): void
    {
        [$second, $day] = [Limit::tokenBucket(2, 2, '1s'), Limit::fixed(3, '1d')];
        self::assertTrue($this->limiter->take('k', [$second, $day], 2)->allowed);
        self::assertFalse($this->limiter->take('k', [$second, $day])->allowed);
        self::assertSame(1, $this->limiter->peek('k', $day)->remaining);
    }

    public function testChargeCountsOnceAndIsSettled(): void
    {
        $limit = Limit::tokenBucket(100, 100, '1m');
        for ($times = 0; $times < 2; ++$times) {
            self::assertSame(60, $this->limiter->take('k', $limit, 40, 'a')->remaining);
        }
        self::assertSame(90, $this->limiter->settle('k', $limit, 'a', 10)->remaining);
        self::assertFalse($this->limiter->settle('k', $limit, 'nobody', 10)->allowed);
        self::assertSame(6.0, $this->limiter->take('k', $limit, 100, maxWait: '10s')->wait);
        self::assertFalse($this->limiter->take('k', $limit, force: true)->allowed);
        self::assertTrue($this->limiter->reset('k'));
        self::assertFalse($this->limiter->reset('k'));
    }

    public function testServerOnlyFeaturesAreRejected(): void
    {
        foreach ([Limit::policy('plan'), Limit::sketch(5, 5, '1m', key: 'addresses')] as $limit) {
            try {
                $this->limiter->take('k', $limit);
                self::fail();
            } catch (CallException $error) {
                self::assertStringContainsString('need a server', $error->getMessage());
            }
        }
    }

    public function testKeyOfAnotherAlgorithmIsASetupError(): void
    {
        self::assertTrue($this->limiter->take('k', Limit::fixed(1000, '1m'))->allowed);
        $this->expectException(SetupException::class);
        $this->limiter->take('k', Limit::slidingLog(1000, '1m'));
    }

    public function testExpiredKeysAreRemoved(): void
    {
        for ($number = 0; $number < 3000; ++$number) {
            $this->limiter->take("k{$number}", Limit::fixed(1000, '1s'));
            $this->clock->advance(0.01);
        }
        $connection = (new ReflectionProperty($this->limiter, 'connection'))->getValue($this->limiter);
        $memory = (new ReflectionProperty($connection, 'client'))->getValue($connection);
        self::assertLessThan(2000, \count((new ReflectionProperty($memory, 'keys'))->getValue($memory)));
    }

    public function testLaravelLimiterNeedsNoServer(): void
    {
        $laravel = new RateLimiter($this->limiter);
        self::assertInstanceOf(Base::class, $laravel);
        $attempt = static fn (): mixed => $laravel->attempt('login', 2, static fn () => 'in', 60);
        self::assertSame(['in', 'in', false], [$attempt(), $attempt(), $attempt()]);
        self::assertSame(2, $laravel->attempts('login'));
        self::assertTrue($laravel->tooManyAttempts('login', 2));
        self::assertSame(60, $laravel->availableIn('login'));
        $this->clock->advance(60);
        self::assertSame([0, 'in'], [$laravel->attempts('login'), $attempt()]);
    }
}
