<?php

declare(strict_types=1);

use PHPUnit\Framework\TestCase;
use RedisRatelimit\CallException;
use RedisRatelimit\Limit;
use RedisRatelimit\Limiter;
use RedisRatelimit\NoPolicyException;
use RedisRatelimit\Replies;
use RedisRatelimit\SetupException;
use RedisRatelimit\UnavailableException;

final class LimiterTest extends TestCase
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
        ini_set('error_log', '/dev/null');
    }

    public function testLimitAllowsExactlyItsUnits(): void
    {
        $limiter = new Limiter($this->redis, prefix: 'app:');
        $limiter->check();
        $three = Limit::fixed(3, '1h');
        foreach ([2, 1, 0] as $remaining) {
            self::assertSame($remaining, $limiter->take('user:42', $three)->remaining);
        }
        $denied = $limiter->take('user:42', $three);
        self::assertFalse($denied->allowed);
        self::assertEqualsWithDelta(3600, $denied->wait, 60);
        self::assertSame('0', $denied->headers()['X-RateLimit-Remaining']);
        self::assertSame(0, $limiter->peek('user:42', $three)->remaining);
        self::assertSame(['app:user:42'], $this->redis->keys('*'));
        $limiter->take('other', Limit::fixed(3, '1h')->named('calls'), 2);
        [$used, $seconds] = $limiter->usage('other');
        self::assertSame(2, $used);
        self::assertEqualsWithDelta(3600, $seconds, 60);
        self::assertSame([0, 0.0], $limiter->usage('nobody'));
        self::assertSame([true, false], [$limiter->reset('user:42'), $limiter->reset('user:42')]);
    }

    public function testRateIsParsedToALimit(): void
    {
        $limiter = new Limiter($this->redis);
        self::assertTrue($limiter->take('user:42', '1/hour')->allowed);
        self::assertFalse($limiter->take('user:42', ['1/hour', Limit::fixed(9, '1d')])->allowed);
        foreach (['1 hour', [null], [['1/hour']], [100]] as $wrong) {
            try {
                $limiter->take('user:42', $wrong);
                self::fail();
            } catch (InvalidArgumentException $error) {
                self::assertStringContainsString('100/minute', $error->getMessage());
            }
        }
    }

    public function testRefundableChargeHasAnIdAtAnyCost(): void
    {
        $limiter = new Limiter($this->redis);
        $large = Limit::fixed(1000, '1h');
        self::assertNull($limiter->take('user:42', $large)->id);
        $decision = $limiter->take('user:42', $large, refundable: true);
        self::assertSame(998, $decision->remaining);
        self::assertSame(999, $limiter->settle('user:42', $large, $decision->id, 0)->remaining);
        $this->expectExceptionMessage('refundable: true');
        $limiter->settle('user:42', $large, null, 0);
    }

    public function testMissingPolicyThrowsNoPolicyException(): void
    {
        $this->expectException(NoPolicyException::class);
        $this->expectExceptionMessage('RL.POLICYSET');
        (new Limiter($this->redis))->take('key', Limit::policy('gold'));
    }

    public function testAllAlgorithmsAndPolicies(): void
    {
        $limiter = new Limiter($this->redis);
        $limits = [
            Limit::tokenBucket(2.5, 0.5, '1h'), Limit::leakyBucket(5, 1, '1h'), Limit::sliding(5, '1h'),
            Limit::sliding(5, '1h', strict: true), Limit::slidingLog(5, '1h'),
        ];
        foreach ($limits as $number => $limit) {
            self::assertTrue($limiter->take("key:{$number}", $limit)->allowed);
        }
        self::assertTrue($limiter->take('several', [Limit::fixed(3, '1h'), Limit::fixed(9, '1d')])->allowed);
        $this->redis->rawCommand('RL.POLICYSET', 'plan', 'FIXED', 1, '1h');
        $plan = Limit::policy('missing', 'plan');
        self::assertSame([true, false], [$limiter->take('k', $plan)->allowed, $limiter->take('k', $plan)->allowed]);
        $this->redis->rawCommand('RL.POLICYSET', 'leased', 'CONCURRENCY', 1, '1h', 'FIXED', 1000, '1h');
        self::assertNotNull($limiter->take('pool', Limit::policy('leased'))->id);
    }

    public function testSketchLimitsEachItemInOneKey(): void
    {
        $limiter = new Limiter($this->redis, prefix: 'app:');
        // Half a unit more, as the first charge of an item may briefly count a millionth too much.
        $addresses = Limit::sketch(3.5, 3, '1h', 'addresses', size: '64kb');
        foreach (['203.0.113.7', '203.0.113.8', "\r\n\0"] as $address) {
            foreach ([[true, 2], [true, 1], [true, 0], [false, 0]] as $expected) {
                $decision = $limiter->take($address, $addresses);
                self::assertSame($expected, [$decision->allowed, $decision->remaining]);
            }
            self::assertSame(0, $limiter->peek($address, $addresses)->remaining);
        }
        self::assertSame(['app:addresses'], $this->redis->keys('*'));
        self::assertContains(65_536, $this->redis->rawCommand('RL.INFO', 'app:addresses'));
        // A large charge has no idempotency key, which a sketch does not support.
        self::assertNull($limiter->take('another', $addresses, 2)->id);
        self::assertTrue($limiter->reset('addresses'));
        self::assertSame(3, $limiter->peek('203.0.113.7', $addresses)->remaining);
    }

    public function testPolicyCanBeASketch(): void
    {
        $limiter = new Limiter($this->redis);
        $this->redis->rawCommand('RL.POLICYSET', 'per-address', 'SKETCH', 2.5, 2, '1h');
        $addresses = Limit::policy('missing', 'per-address')->itemsIn('addresses');
        foreach (['203.0.113.7', '203.0.113.8'] as $address) {
            foreach ([true, true, false] as $allowed) {
                self::assertSame($allowed, $limiter->take($address, $addresses)->allowed);
            }
            self::assertFalse($limiter->peek($address, $addresses)->allowed);
        }
        self::assertTrue($limiter->take('203.0.113.9', $addresses, 2)->allowed);
        self::assertSame(['addresses'], $this->redis->keys('*'));
    }

    public function testUnsupportedOptionsOfASketchAreRejectedBeforeSending(): void
    {
        $limiter = new Limiter($this->redis);
        $sketch = Limit::sketch(3, 3, '1h', 'addresses');
        $hour = Limit::fixed(3, '1h');
        foreach ([$sketch, Limit::policy('per-address')->itemsIn('addresses')] as $limit) {
            $calls = [
                fn () => $limiter->take('item', $limit, once: true),
                fn () => $limiter->take('item', $limit, once: 'id'),
                fn () => $limiter->take('item', $limit, ttl: '1m'),
                fn () => $limiter->take('item', [$hour, $limit]),
                fn () => $limiter->settle('item', $limit, 'id', 1),
                fn () => $limit->named('addresses'),
            ];
            foreach ($calls as $call) {
                self::assertSame(InvalidArgumentException::class, self::thrown($call));
            }
        }
        self::assertSame(InvalidArgumentException::class, self::thrown(fn () => $hour->itemsIn('addresses')));
        self::assertSame([], $this->redis->keys('*'));
    }

    public function testChargeIsSettled(): void
    {
        $limiter = new Limiter($this->redis);
        $tokens = Limit::fixed(10_000, '1h');
        $decision = $limiter->take('llm', $tokens, 4000);
        self::assertSame(8800, $limiter->settle('llm', $tokens, $decision->id, 1200)->remaining);
        self::assertFalse($limiter->settle('llm', $tokens, 'unknown', 1)->allowed);
    }

    public function testIdempotencyKeysMatchTheTable(): void
    {
        $this->redis->rawCommand('RL.POLICYSET', 'plan', 'FIXED', 10, '1h');
        $cases = json_decode(file_get_contents(__DIR__.'/../../events.json'), true)['ids'];
        self::assertGreaterThan(10, \count($cases));
        foreach ($cases as $number => $case) {
            $limit = isset($case['limit']) ? Limit::fixed($case['limit'], '1h') : Limit::policy($case['policy']);
            $limiter = new Limiter($this->redis, once: $case['limiter_once'] ?? true);
            $options = array_intersect_key($case, ['cost' => 0, 'once' => 0, 'ttl' => 0]);
            self::assertSame($case['id'], null !== $limiter->take("key:{$number}", $limit, ...$options)->id, json_encode($case));
        }
    }

    public function testEveryReplyHasTheCauseOfTheTable(): void
    {
        $rows = json_decode(file_get_contents(__DIR__.'/../../replies.json'), true);
        self::assertGreaterThan(30, \count($rows));
        foreach ($rows as $row) {
            self::assertSame($row['kind'], Replies::causeOf($row['reply'])[0], $row['reply']);
            self::assertTrue(Replies::isReply($row['reply']), $row['reply']);
            if (isset($row['passesWithoutId'])) {
                self::assertSame($row['passesWithoutId'], Replies::mayPassWithoutId($row['reply']), $row['reply']);
            }
        }
    }

    public function testMalformedCallsAreErrorsNotOutages(): void
    {
        $limiter = new Limiter($this->redis);
        $hour = Limit::fixed(3, '1h');
        foreach ([-1, \NAN, 1e13] as $cost) {
            self::assertSame(InvalidArgumentException::class, self::thrown(fn () => $limiter->take('key', $hour, $cost)));
        }
        self::assertSame(InvalidArgumentException::class, self::thrown(fn () => $limiter->take('key', [])));
        self::assertSame(TypeError::class, self::thrown(fn () => $limiter->take(null, $hour)));
        self::assertSame(CallException::class, self::thrown(fn () => $limiter->take('key', Limit::fixed(3, 'soon'))));
        $this->redis->set('taken', 'text');
        self::assertSame(SetupException::class, self::thrown(fn () => $limiter->take('taken', $hour)));
        $tolerant = new Limiter($this->redis, setupErrors: 'outage');
        self::assertTrue($tolerant->take('taken', $hour)->isDegraded());
        // The error does not affect other calls.
        self::assertFalse($limiter->take('key', $hour)->isDegraded());
    }

    public function testWrongPasswordIsReported(): void
    {
        $this->redis->rawCommand('ACL', 'SETUSER', 'shop', 'on', '>secret', '~*', '+@all', '-rl.take');
        $this->redis->rawCommand('CONFIG', 'SET', 'requirepass', 'secret');
        try {
            $limiter = new Limiter(self::$server->client());
            $this->expectException(SetupException::class);
            $this->expectExceptionMessage('password');
            $limiter->check();
        } finally {
            $this->redis->rawCommand('CONFIG', 'SET', 'requirepass', '');
        }
    }

    public function testPortOfAStoppedServerIsNotReused(): void
    {
        $server = new Server();
        $server->stop();
        $other = socket_create(\AF_INET, \SOCK_DGRAM, \SOL_UDP);
        self::assertFalse(@socket_bind($other, '127.0.0.1', $server->port));
    }

    public function testOnOutageDecidesInAnOutage(): void
    {
        $server = new Server();
        $limiters = [];
        foreach (['open', 'closed', 'raise'] as $onOutage) {
            $limiters[$onOutage] = new Limiter($server->client(1), $onOutage);
            $limiters[$onOutage]->check();
        }
        $server->stop();
        $hour = Limit::fixed(3, '1h');
        for ($i = 0; $i < 3; ++$i) {
            $open = $limiters['open']->take('key', $hour);
            self::assertSame([true, true, null], [$open->allowed, $open->isDegraded(), $open->limit]);
            $closed = $limiters['closed']->take('key', $hour);
            self::assertSame([false, 1.0], [$closed->allowed, $closed->wait]);
            self::assertSame(UnavailableException::class, self::thrown(fn () => $limiters['raise']->take('key', $hour)));
        }
    }

    private static function thrown(Closure $call): ?string
    {
        try {
            $call();
        } catch (Throwable $error) {
            return $error::class;
        }

        return null;
    }
}
