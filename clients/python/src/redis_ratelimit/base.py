"""What the limiter and the one for asyncio are both made of: all but the I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from redis_ratelimit import clients
from redis_ratelimit.calls import Calls, OnOutage
from redis_ratelimit.clients import Client
from redis_ratelimit.sending import Sending, SetupErrors


class Base:
    """Decides by a server, or by its cluster.

    `client` is one of redis-py or valkey-py, for a server or a cluster. Of a single server the
    limiter opens connections of its own, as the client is set but for time limits and retries. A
    cluster's client is used as it is.

    on_outage   while the server does not decide: "open", all passes; "closed", nothing does;
                "raise", UnavailableError; or a `Local`, the limits of this process.
    setup_errors
                what somebody has to mend on the server: "raise", SetupError; "on_outage", decide
                by `on_outage`. Either way the log has an error.
    timeout     seconds for one sending of a call, until its reply.
    connect_timeout
                seconds for connecting and greeting, which goes on in the background when a call
                has given up.
    resends     how often a call is sent again whose reply was lost. It counts once, by its id.
                Calls with `once=False` are not sent again.
    once        False: calls bring no id of their own, so that keys keep their smallest form.
    prefix      what every key begins with.
    failures    after so many calls in a row without a reply, nobody asks ... Calls that were under
                way together count as one.
    pause       ... for so many seconds. Then one call tries again. In a cluster each node is by
                itself.
    peeks       a client of replicas, which answer `peek` in place of the server; in a cluster, one
                with a `load_balancing_strategy`, so that it may read there. It can be the same.
    """

    # How calls reach the server.
    _transport_kind: type[Any]

    def __init__(
        self,
        client: Client,
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
        peeks: Client | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        kind = self._transport_kind
        library = clients.library(client, is_async=kind.is_async)
        self._clock = clock
        self._sending = Sending(
            clients.exceptions_of(library),
            setup_errors=setup_errors,
            resends=resends,
            failures=failures,
            pause=pause,
            clock=clock,
        )
        settings: dict[str, Any] = {
            "timeout": timeout,
            "connect_timeout": connect_timeout,
            "clock": clock,
            "may_be_elsewhere": self._sending.may_be_elsewhere,
            "is_sent_away": self._sending.is_sent_away,
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
            once=once,
            remembered=remembered,
            asked_again=pause,
        )
