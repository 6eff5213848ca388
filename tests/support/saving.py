"""Waits for a server's children that write snapshots and AOFs, and restarts from these files."""

from redis import Redis

from support import poll
from support.server import Server


def is_saved(client: Redis) -> bool:
    """Returns `True` if no child is writing a file or is scheduled to. Raises if the last child
    failed.
    """
    info = client.info("persistence")
    children = ("rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled")
    if any(info[name] for name in children):
        # Until the child is done, the status is that of the previous child, which a test may have
        # interrupted.
        return False
    for last in ("rdb_last_bgsave_status", "aof_last_bgrewrite_status"):
        if info[last] != "ok":
            raise OSError(f"{last} is {info[last]}")
    return True


def wait_until_saved(client: Redis) -> None:
    poll.until(lambda: is_saved(client), "no file is being written", timeout=30)


def rewrite_aof(client: Redis) -> None:
    client.bgrewriteaof()
    wait_until_saved(client)


# Restarts


def restart_from_rdb(server: Server) -> None:
    server.restart("save")


def restart_from_aof(server: Server) -> None:
    server.restart("kill")


def restart_from_rewritten_aof(server: Server) -> None:
    with server.client() as client:
        rewrite_aof(client)
    server.restart("kill")


def reload(server: Server) -> None:
    with server.client() as client:
        client.execute_command("DEBUG", "RELOAD")


def load_aof(server: Server) -> None:
    with server.client() as client:
        client.execute_command("DEBUG", "LOADAOF")
