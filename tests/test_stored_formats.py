"""Later versions read all snapshots, AOFs and DUMP payloads of earlier ones, from 0.1.0 on. What a
version before that saved is refused, and the log says so.

fixtures/make.py says what is in the files of these tests, and that they never change.
"""

import json
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import pytest
from redis import Redis, ResponseError

from support.clock import Clock
from support.payloads import HEAD, fields, rewritten
from support.saving import rewrite_aof
from support.server import Server, ServerError
from support.workload import LIMITERS, State, digests, state

pytestmark = pytest.mark.every_server

FIXTURES = Path(__file__).parent / "fixtures"
FORMATS = sorted(FIXTURES.glob("format-*"), key=lambda path: int(path.name.split("-")[1]))
# The format that this version writes.
CURRENT = FORMATS[-1]

# A server appends ten bytes to a payload: its own version and a checksum.
FOOTER = 10


def from_json(text: object) -> object:
    """Converts bytes from their form in JSON to the client's form."""
    if isinstance(text, str):
        return text.encode("latin-1")
    if isinstance(text, list):
        return [from_json(item) for item in text]
    return text


class Format:
    """The files of one stored format, and the replies expected after they are loaded."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @cached_property
    def _description(self) -> dict:
        return json.loads((self.directory / "keys.json").read_text())

    @property
    def instant(self) -> int:
        return self._description["instant"]

    @cached_property
    def keys(self) -> dict[bytes, dict]:
        return {from_json(row["key"]): row for row in self._description["keys"]}

    def states(self) -> dict[bytes, State]:
        return {
            name: State(from_json(row["type"]), bytes.fromhex(row["dump"]), row["expires_at"])
            for name, row in self.keys.items()
        }

    def digests(self) -> list[bytes]:
        return [from_json(row["digest"]) for row in self.keys.values()]

    def assert_answers(self, client: Redis) -> None:
        for name, row in self.keys.items():
            for call, reply in row["calls"]:
                assert client.execute_command(*from_json(call)) == from_json(reply), (name, call)


@pytest.fixture(params=FORMATS, ids=[directory.name for directory in FORMATS])
def stored(request: pytest.FixtureRequest, clock: Clock) -> Format:
    """Returns the files of one format and sets the clock to their instant."""
    found = Format(request.param)
    clock.set(found.instant)
    return found


def without_footer(states: dict[bytes, State]) -> dict[bytes, State]:
    return {name: entry._replace(dump=entry.dump[:-FOOTER]) for name, entry in states.items()}


def assert_is_what_was_stored(client: Redis, stored: Format) -> None:
    expected, actual = stored.states(), state(client)
    assert {name: (entry.type, entry.expires_at) for name, entry in actual.items()} == {
        name: (entry.type, entry.expires_at) for name, entry in expected.items()
    }
    if stored.directory == CURRENT:
        assert without_footer(actual) == without_footer(expected)
        assert digests(client, expected) == stored.digests()
    stored.assert_answers(client)


def test_every_kind_is_in_the_newest_format(stored: Format) -> None:
    """Checks that a format has no unknown kinds, and the newest one all kinds."""
    types = {state.type for state in stored.states().values()}
    all_types = {limiter.type for limiter in LIMITERS}
    assert types <= all_types
    assert types == all_types or stored.directory != CURRENT


def test_snapshot_of_a_stored_format_is_loaded(
    stored: Format, fresh_server: Callable[..., Server]
) -> None:
    server = fresh_server()
    server.stop()
    shutil.copy(stored.directory / "dump.rdb", server.directory)
    server.start()
    assert_is_what_was_stored(server.client(), stored)


@pytest.mark.parametrize("file", ["appendonly.aof", "rewritten.aof", "preamble.aof"])
def test_aof_of_a_stored_format_is_loaded_and_continued(
    file: str, stored: Format, fresh_server: Callable[..., Server]
) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always")
    server.stop()
    # The AOF of Redis 6.2 is one file, which a newer server moves into its AOF directory.
    shutil.rmtree(server.directory / "appendonlydir", ignore_errors=True)
    shutil.copy(stored.directory / file, server.directory / "appendonly.aof")
    server.start()
    client = server.client()
    assert_is_what_was_stored(client, stored)
    # The calls of the check above were appended to the AOF.
    before = state(client)
    server.restart("kill")
    assert state(client) == before
    rewrite_aof(client)
    server.restart("kill")
    assert state(client) == before


def test_payload_of_a_stored_format_is_restored(stored: Format, redis: Redis) -> None:
    for name, entry in stored.states().items():
        redis.restore(name, max(entry.expires_at, 0), entry.dump, absttl=True)
    assert_is_what_was_stored(redis, stored)


def payload_before_0_1_0(dump: bytes) -> tuple[bytes, str]:
    """Returns the payload with the number of an earlier format, and the expected log message."""
    version = int.from_bytes(dump[2:HEAD], "big") & 1023
    reason = f"cannot read a payload of format {version - 1}, written by a version before 0.1.0"
    return rewritten(dump, fields(dump), version=version - 1), reason


def test_payload_of_a_version_before_the_first_release_is_refused(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server()
    client = server.client()
    for entry in Format(CURRENT).states().values():
        payload, reason = payload_before_0_1_0(entry.dump)
        with pytest.raises(ResponseError, match="Bad data format"):
            client.restore("old", 1000, payload)
        assert f"{entry.type.decode()}: {reason}" in server.log()


def test_snapshot_of_a_version_before_the_first_release_is_not_loaded(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server()
    server.stop()
    snapshot = (CURRENT / "dump.rdb").read_bytes()
    dump = next(entry.dump for entry in Format(CURRENT).states().values())
    payload, reason = payload_before_0_1_0(dump)
    assert dump[1:HEAD] in snapshot
    # Eight zero bytes in place of the checksum disable its check.
    changed = snapshot[:-8].replace(dump[1:HEAD], payload[1:HEAD]) + bytes(8)
    (server.directory / "dump.rdb").write_bytes(changed)
    with pytest.raises(ServerError, match=reason):
        server.start()
