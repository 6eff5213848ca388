"""What can be seen of the image without making it; `make image-check` carries the steps out."""

import tomllib
from pathlib import Path

import pytest

from support import dockerfile
from support.dockerfile import Copy
from support.server import MODULE, REPOSITORY

# No server takes part.
pytestmark = pytest.mark.once

STAGES, CONTEXT = dockerfile.read(REPOSITORY)
BUILD, IMAGE = STAGES


def copies(text: str) -> list[tuple[str, Copy]]:
    """With the images that they begin with."""
    found = dockerfile.stages(text)
    return [(stage.base, Copy.of(rest)) for stage in found for rest in stage.all("COPY")]


COPIES = copies((REPOSITORY / "Dockerfile").read_text())


def test_the_compiler_is_that_of_the_project():
    toolchain = tomllib.loads((REPOSITORY / "rust-toolchain.toml").read_text())["toolchain"]
    assert BUILD.base.startswith("rust:")
    assert BUILD.version == toolchain["channel"]


def test_both_images_are_of_one_debian():
    """Since the module is built for the C library of its server."""
    assert BUILD.suite == IMAGE.suite


def test_what_is_copied_is_sent_to_the_build_and_all_that_is_sent_is_copied():
    copied = [name for _, copy in COPIES if not copy.stage for name in copy.sources]
    assert all((REPOSITORY / name).exists() for name in copied)
    assert {name.partition("/")[0] for name in copied} == set(CONTEXT)


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


def test_the_server_is_not_root():
    (user,) = IMAGE.all("USER")
    assert 0 not in map(int, user.split(":"))


def test_a_step_is_read_with_the_lines_that_go_on():
    (stage,) = dockerfile.stages("FROM a:1-b AS c\n# one\nRUN x && \\\n# two\n    y\n")
    assert (stage.base, stage.name) == ("a:1-b", "c")
    assert [rest.split() for rest in stage.all("RUN")] == [["x", "&&", "y"]]


@pytest.mark.parametrize("step", ["ADD a b", "COPY --chown=1 a b", "COPY a"])
def test_a_step_that_nobody_would_carry_out_is_an_error(step: str):
    with pytest.raises(ValueError, match="not understood"):
        copies(f"FROM a\n{step}\n")


@pytest.mark.parametrize("text", ["target\n", "*\n!core/*.rs\n", ""])
def test_a_dockerignore_of_another_form_is_an_error(text: str):
    with pytest.raises(ValueError, match="exceptions"):
        dockerfile.context(text)
