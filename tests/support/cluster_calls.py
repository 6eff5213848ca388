"""Calls of every command in a cluster, and what its nodes hold."""

from collections import Counter
from collections.abc import Mapping

from redis import RedisCluster

from support.load import used, wide
from support.workload import LIMITERS, Limiter, Word

Call = tuple[Word, ...]


def limiters(limit: int, prefix: str = "") -> dict[str, Limiter]:
    """By key: one of every kind, of which nothing recovers while a test runs."""
    return {f"{prefix}{limiter.name}": wide(limiter, limit) for limiter in LIMITERS}


def usage(client: RedisCluster, limits: Mapping[str, Limiter], limit: int) -> Counter[str]:
    return Counter({key: used(client, limiter, key, limit) for key, limiter in limits.items()})
