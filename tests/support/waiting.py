"""Calls that wait: RL.ACQUIRE ... BLOCK, each on a connection of its own, and their replies."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Literal, Self

from redis import ConnectionError as RedisConnectionError
from redis import Redis

from support import poll
from support.clock import Clock
from support.server import PATIENCE, Server
from support.workload import Word

# How a server says that somebody holds the one lease for its whole time: allowed, limit, remaining,
# wait, reset.
GRANTED = [1, 1, 0, 0, 60_000]
# What is the answer to who waits for a lease that another has just got so.
DENIED = [0, 1, 0, 60_000, 60_000]


class Caller:
    """A client with a connection of its own, which may be waiting for a reply."""

    def __init__(self, server: Server, protocol: Literal[2, 3] = 2) -> None:
        # Over TCP it can write once more to a connection that the server has closed; a read tells.
        self._client = server.client(protocol, over_tcp=True)
        self._connection = self._client.connection_pool.get_connection()
        self.id = self.call("CLIENT", "ID")

    def send(self, *words: Word) -> Self:
        self._connection.send_command(*words)
        return self

    @property
    def is_answered(self) -> bool:
        """Whether there is something to read, be it that the connection was closed."""
        try:
            return self._connection.can_read(0)
        except RedisConnectionError:
            return True

    def reply(self) -> object:
        """What the server answers, however long that takes it. An error is raised."""
        return self._connection.read_response()

    def call(self, *words: Word) -> object:
        return self.send(*words).reply()

    def hang_up(self) -> None:
        """Closes the connection, whatever it waits for."""
        self._client.connection_pool.disconnect()
        self._client.close()


class Queue:
    """Those who wait on a server, from `with` to its end, at which nobody is left.

    Unless told otherwise they ask for a lease of 60 seconds of the key "k", of which there is one.
    """

    def __init__(self, server: Server, patience: float = PATIENCE) -> None:
        self.server = server
        self._patience = patience
        self.client = server.client()
        self._callers = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, problem: type[BaseException] | None, *_: object) -> None:
        self._callers.close()
        if problem is None and self.server.is_running:
            self.until(lambda: self.is_empty, "nobody waits any more")
        self.client.close()

    # Callers

    def caller(self, protocol: Literal[2, 3] = 2) -> Caller:
        caller = Caller(self.server, protocol)
        self._callers.callback(caller.hang_up)
        return caller

    def send(self, *words: Word) -> Caller:
        """Calls, on a connection of its own, and does not wait for the reply."""
        return self.caller().send(*words)

    def joins(
        self,
        holder: Word,
        *options: Word,
        key: Word = "k",
        limit: Word = 1,
        ttl: str = "60s",
        block: str = "0",
        by: Caller | None = None,
    ) -> Caller:
        """Asks for a lease and returns once the server has it wait."""
        caller = by or self.caller()
        caller.send("RL.ACQUIRE", key, limit, ttl, holder, *options, "BLOCK", block)
        poll.until(
            lambda: caller.is_answered or self.is_blocked(caller),
            f"{holder!r} waits or is answered",
        )
        assert not caller.is_answered, (holder, caller.reply())
        return caller

    def join(self, *holders: Word, **arguments: str | int) -> list[Caller]:
        """One after another."""
        return [self.joins(holder, **arguments) for holder in holders]

    # Calls that do not wait

    def acquire(
        self, holder: Word, *options: Word, key: Word = "k", limit: Word = 1, ttl: str = "60s"
    ) -> list[int]:
        return self.client.execute_command("RL.ACQUIRE", key, limit, ttl, holder, *options)

    def release(self, *holders: Word, key: Word = "k") -> int:
        return self.client.execute_command("RL.RELEASE", key, *holders)

    def holders(self, key: Word = "k") -> dict[bytes, bytes]:
        return leases_of(self.client, key)

    def waiting(self, key: Word = "k") -> list[bytes]:
        """The callers that wait for the key, in order, by what the server says of it."""
        return [row[0] for row in told_of(self.client, key).get(b"queue", [])]

    # What the server says of them all

    def is_blocked(self, caller: Caller) -> bool:
        """Whether the server itself has this client in that state."""
        listed = self.client.client_list(client_id=[caller.id])
        return any("b" in one["flags"] for one in listed)

    @property
    def blocked(self) -> int:
        """How many are."""
        return self.client.info("clients")["blocked_clients"]

    def told(self) -> dict[str, object]:
        """INFO ratelimit_waiting, without the module's name before each field."""
        section = self.client.info("ratelimit_waiting")
        return {name.removeprefix("ratelimit_"): value for name, value in section.items()}

    @property
    def is_empty(self) -> bool:
        told = self.told()
        return not (self.blocked or told["blocked_clients"] or told["blocked_keys"])

    def settle(self) -> None:
        """Returns once the server has done what the calls before this one have given cause for.

        A timer of the module runs before the server writes the reply to the call that armed it,
        and who is answered by it is written to before the next call but one is read.
        """
        for _ in range(3):
            # A server that refuses writes refuses PING too.
            self.client.echo("")

    def see_clock(self, clock: Clock) -> None:
        """Returns once the server has looked at its clock by itself, some ten times a second, and
        has done what that gave cause for.

        It moves the clock by 2 ms, in which a key expires that nobody asks for. Where nothing is
        written or expires, a caller whose deadline is reached shows the same.
        """
        before = self.client.info("stats")["expired_keys"]
        self.client.set("expires by itself", "", px=1)
        clock.advance("2ms")
        self.until(
            lambda: self.client.info("stats")["expired_keys"] > before, "the server sees the time"
        )
        self.settle()

    def until(self, condition: Callable[[], object], expected: str) -> None:
        poll.until(condition, expected, self._patience)


def told_of(client: Redis, key: Word = "k") -> dict[bytes, object]:
    """RL.INFO of a key; nothing, if it is missing."""
    flat = client.execute_command("RL.INFO", key) or []
    return dict(zip(flat[::2], flat[1::2], strict=True))


def leases_of(client: Redis, key: Word = "k") -> dict[bytes, bytes]:
    """The holders with what each holds of it, in the order in which the leases expire."""
    return {holder: units for holder, units, _ in told_of(client, key).get(b"leases", [])}


def answered(callers: Sequence[Caller]) -> list[bool]:
    """Those of them that have been."""
    return [caller.is_answered for caller in callers]


def error_of(call: Callable[[], object]) -> str:
    """The text of the error that the server answers."""
    try:
        reply = call()
    except Exception as error:  # whatever class the client has for its code
        return str(error)
    raise AssertionError(f"no error, but {reply}")
