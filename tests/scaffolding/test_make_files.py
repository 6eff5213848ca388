"""`make` builds, installs and draws inside the clone, and `make clean` removes what it made."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.server import REPOSITORY

# No server answers here but those that `make` starts, of PyPI or made up; $SERVER is not asked.
pytestmark = pytest.mark.once


def test_the_tools_of_cargo_are_installed_in_the_clone_once(machine):
    machine.has("dpkg-shlibdeps", "")
    for _ in range(2):
        assert machine.make("package", LIBCLANG_PATH="/usr/lib").returncode == 0
    (install,) = (call for call in machine.calls("cargo") if call.startswith("cargo install"))
    assert re.search(r" --root target/tools/cargo-deb@[\d.]+ cargo-deb@[\d.]+$", install)
    assert len(machine.calls("cargo-deb")) == 2
    for target in ("fuzz", "deny", "mutants"):
        planned = machine.make("--dry-run", target, LIBCLANG_PATH="/usr/lib").stdout
        assert f"cargo install --locked --root target/tools/cargo-{target}@" in planned


def test_the_module_is_compiled_for_musl_too(machine):
    machine.has("rustup", 'echo "rustup $*" >> calls')
    assert machine.make("musl", LIBCLANG_PATH="/usr/lib").returncode == 0
    target = f"{platform.machine()}-unknown-linux-musl"
    assert machine.calls("rustup") == [f"rustup target add {target}"]
    assert machine.calls("cargo") == [f"cargo check --locked --target {target}"]


def test_the_oldest_rust_is_kept_in_the_clone(machine):
    machine.has("rustup", 'echo "rustup in $RUSTUP_HOME: $*" >> calls')
    assert machine.make("msrv", LIBCLANG_PATH="/usr/lib").returncode == 0
    (install,) = machine.calls("rustup")
    assert install.startswith(f"rustup in {machine.clone}/target/tools/rustup: toolchain install")
    oldest = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["workspace"]["package"]
    assert install.endswith(f" {oldest['rust-version']}.0")
    (build,) = machine.calls("cargo")
    assert build.startswith(f"cargo +{oldest['rust-version']}.0 build ")


@pytest.mark.parametrize(
    "folder",
    [path.parent.relative_to(REPOSITORY) for path in REPOSITORY.glob("[ec]*s/*/Makefile")],
    ids=str,
)
def test_a_build_leaves_git_status_clean(tmp_path, folder):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    made = [".pytest_cache/x", "tests/__pycache__/x"]
    if (REPOSITORY / folder / "requirements.txt").exists():
        made += [".venv/bin/python"]
    if (REPOSITORY / folder / "package.json").exists():
        made += ["node_modules/x", "dist/x"]
    for name in made:
        (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).touch()
    for name in (Path(), folder):
        shutil.copy(REPOSITORY / name / ".gitignore", tmp_path / name / ".gitignore")
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    listed = subprocess.run(
        [*git, "ls-files", "--others", "--exclude-standard"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.split()
    assert sorted(listed) == sorted({".gitignore", f"{folder}/.gitignore"})


def test_the_demo_replaces_the_documents_pictures_only_on_request(machine):
    def pictures(*words: str) -> set[str]:
        planned = machine.make("--dry-run", "demo", "LIBCLANG_PATH=/usr/lib", *words).stdout
        return set(re.findall(r"\S+\.(?:png|svg)", planned))

    drawn = {"demo.png", "charts/controller.svg", "charts/fleet.svg"}
    assert pictures() == {f"target/demo/{name}" for name in drawn}
    asked = pictures("PICTURES=docs")
    assert asked == {f"docs/{name}" for name in drawn}
    assert all((REPOSITORY / name).exists() for name in asked)


def test_clean_removes_all_that_was_made(machine):
    made = [
        *(".venv", ".hypothesis", ".pytest_cache", ".ruff_cache", "target/tools"),
        *("examples/one/.venv", "examples/one/node_modules", "tests/support/__pycache__"),
        *(
            "clients/one/.venv",
            "clients/one/.venv-litellm",
            "clients/one/dist",
            "clients/one/src/__pycache__",
        ),
        *("gateway/target", "gateway/tests/__pycache__", "console/tests/__pycache__"),
    ]
    for name in (*made, "benches", "fuzz/work"):
        (machine.clone / name).mkdir(parents=True, exist_ok=True)
    run = machine.make("clean")
    assert run.returncode == 0, run.stderr
    assert machine.calls("cargo") == [
        "cargo clean",
        "cargo clean --manifest-path fuzz/Cargo.toml",
    ]
    assert [name for name in made if (machine.clone / name).exists()] == []
    assert (machine.clone / "fuzz/work").exists(), "what fuzzing found is not built"


def test_a_debian_folder_that_was_half_filled_is_filled_again(machine, tmp_path):
    machine.has(
        "debootstrap",
        'for root; do :; done; mkdir -p "$root/usr/bin" "$root/lib64";'
        ' echo > "$root/lib64/ld-linux-any.so.2"; echo > "$root/filled"',
    )
    # With the words that say what of its own it is to have.
    machine.has("unshare", 'test "$1" = --mount || exit 1; shift; exec "$@"')
    root = tmp_path / "cache/redis-ratelimit/trixie"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/redis-server").touch()
    (root / "debootstrap").mkdir()
    code = "import matrix; matrix.debian('trixie', 'redis-server')"
    subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ
        | machine.environment
        | {"PYTHONPATH": str(REPOSITORY / "scripts"), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        check=True,
    )
    assert (root / "filled").exists()
