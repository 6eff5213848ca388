"""The application: who calls, which limits hold, and what they guard."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import gateway
import login
from fastapi import FastAPI, Request
from ratelimit import (
    Breaker,
    Calls,
    DeniedError,
    Lease,
    Limit,
    Limiter,
    RateLimitMiddleware,
    address,
    connect,
    denial,
)
from starlette.requests import HTTPConnection
from starlette.responses import Response

# All tenants share it, so no tenant's slot can hold it: processes lease units of it.
GLOBAL = Limit.bucket("global", "global", burst=1_000_000, rate=1_000_000)

LIMITS = (
    Limit.bucket("endpoint", "endpoint:{endpoint}", burst=10_000, rate=10_000),
    Limit.bucket("user", "user:{user}", burst=200, rate=100, seconds=60),
    Limit.sliding("ip", "ip:{ip}", limit=50, seconds=60),
)

# Stands for whatever authenticates: tenant and user must come from there. A client that may name
# itself has as many limits as it can think of names.
API_KEYS = {
    "alice-key": {"tenant": "acme", "user": "alice"},
    "bob-key": {"tenant": "acme", "user": "bob"},
    "carol-key": {"tenant": "umbrella", "user": "carol"},
}


# What has a limit of its own; all else is one endpoint. Not the path as it comes, of which a client
# can think of as many as it likes.
ENDPOINTS = ("/items", "/v1/chat", "/login")


@dataclass(frozen=True)
class Settings:
    redis_url: str = "redis://127.0.0.1:6379"
    cluster: bool = False
    fail_open: bool = True
    shadow: bool = False
    # How many processes serve: while Redis is away, each allows its share.
    processes: int = 1
    timeout: float = 0.1
    pause: float = 1.0
    # How many units of the global limit a process leases at a time, and for how many seconds.
    batch: int = 1000
    keep: float = 1.0
    limits: Sequence[Limit] = LIMITS
    global_limit: Limit = GLOBAL
    llm_limits: Sequence[Limit] = gateway.LIMITS
    model: gateway.Model = gateway.echo

    @classmethod
    def from_environment(cls) -> "Settings":
        environment = os.environ
        return cls(
            redis_url=environment.get("REDIS_URL", cls.redis_url),
            cluster=environment.get("REDIS_CLUSTER") == "yes",
            fail_open=environment.get("FAIL", "open") != "closed",
            shadow=environment.get("SHADOW") == "yes",
            processes=int(environment.get("PROCESSES", cls.processes)),
        )


def endpoint(path: str) -> str:
    return next((one for one in ENDPOINTS if path == one or path.startswith(f"{one}/")), "other")


def create_app(settings: Settings | None = None) -> FastAPI:
    settings = settings or Settings.from_environment()
    redis = connect(settings.redis_url, cluster=settings.cluster)
    calls = Calls(redis, timeout=settings.timeout, breaker=Breaker(pause=settings.pause))
    lease = Lease(calls, settings.global_limit, batch=settings.batch, keep=settings.keep)
    limiter = Limiter(
        calls, shared=[lease], fail_open=settings.fail_open, share=1 / settings.processes
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await calls.check()
        yield
        await lease.close()
        await redis.aclose()

    app = FastAPI(title="redis-ratelimit: a FastAPI example", lifespan=lifespan)

    def identify(connection: HTTPConnection) -> Mapping[str, str] | None:
        if connection.url.path == "/health":  # a load balancer's, which must never be denied
            return None
        key = connection.headers.get("x-api-key", "")
        caller = API_KEYS.get(key, {"tenant": "public"})
        return {**caller, "ip": address(connection), "endpoint": endpoint(connection.url.path)}

    app.state.limiter = limiter
    app.state.identify = identify
    app.state.llm_limits = settings.llm_limits
    app.state.model = settings.model
    app.include_router(gateway.router)
    app.include_router(login.router)
    app.add_middleware(
        RateLimitMiddleware,
        limiter=limiter,
        limits=settings.limits,
        identify=identify,
        shadow=settings.shadow,
    )

    @app.exception_handler(DeniedError)
    async def denied(_: Request, error: DeniedError) -> Response:
        return denial(error.verdict)

    @app.get("/items/{item}")
    async def read_item(item: int) -> dict[str, int]:
        return {"item": item}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app
