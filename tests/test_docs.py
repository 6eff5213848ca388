"""The documentation's examples give the shown output, and the names that it mentions exist."""

import importlib
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from redis import Redis, ResponseError

from support import markdown
from support.binaries import Binary
from support.clock import Clock
from support.examples import Examples, check_make, in_a_terminal, in_json, redis_cli
from support.server import REPOSITORY, Server, ServerError

DOCUMENTS = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").glob("*.md"))]
README, COMMANDS = REPOSITORY / "README.md", REPOSITORY / "docs/commands.md"
INTERNALS = REPOSITORY / "docs/internals.md"

# Folders that contain third-party documents.
SKIPPED = {"target", "node_modules", ".venv", ".venv-litellm"}
# Leftovers of an unfinished replacement: a link without its target, a placeholder.
LEFTOVER = re.compile(r"\]\w|\]\($|REPLACED|\b(TODO|FIXME|XXX)\b|@@|\{\{\w+\}\}", re.MULTILINE)

# Module arguments that enable everything the documents mention.
EVERYTHING = "cell-compat yes policies yes"

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)


# Documents with code that test_client_libraries.py and test_client_guide.py run.
CLIENT_DOCUMENTS = ("clients.md", "write-a-client.md")


@pytest.mark.parametrize(
    "document",
    [document for document in DOCUMENTS if document.name not in CLIENT_DOCUMENTS],
    ids=lambda document: document.name,
)
def test_examples_in_a_document_print_the_shown_output(
    document: Path, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    run(document.read_text(), fresh_server(module_args=EVERYTHING), clock)


def lines_of(file: str) -> str:
    """Returns a configuration file's lines without comments and blank lines."""
    lines = (REPOSITORY / file).read_text().splitlines()
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize(
    "conf",
    [
        lines_of("redis.conf.example"),
        re.search(r"`(loadmodule .*?)`", (REPOSITORY / "Cargo.toml").read_text())[1],
    ],
    ids=["redis.conf.example", "the Debian package"],
)
def test_installing_the_module_as_documented_enables_policies(
    server: Server, clock: Clock, conf: str
) -> None:
    """Loads the module by the documented lines, while the test of the examples uses arguments of
    its own.
    """
    run(f"```conf\n{conf.strip()}\n```", server, clock)


def test_server_of_the_image_has_policies(server: Server, clock: Clock) -> None:
    if not server.is_valkey:
        pytest.skip("the image contains Valkey")
    (line,) = [line for line in lines_of("docker/valkey.conf").splitlines() if "load" in line]
    run(f"```conf\n{line}\n```", server, clock)


def run(text: str, server: Server, clock: Clock) -> None:
    with ExitStack() as closing:
        examples = Examples(server, clock, closing)
        for block in markdown.blocks(text):
            try:
                examples.run(block)
            except Exception as error:
                raise AssertionError(f"the block in line {block.line}: {error}") from error
        examples.check_all_is_shown()
        examples.check_nobody_waits()


@pytest.mark.parametrize(
    "text",
    [
        "```\nRL.FIXED k 5 1m\n```",
        "```brainfuck\n+\n```",
        "```sh\nreboot\n```",
        "```sh\nmake no-such-target\n```",
        "```text\nno block before it\n```",
        "```redis\nRL.FIXED k 5 1m\n```\n\n```text\n[1,5,3,0,60000]\n```",
        "```redis\nRL.FIXED k 5 1m\n```\n\n```text\n...\n[1,5,3,0,60000]\n```",
        "```redis\nRL.FIXED k 5 1m\n```",
        (
            "```redis\nRL.ACQUIRE k 1 1m a\nRL.ACQUIRE k 1 1m b BLOCK 0\n```\n\n"
            "```text\n[1,1,0,0,60000]\n```"
        ),
        "```sh\n#!/bin/sh\n# fails KEY\nexit 3\n```\n\n```sh\nfails key\n```",
        (
            "```python\nfrom redis import Redis\n\nredis = Redis(port=6379, socket_timeout=0.1)\n"
            "print(redis.ping())\n```\n\n```text\nFalse\n```"
        ),
        "```conf\nmaxmemory-policy no-such-policy\n```",
    ],
)
def test_example_with_another_output_fails(server: Server, clock: Clock, text: str) -> None:
    with pytest.raises((AssertionError, ServerError)):
        run(text, server, clock)


def test_wrong_help_output_fails(server: Server, clock: Clock) -> None:
    if server.version < (7,) or redis_cli() is None:
        pytest.skip("there is no HELP: it takes redis-cli and a server of 7.0 or later")
    with pytest.raises(AssertionError, match=r"RL\.FIXED key limit window"):
        run("```sh\nredis-cli HELP RL.FIXED\n```\n\n```text\n  RL.FIXED key\n```", server, clock)


@pytest.mark.parametrize(
    ("options", "formatter", "calls"),
    [
        (
            ["--json"],
            in_json,
            [
                "RL.MTAKE 2 {k}1 {k}2 FIXED 5 1m FIXED 9 1h COST 20",
                "RL.FIXED k 5 1m",
                "RL.FIXED k",
                "TYPE k",
                "COMMAND GETKEYS RL.PEEK k FIXED 5 1m",
                "CONFIG GET maxmemory-policy",
                "RL.INFO k",
                "RL.INFO missing",
                "DEL k",
            ],
        ),
        (
            ["--no-raw"],
            in_a_terminal,
            ["RL.FIXED k 5 1m", "RL.FIXED k", "COMMAND GETKEYS RL.PEEK k FIXED 5 1m", "DEL k"],
        ),
    ],
)
def test_replies_are_shown_as_redis_cli_prints_them(
    server: Server, clock: Clock, options: list[str], formatter: Callable, calls: list[str]
) -> None:
    program = redis_cli()
    if server.version < (7,) or program is None:
        pytest.skip("there is no redis-cli of 7.0 or later, which prints JSON")
    printed = subprocess.run(
        [program, "-p", str(server.port), *options],
        input="\n".join(calls),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    with ExitStack() as closing:
        examples = Examples(server, clock, closing)
        examples.reply(["FLUSHALL"])
        formatted = [formatter(examples.reply(call.split())) for call in calls]
    # redis-cli prints an empty line after an error.
    assert "\n".join(formatted).split() == printed.split()


@pytest.fixture(scope="module")
def synopses() -> dict[str, str]:
    """Returns each command's syntax line, which the reference has below its heading."""
    text = COMMANDS.read_text() + INTERNALS.read_text()
    return dict(re.findall(r"^## (RL\.[A-Z]+)\n\n`\1 (.*)`$", text, re.MULTILINE))


@pytest.fixture
def our_commands(redis: Redis) -> set[str]:
    """Returns the names of all commands of the module."""
    return {name.upper() for name in redis.command() if name.upper().startswith("RL.")}


def test_reference_has_every_command(synopses: dict[str, str], our_commands: set[str]) -> None:
    assert synopses.keys() == our_commands


def test_the_reference_has_the_arguments_of_each_command(
    redis: Redis, synopses: dict[str, str], our_commands: set[str], binary: Binary
) -> None:
    if binary.version < (7,):
        pytest.skip("the server has no COMMAND DOCS")
    docs = dict(zip(*[iter(redis.execute_command("COMMAND DOCS", *our_commands))] * 2, strict=True))
    for name, found in docs.items():
        pairs = dict(zip(found[::2], found[1::2], strict=True))
        words = set(words_of(pairs[b"arguments"]))
        assert words == set(re.findall(r"[A-Za-z_]+", synopses[name.decode().upper()])), name


# Name in the reference of the argument after a token, where COMMAND DOCS has another name.
NAMES_IN_REFERENCE = {
    "COST": "amount",
    "MAXWAIT": "duration",
    "BLOCK": "duration",
    "KEEP": "amount",
    "OR": "name",
}


def words_of(arguments: list[list]) -> Iterator[str]:
    for flat in arguments:
        argument = dict(zip(flat[::2], flat[1::2], strict=True))
        name, token = argument[b"name"].decode(), argument.get(b"token", b"").decode()
        if token:
            yield token
        if name != "spec" and b"arguments" in argument:
            yield from words_of(argument[b"arguments"])
        elif argument[b"type"] != b"pure-token":
            yield NAMES_IN_REFERENCE.get(token, name)


def test_the_front_page_has_every_command_and_is_short(
    synopses: dict[str, str], our_commands: set[str]
) -> None:
    text = README.read_text()
    assert len(text.splitlines()) < 250
    rows = dict(re.findall(r"^\| `(RL\.[A-Z]+) ([^`]*)` \|", text, re.MULTILINE))
    # The table omits the commands that only servers send.
    assert rows.keys() == our_commands - {"RL.EFFECT", "RL.POLICYEFFECT"}
    for name, takes in rows.items():
        # Options common to all commands have a separate table.
        options = r" \[(COST|BAN|NX) .*?(?= spec |$)| \| MUL .*(?= \[FOR)|name VERSION version \| "
        assert re.sub(options, "", synopses[name]) == takes


@each_document
def test_a_call_within_a_sentence_is_valid(
    document: Path, fresh_server: Callable[..., Server], synopses: dict[str, str]
) -> None:
    text = document.read_text().split("\n## Errors\n")[0]
    spans = [span for span in markdown.spans(text) if re.match(r"(RL|CL)\.[A-Z]", span)]
    if not spans:
        return
    with fresh_server(module_args=EVERYTHING).client() as client:
        commands = set(client.command())
        # Calls in a sentence use the policies that the surrounding blocks set.
        for block in markdown.blocks(text):
            for line in re.findall(r"^RL\.POLICYSET .*", block.text, re.MULTILINE):
                with suppress(ResponseError):
                    client.execute_command(*line.split())
        for span in spans:
            name, *words = span.split()
            assert name.lower() in commands, span
            takes = set(re.findall(r"[A-Za-z_]+", synopses.get(name, "")))
            is_synopsis = set(re.findall(r"[A-Za-z_]+", " ".join(words))) <= takes
            is_whole = not {"...", "{key}"} & set(words)
            if words and is_whole and not is_synopsis:
                client.flushall()
                assert client.execute_command(*span.split()), span


@each_document
def test_a_target_of_make_within_a_sentence_exists(document: Path) -> None:
    for span in markdown.spans(document.read_text()):
        if re.match("make [a-z]", span):
            check_make(shlex.split(span)[1:])


# Policies of the calls in the table of errors.
POLICIES = [
    "RL.POLICYSET plan:a FIXED 5 1m",
    "RL.POLICYSET plan:b FIXED 5 1m",
    "RL.POLICYSET plan:b FIXED 6 1m",
    "RL.POLICYSET jobs CONCURRENCY 5 1m",
    "RL.POLICYSET mail LEAKYBUCKET 5 1 1s",
    "RL.POLICYSET per-address SKETCH 50 50 1m",
]
# Record of a policy with an algorithm of a later version.
LATER = "rl-policy 1 5:later 1 0 1 0 1 1 13:NEW-ALGORITHM 0 0 1000000 0"


def test_documented_errors_are_those_of_the_documented_calls(
    fresh_server: Callable[..., Server], binary: Binary
) -> None:
    table = COMMANDS.read_text().split("\n## Errors\n")[1]
    rows = re.findall(r"^\| `(.+?)` \| (?:`(.+)`|.*) \|$", table, re.MULTILINE)
    assert len(rows) == table.count("\n| `") > 10
    # Rows without a call: other tests cover errors that need a full log, key, table or server, a
    # server without policies, a record from the future, or a defect.
    assert sum(not call for _, call in rows) == 7
    redis = fresh_server(module_args=EVERYTHING).client()
    redis.set("a-string", "a string")
    for call in POLICIES:
        redis.execute_command(*call.split())
    redis.execute_command("RL.POLICYEFFECT", LATER)
    for error, call in rows:
        if call:
            with pytest.raises(ResponseError) as raised:
                redis.execute_command(*call.split())
            # The client removes the first word. Redis 6.2 repeats a command's name as it was sent.
            shown, expected = str(raised.value), error.removeprefix("ERR ")
            if binary.version < (7,):
                shown, expected = shown.lower(), expected.lower()
            assert shown == expected


def test_a_test_that_a_document_names_exists() -> None:
    for document in DOCUMENTS:
        for file, test in re.findall(r"(test_\w+\.py)::(test_\w+)", document.read_text()):
            source = (REPOSITORY / "tests" / file).read_text()
            assert f"\ndef {test}(" in source, f"{file}::{test}"


def test_documented_promises_and_limits_are_those_of_the_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "scripts")
    reliability = importlib.import_module("reliability")
    text = reliability.DOCUMENT.read_text()
    assert text == reliability.document(), "run scripts/reliability.py"
    promises, limits = (
        [path for path, _ in markdown.links(part) if path.startswith("../tests/test_")]
        for part in text.split("\n## What is not promised\n")
    )
    assert len(promises) > 35
    assert len(promises) == len(set(promises))
    assert len(limits) > 10
    assert set(limits) < set(promises)


@each_document
def test_links_lead_to_existing_targets(document: Path) -> None:
    for path, anchor in markdown.links(document.read_text()):
        target = document.parent / path if path else document
        assert target.exists(), path
        if anchor:
            assert anchor in markdown.anchors(target), f"{path}#{anchor}"


MARKDOWN = [path for path in REPOSITORY.glob("**/*.md") if not SKIPPED & set(path.parts)]


@pytest.mark.parametrize(
    "text",
    [
        "The storage can [compare it]REPLACED, and a holder is refused.",
        "The limit is [described here](",
        "TODO: say why",
        "See @@LINK@@.",
    ],
)
def test_leftovers_are_found(text: str) -> None:
    assert LEFTOVER.search(text)


@pytest.mark.parametrize("document", MARKDOWN, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_document_has_no_leftovers(document: Path) -> None:
    prose = markdown.FENCED.sub("", re.sub(r"`[^`\n]+`", "", document.read_text()))
    assert not LEFTOVER.search(prose)


@each_document
def test_a_path_within_a_sentence_exists(document: Path) -> None:
    folders = {path.name for path in REPOSITORY.iterdir() if path.is_dir()} - {"target"}
    for span in markdown.spans(document.read_text()):
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", span) and span.partition("/")[0] in folders:
            assert (REPOSITORY / span).exists(), span


def test_front_page_links_to_every_document() -> None:
    linked = {path for path, _ in markdown.links(README.read_text())}
    assert {f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md")} <= linked


def test_call_as_plain_text_on_a_socket_is_answered(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(b"RL.TOKENBUCKET user:42 200 100 60s\n")
        reply = connection.makefile("rb")
        assert b"".join(reply.readline() for _ in range(6)).split() == [
            b"*5", b":1", b":200", b":199", b":0", b":600",
        ]  # fmt: skip
