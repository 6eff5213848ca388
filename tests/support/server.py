"""A real server with the module loaded, for one test or for all."""

import atexit
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import redis
from redis.backoff import NoBackoff
from redis.client import NEVER_DECODE
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from support import files, freshness, poll
from support.binaries import Binary
from support.clock import Clock
from support.ports import reserve_port
from support.scale import scaled

REPOSITORY = Path(__file__).parents[2]


def without_spaces(module: Path) -> Path:
    """Another way to it, if its own has spaces: CONFIG REWRITE writes it without quotes."""
    if not re.search(r"\s", str(module)):
        return module
    folder = Path(tempfile.mkdtemp(prefix="ratelimit-module-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # With the folders that tell a release build from a debug one.
    (folder / "target").symlink_to(module.parents[1])
    return folder / "target" / module.parent.name / module.name


MODULE = without_spaces(
    Path(
        os.environ.get("RATELIMIT_MODULE", REPOSITORY / "target/release/libredis_ratelimit.so")
    ).absolute()
)
# The module in a debug build, which has commands for tests.
DEBUG_MODULE = MODULE.parents[1] / "debug" / MODULE.name


# Seconds for a start, an answer and an end. The long forms send a million leases in one call, with
# others beside them.
PATIENCE = scaled(20, 120)


# A path of a socket may not be longer, with the NUL behind it.
LONGEST_SOCKET = 107


class ServerError(Exception):
    """The server did not start, or died."""


class Server:
    """A server on a port and in a temporary directory of its own, from `with` to its end.

    Settings are given as keywords, `appendonly="yes"`, and written to a configuration file, so
    that a restart keeps them and CONFIG REWRITE works. Without a clock it has the real time.
    It has policies, for which an older one has to be told; without `policies` it is not told.
    `others` are modules that are loaded beside ours, or without it. `patience` is how many seconds
    it may take to start, to answer and to end.
    """

    def __init__(
        self,
        binary: Binary,
        *,
        clock: Clock | None = None,
        module: Path | None = MODULE,
        module_args: str = "",
        policies: bool = True,
        others: Sequence[Path] = (),
        patience: float = PATIENCE,
        **settings: str | int,
    ) -> None:
        self.binary = binary
        self.clock = clock
        self._patience = patience
        self._owned = ExitStack()
        # Closes the clients that are made next.
        self._clients = self._owned
        files.allow_many()
        self.port = reserve_port(self._owned)
        self.directory = Path(
            # A child of the server that rewrites its AOF may write a last file there meanwhile.
            self._owned.enter_context(
                tempfile.TemporaryDirectory(prefix="ratelimit-", ignore_cleanup_errors=True)
            )
        )
        self._log = self.directory / "server.log"
        self.socket = self.directory / "server.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._primary: Server | None = None
        self._admin = self.client(decode_responses=True)
        lines = {
            **self._defaults(),
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }
        if module is not None:
            own = module in (MODULE, DEBUG_MODULE)
            if own and (told := freshness.why_stale(module)):
                raise ServerError(told)
            told = "policies yes" if policies and own and not binary.saves_no_empty_aux else ""
            lines["loadmodule"] = " ".join(filter(None, (str(module), told, module_args)))
        written = [f"{name} {value}\n" for name, value in lines.items()]
        written += [f"loadmodule {other}\n" for other in others]
        (self.directory / "server.conf").write_text("".join(written))

    def _defaults(self) -> dict[str, str | int]:
        defaults: dict[str, str | int] = {
            "bind": "127.0.0.1",
            "port": self.port,
            "save": '""',
            **({"unixsocket": self.socket.name} if self._has_socket else {}),
            # These are waited for by the wall clock, which stands still or jumps. The timeout is
            # as long as it can be: servers keep it in milliseconds in an int.
            "repl-timeout": 2_000_000,
            "repl-diskless-sync-delay": 0,
            "repl-backlog-ttl": 0,
            # A ping would move the replication offset, by which tests see what was propagated.
            "repl-ping-replica-period": 2_000_000,
            # It sleeps until a time of the wall clock, and so never sleeps under one that is behind
            # the real time: it would take a processor for itself.
            "jemalloc-bg-thread": "no",
        }
        if self.version >= (7,):
            defaults |= {
                "enable-debug-command": "yes",
                "enable-module-command": "yes",
                "shutdown-timeout": 0,
            }
        return defaults

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> tuple[int, ...]:
        return self.binary.version

    @property
    def is_valkey(self) -> bool:
        return self.binary.is_valkey

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerError("not running")
        return self._process.pid

    @property
    def _has_socket(self) -> bool:
        return len(os.fsencode(self.socket)) <= LONGEST_SOCKET

    def client(
        self,
        protocol: Literal[2, 3] = 2,
        *,
        decode_responses: bool = False,
        database: int = 0,
        over_tcp: bool = False,
    ) -> redis.Redis:
        """One that sends what it is told to and no more: no greetings, and no retries, which could
        charge twice. After a restart it connects again by itself. It is closed with the server, if
        not before: `closing_clients`. Unless told to go over TCP it uses a socket of Unix, which
        takes a tenth of the CPU time less.
        """
        where: dict[str, Any] = {"host": "127.0.0.1", "port": self.port}
        if self._has_socket and not over_tcp:
            where = {"unix_socket_path": str(self.socket)}
        client = redis.Redis(
            **where,
            db=database,
            protocol=protocol,
            decode_responses=decode_responses,
            socket_timeout=self._patience,
            retry=Retry(NoBackoff(), 0),
            driver_info=None,
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
        return self._clients.enter_context(client)

    def empty(self) -> None:
        """Deletes all keys and policies, of a server that the test before may have ended."""
        if not self.is_running:
            self.start()
        self._admin.flushall()
        # A name may be bytes that are no text.
        policies = self._admin.execute_command("RL.POLICYLIST", **{NEVER_DECODE: True})
        if policies:
            self._admin.execute_command("RL.POLICYDEL", *(name for name, *_ in policies))

    @contextmanager
    def closing_clients(self) -> Iterator[None]:
        """The clients that are made within are closed at the end, though the server goes on."""
        before = self._clients
        with ExitStack() as clients:
            self._clients = clients
            try:
                yield
            finally:
                self._clients = before

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self.binary.path, "server.conf"],
                cwd=self.directory,
                env=os.environ | (self.clock.environment if self.clock else {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            poll.until(self._is_ready, "the server is ready", timeout=self._patience)
        except TimeoutError as error:
            raise ServerError(f"{error}\n{self._log_tail()}") from None

    def _is_ready(self) -> bool:
        self.check()
        try:
            info = self._admin.info()
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        # Another process id: some other server was faster to take the port.
        return info["process_id"] == self.pid and not info["loading"]

    def module_settings(self) -> dict[str, str]:
        """The settings of the module; none where the server has no CONFIG for modules."""
        return self._admin.config_get("ratelimit.*") if self.binary.has_module_config else {}

    def check(self) -> None:
        """Raises, with the end of the log, if the server died by itself."""
        if self._process is not None and self._process.poll() is not None:
            status = self._process.returncode
            self._process = None
            raise ServerError(f"{self.binary} ended with status {status}\n{self._log_tail()}")

    def stop(self, how: Literal["nosave", "save", "kill"] = "nosave") -> None:
        """By SHUTDOWN NOSAVE, SHUTDOWN SAVE or kill -9."""
        self.check()
        if self._process is None:
            return
        if how == "kill":
            self._process.kill()
        else:
            self._admin.shutdown(save=how == "save", nosave=how == "nosave")
        self._process.wait(timeout=self._patience)
        self._process = None

    def restart(self, how: Literal["nosave", "save", "kill"] = "save") -> None:
        self.stop(how)
        self.start()

    def close(self) -> None:
        """Ends it and its replicas and removes their directories. Raises if one had died."""
        with self._owned:
            try:
                self.check()
            finally:
                self._end()

    def _end(self) -> None:
        # Nobody needs what it holds. Told to end, it would do so at its next turn, 100 ms later.
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def replica(self, *, clock: Clock | None = None, **settings: str | int) -> "Server":
        """Starts a replica, by the same clock unless given another, and waits until it is in sync.
        It lives as long as this server.
        """
        settings = {"replicaof": f"127.0.0.1 {self.port}", **settings}
        replica = Server(self.binary, clock=clock or self.clock, **settings)
        replica._primary = self
        self._owned.enter_context(replica)
        replica.wait_for_sync()
        return replica

    def follow(self, primary: "Server | None") -> None:
        """Makes it a replica of another server, or of none."""
        if primary is None:
            self._admin.replicaof("NO", "ONE")
        else:
            self._admin.replicaof("127.0.0.1", primary.port)
        self._primary = primary

    def wait_for_sync(self) -> None:
        """Returns once this replica has applied all that its primary has written."""
        primary = self._primary
        if primary is None:
            raise ServerError("not a replica")

        def in_sync() -> bool:
            here = self._admin.info("replication")
            there = primary._admin.info("replication")
            return (
                here["master_link_status"] == "up"
                and here["slave_repl_offset"] == there["master_repl_offset"]
            )

        poll.until(in_sync, "the replica is in sync")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It reads nothing and does nothing, but its connections stand."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def aof_files(self) -> list[Path]:
        """The files of the AOF, in the order they are loaded in."""
        if self.version < (7,):
            return [self.directory / "appendonly.aof"]
        directory = self.directory / "appendonlydir"
        manifest = (directory / "appendonly.aof.manifest").read_text()
        # "file appendonly.aof.1.base.rdb seq 1 type b"; h is history, about to be deleted
        rows = [line.split() for line in manifest.splitlines()]
        return [directory / row[1] for row in rows if row[5] != "h"]

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _log_tail(self) -> str:
        return "\n".join(self.log().splitlines()[-150:])
