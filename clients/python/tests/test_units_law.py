"""All processes together never spend more units than the server has charged."""

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
import redis
from support.clock import Clock

from limiters import FrozenClock, Make
from redis_ratelimit import Fixed, Limiter, Policy, TokenBucket
from test_forks import in_child

PROCESSES = 8
LIMIT = Fixed(3000, "1d")
REFILLED = TokenBucket(200, 200)


def spend(url: str, limit: Any, peers: int, rate: float, parent: Connection) -> None:
    """Spends units in a process of its own, and reports each spent unit to the parent. A message of
    the parent ends the process, which gives back the remaining units. A `rate` of 0 means as fast
    as possible, otherwise units per second.
    """
    with (
        Limiter.from_url(url, timeout=30, on_outage="closed") as limiter,
        limiter.units("hot", limit, peers=peers) as units,
    ):
        while not parent.poll(1 / rate if rate else 0):
            decision = units.take()
            if decision:
                parent.send_bytes(b"+")
            elif not rate:
                time.sleep(0.001)
    parent.send_bytes(b".")


@contextmanager
def spending_processes(
    url: str, limit: Any, *, peers: int = PROCESSES, rate: float = 0.0
) -> Iterator[list[tuple[Any, Connection]]]:
    """Starts processes that spend units of one key."""
    context = multiprocessing.get_context("spawn")
    started = []
    try:
        for _ in range(PROCESSES):
            parent_end, child_end = context.Pipe()
            process = context.Process(target=spend, args=(url, limit, peers, rate, child_end))
            process.start()
            child_end.close()
            started.append((process, parent_end))
        yield started
    finally:
        for process, _ in started:
            process.kill()
            process.join()


def count_spent(
    started: list[tuple[Any, Connection]], is_over: Callable[[int], bool] = lambda _: False
) -> int:
    """Counts spent units until all processes have ended, or until `is_over(count)` is true."""
    spent = 0
    open_ends = [parent_end for _, parent_end in started]
    while open_ends and not is_over(spent):
        for parent_end in wait(open_ends):
            assert isinstance(parent_end, Connection)
            try:
                has_ended = parent_end.recv_bytes() == b"."
            except EOFError:  # the process was killed
                has_ended = True
            if has_ended:
                open_ends.remove(parent_end)
            else:
                spent += 1
    return spent


def used(admin: redis.Redis, limit: Any) -> int:
    reply = admin.execute_command("RL.PEEK", "hot", *limit.spec(), "COST", 0)
    return int(reply[1] - reply[2])


def test_killed_processes_spend_no_more_than_the_limit(url: str, admin: redis.Redis) -> None:
    with spending_processes(url, LIMIT) as started:
        spent = count_spent(started, lambda number: number >= 500)
        killed, others = started[:3], started[3:]
        for process, _ in killed:
            process.kill()
        spent += count_spent(killed)
        # A killed process had charged its units in hand.
        assert spent <= used(admin, LIMIT)
        spent += count_spent(others, lambda number: spent + number >= 2000)
        for _, parent_end in others:
            parent_end.send_bytes(b".")
        spent += count_spent(others)
        lost = used(admin, LIMIT) - spent
    # The units of the killed processes are lost: at most the batch in hand and the next.
    assert 0 <= lost <= len(killed) * 2 * LIMIT.quota / (4 * PROCESSES)


def test_processes_that_compete_spend_exactly_the_limit(url: str, admin: redis.Redis) -> None:
    limit = Fixed(500, "1d")
    with spending_processes(url, limit) as started:
        spent = count_spent(started, lambda number: number >= 480)
        assert spent <= 500
        for _, parent_end in started:
            parent_end.send_bytes(b".")
        spent += count_spent(started)
        assert spent <= 500
        assert used(admin, limit) == spent


def test_refilled_limit_is_spent_and_never_exceeded(url: str, clock: Clock) -> None:
    """The server's clock advances whenever nearly all refilled units are spent."""
    with spending_processes(url, REFILLED) as started:
        spent, enough = 0, float(REFILLED.capacity)
        for _ in range(5):
            expected = 0.9 * enough - spent
            spent += count_spent(started, expected.__le__)
            assert spent <= enough
            clock.advance("200ms")
            enough += REFILLED.refill * 0.2
        for _, parent_end in started:
            parent_end.send_bytes(b".")
        spent += count_spent(started)
    assert spent <= enough


def test_forked_children_spend_their_own_units(url: str, admin: redis.Redis) -> None:
    limit = Fixed(200, "1d")
    with Limiter.from_url(url, timeout=10, clock=lambda: 1000.0) as limiter:
        units = limiter.units("hot", limit, peers=1)
        assert units.take(cost=30)
        assert units.take()
        assert units.in_hand == 30
        read, write = os.pipe()

        def spends_all() -> bool:
            for _ in range(200):
                if units.take():
                    os.write(write, b"+")
            units.close()
            return True

        assert in_child(spends_all)
        assert in_child(spends_all)
        os.close(write)
        with os.fdopen(read, "rb") as reports:
            by_children = len(reports.read())
        by_parent = 31 + sum(bool(units.take()) for _ in range(100))
        units.close()
    assert by_children + by_parent <= 200
    assert by_children + by_parent == used(admin, limit)
    assert by_parent == 31 + 30


@pytest.mark.parametrize("seed", range(6))
def test_jumping_clocks_and_changing_limits_charge_every_unit_first(
    make: Make, admin: redis.Redis, clock: Clock, seed: int
) -> None:
    """Units are spent while clocks jump, the limit changes, and the policy is scaled."""
    chance = random.Random(seed)
    clocks = [FrozenClock() for _ in range(3)]
    policies = make().policies
    policies.set("plan", Fixed(300, "30d"))
    limiters = [make(clock=one) for one in clocks]
    units = [one.units("hot", Policy("plan"), peers=chance.choice([None, 3])) for one in limiters]
    whole = Fixed(400, "30d")
    spent = 0
    for _ in range(400):
        number = chance.randrange(3)
        cost = chance.choice([1, 1, 1, 2, 7])
        action = chance.random()
        if action < 0.1:
            clocks[number].seconds += chance.choice([-30, -1, 0.1, 0.9, 1.5, 60])
        elif action < 0.2:
            clock.advance(chance.choice(["-1h", "-50ms", "200ms", "1h"]))
        elif action < 0.25:
            policies.scale("plan", chance.choice([0.1, 0.5, 1]))
        elif action < 0.3:
            policies.set("plan", Fixed(chance.choice([150, 300, 400]), "30d"))
        elif action < 0.32:
            units[number].close()
        else:
            clocks[number].seconds += 0.003
        spent += cost if units[number].take(cost) else 0
        in_hand = units[number].in_hand
        assert spent + in_hand <= used(admin, whole)
        assert spent <= 400
    for one in units:
        one.close()
    assert spent <= used(admin, whole)
    assert spent > 30


def test_policy_that_gets_force_grants_no_more_than_its_limit(
    make: Make, admin: redis.Redis
) -> None:
    """Units notice FORCE within a second. Until then a denied request grants nothing."""
    limiter = make(clock=FrozenClock())
    limiter.policies.set("plan", Fixed(5, "1h"))
    units = limiter.units("hot", Policy("plan"))
    spent = sum(bool(units.take()) for _ in range(3))
    admin.execute_command("RL.POLICYSET", "plan", "FIXED", 5, "1h", "FORCE")
    spent += sum(bool(units.take()) for _ in range(10))
    assert spent == 5
