"""A limiter for asyncio in uvloop, the event loop that uvicorn prefers."""

import asyncio

import uvloop
from support.server import Server

from redis_ratelimit import Concurrency, Fixed, aio


def test_limiter_works_in_uvloop(server: Server, url: str) -> None:
    async def main() -> None:
        async with aio.Limiter.from_url(url, timeout=10) as limiter:
            decisions = await asyncio.gather(
                *(limiter.take("key", Fixed(150, "1h")) for _ in range(200))
            )
            assert sum(map(bool, decisions)) == 150
            async with limiter.lease("pool", Concurrency(1, 30), wait=5):
                pass
            # The second denial opens a connection for client tracking.
            assert (await limiter.take("key", Fixed(150, "1h"))).remembered
            server.stop("kill")
            assert (await limiter.take("other", Fixed(1, "1h"))).degraded

    uvloop.run(main())
