"""Application with its limits and the identification of callers."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import gateway
import login
from fastapi import FastAPI
from redis_ratelimit import Limit, Local, RateLimitError, Sliding, TokenBucket
from redis_ratelimit.aio import Limiter
from redis_ratelimit.asgi import address
from starlette.requests import HTTPConnection
from tenants import PREFIX, Caller, Limits, RateLimitMiddleware

# Shared by all tenants, so its key is in no tenant's slot. Processes take units of it in batches.
GLOBAL = TokenBucket(1_000_000, 1_000_000, name="global")

LIMITS = {
    "endpoint:{endpoint}": TokenBucket(10_000, 10_000, name="endpoint"),
    "user:{user}": TokenBucket(200, 100, "1m", name="user"),
    "ip:{ip}": Sliding(50, "1m", name="ip"),
}

# Placeholder for authentication, from which tenant and user must come. A client that names itself
# has as many limits as it invents names.
API_KEYS = {
    "alice-key": {"tenant": "acme", "user": "alice"},
    "bob-key": {"tenant": "acme", "user": "bob"},
    "carol-key": {"tenant": "umbrella", "user": "carol"},
}


# Endpoints with separate limits. All other paths are one endpoint, because a client can invent any
# number of paths.
ENDPOINTS = ("/items", "/v1/chat", "/login")


@dataclass(frozen=True)
class Settings:
    redis_url: str = "redis://127.0.0.1:6379"
    cluster: bool = False
    fail_open: bool = True
    shadow: bool = False
    # Number of processes. During an outage of Redis, each grants its share.
    processes: int = 1
    timeout: float = 0.1
    pause: float = 1.0
    # Largest batch of units of the global limit, and for how many seconds a process keeps them.
    batch: int = 1000
    keep: float = 1.0
    limits: Limits = field(default_factory=lambda: LIMITS)
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
    return next(
        (name for name in ENDPOINTS if path == name or path.startswith(f"{name}/")), "other"
    )


def identify(connection: HTTPConnection) -> Caller | None:
    if connection.url.path == "/health":  # health checks must never be denied
        return None
    caller = API_KEYS.get(connection.headers.get("x-api-key", ""), {"tenant": "public"})
    ip = address(connection.scope) or "unknown"
    return {**caller, "ip": ip, "endpoint": endpoint(connection.url.path)}


def create_app(settings: Settings | None = None) -> FastAPI:
    settings = settings or Settings.from_environment()
    limiter = Limiter.from_url(
        settings.redis_url,
        cluster=settings.cluster,
        on_outage=Local(share=1 / settings.processes) if settings.fail_open else "closed",
        timeout=settings.timeout,
        pause=settings.pause,
    )
    units = limiter.units(
        f"{PREFIX}:global", settings.global_limit, batch=settings.batch, keep=settings.keep
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Logs a server without the module at the start. Requests fail until it has the module.
        with suppress(RateLimitError):
            await limiter.check()
        async with limiter, units:
            yield

    app = FastAPI(title="redis-ratelimit: a FastAPI example", lifespan=lifespan)
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
        units=units,
        identify=identify,
        shadow=settings.shadow,
    )

    @app.get("/items/{item}")
    async def read_item(item: int) -> dict[str, int]:
        return {"item": item}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app
