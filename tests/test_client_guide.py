"""The table of errors in docs/write-a-client.md has the errors of clients/events.json, and the Go
program in the document allows, denies, fails and pauses as the document says.
"""

import json
import os
import re
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import markdown, poll
from support.libraries import BUILT, PROGRAMS, needs_packages
from support.server import REPOSITORY, Server

GUIDE = REPOSITORY / "docs/write-a-client.md"
EVENTS = REPOSITORY / "clients/events.json"
TABLE = re.compile(r"(?<=--write -->\n).*?(?=<!-- end -->)", re.DOTALL)

# The page's program is written in Go and connects to one server.
pytestmark = pytest.mark.once

Ask = Callable[..., dict[str, Any]]


def table() -> str:
    """Renders the error replies of the server in clients/events.json."""
    events = json.loads(EVENTS.read_text())["events"]
    rows = [
        f"| `{event['by']['reply'].strip()}` | {event['class']} |\n"
        for event in events
        if "reply" in event["by"]
    ]
    no_reply = "| no reply in time, a lost or refused connection | outage |\n"
    return "| reply | class |\n|---|---|\n" + no_reply + "".join(rows)


def test_table_of_errors_matches_the_events() -> None:
    (shown,) = TABLE.findall(GUIDE.read_text())
    assert shown == table()


@pytest.fixture(scope="module")
def program() -> Path:
    """Builds the program of the page."""
    needs_packages("golang-go golang-github-gomodule-redigo-dev")
    directory = BUILT / "go-guide"
    directory.mkdir(parents=True, exist_ok=True)
    (code,) = [block.text for block in markdown.blocks(GUIDE.read_text()) if block.language == "go"]
    (directory / "guide.go").write_text(code)
    shutil.copy(PROGRAMS / "go-guide/main.go", directory)
    environment = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOFLAGS": ""}
    files = [directory / "guide.go", directory / "main.go"]
    build = ["go", "build", "-o", directory / "guide", *files]
    subprocess.run(build, check=True, env={**os.environ, **environment})
    return directory / "guide"


@contextmanager
def asking(program: Path, port: int) -> Iterator[Ask]:
    command = [str(program), str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, bufsize=1, **pipes) as process:

        def ask(*words: object) -> dict[str, Any]:
            process.stdin.write(" ".join(map(str, words)) + "\n")
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


class Stub(socketserver.ThreadingTCPServer):
    """Server that answers every call with `reply`, or closes the connection if it is None."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply: bytes | None = None
        self.calls: list[list[bytes]] = []


class Handler(socketserver.StreamRequestHandler):
    server: Stub

    def handle(self) -> None:
        while head := self.rfile.readline():
            words = []
            for _ in range(int(head[1:])):
                length = int(self.rfile.readline()[1:])
                words.append(self.rfile.read(length + 2)[:-2])
            self.server.calls.append(words)
            if self.server.reply is None:
                return
            self.wfile.write(self.server.reply)


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as stub:
        threading.Thread(target=stub.serve_forever, daemon=True).start()
        yield stub
        stub.shutdown()


def test_program_allows_and_denies(program: Path, server: Server) -> None:
    with asking(program, server.port) as ask:
        allowed, denied = (ask("RL.FIXED", "k", 1, "1m") for _ in range(2))
    assert (allowed["allowed"], allowed["reply"][:3]) == (True, [1, 1, 0])
    assert (denied["allowed"], denied["reply"][:3]) == (False, [0, 1, 0])


def test_program_raises_errors_of_the_server(program: Path, server: Server) -> None:
    with asking(program, server.port) as ask:
        answer = ask("RL.FIXED", "k", "many", "1m")
    assert not answer["allowed"]
    assert "many" in answer["error"]


def test_program_maps_each_error_to_its_class(program: Path, stub: Stub) -> None:
    # Whether the program allows the call, and whether it fails with an error.
    outcomes = {
        "outage": (True, False),
        "operator": (False, True),
        "caller": (False, True),
        "decision": (False, False),
    }
    events = json.loads(EVENTS.read_text())["events"]
    with asking(program, stub.server_address[1]) as ask:
        for event in events:
            if "reply" not in event["by"] or event["event"] == "full-of-ids":
                continue
            stub.reply = f"-{event['by']['reply']}\r\n".encode()
            answer = ask("RL.FIXED", "k", 1, "1m")
            assert (answer["allowed"], bool(answer["error"])) == outcomes[event["class"]], event
            assert answer["reply"] is None


def test_program_resends_a_lost_call_with_its_id(program: Path, stub: Stub) -> None:
    with asking(program, stub.server_address[1]) as ask:
        assert ask("RL.FIXED", "k", 1, "1m") == {"allowed": True, "reply": None, "error": ""}
    first, second = stub.calls
    assert first == second
    assert first[-3] == b"ONCE"


def test_program_resends_without_an_id_if_the_key_is_full_of_ids(program: Path, stub: Stub) -> None:
    stub.reply = b"-ERR the key has 1000 entries, as many as ratelimit.max-ids allows\r\n"
    with asking(program, stub.server_address[1]) as ask:
        ask("RL.FIXED", "k", 1, "1m")
    first, second = stub.calls
    assert second == first[:-3] == [b"RL.FIXED", b"k", b"1", b"1m"]


def test_program_pauses_after_three_failures(program: Path, stub: Stub) -> None:
    with asking(program, stub.server_address[1]) as ask:
        for _ in range(3):
            ask("RL.FIXED", "k", 1, "1m")
        sent = len(stub.calls)
        stub.reply = b"*5\r\n:1\r\n:1\r\n:0\r\n:0\r\n:1\r\n"
        poll.until(lambda: ask("RL.FIXED", "k", 1, "1m")["reply"], "a call after the pause")
        # The server received one call after the pause, and none during it.
        assert len(stub.calls) == sent + 1


if __name__ == "__main__" and "--write" in sys.argv:
    GUIDE.write_text(TABLE.sub(lambda _: table(), GUIDE.read_text()))
