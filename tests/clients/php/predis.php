<?php
// predis, as docs/clients.md shows it; tests/support/libraries.py describes the questions.

require __DIR__ . '/serve.php';
require 'Predis/Autoloader.php';
Predis\Autoloader::register();

$mode = $argv[1];
$port = (int) $argv[2];

/** Throws an error reply, which executeRaw returns as an object. */
function replyOrError($reply)
{
    if ($reply instanceof Predis\Response\ErrorInterface) {
        throw new Exception($reply->getMessage());
    }
    return $reply;
}

if ($mode === 'server') {
    // [one server]
    $redis = new Predis\Client(['host' => '127.0.0.1', 'port' => $port]);
    [$allowed, $limit, $remaining, $waitMs, $resetMs] = $redis->executeRaw(['RL.FIXED', 'user:42', 100, '1m']);
    // [end]
    serve([
        'first' => fn () => [$allowed, $limit, $remaining, $waitMs, $resetMs],
        'call' => fn (...$words) => replyOrError($redis->executeRaw($words)),
    ]);
} else {
    // [cluster]
    $cluster = new Predis\Client(["tcp://127.0.0.1:$port"], ['cluster' => 'redis']);
    // [end]
    $plain = new Predis\Client(["tcp://127.0.0.1:$port"], ['cluster' => 'redis']);
    // [cluster]
    // Where the slots are. Without it, the first call is redirected, and a pipeline fails.
    $cluster->getConnection()->askSlotsMap();
    // It does not know the module's commands, so the code names their keys.
    $strategy = $cluster->getConnection()->getClusterStrategy();
    $strategy->setCommandHandler('RL.FIXED', fn ($command) => $command->getArgument(0));
    $strategy->setCommandHandler('RL.MTAKE', fn ($command) => $command->getArgument(1));
    // [end]
    $one = function ($key) use ($cluster) {
        return replyOrError($cluster->executeRaw(['RL.FIXED', $key, 100, '1m']));
    };
    $several = function ($tag) use ($cluster) {
        // [cluster]
        $keys = ["{{$tag}}:minute", "{{$tag}}:day"];
        $words = [2, ...$keys, 'FIXED', 100, '1m', 'FIXED', 5000, '1d'];
        $reply = $cluster->executeRaw(['RL.MTAKE', ...$words]);
        // [end]
        return replyOrError($reply);
    };
    $pipeline = function (...$keys) use ($cluster) {
        // [cluster]
        $replies = $cluster->pipeline(function ($pipeline) use ($keys) {
            foreach ($keys as $key) {
                $pipeline->executeCommand(Predis\Command\RawCommand::create('RL.FIXED', $key, 100, '1m'));
            }
        });
        // [end]
        return array_map('replyOrError', $replies);
    };
    serve([
        'plain' => fn (...$words) => replyOrError($plain->executeRaw($words)),
        'one' => $one,
        'several' => $several,
        'pipeline' => $pipeline,
    ]);
}
