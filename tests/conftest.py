"""Real servers for the tests: shared ones, emptied for each test, and fresh ones on demand.

A run is on one kind of server, which $SERVER names; `make test` runs on one after another. All
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

# The ends of the names of the files whose tests take longest.
LONGEST = ("cluster", "failover", "policy_replication", "valgrind", "monitoring")

# An example is many round trips, so its time says nothing; and all of them see one server, so a
# property begins by emptying what it uses.
hypothesis.settings.register_profile(
    "server",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("server")


def pytest_xdist_auto_num_workers() -> int:
    """With --numprocesses auto. Tests wait for servers to start or to sync half of the time, but
    each worker takes seconds of its own to collect them. In CI three runs go on at once.
    """
    processors = len(os.sched_getaffinity(0))
    return processors + 1 if os.environ.get("CI") == "true" else 2 * processors


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with what takes longest, clusters and failovers, so that no worker ends long after the
    others. The tests of a file that share a cluster run in one worker: a cluster for each worker is
    more servers than a small machine gives their turns in time.
    """
    items.sort(key=lambda item: not item.path.stem.endswith(LONGEST))
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_finish() -> None:
    """What is there before the first test stays until the last one, so no collection of garbage
    looks through it again: 200,000 objects, which took an eighth of the CPU time.
    """
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    files.allow_many()
    if config.option.collectonly:
        return  # it takes no server, and no module
    if not MODULE.is_file():
        raise pytest.UsageError(
            f"{MODULE} is missing: run `make build`, or name a module in RATELIMIT_MODULE"
        )
    if told := freshness.why_stale(MODULE):
        raise pytest.UsageError(told)
    try:
        binaries.chosen()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_header() -> str:
    return f"server: {binaries.chosen()}"


@pytest.fixture
def no_file_stays_open() -> Iterator[None]:
    """What a test leaves open, the next thousand do not have."""
    before = files.opened()
    yield
    after = files.opened()
    if len(after) > len(before):
        # It may be held by a cycle, such as a server and its replica.
        gc.collect()
        after = files.opened()
    if len(after) > len(before):
        left = [what for number, what in after.items() if before.get(number) != what]
        pytest.fail(f"{len(after) - len(before)} files stay open; these are new: {left}")


@pytest.fixture(autouse=True)
def clock(no_file_stays_open: None, shared_clock: Clock) -> Clock:  # noqa: ARG001  it goes first
    """The wall clock of all servers, at the same instant at the start of every test."""
    shared_clock.reset()
    return shared_clock


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """For tests that neither restart nor configure it. It is empty, and must survive the test."""
    shared_server.empty()
    with shared_server.closing_clients(), settings_stay([shared_server]):
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
    """A primary and its replica."""

    primary: Server
    replica: Server


@pytest.fixture(scope="session")
def shared_pair(binary: Binary, shared_clock: Clock) -> Iterator[Pair]:
    with Server(binary, clock=shared_clock) as primary:
        yield Pair(primary, primary.replica())


@pytest.fixture
def pair(shared_pair: Pair) -> Iterator[Pair]:
    """As `server`, with a replica in sync; `pair.replica.wait_for_sync()` is for later writes."""
    with emptied(shared_pair):
        yield shared_pair


@contextmanager
def emptied(pair: Pair) -> Iterator[None]:
    """Both are empty and in sync, and must survive what is done with them."""
    if not pair.replica.is_running:
        pair.replica.start()
    pair.primary.empty()
    pair.replica.wait_for_sync()
    with (
        pair.primary.closing_clients(),
        pair.replica.closing_clients(),
        settings_stay([pair.primary, pair.replica]),
    ):
        yield
    pair.primary.check()
    pair.replica.check()


@pytest.fixture
def primary(pair: Pair) -> Redis:
    return pair.primary.client()


@pytest.fixture
def offset(primary: Redis) -> Callable[[], int]:
    """What the primary has propagated so far, in bytes."""
    return lambda: primary.info("replication")["master_repl_offset"]


class SharedCluster:
    """The cluster of all tests of a worker. One that does not get over a test fails the next one,
    and no more: those after it have another cluster.
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
    """A cluster with a clock of its own, which shows the real time."""
    with closing(Clock(clock.library, directory / "clock")) as running:
        running.run()
        with Cluster(binary, running, replicas=replicas) as cluster:
            yield cluster


@pytest.fixture
def cluster(shared_cluster: SharedCluster) -> Iterator[Cluster]:
    """Empty, and well. It has a clock of its own, which shows the real time."""
    cluster = shared_cluster.emptied()
    with cluster.closing_clients(), settings_stay(cluster.servers):
        yield cluster
    cluster.check()


@pytest.fixture
def own_cluster(binary: Binary, clock: Clock, tmp_path: Path) -> Iterator[Cluster]:
    """Three primaries for one test, which does what they do not get over: a Valkey 9.1 that has
    refused a script that crosses slots goes on to refuse the calls of scripts and of modules.
    """
    with running_cluster(binary, clock, tmp_path, replicas=False) as cluster:
        yield cluster


@pytest.fixture
def fresh_server(binary: Binary, clock: Clock) -> Iterator[Callable[..., Server]]:
    """Starts servers for one test: `fresh_server(appendonly="yes")`; the arguments of `Server`."""
    with ExitStack() as started:

        def start(**arguments: object) -> Server:
            return started.enter_context(Server(binary, **{"clock": clock, **arguments}))

        yield start


@pytest.fixture
def fresh(fresh_server: Callable[..., Server]) -> Redis:
    """A client of a server of its own, which has never heard of a policy."""
    return fresh_server().client()


@pytest.fixture(scope="session")
def neighbour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another module, which does what it was told when it hears of an event."""
    return modules.build("neighbour", tmp_path_factory.mktemp("neighbour"))


@pytest.fixture
def queue(server: Server) -> Iterator[Queue]:
    """Those who wait on the shared server."""
    with Queue(server) as queue:
        yield queue


@pytest.fixture
def own_queue(fresh_server: Callable[..., Server]) -> Iterator[Queue]:
    """Of a server that the test may configure, and that has counted nothing yet."""
    with Queue(fresh_server()) as queue:
        yield queue


@contextmanager
def settings_stay(servers: list[Server]) -> Iterator[None]:
    """What a test leaves configured in the module, the next ones on these servers run with."""
    before = [server.module_settings() for server in servers]
    yield
    for server, settings in zip(servers, before, strict=True):
        if server.is_running and server.module_settings() != settings:
            pytest.fail(f"{server.module_settings()} is left of {settings}")
