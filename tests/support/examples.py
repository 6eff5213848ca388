"""Runs the blocks of a document from top to bottom on one server, and compares the output with the
text.

The language of a block determines how it is run:

* redis: calls, as pasted into redis-cli. A call with BLOCK has a connection of its own; replies
  appear in the order of arrival.
* python: a part of one program for the entire document.
* sh: lines for a shell. Lines that call redis-cli are run; the files and targets in other lines
  must exist. A script that begins with #!/bin/sh and a comment with its name is kept, and lines
  that call it are run.
* conf: a configuration, with which a server is started.
* yaml: a file of the gateway, which gateway/tests/test_file.py checks.
* prometheus: series as the exporter's script returns them.
* text: the output of the previous block. A line of three dots matches any lines.

"12 seconds later" in the text before a block moves the clock. Each section begins at the same time,
and a section that begins with RL.TOP starts without denials.
"""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis import Connection, Redis
from redis.exceptions import ResponseError

from support import poll
from support.binaries import Binary
from support.clock import Clock
from support.markdown import Block
from support.server import MODULE, REPOSITORY, Server

LATER = re.compile(r"\b(\d+) (second|minute|hour|day)s? later\b")
ANY_LINES = "...\n"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Name of the image in docs/docker.md.
IMAGE = "redis-ratelimit"


def redis_cli() -> str | None:
    """Returns the path of redis-cli 7.0 or later, which prints JSON and knows the commands of
    modules.
    """
    program = shutil.which("redis-cli")
    words = [program, "--version"] if program else ["echo"]
    version = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    return program if re.search(r" ([7-9]|\d\d)\.", version) else None


class Output(NamedTuple):
    """Output of a block: as redis-cli prints it in a terminal, and with --json."""

    terminal: str
    json: str

    @classmethod
    def same(cls, text: str) -> "Output":
        return cls(text, text)


class Examples:
    """State of a document while its blocks are run."""

    def __init__(self, server: Server, clock: Clock, closing: contextlib.ExitStack) -> None:
        self._server, self._clock, self._closing = server, clock, closing
        self._client = closing.enter_context(server.client(protocol=3, decode_responses=True))
        self._globals: dict[str, Any] = {}
        closing.callback(self._close)
        # Output of the previous block, until a text block shows it.
        self._printed: Output | None = None
        # Connections of blocked calls, in the order of sending.
        self._waiting: list[Connection] = []
        # Scripts of the document, with a redis-cli that connects to this server.
        self._scripts = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        self._can_run_scripts = self._provide_redis_cli()

    def run(self, block: Block) -> None:
        if re.search("^## ", block.before, re.MULTILINE):
            self._clock.reset()
        if re.search(r"^RL\.TOP", block.text, re.MULTILINE):
            # The section shows denials of its own block. The reset is conditional, as it counts as
            # a call in INFO.
            self._client.execute_command("RL.TOP", "RESET")
        for count, unit in LATER.findall(block.before):
            self._clock.advance(f"{count}{unit[0]}")
        runner: Callable[[str], None] | None = getattr(self, f"_run_{block.language}", None)
        assert runner, f"a block that no test knows how to run: {block.language or 'no language'}"
        if block.language != "text":
            self.check_all_is_shown()
        runner(block.text)

    def check_all_is_shown(self) -> None:
        assert self._printed is None, (
            f"the document does not show the output of a block:\n{self._printed}"
        )

    def check_nobody_waits(self) -> None:
        assert not self._waiting, "a call waits, and its reply is not shown"

    def _close(self) -> None:
        if isinstance(redis := self._globals.get("redis"), Redis):
            redis.close()

    def _run_redis(self, text: str) -> None:
        commands = [shlex.split(line) for line in text.splitlines() if line]
        self._print([reply for words in commands for reply in self._replies(words)])

    def _print(self, replies: list[object]) -> None:
        before = self._printed or Output.same("")
        self._printed = Output(
            before.terminal + "".join(map(in_a_terminal, replies)),
            before.json + "".join(f"{in_json(reply)}\n" for reply in replies),
        )

    def _replies(self, words: list[str]) -> list[object]:
        """Returns the reply to a call, unless it blocks, followed by replies to calls that were
        unblocked.
        """
        replies = self._wait(words) if "BLOCK" in words else [self.reply(words)]
        return replies + self._replies_of_waiting()

    def _wait(self, words: list[str]) -> list[object]:
        connection = self._client.connection_pool.get_connection()
        connection.send_command("CLIENT", "ID")
        client = connection.read_response()
        connection.send_command(*words)

        def is_blocked() -> bool:
            (listed,) = self._client.client_list(client_id=[client])
            return "b" in listed["flags"]

        poll.until(lambda: connection.can_read(0) or is_blocked(), "a call waits or is answered")
        if not connection.can_read(0):
            self._waiting.append(connection)
            return []
        return [self._read(connection)]

    def _replies_of_waiting(self) -> list[object]:
        if not self._waiting:
            return []
        # The server sends the reply to an unblocked caller before it reads the second call after
        # the one that unblocked it.
        for _ in range(3):
            self._client.ping()
        answered = [connection for connection in self._waiting if connection.can_read(0)]
        self._waiting = [waiting for waiting in self._waiting if waiting not in answered]
        return [self._read(connection) for connection in answered]

    def reply(self, words: list[str]) -> object:
        """Returns the raw reply, without the client's conversions for some commands."""
        connection = self._client.connection_pool.get_connection()
        connection.send_command(*words)
        reply = self._read(connection)
        # Redis 6.2 has no maps for modules.
        if self._server.version < (7,) and isinstance(reply, list):
            if words[0] == "RL.INFO":
                info = map_from_pairs(reply)
                if "parts" in info:
                    info["parts"] = [map_from_pairs(part) for part in info["parts"]]
                return info
            if words[0] == "RL.POLICYGET":
                policy = map_from_pairs(reply)
                return policy | {"counts": map_from_pairs(policy["counts"])}
        return reply

    def _read(self, connection: Connection) -> object:
        try:
            return connection.read_response()
        except ResponseError as error:
            # The client removes the common error code ERR.
            text = str(error)
            return ResponseError(text if re.match("[A-Z]+ ", text) else f"ERR {text}")
        finally:
            self._client.connection_pool.release(connection)

    def _run_text(self, text: str) -> None:
        assert self._printed is not None, "a text block after no output"
        if self._printed.terminal == ANY_LINES:
            self._printed = None
            return
        printed = self._printed.terminal if re.match(r"1\) |#", text) else self._printed.json
        pattern = ".*\n".join(map(re.escape, f"\n{text}".split(f"\n{ANY_LINES}")))
        assert re.fullmatch(pattern, f"\n{printed}", re.DOTALL), f"printed:\n{printed}"
        self._printed = None

    def _run_yaml(self, text: str) -> None:
        of_gateway = ("domain:", "http:")
        # Run by gateway/tests/test_envoy_tokens.py.
        of_envoy = ("{selectors:", "hits_addend:", "- actions:")
        # The annotations in monitoring/alerts.yml name its label.
        of_prometheus = ("global:\n  external_labels:\n    ratelimit_console: ",)
        assert text.startswith((*of_gateway, *of_envoy, *of_prometheus)), "an unknown kind of file"

    def _run_python(self, text: str) -> None:
        # Use this server's port, and longer timeouts for a busy machine.
        for shown, actual in {
            "port=6379": f"port={self._server.port}",
            "socket_timeout=0.1": "socket_timeout=20",
        }.items():
            assert shown in text or "redis" in self._globals
            text = text.replace(shown, actual)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(text, "<document>", "exec"), self._globals)
        self._printed = Output.same(printed.getvalue()) if printed.getvalue() else None

    def _run_sh(self, text: str) -> None:
        self._printed = None
        if script := re.match(r"#!/bin/sh\n# ([\w-]+) ", text):
            self._keep(script[1], text)
            return
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] == ["redis-cli", "HELP"]:
                self._run_help(line)
                continue
            if (self._scripts / words[0]).exists():
                self._run_script(line)
                continue
            line_runner = getattr(self, f"_sh_{words[0].replace('-', '_')}", None)
            assert line_runner, f"a line that no test knows how to run: {line}"
            line_runner(words[1:])

    def _provide_redis_cli(self) -> bool:
        program = shutil.which("redis-cli")
        self._keep("redis-cli", f'#!/bin/sh\nexec {program} -p {self._server.port} "$@"\n')
        return program is not None

    def _keep(self, name: str, script: str) -> None:
        path = self._scripts / name
        path.write_text(script)
        path.chmod(0o755)

    def _run_script(self, line: str) -> None:
        if not self._can_run_scripts:
            pytest.skip("there is no redis-cli, which a script calls")
        process = subprocess.Popen(
            ["sh", "-c", line],
            env=os.environ | {"PATH": f"{self._scripts}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=20)
        finally:
            # Processes that the line leaves running must not outlive the test.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, f"{line}: status {process.returncode}"
        self._printed = Output.same(printed)

    def _run_help(self, line: str) -> None:
        """Runs a help line in plain text, without the empty lines that redis-cli prints around
        it.
        """
        if redis_cli() is None or self._server.version < (7,):
            # The output is not available here, so accept any text.
            self._printed = Output.same(ANY_LINES)
            return
        self._run_script(line)
        plain = textwrap.dedent(COLOUR.sub("", self._printed.terminal)).strip("\n")
        self._printed = Output.same(f"{plain}\n")

    def _sh_redis_cli(self, words: list[str]) -> None:
        reply = self.reply(words)
        assert isinstance(reply, str)
        self._printed = Output.same(reply.replace("\r\n", "\n"))

    def _sh_make(self, words: list[str]) -> None:
        check_make(words)

    def _sh_docker(self, words: list[str]) -> None:
        """Checks the arguments of docker."""
        command, *rest = words
        if command == "build":
            assert rest == ["--tag", IMAGE, "."]
        elif command == "run":
            assert ":6379" in rest[rest.index("--publish") + 1]
            options = rest[rest.index(IMAGE) + 1 :]
            for option in options[::2]:
                name = option.removeprefix("--")
                if self._server.binary.has_module_config or "ratelimit" not in name:
                    assert self._client.config_get(name), option
        else:
            assert (command, rest[1]) == ("exec", "valkey-cli")
            assert not isinstance(self.reply(rest[2:]), ResponseError)

    def _sh_helm(self, words: list[str]) -> None:
        """Checks that the chart and the values exist. gateway/tests/test_deploy.py renders them."""
        command, _, chart, *options = words
        assert command == "install"
        assert (REPOSITORY / chart / "Chart.yaml").is_file()
        for option, value in zip(options[::2], options[1::2], strict=True):
            assert option == "--namespace" or (REPOSITORY / value).is_file()

    def _sh_kubectl(self, words: list[str]) -> None:
        """Checks that the manifests exist and name the secret."""
        if words[:3] == ["create", "secret", "generic"]:
            assert words[3] in (REPOSITORY / "deploy/ratelimit.yaml").read_text()
        else:
            assert words[:2] == ["apply", "--filename"]
            assert (REPOSITORY / words[2]).is_file()

    def _sh_git(self, words: list[str]) -> None:
        command, address, self._folder = words
        assert (command, address) == ("clone", "ADDRESS-OF-THIS-REPOSITORY")

    def _sh_cd(self, words: list[str]) -> None:
        assert words == [self._folder]

    def _sh_install(self, words: list[str]) -> None:
        *options, file, folder = words
        cargo = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())
        targets = [target for _, target, _ in cargo["package"]["metadata"]["deb"]["assets"]]
        assert (options, file) == (["-m", "755"], MODULE.name)
        assert folder.lstrip("/") in targets

    def _sh_redis_exporter(self, words: list[str]) -> None:
        options = dict(zip(words[::2], words[1::2], strict=True))
        assert options.keys() == {"--redis.addr", "--script"}
        assert (REPOSITORY / options["--script"]).is_file()

    def _run_prometheus(self, text: str) -> None:
        flat = self._client.eval((REPOSITORY / "monitoring/ratelimit.lua").read_text(), 0)
        found = dict(zip(flat[::2], flat[1::2], strict=True))
        for line in text.splitlines():
            key, value = re.fullmatch(r'redis_script_values\{key="(.*)"\} (\d+)', line).groups()
            assert found[key] == value, line

    def _run_conf(self, text: str) -> None:
        """Runs a configuration on a server of its own, if the server supports it."""
        if not supports(self._server.binary, text):
            return
        server = Server(self._server.binary)
        lines = re.sub(r"\S*/libredis_ratelimit\.so", str(MODULE), text).splitlines()
        file = server.directory / "server.conf"
        configuration = file.read_text()
        if any(line.startswith("loadmodule") for line in lines):
            configuration = "".join(
                f"{line}\n" for line in configuration.splitlines() if "loadmodule" not in line
            )
        file.write_text(configuration + "\n".join(lines) + "\n")
        with server, server.client(decode_responses=True) as client:
            for line in lines:
                name, value = line.split(" ", 1)
                if name == "user":
                    assert client.acl_getuser(value.split()[0])
                elif name != "loadmodule":
                    assert normalized(client.config_get(name)[name]) == normalized(value), line
                else:
                    # The configuration must enable all commands that the document describes.
                    assert client.execute_command("RL.POLICYSET", "policy", "FIXED", 1, 1) > 0
                    if "cell-compat yes" in value:
                        assert client.execute_command("CL.THROTTLE", "bucket", 1, 1, 1)
            assert client.execute_command("RL.PEEK", "window", "FIXED", 1, 1)


def map_from_pairs(flat: list) -> dict[str, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def check_make(words: list[str]) -> None:
    """Checks that a Makefile has the targets and the settings."""
    files = {path.parent.name: path.read_text() for path in REPOSITORY.glob("*/Makefile")}
    main = (REPOSITORY / "Makefile").read_text()
    all_text = "\n".join([main, *files.values(), (REPOSITORY / "project.mk").read_text()])
    for word in words:
        name, is_setting, value = word.partition("=")
        if is_setting:
            assert f"$({name})" in all_text, word
        elif not re.search(rf"^{name}:.* ## ", main, re.MULTILINE):
            prefix, _, target = name.partition("-")
            folder = re.search(rf"^{prefix}-%: ; \$\(MAKE\) -C (\w+) ", main, re.MULTILINE)[1]
            assert re.search(rf"^{target}:.* ## ", files[folder], re.MULTILINE), word
        if name == "BENCH":
            # benches/run.py. Importing its charts takes each worker of pytest 0.8 s.
            import run as bench  # noqa: PLC0415

            bench.arguments(shlex.split(re.sub(r"/path/to/[\w-]+(\.so)?", str(MODULE), value)))


def supports(binary: Binary, conf: str) -> bool:
    """Returns `True` if the server supports the configuration; the documents name the versions."""
    is_supported = {
        "\nratelimit.": binary.has_module_config,
        "%R~": binary.version >= (7,),
        # Categories of modules' commands, and categories defined by modules.
        "+@read": binary.is_valkey or binary.version >= (7, 2),
        "+@ratelimit": binary.version >= ((8,) if binary.is_valkey else (7, 4)),
    }
    return all(supported for word, supported in is_supported.items() if word in f"\n{conf}")


def normalized(value: str) -> str:
    """Returns a value in a canonical form, as CONFIG GET returns bytes as a number, and flags in
    any order.
    """
    return "".join(sorted(value.replace("1gb", str(2**30))))


def in_a_terminal(reply: object) -> str:
    """Formats a reply as redis-cli prints it in a terminal."""
    if isinstance(reply, list):
        return "".join(f"{n}) {in_a_terminal(item)}" for n, item in enumerate(reply, 1))
    if isinstance(reply, int):
        return f"(integer) {reply}\n"
    if isinstance(reply, ResponseError):
        return f"(error) {reply}\n"
    return f'"{reply}"\n'


def in_json(reply: object) -> str:
    """Formats a reply as redis-cli prints it with --json."""
    if isinstance(reply, ResponseError):
        return f"error:{json.dumps(str(reply))}"
    return json.dumps(reply, separators=(",", ":"), ensure_ascii=False)
