"""Parser of Dockerfiles, as far as this repository needs it."""

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
    """Build stage: a base image and instructions."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.steps if name == instruction]

    @property
    def version(self) -> str:
        """Version of the base image: 1.95.0 for rust:1.95.0-slim-trixie."""
        return re.fullmatch(r"[\w/]+:([0-9.]+)-(?:slim-)?\w+", self.base)[1]

    @property
    def suite(self) -> str:
        """Debian suite of the base image: trixie for debian:trixie-slim."""
        return re.split("[:-]", self.base.removesuffix("-slim"))[-1]

    @property
    def entrypoint(self) -> list[str]:
        (words,) = self.all("ENTRYPOINT")
        return json.loads(words)

    @property
    def default_command(self) -> list[str]:
        """Default arguments after the entrypoint."""
        return [word for words in self.all("CMD") for word in json.loads(words)]

    @property
    def health_check(self) -> str:
        """Shell command of the health check."""
        (words,) = self.all("HEALTHCHECK")
        return re.fullmatch(r"(?:--\S+\s+)*CMD\s+(.*)", words, re.DOTALL)[1]


@dataclass(frozen=True)
class Copy:
    """COPY instruction: COPY [--from=stage] source ... target."""

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
    """Returns the files of a build context, for a .dockerignore that begins with * and lists
    exceptions.
    """
    lines = [line for line in dockerignore.splitlines() if line and not line.startswith("#")]
    if lines[:1] != ["*"] or not all(re.fullmatch(r"![\w./-]+", line) for line in lines[1:]):
        raise ValueError(".dockerignore is not * and exceptions")
    return [line[1:] for line in lines[1:]]


def read(repository: Path, name: str = "Dockerfile") -> tuple[list[Stage], list[str]]:
    """Parses the stages, and the build context from name.dockerignore or .dockerignore."""
    own = repository / f"{name}.dockerignore"
    ignored = own if own.exists() else repository / ".dockerignore"
    return stages((repository / name).read_text()), context(ignored.read_text())
