"""User of the gateway with only the rights to decide, and secrets that are never shown."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis
from running import BINARY, Gateway, descriptor

from support import poll

Start = Callable[..., Gateway]
# Rights that docs/gateway.md documents.
RIGHTS = ["+rl.limit", "+rl.take", "+rl.peek", "+rl.release", "+rl.policylist"]
RIGHTS += ["+client|tracking", "+info", "~rl:*"]
PASSWORD = "correct-horse@battery:staple"


@pytest.fixture
def user(redis: Redis) -> str:
    redis.execute_command("ACL", "SETUSER", "gateway", "reset", "on", f">{PASSWORD}", *RIGHTS)
    return "gateway"


def test_user_with_only_the_documented_rights_can_decide(
    user: str, server: object, start: Start, policy: Callable[..., int], tmp_path: Path
) -> None:
    policy("api|user", "FIXED 2 1d ALIGNED")
    policy("api|tenant", "CONCURRENCY 1 1m")
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    environment = {"RATELIMIT_GATEWAY_SERVER_PASSWORD_FILE": str(secret)}
    gateway = start(server.port, "--server-user", user, environment=environment)
    descriptors = descriptor(user="1"), descriptor(tenant="a", rl_id="x")
    answers = [gateway.ask(*descriptors) for _ in range(2)]
    assert [answer.statuses[0].limit_remaining for answer in answers] == [1, 0]
    assert answers[0].statuses[0].current_limit.unit.name == "DAY", "unit of the policy's window"
    assert gateway.passes(descriptor(tenant="a", rl_id="x", negative=True))
    assert gateway.passes(descriptor(tenant="a", rl_id="y"))
    gateway.end()
    assert "WARN" not in gateway.log


@pytest.mark.parametrize(
    "missing", ["+rl.limit", "+rl.release", "+rl.policylist", "+info", "~rl:*"]
)
def test_missing_permission_is_logged_once(
    redis: Redis, server: object, start: Start, policy: Callable[..., int], missing: str
) -> None:
    policy("api", "FIXED 100 1d")
    rights = [right for right in RIGHTS if right != missing]
    redis.execute_command("ACL", "SETUSER", "poor", "reset", "on", f">{PASSWORD}", *rights)
    environment = {"RATELIMIT_GATEWAY_SERVER_PASSWORD": PASSWORD}
    gateway = start(server.port, "--server-user", "poor", environment=environment)
    for request in ("a", "b", "c"):
        assert gateway.passes(descriptor(user="1"))
        assert gateway.passes(descriptor(user="1", rl_id=request, negative=True))
    errors = {"+rl.limit": 3, "+rl.release": 3, "~rl:*": 6}.get(missing, 0)
    assert gateway.metric("ratelimit_gateway_decisions_total", outcome="error") == errors
    assert gateway.metric("ratelimit_gateway_outage") == 0
    gateway.end()
    logged = [line for line in gateway.log.splitlines() if "lacks a permission" in line]
    assert len(logged) == 1, gateway.log
    assert all(right in logged[0] for right in RIGHTS)
    assert "refused to decide" not in gateway.log


def test_rotated_password_is_read_at_the_next_connection(
    user: str,
    redis: Redis,
    server: object,
    start: Start,
    policy: Callable[..., int],
    tmp_path: Path,
) -> None:
    policy("api", "FIXED 100 1d")
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    environment = {"RATELIMIT_GATEWAY_SERVER_PASSWORD_FILE": str(secret)}
    words = ["--server-user", user, "--on-outage", "closed"]
    gateway = start(server.port, *words, environment=environment)
    assert gateway.passes(descriptor(user="1"))

    def change_password_and_reconnect(password: str) -> None:
        redis.execute_command("ACL", "SETUSER", user, "resetpass", f">{password}")
        assert redis.client_kill_filter(user=user) >= 1
        poll.until(lambda: gateway.passes(descriptor(user="1")), "requests are decided again")

    secret.write_text("another\n")
    change_password_and_reconnect("another")
    # With an unreadable file, the gateway connects by the last password.
    secret.write_text("\n")
    change_password_and_reconnect("another")
    gateway.end()
    assert gateway.log.count("a secret can no longer be read") == 1
    assert str(secret) in gateway.log
    assert "another" not in gateway.log


@pytest.mark.parametrize(
    "variable",
    [
        "SERVER_PASSWORD",
        "SENTINEL_PASSWORD",
    ],
)
def test_empty_secret_file_is_refused_at_start(variable: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("\n")
    variable = f"RATELIMIT_GATEWAY_{variable}_FILE"
    words = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    completed = subprocess.run(
        [BINARY, "serve", *words],
        env={variable: str(secret)},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert completed.returncode == 1
    assert f"{variable}: {secret}: the file is empty" in completed.stderr


def test_wrong_password_is_not_logged(user: str, server: object, start: Start) -> None:
    environment = {"RATELIMIT_GATEWAY_SERVER_PASSWORD": "another-secret"}
    gateway = start(
        server.port, "--server-user", user, environment=environment, wait_until_ready=False
    )
    assert gateway.get("/readyz").status == 503
    assert gateway.passes(descriptor(user="1"))
    gateway.end()
    assert "another-secret" not in gateway.log


def test_error_does_not_show_the_password_of_the_address() -> None:
    completed = subprocess.run(
        [BINARY, "serve"],
        env={"RATELIMIT_GATEWAY_SERVER": f"redis://user:{PASSWORD}@127.0.0.1:no-port"},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert completed.returncode == 1
    assert "each host must be such as localhost:6379" in completed.stderr
    assert "battery" not in completed.stderr


def test_empty_variables_count_as_unset(server: object, start: Start) -> None:
    names = ["SERVER_PASSWORD", "SERVER_PASSWORD_FILE", "CONSOLE_TOKEN_FILE", "SERVER_USER"]
    names += ["SERVER_CA", "GRPC_CERT", "CONFIG", "IN_FLIGHT", "SHADOW", "CONSOLE_HOST", "ONCE"]
    environment = {f"RATELIMIT_GATEWAY_{name}": "" for name in names}
    gateway = start(server.port, environment=environment)
    assert gateway.get("/readyz").status == 200


def test_password_on_the_command_line_is_refused() -> None:
    words = ["serve", "--server", "redis://user:secret@127.0.0.1"]
    completed = subprocess.run(
        [BINARY, *words], capture_output=True, text=True, check=False, timeout=20
    )
    assert completed.returncode == 1
    assert "RATELIMIT_GATEWAY_SERVER_PASSWORD" in completed.stderr


@pytest.mark.parametrize(
    ("words", "variables", "setting"),
    [
        (["serve", "--console", "off"], {}, "--console"),
        (["serve", "--console-host=limits.example"], {}, "--console-host"),
        (["replay", "access.log", "--limit", "FIXED 1 1m"], {}, "replay"),
        (["playground"], {}, "playground"),
        (["serve"], {"RATELIMIT_GATEWAY_CONSOLE": "off"}, "RATELIMIT_GATEWAY_CONSOLE"),
        (["serve"], {"RATELIMIT_GATEWAY_CONSOLE_TOKEN": "a"}, "RATELIMIT_GATEWAY_CONSOLE_TOKEN"),
    ],
)
def test_settings_of_the_console_are_refused(
    words: list[str], variables: dict[str, str], setting: str
) -> None:
    completed = subprocess.run(
        [BINARY, *words], env=variables, capture_output=True, text=True, check=False, timeout=20
    )
    assert completed.returncode == 2
    assert completed.stderr.startswith(f"error: {setting} has moved to ratelimit-console: ")
