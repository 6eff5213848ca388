"""Fixtures of the server tests: shared servers, emptied for each test, and fresh ones on demand.

A run uses one kind of server, which $SERVER names; `make test` runs on one after another. All
servers of a run share one clock, which stands still until a test moves it.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest
from redis import Redis

from support import binaries, files, freshness, modules
from support.binaries import Binary
from support.clock import Clock
from support.cluster import Cluster
from support.server import MODULE, Server
from support.waiting import Queue

pytest_plugins = [
    "support.fixtures",
    "support.monitoring",
    "support.policy_nodes",
    "support.restoring",
]

# Last words in the names of the slowest test files.
SLOWEST_FILES = ("cluster", "failover", "policy_replication", "valgrind", "monitoring")

# A Hypothesis example needs many round trips, so it has no deadline. All examples share a server,
# so a property begins by emptying the keys that it uses.
hypothesis.settings.register_profile(
    "server",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("server")


def pytest_xdist_auto_num_workers() -> int:
    """Returns the number of workers for --numprocesses auto. Tests wait for servers half of the
    time, but each worker takes seconds to collect tests, and `make` has three runs at once.
    """
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the slowest tests first, so that no worker ends long after the others. Tests of a file
    that share a cluster run in one worker, as a cluster for each worker would overload a small
    machine.
    """
    items.sort(key=lambda item: not item.path.stem.endswith(SLOWEST_FILES))
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_finish() -> None:
    """Excludes objects that exist before the first test from garbage collection: scanning these
    200,000 objects took an eighth of the CPU time.
    """
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    files.allow_many()
    if config.option.collectonly:
        return  # needs neither a server nor the module
    if not MODULE.is_file():
        raise pytest.UsageError(
            f"{MODULE} is missing: run `make build`, or name a module in RATELIMIT_MODULE"
        )
    if reason := freshness.why_stale(MODULE):
        raise pytest.UsageError(reason)
    try:
        binaries.chosen()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_header() -> str:
    return f"server: {binaries.chosen()}"


@pytest.fixture
def no_file_stays_open() -> Iterator[None]:
    """Fails a test that leaves a file open, as later tests would run out of descriptors."""
    before = files.open_files()
    yield
    after = files.open_files()
    if len(after) > len(before):
        # A reference cycle, such as a server and its replica, may keep files open until it is
        # collected.
        gc.collect()
        after = files.open_files()
    if len(after) > len(before):
        leaked = [target for number, target in after.items() if before.get(number) != target]
        pytest.fail(f"{len(after) - len(before)} files stay open; these are new: {leaked}")


@pytest.fixture(autouse=True)
def clock(no_file_stays_open: None, shared_clock: Clock) -> Clock:  # noqa: ARG001  is set up first
    """Wall clock of all servers, reset to the same time before every test."""
    shared_clock.reset()
    return shared_clock


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """Shared server for tests that neither restart nor configure it. It is empty, and a test during
    which it crashes fails.
    """
    shared_server.empty()
    with shared_server.closing_clients(), failing_on_changed_settings([shared_server]):
        yield shared_server
    shared_server.check()


@pytest.fixture
def redis(server: Server) -> Iterator[Redis]:
    with server.client() as client:
        yield client


@pytest.fixture
def resp3(server: Server) -> Iterator[Redis]:
    with server.client(protocol=3) as client:
        yield client


class Pair(NamedTuple):
    """Primary and its replica."""

    primary: Server
    replica: Server


@pytest.fixture(scope="session")
def shared_pair(binary: Binary, shared_clock: Clock) -> Iterator[Pair]:
    with Server(binary, clock=shared_clock) as primary:
        yield Pair(primary, primary.replica())


@pytest.fixture
def pair(shared_pair: Pair) -> Iterator[Pair]:
    """Shared primary with a replica in sync; `pair.replica.wait_for_sync()` waits for later
    writes.
    """
    with emptied(shared_pair):
        yield shared_pair


@contextmanager
def emptied(pair: Pair) -> Iterator[None]:
    """Empties both servers, syncs them, and asserts afterwards that they survived."""
    if not pair.replica.is_running:
        pair.replica.start()
    pair.primary.empty()
    pair.replica.wait_for_sync()
    with (
        pair.primary.closing_clients(),
        pair.replica.closing_clients(),
        failing_on_changed_settings([pair.primary, pair.replica]),
    ):
        yield
    pair.primary.check()
    pair.replica.check()


@pytest.fixture
def primary(pair: Pair) -> Redis:
    """Client of the primary in `pair`."""
    return pair.primary.client()


@pytest.fixture
def replication_offset(primary: Redis) -> Callable[[], int]:
    """Returns a function that returns the number of bytes that the primary has propagated."""
    return lambda: primary.info("replication")["master_repl_offset"]


class SharedCluster:
    """Cluster of all tests of a worker. If it does not recover from a test, only the next test
    fails; later tests get a new cluster.
    """

    def __init__(self, start: Callable[[], AbstractContextManager[Cluster]]) -> None:
        self._start = start
        self._running = ExitStack()
        self._cluster: Cluster | None = self._running.enter_context(start())

    def emptied(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self._running.enter_context(self._start())
        try:
            self._cluster.empty()
        except Exception:
            self.close()
            raise
        return self._cluster

    def close(self) -> None:
        self._cluster = None
        self._running.close()


@pytest.fixture(scope="session")
def shared_cluster(
    binary: Binary, shared_clock: Clock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedCluster]:
    def start() -> AbstractContextManager[Cluster]:
        return running_cluster(binary, shared_clock, tmp_path_factory.mktemp("cluster"))

    with closing(SharedCluster(start)) as shared:
        yield shared


@contextmanager
def running_cluster(
    binary: Binary, clock: Clock, directory: Path, *, replicas: bool = True
) -> Iterator[Cluster]:
    """Starts a cluster with a clock of its own, which shows the real time."""
    with closing(Clock(clock.library, directory / "clock")) as real_clock:
        real_clock.run()
        with Cluster(binary, real_clock, replicas=replicas) as cluster:
            yield cluster


@pytest.fixture
def cluster(shared_cluster: SharedCluster) -> Iterator[Cluster]:
    """Shared cluster, empty and healthy. Its clock shows the real time."""
    cluster = shared_cluster.emptied()
    with cluster.closing_clients(), failing_on_changed_settings(cluster.servers):
        yield cluster
    cluster.check()


@pytest.fixture
def own_cluster(binary: Binary, clock: Clock, tmp_path: Path) -> Iterator[Cluster]:
    """Cluster of three primaries for a test that leaves it unusable: after Valkey 9.1 rejected a
    script that crosses slots, it rejects calls of scripts and modules.
    """
    with running_cluster(binary, clock, tmp_path, replicas=False) as cluster:
        yield cluster


@pytest.fixture
def fresh_server(binary: Binary, clock: Clock) -> Iterator[Callable[..., Server]]:
    """Returns a function that starts servers for one test: `fresh_server(appendonly="yes")`, with
    the arguments of `Server`.
    """
    with ExitStack() as started:

        def start(**arguments: object) -> Server:
            return started.enter_context(Server(binary, **{"clock": clock, **arguments}))

        yield start


@pytest.fixture
def fresh_client(fresh_server: Callable[..., Server]) -> Redis:
    """Client of a server for one test."""
    return fresh_server().client()


@pytest.fixture(scope="session")
def neighbour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of another module, which executes a preset command when it receives an event."""
    return modules.build("neighbour", tmp_path_factory.mktemp("neighbour"))


@pytest.fixture
def queue(server: Server) -> Iterator[Queue]:
    """Blocked clients on the shared server."""
    with Queue(server) as queue:
        yield queue


@pytest.fixture
def own_queue(fresh_server: Callable[..., Server]) -> Iterator[Queue]:
    """Blocked clients on a new server, which the test may configure."""
    with Queue(fresh_server()) as queue:
        yield queue


@contextmanager
def failing_on_changed_settings(servers: list[Server]) -> Iterator[None]:
    """Fails a test that leaves a changed setting of the module, which later tests would inherit."""
    before = [server.module_settings() for server in servers]
    yield
    for server, settings in zip(servers, before, strict=True):
        if server.is_running and server.module_settings() != settings:
            pytest.fail(f"the settings were {settings}, and are {server.module_settings()}")
