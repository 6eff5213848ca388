"""Compares the gateway with two services of the same protocol, in one run on one machine: a service
that allows every request without a server, and a service on the crate limitador with its Redis
storage, if it is built. Prints a table, and draws a picture.

The services take turns, because the speed of a machine varies. Decisions per core are divided by
the processor time of the service and its server together.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

import matplotlib as mpl  # noqa: E402

from support import binaries, poll  # noqa: E402
from support.ports import reserve_port  # noqa: E402
from support.server import Server  # noqa: E402

mpl.use("svg")
from matplotlib import pyplot as plt  # noqa: E402

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
NAMES = {
    "ok": "answers OK at once",
    "gateway": "ratelimit-gateway",
    "limitador": "on the crate limitador",
}
COLOURS = {"ok": "#999", "gateway": "#2a6fbb", "limitador": "#c77"}
# Lines of the document between these markers are replaced.
BEGIN, END = "<!-- written by make bench-gateway -->", "<!-- end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--picture", type=Path, default=REPOSITORY / "target/gateway.svg")
    parser.add_argument("--document", type=Path, help="a page whose figures are replaced")
    parser.add_argument("--target", type=Path, default=REPOSITORY / "target")
    arguments = parser.parse_args()
    programs = {
        "ok": arguments.target / "release/gateway-bench",
        "gateway": arguments.target / "release/ratelimit-gateway",
        "limitador": arguments.target / "limitador/release/limitador-bench",
    }
    if not programs["limitador"].exists():
        print(f"continues without limitador: {programs.pop('limitador')} is missing")
    comparison = Comparison(programs, arguments.seconds)
    with ExitStack() as processes:
        comparison.start(processes)
        for _ in range(arguments.rounds):
            for name in programs:
                comparison.measure_peak(name)
        half_peak = comparison.median("gateway", "rate") / 2
        for _ in range(arguments.rounds):
            for name in ("ok", "gateway"):
                comparison.measure_latency(name, half_peak)
    table = comparison.table(half_peak)
    print(table)
    comparison.draw(arguments.picture, half_peak)
    print(f"drawn: {arguments.picture}")
    if document := arguments.document:
        picture = os.path.relpath(arguments.picture, document.parent)
        results = (
            f"{table}\n\n![Answers a second, decisions a core and p99 of each service]({picture})"
        )
        before, _, rest = document.read_text().partition(BEGIN)
        document.write_text(f"{before}{BEGIN}\n{results}\n{END}{rest.partition(END)[2]}")
        print(f"written: {document}")


class Comparison:
    """Running services, and the figures of each."""

    def __init__(self, programs: dict[str, Path], seconds: float) -> None:
        self._programs = programs
        self._seconds = seconds
        self._ports: dict[str, int] = {}
        self._pids: dict[str, list[int]] = {}
        # Measurements by service and figure.
        self._figures: dict[str, dict[str, list[float]]] = {name: {} for name in programs}

    def start(self, processes: ExitStack) -> None:
        binary = binaries.chosen()
        with_server = [name for name in self._programs if name != "ok"]
        servers = {name: processes.enter_context(Server(binary)) for name in with_server}
        limit = ["RL.POLICYSET", "bench|user", "FIXED", 10**9, "1d", "ALIGNED"]
        servers["gateway"].client().execute_command(*limit)
        addresses = {name: f"redis://127.0.0.1:{server.port}" for name, server in servers.items()}
        for name, program in self._programs.items():
            port = reserve_port(processes)
            listen = f"127.0.0.1:{port}"
            http = f"127.0.0.1:{reserve_port(processes)}"
            words = {
                "ok": ["ok", listen],
                "gateway": [
                    *("serve", "--grpc", listen, "--http", http, "--server", addresses.get(name)),
                    *("--timeout", "1s", "--drain", "0s"),
                ],
                "limitador": [listen, addresses.get(name)],
            }[name]
            process = subprocess.Popen([program, *words], stderr=subprocess.DEVNULL)
            processes.callback(process.wait)
            processes.callback(process.terminate)
            self._ports[name] = port
            self._pids[name] = [process.pid, *([servers[name].pid] if name in servers else [])]
            poll.until(lambda name=name: self._answers(name), f"{name} answers", timeout=30)

    def _answers(self, name: str) -> bool:
        with contextlib.suppress(subprocess.CalledProcessError):
            return self._load(name, seconds=0.2)["failed"] == 0
        return False

    def _load(self, name: str, **options: float) -> dict[str, float]:
        words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        target = f"http://127.0.0.1:{self._ports[name]}"
        load = subprocess.run(
            [self._programs["ok"], "load", target, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        return json.loads(load.stdout)

    def _add(self, name: str, **figures: float) -> None:
        for figure, value in figures.items():
            self._figures[name].setdefault(figure, []).append(value)

    def measure_peak(self, name: str) -> None:
        before = processor_seconds(self._pids[name])
        load = self._load(name, seconds=self._seconds)
        after = processor_seconds(self._pids[name])
        assert load["failed"] == 0, load
        service, *server = [end - begin for begin, end in zip(before, after, strict=True)]
        per_core = load["calls"] / (service + sum(server))
        service_us, server_us = (1e6 * each / load["calls"] for each in (service, sum(server)))
        rate = load["rate"]
        self._add(name, rate=rate, per_core=per_core, service_us=service_us, server_us=server_us)

    def measure_latency(self, name: str, rate: float) -> None:
        load = self._load(name, seconds=self._seconds, rate=rate)
        self._add(name, p50=load["p50_us"] / 1000, p99=load["p99_us"] / 1000)

    def median(self, name: str, figure: str) -> float:
        return statistics.median(self._figures[name][figure])

    def table(self, half_peak: float) -> str:
        lines = [
            f"| service | answers a second | decisions a core | p50 | p99 at {half_peak:,.0f}/s |",
            "|---|---|---|---|---|",
        ]
        for name, figures in self._figures.items():
            rate, per_core = (self.median(name, figure) for figure in ("rate", "per_core"))
            p50, p99 = [
                f"{self.median(name, figure):.2f} ms" if figure in figures else ""
                for figure in ("p50", "p99")
            ]
            lines.append(f"| {NAMES[name]} | {rate:,.0f} | {per_core:,.0f} | {p50} | {p99} |")
        ratio = self.median("gateway", "rate") / self.median("ok", "rate")
        difference = self.median("gateway", "p99") - self.median("ok", "p99")
        summary = [
            f"The gateway answers {ratio:.2f} of what the first service does (goal: 0.5).",
            f"Its p99 at half of its peak is {difference:+.2f} ms beside that (goal: at most +2).",
        ]
        if "limitador" in self._figures:
            factor = self.median("gateway", "per_core") / self.median("limitador", "per_core")
            summary.append(
                f"It makes {factor:.2f} times the decisions a core of limitador (goal: 3)."
            )
        service, server = (self.median("gateway", figure) for figure in ("service_us", "server_us"))
        summary.append(
            f"A decision takes {service:.1f} µs of a core in the gateway "
            f"and {server:.1f} µs in its server."
        )
        return "\n".join([*lines, "", " ".join(summary)])

    def draw(self, picture: Path, half_peak: float) -> None:
        figure, axes = plt.subplots(1, 3, figsize=(9, 1.8))
        titles = {
            "rate": "answers a second",
            "per_core": "decisions a core and second",
            "p99": f"p99 at {half_peak:,.0f} a second, ms",
        }
        services = list(self._figures)
        for axis, (figure_name, title) in zip(axes, titles.items(), strict=True):
            values = {
                name: self.median(name, figure_name)
                for name, figures in self._figures.items()
                if figure_name in figures
            }
            bars = axis.barh(
                [NAMES[name] for name in services],
                [values.get(name, 0) for name in services],
                color=[COLOURS[name] for name in services],
            )
            digits = 2 if figure_name == "p99" else 0
            labels = [f"{values[name]:,.{digits}f}" if name in values else "" for name in services]
            axis.bar_label(bars, labels, padding=2, fontsize=8)
            axis.set_title(title, fontsize=9)
            axis.set_xlim(0, max(values.values()) * 1.4)
            axis.invert_yaxis()
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=8)
            if axis is not axes[0]:
                axis.set_yticklabels([])
        figure.tight_layout()
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, metadata={"Date": None})


def processor_seconds(pids: list[int]) -> list[float]:
    """Returns the processor time of each process in seconds."""

    def read(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        user_ticks, system_ticks = int(fields[11]), int(fields[12])
        return (user_ticks + system_ticks) / TICKS_PER_SECOND

    return [read(pid) for pid in pids]


if __name__ == "__main__":
    main()
