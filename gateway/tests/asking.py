"""How the console is asked."""

import json
from typing import NamedTuple
from urllib.parse import quote

from running import Gateway

READS, WRITES = "reads-only-0123456789", "may-change-0123456789"
TOKENS = {
    "RATELIMIT_GATEWAY_CONSOLE_TOKEN": READS,
    "RATELIMIT_GATEWAY_CONSOLE_WRITE_TOKEN": WRITES,
}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> object:
        return json.loads(self.body)


class Console:
    """Asks the console of a gateway, with a token."""

    def __init__(self, gateway: Gateway, token: str | None = WRITES) -> None:
        self.gateway, self.token = gateway, token

    def __call__(self, path: str, method: str = "GET", data: object = None, **headers: str):
        if self.token is not None:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        if data is not None:
            headers.setdefault("Content-Type", "application/json")
        answer = self.gateway.get(path, method, data, port=self.gateway.console, **headers)
        return Answer(*answer)

    def put(self, name: str, specs: str, version: int | None = None) -> Answer:
        body = {"specs": specs, "version": version}
        return self(f"/api/policies/{quote(name, safe='')}", "PUT", body)
