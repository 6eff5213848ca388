"""redis-py, as docs/clients.md shows it; tests/support/libraries.py describes the questions."""

import sys

from serve import serve

mode, port = sys.argv[1], int(sys.argv[2])

if mode == "server":
    # [one server]
    from redis import Redis

    redis = Redis(port=port)
    allowed, limit, remaining, wait_ms, reset_ms = redis.execute_command(
        "RL.FIXED", "user:42", 100, "1m"
    )
    # [end]
    serve({
        "first": lambda: [allowed, limit, remaining, wait_ms, reset_ms],
        "call": redis.execute_command,
    })  # fmt: skip

elif mode == "server-no-resends":
    from redis import Redis

    # isort: split
    # [never twice]
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    redis = Redis(port=port, retry=Retry(NoBackoff(), 0))
    # [end]
    serve({"call": redis.execute_command})

elif mode in ("cluster", "cluster-no-resends"):
    # [cluster]
    from redis import RedisCluster

    cluster = RedisCluster(host="127.0.0.1", port=port)
    # [end]

    if mode == "cluster-no-resends":
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        cluster = RedisCluster(host="127.0.0.1", port=port, retry=Retry(NoBackoff(), 0))

    def one(key: str) -> object:
        return cluster.execute_command("RL.FIXED", key, 100, "1m")

    def several(tag: str) -> object:
        # [cluster]
        keys = [f"{{{tag}}}:minute", f"{{{tag}}}:day"]
        reply = cluster.execute_command(
            *("RL.MTAKE", 2, *keys, "FIXED", 100, "1m", "FIXED", 5000, "1d"),
            target_nodes=cluster.get_node_from_key(keys[0]),
        )
        # [end]
        return reply

    def pipeline(*keys: str) -> object:
        with cluster.pipeline() as pipe:
            for key in keys:
                pipe.execute_command("RL.FIXED", key, 100, "1m")
            return pipe.execute()

    serve({
        "plain": cluster.execute_command,
        "one": one,
        "several": several,
        "pipeline": pipeline,
    })  # fmt: skip

elif mode == "replicas":
    from redis import RedisCluster

    # isort: split
    # [replicas]
    from redis.cluster import LoadBalancingStrategy

    cluster = RedisCluster(
        host="127.0.0.1", port=port, load_balancing_strategy=LoadBalancingStrategy.ROUND_ROBIN
    )
    # [end]

    def peek(key: str) -> object:
        # [replicas]
        reply = cluster.execute_command(
            *("RL.PEEK", key, "FIXED", 100, "1m"),
            target_nodes=cluster.get_node_from_key(key, replica=True),
        )
        # [end]
        return reply

    serve({"peek": peek})
