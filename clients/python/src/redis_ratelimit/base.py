"""What the limiter and the one for asyncio are both made of: all but the I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from redis_ratelimit import clients
from redis_ratelimit.calls import Calls, OnOutage
from redis_ratelimit.clients import Client
from redis_ratelimit.decision import Decision
from redis_ratelimit.denials import Asked, Denial, Denials, is_worth_hearing
from redis_ratelimit.ids import Ids
from redis_ratelimit.memory.server import Memory
from redis_ratelimit.memory.transport import EXCEPTIONS, AsyncTransport, Transport
from redis_ratelimit.named import Names
from redis_ratelimit.quantities import Key
from redis_ratelimit.sending import Sending, SetupErrors

B = TypeVar("B", bound="Base")


class Base:
    """Decides by a server, or by its cluster.

    `client` is one of redis-py or valkey-py, for a server or a cluster. Of a single server the
    limiter opens connections of its own, as the client is set but for time limits and retries. A
    cluster's client is used as it is.

    on_outage   while the server does not decide: "open", all passes; "closed", nothing does;
                "raise", UnavailableError; or a `Local`, the limits of this process.
    setup_errors
                what somebody has to mend on the server: "raise", SetupError; "outage", decide by
                `on_outage`. Either way the log has an error.
    timeout     seconds for one sending of a call, until its reply.
    connect_timeout
                seconds for connecting and greeting, which goes on in the background when a call
                has given up.
    resends     how often a call is sent again whose reply was lost.
    once        True: calls bring an idempotency key where charging them twice would matter: for
                more than one unit, or more than a hundredth of a limit. False: none does that does
                not ask for it, and a call whose reply was lost is not sent again.
    prefix      what every key begins with.
    failures    after so many calls in a row without a reply, nobody asks ... Calls that were under
                way together count as one.
    pause       ... for so many seconds. Then one call tries again. In a cluster each node is by
                itself.
    remember_denials
                whether this process answers a denied call until its `wait` is over, or until the
                server says that the key has changed.
    peeks       a client of replicas, which answer `peek` in place of the server; in a cluster, one
                with a `load_balancing_strategy`, so that it may read there. It can be the same.
    """

    # How calls reach the server.
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
        kind, exceptions = self._route(client)
        self._clock = clock
        self._sending = Sending(
            exceptions,
            setup_errors=setup_errors,
            resends=resends,
            failures=failures,
            pause=pause,
            clock=clock,
        )
        self._denials = Denials(prefix, kind.where)
        self._remembers = remember_denials
        self._names = Names()
        settings: dict[str, Any] = {
            "timeout": timeout,
            "connect_timeout": connect_timeout,
            "clock": clock,
            "may_be_elsewhere": self._sending.may_be_elsewhere,
            "is_sent_away": self._sending.is_sent_away,
            "heard": self._denials.heard,
        }
        self._transport = kind(client, replicas=False, **settings)
        self._peeking = self._transport if peeks is None else kind(peeks, replicas=True, **settings)
        # Clients that the limiter has made for itself.
        self._own: list[Any] = []
        # A little longer than all sendings take, twice each: a cluster's client connects first.
        remembered = 1 + 2 * timeout * (1 + resends)
        self._calls = Calls(
            on_outage,
            prefix=prefix,
            ids=Ids(may_have=once, remembered=remembered),
            asked_again=pause,
        )

    @classmethod
    def local(cls: type[B], *, clock: Callable[[], float] = time.time, **options: Any) -> B:
        """Returns a limiter that decides in this process, for tests: as the server does, but for
        sketches, policies and bans, which raise CallError. `clock` tells the seconds since 1970; a
        `ManualClock` stands still until a test moves it. `options` are those of the constructor.
        """
        return cls(Memory(clock), clock=clock, remember_denials=False, **options)

    def _route(self, client: Client | Memory) -> tuple[Any, Any]:
        """Returns how calls reach the server, and its library's exceptions."""
        kind = self._transport_kind
        if isinstance(client, Memory):
            return (AsyncTransport if kind.is_async else Transport), EXCEPTIONS
        return kind, clients.exceptions_of(clients.library(client, is_async=kind.is_async))

    def _remembered(self, asked: Asked, key: Key, now: float) -> Decision | None:
        """Returns what the server would answer now, if it is known."""
        denial = self._denials.find(key, asked, now)
        if denial is None:
            return None
        if not denial.again:
            marked = self._denials.again(denial)
            if marked is not None:
                self._hear(marked, now)
        return denial.left(now)

    def _denied(self, asked: Asked, key: Key, decision: Decision, sent_at: float) -> None:
        """Remembers what the server has denied, and listens for what would let it pass."""
        now = self._clock()
        denial = self._denials.remember(key, asked, decision, sent_at, now)
        if denial is not None and denial.again:
            self._hear(denial, now)

    def _hear(self, denial: Denial, now: float) -> None:
        """Listens for what would let a call pass, and from then on remembers for all of its wait
        that it is denied.
        """
        limits, cost, max_wait, keep, holder, each = denial.asked
        if not is_worth_hearing(denial.decision, limits):
            return
        look = self._calls.take(
            denial.key,
            limits,
            cost=cost,
            max_wait=max_wait,
            keep=keep,
            holder=holder,
            each=each,
            look=True,
        )

        def told(reply: Any) -> None:
            if not isinstance(reply, Exception):
                self._denials.extend(denial, look.read(reply), now, self._clock())

        self._transport.watch(look, told)
