"""Calls over limits on several keys: RL.MTAKE and RL.MPEEK."""

from redis import Redis

# Spec of every algorithm with a limit of 10, which recovers within a minute.
SPECS = {
    "token bucket": "TOKENBUCKET 10 10 10s",
    "leaky bucket": "LEAKYBUCKET 10 10 10s",
    "fixed": "FIXED 10 10s",
    "fixed aligned": "FIXED 10 10s ALIGNED",
    "sliding": "SLIDING 10 10s",
    "sliding strict": "SLIDING 10 10s STRICT",
    "sliding log": "SLIDINGLOG 10 10s",
    "concurrency": "CONCURRENCY 10 10s {key}",
}


def multi(redis: Redis, command: str, specs: dict[str, str]) -> list:
    words = " ".join(spec.format(key=key) for key, spec in specs.items()).split()
    return redis.execute_command(command, len(specs), *specs, *words)


def mtake(redis: Redis, **specs: str) -> list:
    return multi(redis, "RL.MTAKE", specs)


def mpeek(redis: Redis, **specs: str) -> list:
    return multi(redis, "RL.MPEEK", specs)


def take(redis: Redis, key: str, spec: str) -> list[int]:
    return redis.execute_command("RL.TAKE", key, *spec.format(key=key).split())


def state_of(redis: Redis, *keys: str) -> list:
    return pipelined(redis, [(command, key) for key in keys for command in ("DUMP", "PTTL")])


def pipelined(redis: Redis, commands: list[tuple]) -> list:
    pipeline = redis.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return pipeline.execute()


def replication_offset(redis: Redis) -> int:
    return redis.info("replication")["master_repl_offset"]
