"""Blocking calls, RL.ACQUIRE ... BLOCK, each on a connection of its own, and their replies."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Literal, Self

from redis import ConnectionError as RedisConnectionError
from redis import Redis

from support import poll
from support.clock import Clock
from support.server import TIMEOUT, Server
from support.workload import Word

# Reply to a caller that gets the only lease for 60 seconds: allowed, limit, remaining, wait, reset.
GRANTED = [1, 1, 0, 0, 60_000]
# Reply to another caller at the same time.
DENIED = [0, 1, 0, 60_000, 60_000]


class Caller:
    """Client with a connection of its own, which may be waiting for a reply."""

    def __init__(self, server: Server, protocol: Literal[2, 3] = 2) -> None:
        # Over TCP a write to a connection that the server has closed still succeeds; only a read
        # fails.
        self._client = server.client(protocol, over_tcp=True)
        self._connection = self._client.connection_pool.get_connection()
        self.id = self.call("CLIENT", "ID")

    def send(self, *words: Word) -> Self:
        self._connection.send_command(*words)
        return self

    @property
    def is_answered(self) -> bool:
        """`True` if there is anything to read, including the end of the connection."""
        try:
            return self._connection.can_read(0)
        except RedisConnectionError:
            return True

    def reply(self) -> object:
        """Waits for the reply and returns it. Raises an error reply."""
        return self._connection.read_response()

    def call(self, *words: Word) -> object:
        return self.send(*words).reply()

    def hang_up(self) -> None:
        """Closes the connection, even while it waits."""
        self._client.connection_pool.disconnect()
        self._client.close()


class Queue:
    """Blocked clients on a server, within a `with` block. At its end no client may be blocked.

    By default they request the only lease of the key "k", for 60 seconds.
    """

    def __init__(self, server: Server, timeout: float = TIMEOUT) -> None:
        self.server = server
        self._timeout = timeout
        self.client = server.client()
        self._callers = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, problem: type[BaseException] | None, *_: object) -> None:
        self._callers.close()
        if problem is None and self.server.is_running:
            self.until(lambda: self.is_empty, "no client is blocked")
        self.client.close()

    # Blocked clients

    def caller(self, protocol: Literal[2, 3] = 2) -> Caller:
        caller = Caller(self.server, protocol)
        self._callers.callback(caller.hang_up)
        return caller

    def send(self, *words: Word) -> Caller:
        """Sends a call on a connection of its own, without waiting for the reply."""
        return self.caller().send(*words)

    def join(
        self,
        holder: Word,
        *options: Word,
        key: Word = "k",
        limit: Word = 1,
        ttl: str = "60s",
        block: str = "0",
        caller: Caller | None = None,
    ) -> Caller:
        """Requests a lease, and returns once the server has blocked the call."""
        caller = caller or self.caller()
        caller.send("RL.ACQUIRE", key, limit, ttl, holder, *options, "BLOCK", block)
        poll.until(
            lambda: caller.is_answered or self.is_blocked(caller),
            f"{holder!r} waits or is answered",
        )
        assert not caller.is_answered, (holder, caller.reply())
        return caller

    def join_all(self, *holders: Word, **arguments: str | int) -> list[Caller]:
        """Blocks several holders, one after another."""
        return [self.join(holder, **arguments) for holder in holders]

    # Calls that do not block

    def acquire(
        self, holder: Word, *options: Word, key: Word = "k", limit: Word = 1, ttl: str = "60s"
    ) -> list[int]:
        return self.client.execute_command("RL.ACQUIRE", key, limit, ttl, holder, *options)

    def release(self, *holders: Word, key: Word = "k") -> int:
        return self.client.execute_command("RL.RELEASE", key, *holders)

    def holders(self, key: Word = "k") -> dict[bytes, bytes]:
        return leases_of(self.client, key)

    def waiters(self, key: Word = "k") -> list[bytes]:
        """Returns the waiters of a key in order, by RL.INFO."""
        return [row[0] for row in info_of(self.client, key).get(b"queue", [])]

    # State of all blocked clients

    def is_blocked(self, caller: Caller) -> bool:
        """Returns `True` if the server lists this client as blocked."""
        listed = self.client.client_list(client_id=[caller.id])
        return any("b" in client["flags"] for client in listed)

    @property
    def blocked(self) -> int:
        """Number of blocked clients."""
        return self.client.info("clients")["blocked_clients"]

    def info(self) -> dict[str, object]:
        """Returns INFO ratelimit_waiting, without the module's name before each field."""
        section = self.client.info("ratelimit_waiting")
        return {name.removeprefix("ratelimit_"): value for name, value in section.items()}

    @property
    def is_empty(self) -> bool:
        info = self.info()
        return not (self.blocked or info["blocked_clients"] or info["blocked_keys"])

    def settle(self) -> None:
        """Returns once the server has handled the effects of earlier calls.

        A timer of the module runs before the server writes the reply to the call that armed it, and
        an unblocked caller gets its reply before the server reads the second call after that.
        """
        for _ in range(3):
            # A server that rejects writes also rejects PING.
            self.client.echo("")

    def see_clock(self, clock: Clock) -> None:
        """Returns once the server has seen the time by itself, as it does about ten times a second,
        and handled the effects.

        Moves the clock by 2 ms, and waits until a key has expired that nothing accesses. A test
        that must not write a key can wait for the timeout of a blocked call instead.
        """
        before = self.client.info("stats")["expired_keys"]
        self.client.set("expires by itself", "", px=1)
        clock.advance("2ms")
        self.until(
            lambda: self.client.info("stats")["expired_keys"] > before, "the server sees the time"
        )
        self.settle()

    def until(self, condition: Callable[[], object], expected: str) -> None:
        poll.until(condition, expected, self._timeout)


def info_of(client: Redis, key: Word = "k") -> dict[bytes, object]:
    """Returns RL.INFO of a key; empty if it is missing."""
    flat = client.execute_command("RL.INFO", key) or []
    return dict(zip(flat[::2], flat[1::2], strict=True))


def leases_of(client: Redis, key: Word = "k") -> dict[bytes, bytes]:
    """Returns the units of each holder, in the order in which the leases expire."""
    return {holder: units for holder, units, _ in info_of(client, key).get(b"leases", [])}


def answered(callers: Sequence[Caller]) -> list[bool]:
    """Returns for each caller if it has a reply."""
    return [caller.is_answered for caller in callers]


def error_of(call: Callable[[], object]) -> str:
    """Returns the text of an error reply."""
    try:
        reply = call()
    except Exception as error:  # the class depends on the error code
        return str(error)
    raise AssertionError(f"no error, but {reply}")
