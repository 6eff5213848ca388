"""Requests over real HTTP."""

import asyncio
from collections import Counter
from threading import Event

import httpx
from http_sf import parse

ALICE = {"X-Api-Key": "alice-key"}
BOB = {"X-Api-Key": "bob-key"}
CAROL = {"X-Api-Key": "carol-key"}

# Without certificates, because loading them takes longer than the requests.
PLAIN = {"verify": False, "trust_env": False, "timeout": 60}


def get(url: str, headers: dict[str, str] = ALICE, path: str = "/items/1") -> httpx.Response:
    return httpx.get(url + path, headers=headers, **PLAIN)


def ask(url: str, headers: dict[str, str] = ALICE, **question: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat", json=question, headers=headers, **PLAIN)


def burst(
    urls: list[str],
    *,
    clients: int,
    requests: int,
    headers: dict[str, str] = ALICE,
    stop: Event | None = None,
) -> Counter[int]:
    """Sends requests from parallel clients, each with its own connection, and counts the statuses.
    A client stops early once `stop` is set.
    """

    async def run_client(number: int) -> list[int]:
        url = urls[number % len(urls)]
        async with httpx.AsyncClient(headers=headers, **PLAIN) as client:
            return [
                (await client.get(f"{url}/items/1")).status_code
                for _ in range(requests)
                if not (stop and stop.is_set())
            ]

    async def run_clients() -> Counter[int]:
        statuses = await asyncio.gather(*(run_client(number) for number in range(clients)))
        return Counter(status for of_client in statuses for status in of_client)

    return asyncio.run(run_clients())


def field(response: httpx.Response, name: str) -> dict[str, dict[str, int | str]]:
    """Parses a RateLimit or RateLimit-Policy field. Returns parameters by policy."""
    return dict(parse(response.headers[name].encode(), tltype="list"))
