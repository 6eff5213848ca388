"""LiteLLM's proxy as a process, between a client and models, and the server with the module."""

import itertools
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from model import Models, serving
from support import binaries, poll
from support.clock import Clock, build_library
from support.ports import reserve_port
from support.server import Server

HERE = Path(__file__).parent

CONFIG = """
model_list:
{models}
litellm_settings:
  callbacks: limits.limits
{settings}
router_settings:
  num_retries: 0
  disable_cooldowns: true
general_settings:
  custom_auth: auth.recognize
"""
MODEL_TEMPLATE = """
  - model_name: {name}
    litellm_params:
      model: openai/{model}
      api_base: {url}
      api_key: none
      max_retries: 0
      num_retries: {retries}
      timeout: {timeout}
"""
MODEL_NAMES = ("answer", "fail", "refuse", "once", "wait", "drip", "mute", "tear", "late")

_callers = itertools.count()


@dataclass
class Caller:
    """Client with a key of its own."""

    key: str
    policy: str
    http: httpx.Client
    admin: redis.Redis

    def body(self, model: str, **options: Any) -> dict[str, Any]:
        message = {"role": "user", "content": "x" * 40}  # 10 tokens, and 1 of the role
        return {"model": model, "messages": [message], "max_tokens": 100, **options}

    def ask(self, model: str, **options: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", self.body(model, **options))

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.http.post(path, json=body, headers=self.headers)

    def stream(self, model: str, **options: Any) -> Any:
        body = self.body(model, stream=True, **options)
        return self.http.stream("POST", "/v1/chat/completions", json=body, headers=self.headers)

    @property
    def headers(self) -> dict[str, str]:
        # The client chooses the id of a request, and this client always chooses the same.
        return {"Authorization": f"Bearer {self.key}", "x-litellm-call-id": "mine"}

    def remaining(self) -> dict[str, int]:
        """Returns the remaining units of each limit by its name."""
        key = f"llm:{self.key_hash}"
        reply = self.admin.execute_command("RL.PEEK", key, "EACH", "POLICY", self.policy, "COST", 0)
        return {one[5]: one[2] for one in reply[2]}

    @property
    def key_hash(self) -> str:
        return sha256(self.key.encode()).hexdigest()


@dataclass
class Proxy:
    http: httpx.Client
    admin: redis.Redis
    models: Models

    def policy(self, name: str, specs: str) -> None:
        self.admin.execute_command("RL.POLICYSET", name, *specs.split())

    def caller(self, policy: str = "llm") -> Caller:
        return Caller(f"sk-{policy}-{next(_callers)}", policy, self.http, self.admin)


@pytest.fixture(scope="session")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    """Frozen clock, so that nothing is refilled."""
    directory = tmp_path_factory.mktemp("clock")
    return Clock(build_library(directory), directory / "clock")


@pytest.fixture(scope="session")
def server(clock: Clock) -> Iterator[Server]:
    with Server(binaries.chosen(), clock=clock) as server:
        yield server


@pytest.fixture(scope="session")
def admin(server: Server) -> redis.Redis:
    return server.client(decode_responses=True)


@pytest.fixture(scope="session")
def models() -> Models:
    return Models()


@pytest.fixture(scope="session")
def models_url(models: Models) -> Iterator[str]:
    with serving(models) as url:
        yield url


@pytest.fixture(scope="session")
def port() -> Iterator[int]:
    with ExitStack() as reserved:
        yield reserve_port(reserved)


@pytest.fixture(scope="session", params=["plain", "keepalive"])
def shared_proxy(
    request: pytest.FixtureRequest,
    server: Server,
    admin: redis.Redis,
    models: Models,
    models_url: str,
    port: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Proxy]:
    """Running proxy, without and with keepalives: with them, LiteLLM handles each request in a task
    of its own.
    """
    directory = tmp_path_factory.mktemp("proxy")
    for name in ("auth.py", "limits.py"):
        shutil.copy(HERE / name, directory)
    settings = {"plain": "", "keepalive": "  sse_keepalive_ping_interval_seconds: 1"}
    model_entries = [
        MODEL_TEMPLATE.format(
            name=name,
            model="wait" if name == "late" else name,
            url=models_url,
            retries=2 if name == "once" else 0,
            timeout=0.5 if name == "late" else 60,
        )
        for name in MODEL_NAMES
    ]
    (directory / "config.yaml").write_text(
        CONFIG.format(models="".join(model_entries), settings=settings[request.param])
    )
    environment = os.environ | {
        "RATELIMIT_URL": f"redis://127.0.0.1:{server.port}",
        # Otherwise LiteLLM downloads the costs of models at its start.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": f"sk-{secrets.token_hex(32)}",
        "NO_PROXY": "*",
    }
    log = directory / "proxy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                Path(sys.executable).with_name("litellm"),
                *("--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)),
                *("--telemetry", "False"),
            ],
            cwd=directory,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:

            def serves() -> bool:
                if process.poll() is not None:
                    raise RuntimeError(f"the proxy ended:\n{log.read_text()[-4000:]}")
                try:
                    return http.get("/health/liveliness").status_code == 200
                except httpx.TransportError:
                    return False

            poll.until(serves, "the proxy serves", timeout=240)
            yield Proxy(http, admin, models)
    finally:
        process.terminate()
        process.wait()
        print(log.read_text()[-20000:])


@pytest.fixture
def proxy(shared_proxy: Proxy) -> Iterator[Proxy]:
    shared_proxy.models.may_answer.clear()
    yield shared_proxy
    shared_proxy.models.may_answer.set()
    poll.until(lambda: shared_proxy.models.waiting == 0, "no request waits", timeout=20)
