"""Requests to the API of the console."""

from urllib.parse import quote

from console_process import Answer, ConsoleProcess

READS, WRITES = "reads-only-0123456789", "may-change-0123456789"
TOKENS = {
    "RATELIMIT_CONSOLE_TOKEN": READS,
    "RATELIMIT_CONSOLE_WRITE_TOKEN": WRITES,
}


class Console:
    """Client of a console, with a token."""

    def __init__(self, process: ConsoleProcess, token: str | None = WRITES) -> None:
        self.process, self.token = process, token

    def __call__(self, path: str, method: str = "GET", data: object = None, **headers: str):
        if self.token is not None:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        if data is not None:
            headers.setdefault("Content-Type", "application/json")
        return self.process.get(path, method, data, **headers)

    def put(self, name: str, specs: str, version: int | None = None) -> Answer:
        body = {"specs": specs, "version": version}
        return self(f"/api/policies/{quote(name, safe='')}", "PUT", body)
