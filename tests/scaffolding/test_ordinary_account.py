"""`make test-ordinary-account` runs its commands as an ordinary user, and reports what it cannot
check.
"""

import importlib
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from support.server import REPOSITORY

# No server is needed.
pytestmark = pytest.mark.once


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(REPOSITORY / "scripts")
    account = importlib.import_module("ordinary_account")
    monkeypatch.setattr(account.lifetime, "end_in_order", lambda: None)
    return account


@pytest.fixture
def ran(account: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Returns how and where the two commands were run."""
    calls: list[tuple] = []
    monkeypatch.setattr(account.two_commands, "run_both", lambda *words: calls.append(words))
    return calls


def test_on_its_path_is_all_but_servers(
    account: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder, programs in {
        "a": ["cc", "redis-server"],
        "b": ["cc", "valkey-server", "x"],
    }.items():
        (tmp_path / folder).mkdir()
        for program in programs:
            (tmp_path / folder / program).touch()
    monkeypatch.setenv("PATH", f"{tmp_path}/a:{tmp_path}/nowhere::{tmp_path}/b")
    found = account.without_servers(tmp_path / "bin")
    assert sorted(path.name for path in found.iterdir()) == ["cc", "x"]
    assert (found / "cc").readlink() == tmp_path / "a/cc"


def test_ordinary_users_run_the_commands_in_place(
    account: ModuleType,
    ran: list[tuple],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    for name in ("CI", "SERVER", "MAKEFLAGS"):
        monkeypatch.setenv(name, "true")
    account.main()
    ((there, environment, folder),) = ran
    assert there(["make"]) == ["make"]
    assert folder == REPOSITORY
    assert environment.keys().isdisjoint({"CI", "SERVER", "MAKEFLAGS", "RATELIMIT_MODULE"})
    assert capsys.readouterr().out.startswith("as nobody, who runs this")


def test_root_without_mount_reports_what_was_not_checked(
    account: ModuleType,
    ran: list[tuple],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda program: program != "unshare")
    account.main()
    assert ran == []
    assert capsys.readouterr().err == (
        "NOT CHECKED: the two commands as an ordinary account: unshare is not installed\n"
    )


def test_files_in_an_inaccessible_folder_are_mounted_again(
    account: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home, work = tmp_path / "root", tmp_path / "work"
    tools, cargo = home / "tools", home / "my cargo"
    for folder in (tools, cargo, work, tmp_path / "open"):
        folder.mkdir(parents=True)
    home.chmod(0o700)
    # The access rights of the folders above depend on this machine.
    hidden_by = account.hidden_by
    assert hidden_by(Path("/usr/bin")) is None
    tmp_path.chmod(0o755)
    above = next((one for one in tmp_path.parents if hidden_by(one)), None)
    assert hidden_by(tools) == (hidden_by(above) if above else home)
    monkeypatch.setattr(
        account, "hidden_by", lambda path: home if path.is_relative_to(home) else None
    )
    instead = {tmp_path / "open": work / "clone", cargo: work / "cargo"}
    assert account.mounts(work, [tools, cargo / "bin"], instead, [cargo / "registry"]) == [
        "mount --make-rprivate /",
        f"mount --bind '{cargo}/registry' {work}/read-0",
        f"mount --bind {tools} {work}/kept-2",
        f"mount -t tmpfs -o mode=755 tmpfs {home}",
        f"mkdir -p {tools}",
        f"mount --bind {work}/kept-2 {tools}",
        f"mkdir -p '{cargo}'",
        f"mount --bind {work}/clone {tmp_path}/open",
        f"mount --bind {work}/cargo '{cargo}'",
        f"mount --bind {work}/read-0 '{cargo}/registry'",
    ]
