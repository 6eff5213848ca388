<?php

declare(strict_types=1);

use Illuminate\Pipeline\Pipeline;
use PHPUnit\Framework\TestCase;
use RedisRatelimit\Limiter;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\MessageBus;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;
use Symfony\Component\Messenger\Middleware\MiddlewareInterface;
use Symfony\Component\Messenger\Middleware\StackInterface;
use Symfony\Component\Messenger\Stamp\DelayStamp;

/** Job and message of the README, as they stand there. */
final class JobsTest extends TestCase
{
    private static Server $server;

    public static function setUpBeforeClass(): void
    {
        self::$server = new Server();
        $readme = file_get_contents(\dirname(__DIR__).'/README.md');
        foreach (['Messages', 'Jobs'] as $section) {
            preg_match("/### {$section}\n.*?```php\n(.*?)```/s", $readme, $code);
            eval($code[1]);
        }
    }

    public function testDeniedMessageIsDelayed(): void
    {
        $later = new class implements MiddlewareInterface {
            /** @var list<int> */
            public array $delays = [];

            public function handle(Envelope $envelope, StackInterface $stack): Envelope
            {
                if (null === $delay = $envelope->last(DelayStamp::class)) {
                    return $stack->next()->handle($envelope, $stack);
                }
                $this->delays[] = $delay->getDelay();

                return $envelope;
            }
        };
        $mailer = new Mailer();
        $bus = new MessageBus((function () use ($later, $mailer, &$bus) {
            yield $later;
            $handler = new SendMailHandler(new Limiter(self::$server->client()), $bus, $mailer);
            yield new HandleMessageMiddleware(new HandlersLocator([SendMail::class => [$handler]]));
        })());
        for ($call = 0; $call < 11; ++$call) {
            $bus->dispatch(new SendMail('ann'));
        }
        self::assertSame(array_fill(0, 10, 'ann'), $mailer->delivered);
        self::assertCount(1, $later->delays);
        self::assertGreaterThan(0, $later->delays[0]);
    }

    public function testDeniedJobIsReleased(): void
    {
        $job = new class('bob') {
            /** @var list<int> */
            public array $released = [];

            public function __construct(public readonly string $account)
            {
            }

            public function release(int $delay): void
            {
                $this->released[] = $delay;
            }
        };
        $middleware = new MailsPerAccount(new Limiter(self::$server->client()));
        $done = 0;
        for ($call = 0; $call < 11; ++$call) {
            (new Pipeline())->send($job)->through([$middleware])->then(static function () use (&$done): void {
                ++$done;
            });
        }
        self::assertSame(10, $done);
        self::assertCount(1, $job->released);
        self::assertGreaterThan(0, $job->released[0]);
    }
}

final class SendMail
{
    public function __construct(public readonly string $account)
    {
    }
}

final class Mailer
{
    /** @var list<string> */
    public array $delivered = [];

    public function deliver(string $account): void
    {
        $this->delivered[] = $account;
    }
}
