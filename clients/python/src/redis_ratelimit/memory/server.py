"""In-memory server: takes the words of a call and returns its reply."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from redis_ratelimit import forks
from redis_ratelimit.memory import grammar
from redis_ratelimit.memory.grammar import Call, refuse_server_features
from redis_ratelimit.memory.key import Key
from redis_ratelimit.memory.leases import Concurrency
from redis_ratelimit.memory.options import UNIT, Words, refusal
from redis_ratelimit.memory.rule import ALLOWED, LATEST
from redis_ratelimit.memory.visit import Visit, wait_ms
from redis_ratelimit.quantities import Word


class Memory:
    """Keys in this process, for a limiter in tests. `clock` returns seconds since 1970."""

    _lock = forks.Lazy(lambda: threading.RLock())  # noqa: PLW0108

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._keys: dict[bytes, Key] = {}
        self._last_token = 0
        # Number of keys at which expired keys are removed.
        self._sweep_size = 1000
        # Holders that wait for a lease, by key, in the order of arrival.
        self._queues: dict[bytes, list[bytes]] = {}
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        forks.forget(self, "_lock")

    def now(self) -> int:
        return min(max(round(self._clock() * UNIT), 0), LATEST)

    def call(self, words: Sequence[Word]) -> Any:
        """Returns the reply, or raises RefusedError."""
        with self._lock:
            return self._reply(Words(words), self.now())

    def _reply(self, words: Words, now: int) -> Any:
        command = words.peek()
        words.raw("command")
        refuse_server_features(command)
        if command in {"RL.MTAKE", "RL.MPEEK"}:
            is_peek = command == "RL.MPEEK"
            return self._keys_reply(grammar.read_keys(words, is_peek=is_peek), now, is_peek=is_peek)
        key = words.raw("key")
        if command in {"RL.TAKE", "RL.PEEK"}:
            is_peek = command == "RL.PEEK"
            return self._key_reply(
                key, grammar.read_call(words, is_peek=is_peek), now, is_peek=is_peek
            )
        if command == "RL.ACQUIRE":
            return self._acquire(key, *grammar.read_acquire(words), now)
        if command == "RL.RELEASE":
            return self._release(key, words, now)
        if command == "DEL":
            deleted = self._find(key, now) is not None
            self._keys.pop(key, None)
            return int(deleted)
        raise refusal(f"unknown command {command!r} of the limiter in memory")

    def _find(self, name: bytes, now: int) -> Key | None:
        key = self._keys.get(name)
        if key is not None and now // 1000 > key.expires_at:
            del self._keys[name]
            return None
        return key

    def _open(self, name: bytes, now: int, *, is_peek: bool = False) -> Key:
        """Returns the key, or a new one, shifted if the clock was set back. A peek does not store
        the shifted key.
        """
        key = self._find(name, now) or Key()
        back = key.ahead(now) if key.components or key.records else 0
        if back:
            key = deepcopy(key)
            key.move_back(now)
            key.expires_at -= back // 1000
            if not is_peek:
                self._keys[name] = key
        return key

    def _store(self, name: bytes, key: Key) -> None:
        if key.is_unused:
            self._keys.pop(name, None)
        else:
            self._keys[name] = key
        if len(self._keys) > self._sweep_size:
            now_ms = self.now() // 1000
            self._keys = {
                stored_name: stored
                for stored_name, stored in self._keys.items()
                if now_ms <= stored.expires_at
            }
            self._sweep_size = 1000 + 2 * len(self._keys)

    def _key_reply(self, name: bytes, call: Call, now: int, *, is_peek: bool) -> list[Any]:
        self._mark_behind(name, call)
        visit = self._visit([(name, call)], now, is_peek=is_peek)[0]
        each = visit.decisions()
        combined = visit.combined(each)
        if not call.each:
            return combined.row()
        names = [[] if spec.name is None else [spec.name.encode()] for spec in call.specs]
        rows = [[*one.row(), *name] for one, name in zip(each, names, strict=True)]
        return [int(combined.verdict[0] == ALLOWED), wait_ms(combined.verdict), rows]

    def _visit(self, keys: list[tuple[bytes, Call]], now: int, *, is_peek: bool) -> list[Visit]:
        """Evaluates a call on every key, and charges all keys or none."""
        opened = [self._open(name, now, is_peek=is_peek) for name, _ in keys]
        visits = [Visit(call, key, now) for key, (_, call) in zip(opened, keys, strict=True)]
        allowed = _allowed(visits)
        if allowed:
            for visit in visits:
                visit.check_room()
        for (name, call), visit in zip(keys, visits, strict=True):
            if not is_peek and visit.changes and (allowed or call.settle is not None):
                visit.commit()
                self._store(name, visit.key)
        return visits

    def _keys_reply(self, keys: list[tuple[bytes, Call]], now: int, *, is_peek: bool) -> list[Any]:
        for name, call in keys:
            self._mark_behind(name, call)
        visits = self._visit(keys, now, is_peek=is_peek)
        allowed, verdicts, rows = _allowed(visits), [], []
        for visit in visits:
            decision = visit.combined(visit.decisions())
            if allowed:
                sets_wait = decision.verdict[0] == ALLOWED
            else:
                sets_wait = visit.call.settle is not None or visit.denies
            if sets_wait:
                verdicts.append(decision.verdict)
            rows.append(decision.row())
        return [int(allowed), wait_ms(max(verdicts, default=(ALLOWED, 0))), rows]

    # Leases

    def _acquire(self, name: bytes, call: Call, fence: bool, now: int) -> list[Any]:
        rule = call.specs[0].rule
        assert isinstance(rule, Concurrency)
        if fence:
            rule.token = self._last_token = max(now, self._last_token + 1)
        row = self._key_reply(name, call, now, is_peek=False)
        if not fence:
            return row
        lease = None
        if row[0]:
            leases = self._keys[name].leases
            lease = None if leases is None else leases.live(now).get(rule.holder)
        return [*row, 0 if lease is None else lease.token]

    def _release(self, name: bytes, words: Words, now: int) -> int:
        holders = [words.name("holder")]
        while words.has_next():
            holders.append(words.name("holder"))
        key = self._open(name, now)
        released = key.release(holders, now)
        if released:
            self._store(name, key)
        else:
            # RL.RELEASE denies the wait of a holder that has no lease yet.
            queue = self._queues.get(name, [])
            queue[:] = [holder for holder in queue if holder not in holders]
        return released

    def _mark_behind(self, name: bytes, call: Call) -> None:
        """Marks a call for a lease as behind the waiters of the key, unless it is the first."""
        queue = self._queues.get(name)
        if not queue:
            return
        for spec in call.specs:
            if isinstance(spec.rule, Concurrency):
                spec.rule.behind = queue[0] != spec.rule.holder

    def join(self, words: Sequence[Word]) -> None:
        """Adds the holder of an RL.ACQUIRE to the queue of the key."""
        with self._lock:
            name, holder = _waiter(words)
            queue = self._queues.setdefault(name, [])
            if holder not in queue:
                queue.append(holder)

    def is_waiting(self, words: Sequence[Word]) -> bool:
        """Returns `True` if the call still waits. RL.RELEASE ends the wait."""
        name, holder = _waiter(words)
        return holder in self._queues.get(name, [])

    def leave(self, words: Sequence[Word]) -> None:
        """Removes the holder from the queue of the key."""
        with self._lock:
            name, holder = _waiter(words)
            queue = self._queues.get(name, [])
            if holder in queue:
                queue.remove(holder)
            if not queue:
                self._queues.pop(name, None)


def _allowed(visits: list[Visit]) -> bool:
    """Returns `True` if a call may be committed. A settlement may be if any key knows its id."""
    purpose = visits[0].call.purpose if len(visits) == 1 else ""
    if any(visit.call.settle is not None for visit in visits):
        return any(visit.knows_id for visit in visits)
    return purpose == "BACK" or not any(visit.denies for visit in visits)


def _waiter(words: Sequence[Word]) -> tuple[bytes, bytes]:
    _, name, _, _, holder = (
        word if isinstance(word, bytes) else word.encode() for word in words[:5]
    )
    return name, holder
