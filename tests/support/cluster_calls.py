"""Limiters of every kind for tests of a cluster, and the usage of their keys."""

from collections import Counter
from collections.abc import Mapping

from redis import RedisCluster

from support.load import used, wide
from support.workload import LIMITERS, Limiter, Word

Call = tuple[Word, ...]


def limiters(limit: int, prefix: str = "") -> dict[str, Limiter]:
    """Returns limiters of every kind by key, whose usage does not recover during a test."""
    return {f"{prefix}{limiter.name}": wide(limiter, limit) for limiter in LIMITERS}


def usage(client: RedisCluster, by_key: Mapping[str, Limiter], limit: int) -> Counter[str]:
    return Counter({key: used(client, limiter, key, limit) for key, limiter in by_key.items()})
