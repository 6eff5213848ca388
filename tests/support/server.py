"""Server with the module loaded, for one test or for several."""

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
    """Returns a path of the module without spaces, as CONFIG REWRITE writes it without quotes."""
    if not re.search(r"\s", str(module)):
        return module
    folder = Path(tempfile.mkdtemp(prefix="ratelimit-module-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Keeps the folder names, which distinguish release and debug builds.
    (folder / "target").symlink_to(module.parents[1])
    return folder / "target" / module.parent.name / module.name


MODULE = without_spaces(
    Path(
        os.environ.get("RATELIMIT_MODULE", REPOSITORY / "target/release/libredis_ratelimit.so")
    ).absolute()
)
# Debug build of the module, which has commands for tests.
DEBUG_MODULE = MODULE.parents[1] / "debug" / MODULE.name


# Timeout in seconds for a start, a reply and an end. The long versions of some tests send a million
# leases in one call, while other tests run.
TIMEOUT = scaled(20, 120)


# Longest path of a Unix socket, without the terminating NUL.
LONGEST_SOCKET = 107


class ServerError(Exception):
    """Failed start, or crash, of a server."""


class Server:
    """Server on a port and in a temporary directory of its own, within a `with` block.

    Settings are keyword arguments such as `appendonly="yes"`. They are written to a configuration
    file, so that a restart keeps them and CONFIG REWRITE works. Without `clock` the server has the
    real time. It keeps policies; `policies=False` leaves out the setting that older servers need
    for that. `others` are modules that are loaded in addition to `module`. `timeout` is the limit
    in seconds of a start, a reply and a shutdown.
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
        timeout: float = TIMEOUT,
        **settings: str | int,
    ) -> None:
        self.binary = binary
        self.clock = clock
        self._timeout = timeout
        self._owned = ExitStack()
        # Closes the clients that are created next.
        self._clients = self._owned
        files.allow_many()
        self.port = reserve_port(self._owned)
        self.directory = Path(
            # A forked child that rewrites the AOF may still write a file while the directory is
            # removed.
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
            is_own = module in (MODULE, DEBUG_MODULE)
            if is_own and (reason := freshness.why_stale(module)):
                raise ServerError(reason)
            needs_setting = policies and is_own and binary.saves_empty_aux
            words = [str(module), "policies yes" if needs_setting else "", module_args]
            lines["loadmodule"] = " ".join(filter(None, words))
        configuration = [f"{name} {value}\n" for name, value in lines.items()]
        configuration += [f"loadmodule {other}\n" for other in others]
        (self.directory / "server.conf").write_text("".join(configuration))

    def _defaults(self) -> dict[str, str | int]:
        defaults: dict[str, str | int] = {
            "bind": "127.0.0.1",
            "port": self.port,
            "save": '""',
            **({"unixsocket": self.socket.name} if self._has_socket else {}),
            # The timeout is measured by the wall clock, which stands still or jumps, so it is as
            # long as possible: servers store it in milliseconds in an int.
            "repl-timeout": 2_000_000,
            "repl-diskless-sync-delay": 0,
            "repl-backlog-ttl": 0,
            # A ping would move the replication offset, which tests compare.
            "repl-ping-replica-period": 2_000_000,
            # The background thread of jemalloc sleeps until a time of the wall clock. With a clock
            # behind the real time, it would never sleep and use an entire processor.
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
        """Returns a client that reconnects after a restart. It makes no handshake, and no retries,
        which could charge twice. It is closed with the server, or earlier by `closing_clients`.
        Without `over_tcp` it uses a Unix socket, which takes a tenth less CPU time.
        """
        address: dict[str, Any] = {"host": "127.0.0.1", "port": self.port}
        if self._has_socket and not over_tcp:
            address = {"unix_socket_path": str(self.socket)}
        client = redis.Redis(
            **address,
            db=database,
            protocol=protocol,
            decode_responses=decode_responses,
            socket_timeout=self._timeout,
            retry=Retry(NoBackoff(), 0),
            driver_info=None,
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
        return self._clients.enter_context(client)

    def empty(self) -> None:
        """Deletes all keys and policies, after restarting a server that has ended."""
        if not self.is_running:
            self.start()
        self._admin.flushall()
        # The name of a policy may be invalid UTF-8.
        policies = self._admin.execute_command("RL.POLICYLIST", **{NEVER_DECODE: True})
        if policies:
            self._admin.execute_command("RL.POLICYDEL", *(name for name, *_ in policies))

    @contextmanager
    def closing_clients(self) -> Iterator[None]:
        """Closes the clients that are created within the block."""
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
            poll.until(self._is_ready, "the server is ready", timeout=self._timeout)
        except TimeoutError as error:
            raise ServerError(f"{error}\n{self._log_tail()}") from None

    def _is_ready(self) -> bool:
        self.check()
        try:
            info = self._admin.info()
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        # With another process id, some other server has taken the port.
        return info["process_id"] == self.pid and not info["loading"]

    def module_settings(self) -> dict[str, str]:
        """Returns the settings of the module; empty if the server has no CONFIG for modules."""
        return self._admin.config_get("ratelimit.*") if self.binary.has_module_config else {}

    def check(self) -> None:
        """Raises, with the end of the log, if the server died by itself."""
        if self._process is not None and self._process.poll() is not None:
            status = self._process.returncode
            self._process = None
            raise ServerError(f"{self.binary} ended with status {status}\n{self._log_tail()}")

    def stop(self, how: Literal["nosave", "save", "kill"] = "nosave") -> None:
        """Stops the server by SHUTDOWN NOSAVE, SHUTDOWN SAVE or SIGKILL."""
        self.check()
        if self._process is None:
            return
        if how == "kill":
            self._process.kill()
        else:
            self._admin.shutdown(save=how == "save", nosave=how == "nosave")
        self._process.wait(timeout=self._timeout)
        self._process = None

    def restart(self, how: Literal["nosave", "save", "kill"] = "save") -> None:
        self.stop(how)
        self.start()

    def close(self) -> None:
        """Ends the server and its replicas, and removes their directories. Raises if a server had
        died by itself.
        """
        with self._owned:
            try:
                self.check()
            finally:
                self._end()

    def _end(self) -> None:
        # The data is no longer needed, and SIGTERM would take effect 100 ms later.
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def replica(self, *, clock: Clock | None = None, **settings: str | int) -> "Server":
        """Starts a replica, by default with the clock of this server, and waits until it is in
        sync. It is closed with this server.
        """
        settings = {"replicaof": f"127.0.0.1 {self.port}", **settings}
        replica = Server(self.binary, clock=clock or self.clock, **settings)
        replica._primary = self
        self._owned.enter_context(replica)
        replica.wait_for_sync()
        return replica

    def follow(self, primary: "Server | None") -> None:
        """Makes the server a replica of another, or a primary."""
        if primary is None:
            self._admin.replicaof("NO", "ONE")
        else:
            self._admin.replicaof("127.0.0.1", primary.port)
        self._primary = primary

    def wait_for_sync(self) -> None:
        """Waits until this replica has applied all writes of its primary."""
        primary = self._primary
        if primary is None:
            raise ServerError("not a replica")

        def in_sync() -> bool:
            own_info = self._admin.info("replication")
            primary_info = primary._admin.info("replication")
            return (
                own_info["master_link_status"] == "up"
                and own_info["slave_repl_offset"] == primary_info["master_repl_offset"]
            )

        poll.until(in_sync, "the replica is in sync")

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspends the server for the duration of the block; its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def aof_files(self) -> list[Path]:
        """Returns the files of the AOF, in the order of loading."""
        if self.version < (7,):
            return [self.directory / "appendonly.aof"]
        directory = self.directory / "appendonlydir"
        manifest = (directory / "appendonly.aof.manifest").read_text()
        # Lines such as "file appendonly.aof.1.base.rdb seq 1 type b"; type h is history, about to
        # be deleted.
        rows = [line.split() for line in manifest.splitlines()]
        return [directory / row[1] for row in rows if row[5] != "h"]

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _log_tail(self) -> str:
        return "\n".join(self.log().splitlines()[-150:])
