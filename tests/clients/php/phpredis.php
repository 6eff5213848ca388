<?php
// phpredis, as docs/clients.md shows it; tests/support/libraries.py describes the questions.

require __DIR__ . '/serve.php';

$mode = $argv[1];
$port = (int) $argv[2];

/** Throws the error of a call, for which rawCommand returned false. */
function replyOrError($client, $reply)
{
    if ($reply === false) {
        throw new Exception($client->getLastError() ?? 'no reply');
    }
    return $reply;
}

if ($mode === 'server') {
    // [one server]
    $redis = new Redis();
    // Two seconds to connect and two to read: see below.
    $redis->connect('127.0.0.1', $port, 2, null, 0, 2);
    [$allowed, $limit, $remaining, $waitMs, $resetMs] = $redis->rawCommand('RL.FIXED', 'user:42', 100, '1m');
    // [end]
    serve([
        'first' => fn () => [$allowed, $limit, $remaining, $waitMs, $resetMs],
        'call' => fn (...$words) => replyOrError($redis, $redis->rawCommand(...$words)),
    ]);
} elseif ($mode === 'replicas') {
    $cluster = new RedisCluster(null, ["127.0.0.1:$port"]);
    $cluster->setOption(RedisCluster::OPT_SLAVE_FAILOVER, RedisCluster::FAILOVER_DISTRIBUTE_SLAVES);
    serve(['peek' => fn ($key) => replyOrError($cluster, $cluster->rawCommand($key, 'RL.PEEK', $key, 'FIXED', 100, '1m'))]);
} else {
    // [cluster]
    $cluster = new RedisCluster(null, ["127.0.0.1:$port"], 2, 2);
    // [end]
    $one = function ($key) use ($cluster) {
        // [cluster]
        $reply = $cluster->rawCommand($key, 'RL.FIXED', $key, 100, '1m');
        // [end]
        return replyOrError($cluster, $reply);
    };
    $several = function ($tag) use ($cluster) {
        // [cluster]
        $keys = ["{{$tag}}:minute", "{{$tag}}:day"];
        $reply = $cluster->rawCommand($keys[0], 'RL.MTAKE', 2, ...$keys, ...['FIXED', 100, '1m', 'FIXED', 5000, '1d']);
        // [end]
        return replyOrError($cluster, $reply);
    };
    serve(['one' => $one, 'several' => $several]);
}
