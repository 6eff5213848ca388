"""The Dockerfiles are checked without building the images. `make image-check` runs their steps."""

import tomllib
from pathlib import Path

import pytest

from support import dockerfile
from support.dockerfile import Copy
from support.server import MODULE, REPOSITORY

# No server is needed.
pytestmark = pytest.mark.once

NAMES = ["Dockerfile", "gateway/Dockerfile", "console/Dockerfile"]
BUILD, IMAGE = dockerfile.read(REPOSITORY)[0]


def copies(text: str) -> list[tuple[str, Copy]]:
    """Returns the COPY steps, each with its base image."""
    found = dockerfile.stages(text)
    return [(stage.base, Copy.of(rest)) for stage in found for rest in stage.all("COPY")]


COPIES = copies((REPOSITORY / "Dockerfile").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_the_compiler_is_that_of_the_project(name: str):
    toolchain = tomllib.loads((REPOSITORY / "rust-toolchain.toml").read_text())["toolchain"]
    (build, _), _ = dockerfile.read(REPOSITORY, name)
    assert build.base.startswith("rust:")
    assert build.version == toolchain["channel"]


@pytest.mark.parametrize("name", NAMES)
def test_both_images_are_of_one_debian(name: str):
    """A program needs the C library that it was built for."""
    (build, image), _ = dockerfile.read(REPOSITORY, name)
    assert build.suite == image.suite == "trixie"


@pytest.mark.parametrize("name", NAMES)
def test_the_build_context_has_exactly_the_copied_files(name: str):
    found = copies((REPOSITORY / name).read_text())
    copied = [source for _, copy in found if not copy.stage for source in copy.sources]
    assert all((REPOSITORY / source).exists() for source in copied)
    _, context = dockerfile.read(REPOSITORY, name)
    assert {source.partition("/")[0] for source in copied} == set(context)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_runs_as_root(name: str):
    (user,) = dockerfile.read(REPOSITORY, name)[0][-1].all("USER")
    assert 0 not in map(int, user.split(":"))


def test_the_server_starts_with_the_configuration_and_that_with_the_module():
    places = {
        str(Path(copy.target) / Path(name).name): name
        for base, copy in COPIES
        if base == IMAGE.base
        for name in copy.sources
    }
    *_, configuration = IMAGE.entrypoint
    text = (REPOSITORY / places[configuration]).read_text()
    (module,) = [line.split()[1] for line in text.splitlines() if line.startswith("loadmodule")]
    assert Path(places[module]).name == MODULE.name


def test_a_step_is_read_with_the_lines_that_go_on():
    (stage,) = dockerfile.stages("FROM a:1-b AS c\n# one\nRUN x && \\\n# two\n    y\n")
    assert (stage.base, stage.name) == ("a:1-b", "c")
    assert [rest.split() for rest in stage.all("RUN")] == [["x", "&&", "y"]]


@pytest.mark.parametrize("step", ["ADD a b", "COPY --chown=1 a b", "COPY a"])
def test_an_unsupported_step_is_an_error(step: str):
    with pytest.raises(ValueError, match="not understood"):
        copies(f"FROM a\n{step}\n")


@pytest.mark.parametrize("text", ["target\n", "*\n!core/*.rs\n", ""])
def test_a_dockerignore_of_another_form_is_an_error(text: str):
    with pytest.raises(ValueError, match="exceptions"):
        dockerfile.context(text)
