"""Every program of README.md runs and prints the shown output."""

import contextlib
import io
import os
import re
import subprocess
import venv
from pathlib import Path

import httpx
import pytest
import redis
from support.markdown import Block, blocks, links

from serving import uvicorn_serves, werkzeug_serves

PACKAGE = Path(__file__).parents[1]
README = (PACKAGE / "README.md").read_text()
BLOCKS = list(blocks(README))
PROGRAMS = [
    pytest.param(block, BLOCKS[number + 1 :][:1], id=f"line {block.line}")
    for number, block in enumerate(BLOCKS)
    if block.language == "python"
]


def test_languages_of_blocks_are_known() -> None:
    assert {block.language for block in BLOCKS} == {"sh", "python", "redis", "text", "yaml"}


@pytest.mark.parametrize(("program", "following"), PROGRAMS)
def test_program_prints_the_shown_output(program: Block, following: list[Block], url: str) -> None:
    documented_output = "".join(block.text for block in following if block.language == "text")
    names: dict[str, object] = {"__name__": "example"}
    text = program.text.replace("//localhost:6379", url.removeprefix("redis:"))
    assert text != program.text or "Limiter.local(" in text
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, "README.md", "exec"), names)
    assert printed.getvalue() == documented_output
    if (app := names.get("app")) is not None:
        serves = werkzeug_serves if hasattr(app, "wsgi_app") else uvicorn_serves
        with serves(app) as served:
            first, second = httpx.get(served), httpx.get(served)
        assert "hello" in first.text
        assert [one.headers["X-RateLimit-Remaining"] for one in (first, second)] == ["99", "98"]


def test_cors_preflights_are_not_counted_and_denials_are_readable(url: str) -> None:
    (program,) = [block.text for block in BLOCKS if "CORSMiddleware" in block.text]
    program = program.replace("//localhost:6379", url.removeprefix("redis:"))
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(program.replace("Fixed(100,", "Fixed(1,"), "README.md", "exec"), names)
    origin = {"Origin": "https://app.example"}
    with uvicorn_serves(names["app"]) as served:
        preflight = {**origin, "Access-Control-Request-Method": "GET"}
        preflights = [httpx.options(served, headers=preflight) for _ in range(3)]
        answers = [httpx.get(served, headers=origin) for _ in range(2)]
    assert [one.status_code for one in preflights] == [200] * 3
    assert [one.status_code for one in answers] == [200, 429]
    recipe = (PACKAGE.parents[1] / "docs/recipes.md").read_text()
    (fields,) = re.findall(r"`Access-Control-Expose-Headers: (.*)`", recipe)
    for answer in answers:
        assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert answer.headers["Access-Control-Expose-Headers"] == fields
    names = {name.lower() for name in answers[1].headers}
    assert {name.lower() for name in fields.split(", ")} <= names


def test_commands_are_accepted_by_the_server(admin: redis.Redis) -> None:
    for block in BLOCKS:
        if block.language == "redis":
            # Policies and their versions persist from test to test.
            assert admin.execute_command(*block.text.split()) >= 1


def test_links_have_targets() -> None:
    for path, _ in links(README):
        assert (PACKAGE / path).exists(), path


@pytest.mark.timeout(600)
def test_package_installs_from_its_folder(tmp_path: Path, url: str) -> None:
    venv.create(tmp_path, with_pip=True)
    python = tmp_path / "bin/python"
    (line,) = [block.text for block in BLOCKS if block.language == "sh"]
    activated = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    # The command is for the repository's root. The package index is that of the account that runs
    # the test.
    subprocess.run(["sh", "-c", line], check=True, cwd=PACKAGE.parents[1], env=activated)
    program = next(block.text for block in BLOCKS if block.language == "python")
    program = program.replace("redis://localhost:6379", url)
    environment = {name: word for name, word in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [python, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert result.stdout == "True 2\nlater\n"
    print_path = [python, "-c", "import redis_ratelimit; print(redis_ratelimit.__file__)"]
    package_file = subprocess.run(
        print_path, check=True, capture_output=True, text=True, env=environment, cwd=tmp_path
    ).stdout.strip()
    assert (Path(package_file).parent / "py.typed").is_file()
    assert tmp_path in Path(package_file).parents


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md"])
def test_links_work_outside_the_repository(name: str) -> None:
    page = (Path(__file__).parents[1] / name).read_text()
    titles = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    anchors = {"#" + re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    for target in re.findall(r"\]\(([^)]+)\)", page):
        assert target in anchors or target.startswith("https://"), target
