"""Python packages, Debian packages and archives that the Makefile and its scripts make."""

import importlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from support.server import REPOSITORY

# No server is needed.
pytestmark = pytest.mark.once

MAKEFILES = [REPOSITORY / "Makefile", *REPOSITORY.glob("*/Makefile")]


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(REPOSITORY / "scripts")
    return importlib.import_module("packages")


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(REPOSITORY / "scripts")
    package = importlib.import_module("package")
    monkeypatch.setattr(package, "FOLDER", tmp_path / "package")
    monkeypatch.setattr(package, "DOCUMENTS", tmp_path / "package/doc")
    return package


# Python packages


def test_settings_of_pip_are_handed_to_uv(packages: ModuleType, tmp_path: Path) -> None:
    listed = (
        ":env:.extra-index-url='https://two/simple https://three/simple'\n"
        f":env:.find-links='/nowhere {tmp_path}'\n"
        "global.cert='/etc/certificates.pem'\n"
        "global.index-url='https://global/simple'\n"
        "global.timeout='60'\n"
        "install.index-url='https://install/simple'\n"
    )
    assert packages.uv_variables(listed) == {
        "UV_DEFAULT_INDEX": "https://install/simple",
        "UV_INDEX": "https://two/simple https://three/simple",
        "UV_FIND_LINKS": str(tmp_path),
        "SSL_CERT_FILE": "/etc/certificates.pem",
    }
    assert packages.uv_variables(":env:.find-links='/nowhere'\n") == {}


@pytest.mark.parametrize("answer", ["exit 1", "echo /usr '(3, 9, 2)'"], ids=["broken", "other"])
def test_unusable_virtual_environment_is_created_anew(
    packages: ModuleType, tmp_path: Path, answer: str
) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    python.write_text(f"#!/bin/sh\n{answer}\n")
    python.chmod(0o755)
    packages.create(tmp_path)
    created = python.stat().st_ino
    assert "True" in packages.output(
        python, "-c", f"import pip, sys; print({sys.version_info[:3]} == sys.version_info[:3])"
    )
    packages.create(tmp_path)
    assert python.stat().st_ino == created


def test_groups_that_the_makefiles_install_are_pinned() -> None:
    groups = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["dependency-groups"]
    makefiles = [*MAKEFILES, REPOSITORY / "project.mk", *REPOSITORY.glob("[ec]*s/*/Makefile")]
    installed = {
        group
        for file in makefiles
        for group in re.findall(r"(?<![\w-])python-([a-z-]+)\b", file.read_text())
    }
    assert installed <= groups.keys()
    (line,) = re.findall(r"^GROUPS := (.*)", MAKEFILES[0].read_text(), re.MULTILINE)
    assert set(line.split()) == groups.keys() - {"litellm"}
    pinned = (REPOSITORY / "requirements.txt").read_text()
    for name in set(line.split()):
        for entry in groups[name]:
            if isinstance(entry, str):
                assert f"\n{entry.split(';')[0]}==" in f"\n{pinned}"


@pytest.mark.parametrize("target", ["test", "short", "proxies"])
def test_gateway_tests_have_the_packages_that_they_import(target: str) -> None:
    """Checks targets that run test_deploy.py, which imports packages of the group `deploy`."""
    words = ["make", "--dry-run", "--directory", REPOSITORY / "gateway", target]
    commands = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert re.search(r"packages\.py \S+ deploy$", commands, re.MULTILINE)


# The module's archive and Debian package


def test_links_of_a_package_lead_to_files_in_it(package: ModuleType, tmp_path: Path) -> None:
    module = tmp_path / "libredis_ratelimit.so"
    module.write_text("module\n")
    package.make_tarball(module)
    (archive,) = (tmp_path / "package").iterdir()
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "opened", filter="data")
    (folder,) = (tmp_path / "opened").iterdir()
    assert archive.name == f"{folder.name}.tar.gz"
    assert (folder / "libredis_ratelimit.so").read_text() == "module\n"
    links = [
        (document, link)
        for document in folder.rglob("*.md")
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
        if "://" not in link
    ]
    assert len(links) > 10
    for document, link in links:
        target = (document.parent / link).resolve()
        assert target.exists(), (document.name, link)
        assert target.is_relative_to(folder), (document.name, link)


@pytest.mark.parametrize(("host", "suffix"), [("linux-musl", "-musl"), ("linux-gnu", "")])
def test_archive_is_named_by_its_c_library(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str, suffix: str
) -> None:
    (tmp_path / "rustc").write_text(f"#!/bin/sh\necho host: x86_64-unknown-{host}\n")
    (tmp_path / "rustc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    name = package.archive_name()
    assert re.fullmatch(rf"redis-ratelimit-[\d.]+-linux-[a-z0-9_]+?{suffix}", name)
    assert name.endswith("-musl") == bool(suffix)


def test_debian_package_needs_dpkg_shlibdeps(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SystemExit, match=r"made the tarball, but no \.deb"):
        package.make_deb("cargo-deb", "")
    deb = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["package"]["metadata"]["deb"]
    assert ["target/package/doc/**/*", "usr/share/doc/redis-ratelimit/", "644"] in deb["assets"]


# Dockerfiles


@pytest.mark.parametrize("name", ["Dockerfile", "gateway/Dockerfile"])
def test_image_has_the_compiler_of_the_project_and_an_ordinary_user(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    toolchain = tomllib.loads((REPOSITORY / "rust-toolchain.toml").read_text())["toolchain"]
    build, image = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert build == f"rust:{toolchain['channel']}-slim-trixie"
    assert "trixie" in image
    (user,) = re.findall(r"^USER (\d+):\d+$", text, re.MULTILINE)
    assert int(user) > 0


@pytest.mark.parametrize("name", ["Dockerfile", "gateway/Dockerfile"])
def test_build_context_of_an_image_has_the_copied_files(name: str) -> None:
    ignored = REPOSITORY / f"{name}.dockerignore"
    lines = (ignored if ignored.exists() else REPOSITORY / ".dockerignore").read_text().split()
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", (REPOSITORY / name).read_text(), re.MULTILINE)
    copied = {source for words in copies for source in words.split()}
    assert all((REPOSITORY / source).exists() for source in copied)
    assert {source.partition("/")[0] for source in copied} == sent


def test_image_has_all_programs_and_the_name_of_envoyproxy_ratelimit() -> None:
    text = (REPOSITORY / "gateway/Dockerfile").read_text()
    manifests = [(REPOSITORY / name / "Cargo.toml").read_text() for name in ("gateway", "console")]
    for manifest in manifests:
        name = tomllib.loads(manifest)["package"]["name"]
        assert re.search(rf"^COPY --from=build .*/{name} ", text, re.MULTILINE), name
    assert "RUN ln -s /usr/local/bin/ratelimit-gateway /bin/ratelimit\n" in text
    assert "ENTRYPOINT [" not in text, "an entry point would take a command as its arguments"


# Files that a build leaves


@pytest.mark.parametrize(
    "folder",
    [path.parent.relative_to(REPOSITORY) for path in REPOSITORY.glob("[ec]*s/*/Makefile")],
    ids=str,
)
def test_build_leaves_git_status_clean(tmp_path: Path, folder: Path) -> None:
    built = [".pytest_cache/x", "tests/__pycache__/x"]
    if (REPOSITORY / folder / "package.json").exists():
        built += ["node_modules/x", "dist/x"]
    for name in built:
        (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).touch()
    ignore = [name for name in (Path(), folder) if (REPOSITORY / name / ".gitignore").exists()]
    for name in ignore:
        shutil.copy(REPOSITORY / name / ".gitignore", tmp_path / name / ".gitignore")
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    listed = subprocess.check_output(
        [*git, "ls-files", "--others", "--exclude-standard"], text=True
    ).split()
    assert sorted(listed) == sorted(str(name / ".gitignore") for name in ignore)
