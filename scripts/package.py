"""Builds the packages of the module in target/package: package.py tarball MODULE, and then
package.py deb CARGO_DEB [MAINTAINER]
"""

import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "target/package"
DOCUMENTS = FOLDER / "doc"
SHIPPED = ["README.md", "CHANGELOG.md", "LICENSE", "redis.conf.example", "docs", "monitoring"]

# Links to files: [text](path) and [text](path#place), but neither images nor URLs.
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:]+)(?:#[^)]*)?\)")


def archive_name() -> str:
    """Returns the name of the archive. It ends in -musl if rustc builds for that C library."""
    manifest = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())
    rustc = subprocess.run(["rustc", "-vV"], check=True, stdout=subprocess.PIPE, text=True).stdout
    version, musl = manifest["workspace"]["package"]["version"], "-musl" * ("musl" in rustc)
    return f"redis-ratelimit-{version}-linux-{platform.machine()}{musl}"


def copy_documents() -> None:
    """Copies the documents. Links to files that are not copied become plain text."""
    DOCUMENTS.mkdir(parents=True)
    for name in SHIPPED:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, DOCUMENTS / name)
        else:
            shutil.copy(REPOSITORY / name, DOCUMENTS)
    for document in DOCUMENTS.rglob("*.md"):
        document.write_text(without_dead_links(document, DOCUMENTS))


def without_dead_links(document: Path, folder: Path) -> str:
    def replacement(link: re.Match[str]) -> str:
        target = (document.parent / link[2]).resolve()
        is_shipped = target.exists() and target.is_relative_to(folder.resolve())
        return link[0] if is_shipped else link[1]

    return LINK.sub(replacement, document.read_text())


def make_tarball(module: Path) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    copy_documents()
    shutil.copy(module, DOCUMENTS)
    (DOCUMENTS / module.name).chmod(0o755)
    with tarfile.open(FOLDER / f"{archive_name()}.tar.gz", "w:gz") as archive:
        archive.add(DOCUMENTS, archive_name())
    shutil.rmtree(DOCUMENTS)


def make_deb(cargo_deb: str, maintainer: str) -> None:
    if not shutil.which("dpkg-shlibdeps"):
        sys.exit(
            "made the tarball, but no .deb: dpkg-shlibdeps is needed to find the dependencies"
            " (Debian, Ubuntu: apt install dpkg-dev)"
        )
    # Cargo.toml refers to the documents there.
    copy_documents()
    words = [REPOSITORY / cargo_deb, "--no-build", "--output", FOLDER]
    words += ["--maintainer", maintainer] if maintainer else []
    subprocess.run(words, cwd=REPOSITORY, check=True)
    shutil.rmtree(DOCUMENTS)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["tarball", module]:
            make_tarball(Path(module))
        case ["deb", cargo_deb, *maintainer]:
            make_deb(cargo_deb, "".join(maintainer))
        case _:
            sys.exit(__doc__)
