"""Copies what is read beside the module into a folder: package_docs.py FOLDER

A link to what stays in the repository, such as an example, becomes plain words.
"""

import re
import shutil
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
SHIPPED = ["README.md", "CHANGELOG.md", "LICENSE", "redis.conf.example", "docs", "monitoring"]

# [words](path), [words](path#place); not an image, and not an address.
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:]+)(?:#[^)]*)?\)")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    for name in SHIPPED:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, folder / name)
        else:
            shutil.copy(REPOSITORY / name, folder)
    for document in folder.rglob("*.md"):
        document.write_text(without_dead_links(document, folder))


def without_dead_links(document: Path, folder: Path) -> str:
    def kept(link: re.Match[str]) -> str:
        target = (document.parent / link[2]).resolve()
        is_shipped = target.exists() and target.is_relative_to(folder.resolve())
        return link[0] if is_shipped else link[1]

    return LINK.sub(kept, document.read_text())


if __name__ == "__main__":
    main()
