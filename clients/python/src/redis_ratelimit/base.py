"""What the limiter and the one for asyncio are both made of: all but the I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from redis_ratelimit import clients
from redis_ratelimit.calls import Call, Calls, OnOutage
from redis_ratelimit.clients import Client, LateCluster
from redis_ratelimit.sending import Sending

# Seconds, about, between one look for a key that is moving to another node and the next.
MOVING = 0.1


class Base:
    """Decides by a server, or by its cluster.

    `client` is one of redis-py or valkey-py, for a server or a cluster. Of a single server the
    limiter opens connections of its own, as the client is set but for time limits and retries. A
    cluster's client is used as it is.

    on_outage   while the server does not decide: "open", all passes; "closed", nothing does; or a
                `Local`, the limits of this process.
    timeout     seconds for one sending of a call, until its reply.
    resends     how often a call is sent again whose reply was lost. It counts once, by its id.
                Calls with `once=False` are not sent again.
    once        False: calls bring no id of their own, so that keys keep their smallest form.
    failures    after so many calls in a row without a reply, nobody asks ...
    pause       ... for so many seconds. Then one call tries again. In a cluster each node is by
                itself.
    peeks       a client of replicas, which answer `peek` in place of the server; in a cluster, one
                with a `load_balancing_strategy`, so that it may read there. It can be the same.
    """

    _is_async: bool

    def __init__(
        self,
        client: Client,
        *,
        on_outage: OnOutage = "open",
        timeout: float = 0.1,
        resends: int = 1,
        once: bool = True,
        failures: int = 3,
        pause: float = 1.0,
        peeks: Client | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        library = clients.library(client, is_async=self._is_async)
        # Kept, since connections behind sentinels ask the client's pool where the primary is.
        self._given = (client, peeks)
        # What is closed with the limiter.
        self._own: list[Any] = []
        self._timeout = timeout
        self._clock = clock
        self._client = self._patient(client)
        self._peeks = self._client if peeks is None else self._patient(peeks)
        self._replicas = peeks is not None
        # For calls that wait, by the node: see `clients.waiting`.
        self._waiting: dict[str, Any] = {}
        self._sending = Sending(
            clients.exceptions_of(library),
            resends=resends,
            failures=failures,
            pause=pause,
            clock=clock,
        )
        # A little longer than all sendings take, twice each: a cluster's client connects first.
        remembered = 1 + 2 * timeout * (1 + resends)
        self._calls = Calls(on_outage, once=once, remembered=remembered, asked_again=pause)

    def _patient(self, client: Any) -> Any:
        library = clients.library(client, is_async=self._is_async)
        if clients.is_cluster(client):
            return client
        own = clients.patient(client, library, self._step)
        self._own.append(own)
        return own

    @property
    def _step(self) -> float | None:
        """The time limit of each step of a call. With asyncio it is over all of them together."""
        return None if self._is_async else self._timeout

    def _waiting_at(self, name: str, of: Any) -> Any:
        """The client for calls that wait at this node, by its pool or by itself."""
        found = self._waiting.get(name)
        if found is None:
            library = clients.library(self._client, is_async=self._is_async)
            made = clients.waiting(of, library, self._step)
            # Another thread may have been faster.
            found = self._waiting.setdefault(name, made)
            if found is made:
                self._own.append(made)
        return found

    def _client_for(self, call: Call[Any]) -> Any:
        return self._peeks if call.looks else self._client

    def _node_name(self, call: Call[Any]) -> str:
        """Where a call goes, as far as is known without asking."""
        client = self._client_for(call)
        if isinstance(client, LateCluster):
            client = client.client
        if client is None or not clients.is_cluster(client):
            return ""
        try:
            return str(
                clients.node_for(client, call.key, replica=call.looks and self._replicas).name
            )
        except Exception:
            return ""
