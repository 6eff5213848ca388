"""Roles, tokens and listeners of the console's API."""

import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from api_client import READS, TOKENS, WRITES, Console
from console_fixtures import Start, console, process
from console_process import ConsoleProcess, run_console
from redis import Redis

from support import poll
from support.server import Server

__all__ = ["console", "process"]


def test_each_role_has_its_permissions(process: ConsoleProcess, policy: Callable[..., int]) -> None:
    policy("a", "FIXED 5 1m")
    anonymous, wrong = Console(process, None), Console(process, "may-change-012345678")
    reader, writer = Console(process, READS), Console(process, WRITES)
    read_statuses = [
        client("/api/policies").status for client in (anonymous, wrong, reader, writer)
    ]
    assert read_statuses == [401, 401, 200, 200]
    scale = {"factor": 0.5, "for": "10m"}
    change_statuses = [
        client("/api/policies/a/scale", "POST", scale).status
        for client in (anonymous, wrong, reader, writer)
    ]
    assert change_statuses == [401, 401, 403, 200]
    roles = [client("/api/session").json["role"] for client in (reader, writer)]
    assert roles == ["look", "change"]


def test_console_without_a_write_token_is_read_only(server: Server, start: Start) -> None:
    console = Console(start(server.port), None)
    assert console("/api/policies").status == 200
    assert console.put("a", "FIXED 5 1m").status == 403
    assert console("/api/session").json["readonly"] is True


def test_address_off_loopback_requires_a_token(server: Server) -> None:
    words = ["--server", f"redis://127.0.0.1:{server.port}", "--listen", "0.0.0.0:0"]
    started = run_console("serve", *words)
    assert started.returncode == 1
    assert "RATELIMIT_CONSOLE_TOKEN" in started.stderr


def test_token_is_read_from_a_file(server: Server, start: Start, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{WRITES}\n")
    variable = "RATELIMIT_CONSOLE_WRITE_TOKEN_FILE"
    process = start(server.port, environment={variable: str(tmp_path / "token")})
    assert Console(process).put("a", "FIXED 5 1m").status == 201
    process.end()
    assert WRITES not in process.log


@pytest.mark.parametrize("token", ["\n", "fifteen-bytes-1\n"])
def test_empty_or_short_token_is_refused_at_start(
    server: Server, tmp_path: Path, token: str
) -> None:
    (tmp_path / "token").write_text(token)
    variable = "RATELIMIT_CONSOLE_WRITE_TOKEN"
    words = ["--server", f"redis://127.0.0.1:{server.port}", "--listen", "127.0.0.1:0"]
    started = run_console("serve", *words, env={f"{variable}_FILE": str(tmp_path / "token")})
    assert started.returncode == 1
    assert started.stderr.startswith(variable)


@pytest.mark.parametrize("name", ["SERVER_PASSWORD", "SENTINEL_PASSWORD", "TOKEN", "WRITE_TOKEN"])
def test_empty_secret_file_is_refused_at_start(name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("\n")
    variable = f"RATELIMIT_CONSOLE_{name}_FILE"
    started = run_console("serve", "--listen", "127.0.0.1:0", env={variable: str(secret)})
    assert started.returncode == 1
    assert f"{variable}: {secret}: the file is empty" in started.stderr


def test_password_on_the_command_line_is_refused() -> None:
    words = ["serve", "--server", "redis://user:secret@127.0.0.1"]
    started = run_console(*words)
    assert started.returncode == 1
    assert "RATELIMIT_CONSOLE_SERVER_PASSWORD" in started.stderr
    assert "secret@" not in started.stderr


def test_empty_variables_count_as_unset(server: Server, start: Start) -> None:
    names = ["SERVER_PASSWORD", "TOKEN_FILE", "SERVER_USER", "CERT", "HOST", "LOG_FORMAT"]
    process = start(server.port, environment={f"RATELIMIT_CONSOLE_{name}": "" for name in names})
    assert Console(process, None)("/api/policies").status == 200


def test_tokens_are_reloaded_at_sighup(server: Server, start: Start, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{WRITES}\n")
    variable = "RATELIMIT_CONSOLE_WRITE_TOKEN_FILE"
    process = start(server.port, environment={variable: str(tmp_path / "token")})
    old, new = Console(process), Console(process, "another-token-of-32-bytes-000000")
    assert [old("/api/session").status, new("/api/session").status] == [200, 401]
    (tmp_path / "token").write_text("too-short\n")
    os.kill(process.pid, signal.SIGHUP)
    (tmp_path / "token").write_text(f"{new.token}\n")
    os.kill(process.pid, signal.SIGHUP)
    poll.until(lambda: new("/api/session").status == 200, "the new token is known")
    assert old("/api/session").status == 401
    process.end()
    assert "the console refused a token" in process.log
    assert old.token not in process.log
    assert new.token not in process.log


def test_unknown_host_names_are_refused(server: Server, start: Start) -> None:
    process = start(server.port, "--host", "limits.example")
    console = Console(process, None)
    for host in ("evil.example", "127.0.0.1.evil.example:8090", "192.0.2.7"):
        assert console("/", Host=host).status == 421
        assert console("/api/policies", Host=host).status == 421
    for host in ("localhost:1", "limits.example", "[::1]:8090"):
        assert console("/api/policies", Host=host).status == 200


@pytest.mark.long
def test_silent_connection_is_closed(process: ConsoleProcess) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=120) as silent:
        assert silent.recv(1) == b"", "the connection is closed"


def test_responses_have_security_and_cache_headers(console: Console) -> None:
    page = console("/")
    assert page.status == 200
    assert "<title>" in page.body
    for answer in (page, console("/app.js"), console("/api/policies"), console("/nothing")):
        assert answer.headers["content-security-policy"].startswith("default-src 'self'; frame-an")
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert console("/api/policies").headers["cache-control"] == "no-store"
    assert console("/api/policies", sec_fetch_site="cross-site").status == 403
    unchanged = console("/app.js", If_None_Match=console("/app.js").headers["etag"])
    assert (unchanged.status, unchanged.body) == (304, "")
    assert console("/..%2fCargo.toml").status == 404


def test_missing_permission_is_reported(server: Server, start: Start, redis: Redis) -> None:
    rights = ["+rl.policylist", "+rl.policyget", "+info", "+ping"]
    redis.execute_command("ACL", "SETUSER", "looker", "on", ">secret", *rights)
    environment = TOKENS | {"RATELIMIT_CONSOLE_SERVER_PASSWORD": "secret"}
    process = start(server.port, "--server-user", "looker", environment=environment)
    console = Console(process)
    assert console("/api/policies").json == []
    refused = console.put("a", "FIXED 5 1m")
    assert refused.status == 403
    assert "rl.policyset" in refused.json["error"].lower()
    redis.execute_command("ACL", "DELUSER", "looker")


def test_changes_are_logged_with_the_name_of_the_token(
    server: Server, start: Callable[..., ConsoleProcess]
) -> None:
    anna, bert, reader = "anna-0123456789abc", "bert-0123456789abc", "looks-0123456789abc"
    tokens = {
        "RATELIMIT_CONSOLE_WRITE_TOKEN": f"anna:{anna},bert:{bert}",
        "RATELIMIT_CONSOLE_TOKEN": reader,
    }
    process = start(server.port, environment=tokens)
    version = Console(process, anna).put("a", "FIXED 5 1h").json["version"]
    assert Console(process, bert).put("a", "FIXED 6 1h", version).status == 200
    sessions = [Console(process, token)("/api/session").json for token in (anna, bert, reader)]
    assert [(session["user"], session["role"]) for session in sessions] == [
        ("anna", "change"),
        ("bert", "change"),
        (None, "look"),
    ]
    assert Console(process, f"anna:{anna}")("/api/session").status == 401
    process.end()
    lines = [line for line in process.log.splitlines() if "audit" in line]
    users = [re.search(r'user="(\w+)" who=127\.0\.0\.1 role="change"', line)[1] for line in lines]
    assert users == ["anna", "bert"]
