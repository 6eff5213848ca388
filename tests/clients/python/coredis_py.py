"""coredis, as docs/clients.md shows it; tests/support/libraries.py describes the questions."""

import asyncio
import sys

from serve import serve_async

mode, port = sys.argv[1], int(sys.argv[2])


async def server() -> None:
    # [one server]
    from coredis import Redis

    async with Redis(port=port) as redis:
        allowed, limit, remaining, wait_ms, reset_ms = await redis.create_request(
            b"RL.FIXED", "user:42", 100, "1m", callback=list
        )
        # [end]

        async def first() -> object:
            return [allowed, limit, remaining, wait_ms, reset_ms]

        async def call(name: str, *words: str) -> object:
            return await redis.create_request(name.encode(), *words, callback=list)

        await serve_async({"first": first, "call": call})


async def server_never_twice() -> None:
    from coredis import Redis

    # isort: split
    # [never twice]
    from coredis.retry import NoRetryPolicy

    redis = Redis(port=port, retry_policy=NoRetryPolicy())
    # [end]
    async with redis:

        async def call(name: str, *words: str) -> object:
            return await redis.create_request(name.encode(), *words, callback=list)

        await serve_async({"call": call})


async def cluster(**options: object) -> None:
    # [cluster]
    from coredis import RedisCluster
    from coredis.typing import Key

    # [end]
    async with RedisCluster("127.0.0.1", port, **options) as cluster:

        async def plain(name: str, *words: str) -> object:
            return await cluster.create_request(name.encode(), *words, callback=list)

        async def one(key: str) -> object:
            # [cluster]
            reply = await cluster.create_request(b"RL.FIXED", Key(key), 100, "1m", callback=list)
            # [end]
            return reply

        async def several(tag: str) -> object:
            # [cluster]
            keys = [Key(f"{{{tag}}}:minute"), Key(f"{{{tag}}}:day")]
            words = ["FIXED", 100, "1m", "FIXED", 5000, "1d"]
            reply = await cluster.create_request(b"RL.MTAKE", 2, *keys, *words, callback=list)
            # [end]
            return reply

        async def pipeline(*keys: str) -> object:
            async with cluster.pipeline() as pipe:
                for key in keys:
                    pipe.create_request(b"RL.FIXED", Key(key), 100, "1m", callback=list)
            return pipe.results

        await serve_async({"plain": plain, "one": one, "several": several, "pipeline": pipeline})


async def replicas() -> None:
    from coredis import RedisCluster
    from coredis.typing import Key

    # isort: split
    # [replicas]
    from coredis.globals import READONLY_COMMANDS

    READONLY_COMMANDS.add(b"RL.PEEK")
    cluster = RedisCluster("127.0.0.1", port, read_from_replicas=True)
    # [end]
    async with cluster:

        async def peek(key: str) -> object:
            # [replicas]
            reply = await cluster.create_request(
                b"RL.PEEK", Key(key), "FIXED", 100, "1m", callback=list
            )
            # [end]
            return reply

        await serve_async({"peek": peek})


if mode == "server":
    asyncio.run(server())
elif mode == "server-no-resends":
    asyncio.run(server_never_twice())
elif mode == "replicas":
    asyncio.run(replicas())
elif mode == "cluster":
    asyncio.run(cluster())
else:
    from coredis.retry import NoRetryPolicy

    asyncio.run(cluster(retry_policy=NoRetryPolicy()))
