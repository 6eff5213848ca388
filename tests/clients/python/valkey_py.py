"""valkey-py, as docs/clients.md shows it; tests/support/libraries.py describes the questions."""

import sys

from serve import serve

mode, port = sys.argv[1], int(sys.argv[2])

if mode == "server":
    # [one server]
    from valkey import Valkey

    valkey = Valkey(port=port)
    allowed, limit, remaining, wait_ms, reset_ms = valkey.execute_command(
        "RL.FIXED", "user:42", 100, "1m"
    )
    # [end]
    serve({
        "first": lambda: [allowed, limit, remaining, wait_ms, reset_ms],
        "call": valkey.execute_command,
    })  # fmt: skip

elif mode in ("cluster", "cluster-no-resends"):
    # [cluster]
    from valkey import ValkeyCluster

    cluster = ValkeyCluster(host="127.0.0.1", port=port)
    # [end]

    if mode == "cluster-no-resends":
        # [never twice]
        cluster = ValkeyCluster(host="127.0.0.1", port=port, cluster_error_retry_attempts=0)
        # [end]

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
    from valkey import ValkeyCluster

    # [replicas]
    cluster = ValkeyCluster(host="127.0.0.1", port=port, read_from_replicas=True)
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
