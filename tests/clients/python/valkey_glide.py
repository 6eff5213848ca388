"""valkey-glide for Python, as docs/clients.md shows it; tests/support/libraries.py describes the
questions.
"""

import asyncio
import sys

import glide
from serve import serve_async

mode, port = sys.argv[1], int(sys.argv[2])


async def main() -> None:
    if mode == "server":
        # [one server]
        from glide import GlideClient, GlideClientConfiguration, NodeAddress

        client = await GlideClient.create(
            GlideClientConfiguration([NodeAddress("127.0.0.1", port)])
        )
        allowed, limit, remaining, wait_ms, reset_ms = await client.custom_command(
            ["RL.FIXED", "user:42", "100", "1m"]
        )
        # [end]

        async def first() -> object:
            return [allowed, limit, remaining, wait_ms, reset_ms]

        async def call(*words: str) -> object:
            return await client.custom_command(list(words))

        await serve_async({"first": first, "call": call})

    elif mode == "replicas":
        from glide import (
            GlideClusterClient,
            GlideClusterClientConfiguration,
            NodeAddress,
            SlotKeyRoute,
            SlotType,
        )

        # isort: split
        # [replicas]
        from glide import ReadFrom

        client = await GlideClusterClient.create(
            GlideClusterClientConfiguration(
                [NodeAddress("127.0.0.1", port)], read_from=ReadFrom.PREFER_REPLICA
            )
        )
        # [end]

        async def peek(key: str) -> object:
            # [replicas]
            reply = await client.custom_command(
                ["RL.PEEK", key, "FIXED", "100", "1m"], SlotKeyRoute(SlotType.REPLICA, key)
            )
            # [end]
            return reply

        await serve_async({"peek": peek})

    else:
        # [cluster]
        from glide import (
            GlideClusterClient,
            GlideClusterClientConfiguration,
            NodeAddress,
            SlotKeyRoute,
            SlotType,
        )

        client = await GlideClusterClient.create(
            GlideClusterClientConfiguration([NodeAddress("127.0.0.1", port)])
        )
        # [end]

        async def plain(*words: str) -> object:
            return await client.custom_command(list(words))

        async def one(key: str) -> object:
            return await client.custom_command(["RL.FIXED", key, "100", "1m"])

        async def several(tag: str) -> object:
            # [cluster]
            keys = [f"{{{tag}}}:minute", f"{{{tag}}}:day"]
            reply = await client.custom_command(
                ["RL.MTAKE", "2", *keys, "FIXED", "100", "1m", "FIXED", "5000", "1d"],
                SlotKeyRoute(SlotType.PRIMARY, keys[0]),
            )
            # [end]
            return reply

        async def pipeline(*keys: str) -> object:
            batch = glide.ClusterBatch(is_atomic=False)
            for key in keys:
                batch.custom_command(["RL.FIXED", key, "100", "1m"])
            return await client.exec(batch, raise_on_error=True)

        await serve_async({"plain": plain, "one": one, "several": several, "pipeline": pipeline})


asyncio.run(main())
