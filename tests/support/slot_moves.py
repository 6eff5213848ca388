"""Slots of a cluster that are migrated between primaries."""

from collections.abc import Callable
from typing import Self

from support import poll
from support.cluster import Cluster, slot_of
from support.server import Server, ServerError


class SlotMove:
    """Migration of a key's slot to another primary, within a `with` block. The end of the block
    moves the remaining keys.
    """

    def __init__(self, cluster: Cluster, key: str, target: Server) -> None:
        self._cluster, self.target = cluster, target
        self._slot, self.source = slot_of(key), cluster.owner(key)

    def __enter__(self) -> Self:
        source, target = map(self._cluster.id_of, (self.source, self.target))
        self._set_slot(self.target, "IMPORTING", source)
        self._set_slot(self.source, "MIGRATING", target)
        return self

    def remaining_keys(self, count: int = 100) -> list[str]:
        """Returns up to `count` keys that are not yet moved."""
        admin = self._cluster.admin(self.source)
        return admin.execute_command("CLUSTER GETKEYSINSLOT", self._slot, count)

    def move_keys(self, *keys: str) -> None:
        destination = ("127.0.0.1", self.target.port, "", 0, 20_000)
        self._cluster.admin(self.source).execute_command("MIGRATE", *destination, "KEYS", *keys)

    def __exit__(self, *_: object) -> None:
        while keys := self.remaining_keys():
            self.move_keys(*keys)
        # The target is first, so that the slot always has an owner.
        primaries = self._cluster.primaries()
        for server in sorted(primaries, key=lambda server: server is not self.target):
            self._set_slot(server, "NODE", self._cluster.id_of(self.target))

    def _set_slot(self, server: Server, *words: str) -> None:
        self._cluster.admin(server).execute_command("CLUSTER SETSLOT", self._slot, *words)


def move_atomically(
    cluster: Cluster, key: str, target: Server, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Migrates a slot atomically. On Valkey, `meanwhile` runs while the migration is held, after
    the target got the snapshot. A migration of Redis cannot be held, so `meanwhile` runs before it.
    """
    slot, source = slot_of(key), cluster.owner(key)
    admin = cluster.admin(source)

    def job() -> dict[str, str]:
        # The first row is the latest job: names and values.
        words = admin.execute_command("CLUSTER GETSLOTMIGRATIONS")[0]
        move = dict(zip(words[::2], words[1::2], strict=True))
        if move["state"] in {"failed", "cancelled"}:
            raise ServerError(f"the slot did not move: {move}")
        return move

    def sends_changes() -> bool:
        # In this state a child may still be sending the snapshot.
        forked = admin.info("persistence")["slot_migration_fork_in_progress"]
        return job()["state"] == "waiting-to-pause" and not forked

    def has_moved() -> bool:
        if source.is_valkey:
            job()
        return cluster.is_served_by(target, slot)

    if source.is_valkey:
        admin.execute_command("DEBUG SLOTMIGRATION", "PREVENT-PAUSE", 1)
        try:
            destination = ("SLOTSRANGE", slot, slot, "NODE", cluster.id_of(target))
            admin.execute_command("CLUSTER MIGRATESLOTS", *destination)
            poll.until(sends_changes, "the snapshot is sent", timeout=60)
            meanwhile()
        finally:
            admin.execute_command("DEBUG SLOTMIGRATION", "PREVENT-PAUSE", 0)
    else:
        meanwhile()
        cluster.admin(target).execute_command("CLUSTER MIGRATION", "IMPORT", slot, slot)
    poll.until(has_moved, "the slot has moved", timeout=60)
