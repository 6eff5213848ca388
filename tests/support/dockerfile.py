"""What a Dockerfile says, in so far as those of this repository do."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

INSTRUCTIONS = {
    *(
        "FROM",
        "RUN",
        "WORKDIR",
        "COPY",
        "ENV",
        "USER",
        "EXPOSE",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    ),
}


@dataclass
class Stage:
    """One image: what it begins with, and what is done to it."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.steps if name == instruction]

    @property
    def version(self) -> str:
        """Of the base image: 1.95.0 of rust:1.95.0-slim-trixie."""
        return re.fullmatch(r"[\w/]+:([0-9.]+)-(?:slim-)?\w+", self.base)[1]

    @property
    def suite(self) -> str:
        """Of Debian, that the base image is built on: trixie of debian:trixie-slim."""
        return re.split("[:-]", self.base.removesuffix("-slim"))[-1]

    @property
    def entrypoint(self) -> list[str]:
        (words,) = self.all("ENTRYPOINT")
        return json.loads(words)

    @property
    def default_command(self) -> list[str]:
        """What is behind the entrypoint unless `docker run` says something else."""
        return [word for words in self.all("CMD") for word in json.loads(words)]

    @property
    def health_check(self) -> str:
        """What the shell is given."""
        (words,) = self.all("HEALTHCHECK")
        return re.fullmatch(r"(?:--\S+\s+)*CMD\s+(.*)", words, re.DOTALL)[1]


@dataclass(frozen=True)
class Copy:
    """COPY [--from=stage] source ... target"""

    stage: str | None
    sources: list[str]
    target: str

    @classmethod
    def of(cls, rest: str) -> "Copy":
        words = rest.split()
        stage = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
        *sources, target = words
        if not sources or any(word.startswith("--") for word in words):
            raise ValueError(f"not understood: COPY {rest}")
        return cls(stage, sources, target)


def stages(text: str) -> list[Stage]:
    found: list[Stage] = []
    lines = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    for line in lines.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        name, _, rest = line.partition(" ")
        if name not in INSTRUCTIONS:
            raise ValueError(f"not understood: {line}")
        if name == "FROM":
            base, _, as_name = rest.partition(" AS ")
            found.append(Stage(base, as_name))
        else:
            found[-1].steps.append((name, rest.strip()))
    return found


def context(dockerignore: str) -> list[str]:
    """What a build is sent, of a .dockerignore that begins with * and names the exceptions."""
    lines = [line for line in dockerignore.splitlines() if line and not line.startswith("#")]
    if lines[:1] != ["*"] or not all(re.fullmatch(r"![\w./-]+", line) for line in lines[1:]):
        raise ValueError(".dockerignore is not * and exceptions")
    return [line[1:] for line in lines[1:]]


def read(repository: Path, name: str = "Dockerfile") -> tuple[list[Stage], list[str]]:
    """The stages, and the context: of name.dockerignore, if there is one."""
    own = repository / f"{name}.dockerignore"
    ignored = own if own.exists() else repository / ".dockerignore"
    return stages((repository / name).read_text()), context(ignored.read_text())
