"""A local cache of units, for a limit that very many requests share."""

import asyncio
import time
from contextlib import suppress

from ratelimit.calls import Calls, UnavailableError
from ratelimit.limits import PREFIX, Charge, Limit


class Lease:
    """Units of one limit, taken from Redis many at a time (UPTO) and spent here.

    So a limit on all requests of all tenants costs a call in `batch` requests, and need not lie
    in the slot of any tenant. Redis has charged every unit before it is spent here, so all
    processes together never spend more than it grants. Units not spent within `keep` seconds are
    forgotten: a process cannot save them up and spend them on top of later ones.
    """

    def __init__(
        self, calls: Calls, limit: Limit, *, batch: int, keep: float = 1.0, prefix: str = PREFIX
    ) -> None:
        self.charge = Charge(f"{prefix}:{limit.key}", limit, 1)
        self._calls = calls
        self._batch = batch
        self._keep = keep
        self._in_hand = 0
        self._kept_until = 0.0
        self._denied_until = 0.0
        self._asking = asyncio.Lock()

    @property
    def wait_ms(self) -> int:
        """After a denial: when there may be a unit again."""
        return max(int((self._denied_until - time.monotonic()) * 1000) + 1, 1)

    async def take(self) -> bool:
        """One unit."""
        if self._spend():
            return True
        async with self._asking:  # one asks; all others wait for what it gets
            if self._spend():
                return True
            if time.monotonic() < self._denied_until:
                return False
            await self._fetch()
            return self._spend()

    def put_back(self) -> None:
        """A unit that was not needed after all."""
        self._in_hand += 1

    def _spend(self) -> bool:
        if self._in_hand == 0 or time.monotonic() > self._kept_until:
            return False
        self._in_hand -= 1
        return True

    async def _fetch(self) -> None:
        kept_until = time.monotonic() + self._keep
        key, limit, _ = self.charge
        *_, wait_ms, _, granted = await self._calls(
            key, "RL.TAKE", key, *limit.words, "COST", self._batch, "UPTO"
        )
        self._in_hand = granted
        self._kept_until = kept_until
        self._denied_until = time.monotonic() + wait_ms / 1000

    async def close(self) -> None:
        """Gives the rest back, for other processes."""
        key, limit, _ = self.charge
        units, self._in_hand = self._in_hand, 0
        if units and time.monotonic() <= self._kept_until:
            with suppress(UnavailableError):  # they come back by themselves
                await self._calls(key, "RL.TAKE", key, *limit.words, "COST", -units)
