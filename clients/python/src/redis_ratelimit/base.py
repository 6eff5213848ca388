"""Common base of the limiters for threads and for asyncio, without the I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from redis_ratelimit import clients
from redis_ratelimit.calls import Calls, OnOutage
from redis_ratelimit.clients import Client
from redis_ratelimit.decision import Decision
from redis_ratelimit.denials import Arguments, Denial, Denials, is_worth_tracking
from redis_ratelimit.ids import Ids
from redis_ratelimit.memory.server import Memory
from redis_ratelimit.memory.transport import EXCEPTIONS, AsyncTransport, Transport
from redis_ratelimit.named import Names
from redis_ratelimit.quantities import Key
from redis_ratelimit.sending import Sending, SetupErrors

B = TypeVar("B", bound="Base")


class Base:
    """Rate limiter whose limits a server or a cluster decides.

    `client` is a client of redis-py or valkey-py, for a server or a cluster. For a single server
    the limiter opens connections of its own with the client's settings, except for timeouts and
    retries. The client of a cluster is used unchanged.

    on_outage   fallback while the server does not decide: "open" allows every call, "closed" denies
                every call, "raise" raises UnavailableError, and a `Local` decides by limits of this
                process.
    setup_errors
                reaction to a misconfigured server: "raise" raises SetupError, "outage" decides by
                `on_outage`. Both log an error.
    timeout     seconds from sending a call to its reply.
    connect_timeout
                seconds for connecting and the handshake, which continue in the background after a
                call has timed out.
    resends     number of times that a call is resent after its reply was lost.
    once        True: calls bring an idempotency key where charging them twice would matter: for
                more than one unit, or more than a hundredth of a limit. False: only calls that ask
                for one do, and a call whose reply was lost is not resent.
    prefix      prefix of every key.
    failures    number of consecutive calls without a reply after which no call is sent for `pause`
                seconds. Calls in flight together count as one. Each node of a cluster is counted
                separately.
    pause       seconds after which one call tries the server again.
    remember_denials
                answer a denied call in this process until its `wait` is over, or until the server
                reports that the key has changed.
    peeks       client of replicas, which answer `peek` in place of the primary; in a cluster, a
                client with a `load_balancing_strategy`. `client` itself is possible.
    """

    # Class that sends calls to the server.
    _transport_kind: type[Any]

    def __init__(
        self,
        client: Client | Memory,
        *,
        on_outage: OnOutage = "open",
        setup_errors: SetupErrors = "raise",
        timeout: float = 0.25,
        connect_timeout: float = 2.0,
        resends: int = 1,
        once: bool = True,
        prefix: str = "",
        failures: int = 3,
        pause: float = 1.0,
        remember_denials: bool = True,
        peeks: Client | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        kind, exceptions = self._transport_for(client)
        self._clock = clock
        self._sending = Sending(
            exceptions,
            setup_errors=setup_errors,
            resends=resends,
            failures=failures,
            pause=pause,
            clock=clock,
        )
        self._denials = Denials(prefix, kind.current_loop)
        self._remembers_denials = remember_denials
        self._names = Names()
        settings: dict[str, Any] = {
            "timeout": timeout,
            "connect_timeout": connect_timeout,
            "clock": clock,
            "may_have_moved": self._sending.may_have_moved,
            "is_from_former_primary": self._sending.is_from_former_primary,
            "on_invalidation": self._denials.invalidate,
        }
        self._transport = kind(client, replicas=False, **settings)
        self._peek_transport = (
            self._transport if peeks is None else kind(peeks, replicas=True, **settings)
        )
        # Clients that this limiter created and closes.
        self._own_clients: list[Any] = []
        # Longer than all attempts. Each may take two timeouts, as a cluster's client connects
        # first.
        id_lifetime = 1 + 2 * timeout * (1 + resends)
        self._calls = Calls(
            on_outage,
            prefix=prefix,
            ids=Ids(by_default=once, lifetime=id_lifetime),
            retry_after=pause,
        )

    @classmethod
    def local(cls: type[B], *, clock: Callable[[], float] = time.time, **options: Any) -> B:
        """Returns a limiter for tests, which decides in this process as the server would. Sketches,
        policies and bans raise CallError. `clock` returns seconds since 1970; a `ManualClock`
        stands still until a test moves it. `options` are those of the constructor.
        """
        return cls(Memory(clock), clock=clock, remember_denials=False, **options)

    def _transport_for(self, client: Client | Memory) -> tuple[Any, Any]:
        """Returns the transport class for a client, and the exceptions of its library."""
        kind = self._transport_kind
        if isinstance(client, Memory):
            return (AsyncTransport if kind.is_async else Transport), EXCEPTIONS
        return kind, clients.exceptions_of(clients.library(client, is_async=kind.is_async))

    def _remembered_denial(self, arguments: Arguments, key: Key, now: float) -> Decision | None:
        """Returns the remembered denial of a call, as the server would report it now."""
        denial = self._denials.find(key, arguments, now)
        if denial is None:
            return None
        if not denial.repeated:
            marked = self._denials.mark_repeated(denial)
            if marked is not None:
                self._watch(marked, now)
        return denial.remaining(now)

    def _remember_denial(
        self, arguments: Arguments, key: Key, decision: Decision, sent_at: float
    ) -> None:
        """Remembers a denial of the server, and tracks a key that is denied repeatedly."""
        now = self._clock()
        denial = self._denials.remember(key, arguments, decision, sent_at, now)
        if denial is not None and denial.repeated:
            self._watch(denial, now)

    def _watch(self, denial: Denial, now: float) -> None:
        """Subscribes to changes of the key, and then remembers the denial for its entire wait."""
        limits, cost, max_wait, keep, holder, each = denial.arguments
        if not is_worth_tracking(denial.decision, limits):
            return
        peek = self._calls.take(
            denial.key,
            limits,
            cost=cost,
            max_wait=max_wait,
            keep=keep,
            holder=holder,
            each=each,
            is_peek=True,
        )

        def on_reply(reply: Any) -> None:
            if not isinstance(reply, Exception):
                self._denials.extend(denial, peek.decode(reply), now, self._clock())

        self._transport.watch(peek, on_reply)
