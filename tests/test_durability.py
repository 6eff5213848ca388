"""After a `kill -9` under load with `appendfsync always`, a server has every unit that it had
acknowledged, and none that was not sent.

* With `everysec` and `no`, a clean shutdown loses nothing.
* A snapshot and a rewritten AOF, with or without preamble, hold a call over several keys completely
  or not at all.
* An AOF that is cut within its last call keeps everything before it.
- Without an AOF, a crash forgets what no snapshot has. With `everysec` or `no`, a kill loses what
  was not yet written.
- Redis 6.2 and 7.0 run a transaction that is cut off in an AOF together with the next one. On Redis
  6.2, a repeated call can then count twice in a sliding log.

The tests charge by concurrent clients. Afterwards, the usage of each key must be at least the
answered charges and at most the sent charges, and the keys of one call must have the same usage.
"""

import shutil
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from redis import ConnectionError as RedisConnectionError
from redis import Redis

from support import poll
from support.clock import Clock
from support.load import CHARGED, Charging, Load
from support.saving import rewrite_aof, wait_until_saved
from support.scale import first_on_every_server, scaled
from support.server import Server
from support.workload import LIMITERS, Limiter, Word, each_limiter_on_one_server, state

pytestmark = [pytest.mark.every_server, pytest.mark.timeout(scaled(240, 3600))]

# Movement of the clock after each step of the first client. By the clock, servers decide when to
# fsync, and Redis 6.2 decides when a rewritten AOF is complete.
TICK = "10ms"

AOF = {"appendonly": "yes", "appendfsync": "always"}


def assert_between(
    least: Counter[str], used: Counter[str], most: Counter[str], context: object = ""
) -> None:
    for key in CHARGED:
        assert least[key] <= used[key] <= most[key], (context, key)


def is_written(client: Redis) -> bool:
    """Returns `True` if the whole AOF has been written to the operating system."""
    return client.info("persistence")["aof_buffer_length"] == 0


@pytest.mark.parametrize("preamble", ["yes", "no"])
@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
@pytest.mark.parametrize("end", ["nosave", "kill"])
def test_a_restart_keeps_what_appendfsync_promises(
    end: str, policy: str, preamble: str, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    """Checks that a server keeps all answered charges after a shutdown, and after a kill, as the
    operating system keeps what was written before each reply. Only `everysec` may delay a write
    while the disk is busy, so there a kill keeps only what was written. A power failure, which no
    test can simulate, loses writes that were not synced, except with `always`.
    """
    server = fresh_server(appendonly="yes", appendfsync=policy, aof_use_rdb_preamble=preamble)
    client = server.client()
    with Charging(server, clock, tick=TICK) as load:
        load.wait_for(steps=300)
        rewrite_aof(client)
        load.wait_for(steps=300)
        written = load.answered
        poll.until(lambda: is_written(client), "the AOF is written", timeout=30)
        if end == "kill":
            server.stop("kill")
            load.join()
    if end == "nosave":
        server.stop("nosave")
    promised = written if (policy, end) == ("everysec", "kill") else load.answered
    server.start()
    assert_between(promised, Charging.used(client), load.sent)


def is_over(load: Charging, clock: Clock) -> bool:
    # A child of Redis 6.2 that rewrites an AOF keeps the clients' connections open and waits for
    # its parent for seconds of this clock.
    clock.advance("1s")
    return load.is_over


def test_a_server_that_is_killed_repeatedly_under_load_loses_no_answered_charge(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(**AOF)
    client = server.client()
    before = Charging.used(client)
    for number in range(scaled(10, 60)):
        with Charging(server, clock, tick=TICK) as load:
            load.wait_for(steps=150)
            if number % 3 == 1:
                # The server is killed together with a child that is writing.
                client.bgrewriteaof()
            if number % 5 == 2:
                client.bgsave()
            server.stop("kill")
            poll.until(lambda: is_over(load, clock), "all clients are disconnected", timeout=30)
            load.join()
        server.start()
        after = Charging.used(client)
        assert_between(before + load.answered, after, before + load.sent, number)
        assert min((after - before)[key] for key in CHARGED) > 0
        before = after


@pytest.mark.parametrize("preamble", first_on_every_server(["yes", "no"]))
def test_an_aof_that_is_rewritten_repeatedly_under_load_loses_nothing(
    preamble: str, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(**AOF, aof_use_rdb_preamble=preamble)
    client = server.client()
    before = Charging.used(client)
    for _ in range(scaled(2, 20)):
        with Charging(server, clock, tick=TICK) as load:
            for _ in range(4):
                load.wait_for(steps=60)
                rewrite_aof(client)
            load.wait_for(steps=60)
            server.stop("kill")
            load.join()
        server.start()
        after = Charging.used(client)
        assert_between(before + load.answered, after, before + load.sent)
        before = after


def test_a_snapshot_under_load_is_of_one_instant(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server, other = fresh_server(), fresh_server()
    client, restored = server.client(), other.client()
    with Charging(server, clock, tick=TICK) as load:
        for _ in range(scaled(6, 60)):
            load.wait_for(steps=60)
            answered = load.answered
            client.bgsave()
            sent = load.sent
            wait_until_saved(client)
            other.stop()
            shutil.copy(server.directory / "dump.rdb", other.directory)
            other.start()
            assert_between(answered, Charging.used(restored), sent)
        server.stop("kill")
        load.join()
    # Without an AOF it continues from the last snapshot, which the other server has.
    server.start()
    assert Charging.used(client) == Charging.used(restored)
    assert state(client) == state(restored)


FIXED = ("FIXED", 10, "1h")
HOLDERS = ("a", "b", b"\x00\xff\r\n$3\r\n")


def charge_before(client: Redis, clock: Clock, limiter: Limiter) -> None:
    """Charges a key of every kind, and several leases or entries of this kind. Nothing expires
    during the test, as the expiry of a key is written to the AOF.
    """
    for other in LIMITERS:
        client.execute_command(*other.take(f"another {other.name}", 2))
    for holder in HOLDERS:
        client.execute_command(*limiter.for_holder(holder).take(limiter.name, 1))
        clock.advance("65s")


def last_calls(limiter: Limiter) -> dict[str, tuple]:
    """Returns calls that write different effects to the AOF."""
    name, last = limiter.name, limiter.for_holder("last")
    return {
        "take": last.take(name, 2),
        "give back": limiter.for_holder("a").give_back(name, 1),
        "all given back": (
            ("RL.RELEASE", name, *HOLDERS) if limiter.has_leases else limiter.give_back(name)
        ),
        "a new key": last.take("new", 2),
        # A key with several limits writes one effect; every other writes two, in a transaction.
        "a ban": ("RL.BAN", name, "1h"),
        "several": ("RL.MTAKE", 2, name, "other", *last.words(2), *FIXED),
    }


@each_limiter_on_one_server
def test_an_aof_that_is_cut_within_its_last_call_has_all_earlier_calls(
    limiter: Limiter, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(**AOF, aof_load_truncated="yes", auto_aof_rewrite_percentage=0)
    client = server.client()
    for context, call in last_calls(limiter).items():
        client.flushall()
        charge_before(client, clock, limiter)
        aof = server.aof_files()[-1]
        before, begin = state(client), aof.stat().st_size
        client.execute_command(*call)
        after, content = state(client), aof.read_bytes()
        assert after != before
        assert len(content) > begin
        for end in ends(server, begin, len(content)):
            load_aof(server, aof, content[:end])
            assert state(client) == (after if end == len(content) else before), (context, end)
        # The next write follows the complete part. Redis 6.2 wraps each call in its own MULTI and
        # keeps the part of a cut call that was complete, so that the next EXEC runs both. There,
        # the cut is within the first bytes.
        server.stop("kill")
        aof.write_bytes(content[: begin + 1] if server.version < (7,) else content[:-1])
        server.start()
        client.execute_command(*call)
        server.restart("kill")
        assert state(client) == after, context


def ends(server: Server, begin: int, size: int) -> list[int]:
    """Returns offsets at which to cut the AOF: all offsets if the server can load it while it
    runs.
    """
    step = 1 if can_load_while_it_runs(server) else scaled(60, 20)
    return sorted({*range(begin, size, step), size - 1, size})


def can_load_while_it_runs(server: Server) -> bool:
    # Newer servers exit if DEBUG LOADAOF reads an AOF that was cut.
    return server.version < (7,)


def load_aof(server: Server, aof: Path, content: bytes) -> None:
    if can_load_while_it_runs(server):
        aof.write_bytes(content)
        with server.client() as client:
            client.execute_command("DEBUG", "LOADAOF")
    else:
        server.stop("kill")
        aof.write_bytes(content)
        server.start()


class Identified(Load):
    """Charges two keys in one call, with a new id for each call, until the server dies."""

    KEYS = ("a", "b")
    SPEC: tuple[Word, ...] = ("SLIDINGLOG", 100_000, "1h", "FIXED", 100_000, "1d")

    def __init__(self, server: Server, clock: Clock, prefix: str) -> None:
        super().__init__(4)
        self._server, self._clock, self._prefix = server, clock, prefix
        self.sent: list[str] = []
        self.answered: list[str] = []

    @classmethod
    def call(cls, identifier: str) -> tuple[Word, ...]:
        return ("RL.MTAKE", 2, *cls.KEYS, "ONCE", identifier, "1h", *cls.SPEC)

    @classmethod
    def used(cls, client: Redis) -> set[int]:
        specs = (cls.SPEC[:3], cls.SPEC[3:])
        calls = [("RL.PEEK", key, *spec) for key, spec in zip(cls.KEYS, specs, strict=True)]
        return {100_000 - client.execute_command(*call)[2] for call in calls}

    def step(self, number: int) -> Callable[[], bool]:
        client, numbers = self._server.client(), count()

        def take_step() -> bool:
            if number == 0:
                self._clock.advance(TICK)
            identifier = f"{self._prefix} {number} {next(numbers)}"
            self.sent.append(identifier)
            try:
                assert client.execute_command(*self.call(identifier))[0] == 1
            except RedisConnectionError:
                return False
            self.answered.append(identifier)
            return True

        return take_step


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_acknowledged_id_survives_kills_of_the_server(
    preamble: str, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(**AOF, aof_use_rdb_preamble=preamble)
    client = server.client()
    sent = 0
    for number in range(scaled(4, 40)):
        with Identified(server, clock, str(number)) as load:
            load.wait_for(steps=200)
            if number % 2:
                rewrite_aof(client)
                load.wait_for(steps=50)
            server.stop("kill")
            load.join()
        server.start()
        (after,) = Identified.used(client)
        assert sent + len(load.answered) <= after <= sent + len(load.sent)
        # A repetition of an answered call charges nothing; any other call charges once.
        for identifier in load.answered:
            assert client.execute_command(*Identified.call(identifier))[0] == 1
        assert Identified.used(client) == {after}
        for identifier in load.sent * 2:
            assert client.execute_command(*Identified.call(identifier))[0] == 1
        sent += len(load.sent)
        assert Identified.used(client) == {sent}
